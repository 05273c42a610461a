"""One conformance suite for every builder and every runner: the same tests, unmodified, for each."""
