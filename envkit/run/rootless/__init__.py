"""Images without an engine: read from a folder or a file, unpacked once, stacked, and entered through namespaces."""
