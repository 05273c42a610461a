"""Values that several test modules need."""
