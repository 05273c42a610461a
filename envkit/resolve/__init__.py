"""Turn a request and the facts into one compatible combination, or into the reason why there is none."""
