"""What tools say of machines, read into one form."""
