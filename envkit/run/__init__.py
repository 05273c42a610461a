"""Runners: run a command in an image and return its output and exit code."""
