"""Comparing two sides by launches: the process launch is what is counted, never the samples inside it."""
