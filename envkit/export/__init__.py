"""Files that make other engines do the work: bake, CI systems, Kubernetes, Slurm, dev containers."""
