"""OCI images as values and bytes, their files, and the registries that keep them."""
