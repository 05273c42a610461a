"""Code shared by builders and runners: engine addresses, output streams, and error messages."""
