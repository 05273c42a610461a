"""Read wheels and package indexes to check and extend the facts."""
