"""Render a build plan into the files of a build context, and lint them."""
