"""What runs inside a training: on its PYTHONPATH, with the standard library alone."""
