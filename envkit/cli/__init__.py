"""The command line: one verb per file. Each module exposes `command` and is imported when its verb is typed."""
