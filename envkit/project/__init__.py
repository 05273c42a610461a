"""Make an image definition from a project's own files (requirements, environments, Dockerfiles)."""
