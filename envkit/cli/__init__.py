"""The command line: one command per file. Each module exposes `command` and is imported when it is used."""
