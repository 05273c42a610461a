"""The foundation of all other packages: errors, settings, paths, files, progress, processes."""
