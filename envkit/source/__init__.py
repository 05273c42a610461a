"""Packages that exist only as source: fetched, built once into wheels in a sandbox, and kept."""
