"""Runners: a command goes into an image, its output and exit code come out."""
