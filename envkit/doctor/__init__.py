"""Diagnose a machine, an image, a log or a verify record: findings with evidence and fixes."""
