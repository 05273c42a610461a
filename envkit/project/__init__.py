"""A project's own files (requirements, environments, Dockerfiles) as an image definition."""
