import itertools
from pathlib import Path

from envkit.assemble.layer import File, Slice, Tree
from envkit.assemble.layer_plan import clobbered, report_clobbered
from envkit.assemble.wheel import Scheme, open_wheel
from envkit.assemble.wheels import contents
from tests.support.heard import Heard
from tests.support.wheels import wheel_entries, write_wheel


def _file(path: str, *parts: bytes | Slice, executable: bool = False) -> File:
    size = sum(len(part) if isinstance(part, bytes) else part.size for part in parts)
    return File(path=path, size=size, executable=executable, parts=parts)


def _tree(*files: File) -> Tree:
    return Tree(name="x", version="1", files=files, folders=())


def test_only_different_contents_count() -> None:
    one = {"s/same": "1 a", "s/other": "1 a", "s/own": "1 a"}
    two = {"s/same": "1 a", "s/other": "1 b"}
    assert clobbered([("one", one), ("two", two)]) == ((("one", "two"), ("s/other",)),)
    assert clobbered([("two", two), ("one", one)]) == ((("two", "one"), ("s/other",)),)
    assert clobbered([("one", one)]) == ()


def test_what_is_not_known_is_different() -> None:
    assert clobbered([("a", {"x": None}), ("b", {"x": "1 a"})]) == ((("a", "b"), ("x",)),)
    assert clobbered([("a", {"x": None}), ("b", {"x": None})]) == ((("a", "b"), ("x",)),)


def test_contents_tell_bytes_mode_and_length_apart() -> None:
    rows = [_file("p", b"ab"), _file("p", b"ba"), _file("p", b"ab", executable=True), _file("p", b"a", b"b"),
            _file("p")]  # fmt: skip
    texts = [contents(_tree(row))["p"] for row in rows]
    assert len(set(texts)) == len(texts)


def test_a_wheel_s_entry_and_the_same_bytes_are_told_by_the_promise_of_the_zip(tmp_path: Path) -> None:
    listings = []
    for name in ("one", "two"):
        path = write_wheel(tmp_path, wheel_entries({"shared/a.py": b"same", f"{name}.py": name.encode()}, name=name),
                           name=name)  # fmt: skip
        with open_wheel(path, Scheme(python="3.11")) as tree:
            listings.append((name, contents(tree)))
    assert clobbered(listings) == ()


def test_pairs_are_named_once_with_the_first_path_and_how_many_more() -> None:
    heard = Heard()
    one = {"opt/env/b": "1", "opt/env/a": "1", "opt/env/c": "1"}
    report_clobbered([("one 1.0", one), ("two 2.0", dict.fromkeys(one, "2")), ("three 3", {"opt/env/c": "3"})], heard)
    assert heard.notes == [
        "one 1.0 and two 2.0 both contain /opt/env/a and 1 more file; the image has the files of two 2.0",
        "one 1.0 and two 2.0 and three 3 all contain /opt/env/c; the image has the file of three 3",
    ]


def test_a_long_list_ends() -> None:
    heard = Heard()
    pairs = list(itertools.product(range(8), range(8)))
    many = [(f"p{at}", {f"{at}-{to}": "p" for to in range(8)}) for at in range(8)]
    report_clobbered([*many, *((f"q{at}-{to}", {f"{at}-{to}": "q"}) for at, to in pairs)], heard)
    assert len(heard.notes) == 21
    assert heard.notes[-1] == "44 more groups of packages contain the same files"
