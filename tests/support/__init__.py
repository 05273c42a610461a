"""Values and helpers for several test modules."""
