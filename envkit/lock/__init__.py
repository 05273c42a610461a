"""The lock: the exact artifacts of a build plan, solved once on the host and installed by every engine."""
