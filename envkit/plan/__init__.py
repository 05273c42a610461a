"""Image definitions, and the build plans made from them."""
