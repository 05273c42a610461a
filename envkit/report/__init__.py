"""One record in, many formats out. Nothing here runs or judges."""
