"""Request and facts -> one combination that fits, or the reason why none does."""
