"""Attestations of an image: SBOM, provenance, verification records and their signatures."""
