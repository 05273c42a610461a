"""The lock: a build plan's exact artifacts, solved once on the host and installed by every engine."""
