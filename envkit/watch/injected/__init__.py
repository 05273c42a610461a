"""Code that runs inside a training, from its PYTHONPATH, with only the standard library."""
