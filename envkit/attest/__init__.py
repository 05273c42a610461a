"""What an image carries to prove itself: packages, provenance, verification, signatures."""
