"""OCI images as values and files: references, documents, layouts, archives, layers."""
