"""Attestations of an image: packages, provenance, verification records, signatures."""
