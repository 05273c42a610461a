import io
import tarfile

import pytest

from envkit.assemble.layer import File, LayerWriter, Tree, parents, write_trees
from envkit.ground.errors import IntegrityError


def _tree(name: str, files: dict[str, bytes], folders: tuple[str, ...] = ()) -> Tree:
    return Tree(
        name=name, version="1", folders=folders,
        files=tuple(File(path=path, size=len(data), executable=False, parts=(data,)) for path, data in files.items()),
    )  # fmt: skip


def _written(*trees: Tree) -> dict[str, bytes | None]:
    sink = io.BytesIO()
    with LayerWriter(sink) as writer:
        write_trees(trees, writer)
        writer.close()
    sink.seek(0)
    with tarfile.open(fileobj=sink) as archive:
        streams = {entry.name: archive.extractfile(entry) for entry in archive}
        return {name: stream.read() if stream else None for name, stream in streams.items()}


def test_packages_share_folders_and_the_last_one_wins() -> None:
    one = _tree("one", {"s/ns/__init__.py": b"", "s/ns/a.py": b"a", "s/same.py": b"1"})
    two = _tree("two", {"s/ns/__init__.py": b"", "s/ns/b.py": b"b", "s/same.py": b"2"}, ("s/empty",))
    assert _written(one, two) == {
        "s": None, "s/empty": None, "s/ns": None, "s/ns/__init__.py": b"", "s/ns/a.py": b"a", "s/ns/b.py": b"b",
        "s/same.py": b"2",
    }  # fmt: skip


def test_a_file_of_one_package_is_no_folder_of_another() -> None:
    with pytest.raises(IntegrityError, match="/s/x is a file of one and a folder of another package") as caught:
        _written(_tree("one", {"s/x": b""}), _tree("two", {"s/x/y": b""}))
    assert caught.value.hint == "remove one or the other package from the environment"


def test_parents() -> None:
    assert parents(["a/b/c", "a/d", "e", "f/g/"]) == {"a", "a/b", "f", "f/g"}
