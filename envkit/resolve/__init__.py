"""Request and facts -> one compatible combination, or the reason why there is none."""
