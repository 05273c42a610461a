"""The names that envkit gives itself. None of them belongs to a domain, so none needs an owner."""

from __future__ import annotations

LABEL_PREFIX = "envkit"
"""Prefix of the labels of images and containers, of properties in an SBOM, and of annotations in Kubernetes."""

DISTRIBUTION = "envkit-gpu"
"""Name on the Python index. `envkit` is another project's there. This name is free, and nothing is published yet."""

FILE_STEM = DISTRIBUTION.replace("-", "_")
"""The name in the names of files: `envkit_gpu-0.2.0-py3-none-any.whl`."""
