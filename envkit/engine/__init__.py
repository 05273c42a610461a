"""Shared by builders and runners: addresses of engines, their output, and what their failures mean."""
