"""Run images without an engine: unpack layers, stack them, and start a process in namespaces or under proot."""
