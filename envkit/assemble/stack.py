"""Packages that share a layer: one sorted archive, each folder once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envkit.assemble.layer import LayerWriter, order
from envkit.assemble.model import Tree
from envkit.ground.errors import IntegrityError


def write_trees(trees: Sequence[Tree], writer: LayerWriter) -> None:
    """Write the trees into one layer. A path that several packages hold is the last one's, as with installers.

    Raises:
        IntegrityError: one package holds a file where another needs a folder, or data is not as promised.
    """
    files = {file.path: file for tree in trees for file in tree.files}
    folders = parents((*files, *(f"{folder}/" for tree in trees for folder in tree.folders)))
    if clash := min(folders & files.keys(), default=None):
        owners = sorted(tree.name for tree in trees if any(file.path == clash for file in tree.files))
        raise IntegrityError(
            f"/{clash} is a file of {', '.join(owners)} and a folder of another package",
            hint=f"leave {owners[0]} or the other package out of the environment",
        )
    for path in sorted(folders | files.keys(), key=order):
        if path in folders:
            writer.add_dir(path)
        else:
            file = files[path]
            writer.add_parts(path, file.parts, size=file.size, executable=file.executable)


def parents(paths: Iterable[str]) -> set[str]:
    """Every folder above the paths; a path that ends in a slash is a folder itself."""
    found: set[str] = set()
    for path in paths:
        above = path.rpartition("/")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition("/")[0]
    return found
