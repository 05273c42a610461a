"""Files for other systems: bake, CI systems, Kubernetes, Slurm, dev containers."""
