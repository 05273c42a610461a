import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.assemble.conda_package import FILE, FOLDER, LINK, Path
from envkit.assemble.layer_plan import overlaps
from envkit.ground.errors import IntegrityError


def file(path: str, content: str | None = "one") -> Path:
    return Path(path=path, kind=FILE, content=content, size=1)


def link(path: str) -> Path:
    return Path(path=path, kind=LINK, content=None, size=0)


def folder(path: str) -> Path:
    return Path(path=path, kind=FOLDER, content=None, size=0)


def test_the_last_of_the_lock_has_a_path_and_it_is_named() -> None:
    found = overlaps([("a", (file("x"),)), ("b", (file("x", "two"), file("y"))), ("c", (file("x"),))])
    assert found.left_out == {"a": {"x"}, "b": {"x"}}
    assert found.clobbered == (("x", ("a", "b", "c")),)


def test_equal_contents_are_no_loss() -> None:
    found = overlaps([("a", (file("x"),)), ("b", (file("x"),))])
    assert found.left_out == {"a": {"x"}}
    assert found.clobbered == ()


def test_what_nothing_is_known_of_is_named() -> None:
    assert overlaps([("a", (link("x"),)), ("b", (link("x"),))]).clobbered == (("x", ("a", "b")),)


def test_folders_are_shared() -> None:
    found = overlaps([("a", (folder("lib"), file("lib/x"))), ("b", (folder("lib"), folder("lib/y")))])
    assert (found.left_out, found.clobbered) == ({}, ())


@pytest.mark.parametrize("other", [file("lib64/evil"), folder("lib64"), folder("lib64/below"), link("lib64/a/b")])
def test_nothing_lies_below_a_link(other: Path) -> None:
    for trees in ([("a", (link("lib64"),)), ("b", (other,))], [("a", (other,)), ("b", (link("lib64"),))]):
        with pytest.raises(IntegrityError, match=r"^lib64 is a symbolic link of the conda package [ab] and a folder"):
            overlaps(trees)


def test_a_file_and_a_folder_clash() -> None:
    with pytest.raises(IntegrityError) as caught:
        overlaps([("a", (file("share/x"),)), ("b", (file("share/x/y"),))])
    assert caught.value.message == "share/x is a file of the conda package a and a folder of b"
    assert caught.value.exit_code == 10


def test_a_package_that_clashes_with_itself_is_named_once() -> None:
    with pytest.raises(IntegrityError) as caught:
        overlaps([("a", (link("x"), file("x/y")))])
    assert caught.value.message == "x is a symbolic link and a folder of the conda package a"
    assert caught.value.hint == "envkit lock --update a takes another build of it"


@given(st.lists(st.sets(st.sampled_from("pqrs")), max_size=5))
def test_every_path_has_exactly_one_owner(held: list[set[str]]) -> None:
    trees = [(str(index), tuple(file(name, str(index)) for name in names)) for index, names in enumerate(held)]
    found = overlaps(trees)
    for path in set().union(*held):
        keeping = [name for name, rows in trees if any(row.path == path for row in rows)
                   and path not in found.left_out.get(name, ())]  # fmt: skip
        assert keeping == [str(max(index for index, names in enumerate(held) if path in names))]
