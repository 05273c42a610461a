"""Image definitions and the build plan they become."""
