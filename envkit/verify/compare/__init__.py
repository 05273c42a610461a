"""Comparison of two sides. The unit is a process launch, never a sample within one."""
