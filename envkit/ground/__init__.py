"""What every part of envkit stands on: errors, settings, paths, files, progress, processes."""
