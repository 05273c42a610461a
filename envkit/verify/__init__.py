"""Run the payload in an image, and judge its observations outside with pure functions."""
