"""The fewest images that serve a set of machines."""
