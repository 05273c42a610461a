"""One suite for every `Builder`, the embedded engine included: the same plans and locks, the same demands."""
