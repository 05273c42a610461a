"""Diagnosis of an image, without running it."""
