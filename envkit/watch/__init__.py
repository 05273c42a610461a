"""Observe a training and say what holds it back."""
