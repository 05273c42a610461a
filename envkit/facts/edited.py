"""Read the YAML tables that people edit (`envkit/facts/data/`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError

DATA = Path(__file__).parent / "data"
NAMES = (
    "base_images",
    "companions",
    "conda_installers",
    "cuda_drivers",
    "cudnn_cuda",
    "docker_tag_list",
    "docker_tags",
    "gpu_arch",
    "oses",
    "package_needs",
    "pythons",
    "sources",
    "torch_cuda_variants",
    "torch_releases",
    "traps",
)


@cache
def read(name: str) -> dict[str, Any]:
    """Return an edited table as a tree; every scalar is text, true, false or null.

    Raises:
        UsageError: the file is not strict YAML or is not a table of schema 1.
    """
    path = DATA / f"{name}.yaml"
    tree = strictyaml.read_file(path)
    if not isinstance(tree, dict) or tree.get("schema") != "1":
        raise UsageError(f"{path}: schema: 1 is missing", hint="begin the file with 'schema: 1'")
    return tree


@contextmanager
def reading_from(folder: Path) -> Iterator[None]:
    """Read the tables from another folder inside the `with`, to check tables before they are written."""
    global DATA  # noqa: PLW0603 - every reader of the tables goes through this module
    before = DATA
    DATA = folder
    read.cache_clear()
    try:
        yield
    finally:
        DATA = before
        read.cache_clear()


def rows(name: str) -> list[dict[str, Any]]:
    """Return the `rows` of an edited table."""
    table_rows = read(name)["rows"]
    assert isinstance(table_rows, list)
    return table_rows
