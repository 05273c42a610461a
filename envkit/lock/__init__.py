"""The lock: a build plan's exact artefacts, solved once on the host and installed by every engine."""
