"""Choose compatible versions, build GPU images and verify them."""

__version__ = "0.2.0"
