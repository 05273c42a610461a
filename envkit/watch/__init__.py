"""Observe a training and find what holds it back."""
