import pytest

from envkit.assemble import conda_package
from envkit.assemble.conda_package import FILE, FOLDER, LINK, Interpreter, Listing, Path, placed
from envkit.ground.errors import IntegrityError, LockError
from tests.support.conda_archives import locked

PYTHON = Interpreter(version="3.11.7", build="h0_0")


def path(name: str, kind: str = FILE) -> Path:
    return Path(path=name, kind=kind, content="abc", size=3)


def listing(*names: str, entry_points: tuple[str, ...] = ()) -> Listing:
    return Listing(paths=tuple(path(name) for name in names), entry_points=entry_points)


def test_a_package_with_binaries_lies_where_its_archive_says() -> None:
    found = placed(locked("zlib"), listing("lib/libz.so", "site-packages/x", "include/z.h"), None)
    assert [one.path for one in found] == ["include/z.h", "lib/libz.so", "site-packages/x"]


def test_a_noarch_python_package_is_placed_for_the_lock_s_python() -> None:
    found = placed(
        locked("tool", noarch="python"),
        listing("site-packages/tool/a.py", "python-scripts/run", "share/x", entry_points=("tool = tool.a : main",)),
        PYTHON,
    )
    assert [(one.path, one.content) for one in found] == [
        ("bin/run", "abc"),
        ("bin/tool", "file tool.a:main"),
        ("lib/python3.11/site-packages/tool/a.py", "abc"),
        ("share/x", "abc"),
    ]


@pytest.mark.parametrize(
    ("build", "folder"),
    [("h123_0", "lib/python3.13"), ("h1_100_cp313", "lib/python3.13"), ("h1_2_cp313t", "lib/python3.13t")],
)
def test_the_free_threaded_build_has_its_own_modules(build: str, folder: str) -> None:
    assert Interpreter(version="3.13.1", build=build).site_packages == f"{folder}/site-packages"


def test_a_noarch_python_package_needs_a_python() -> None:
    with pytest.raises(LockError) as caught:
        placed(locked("tool", noarch="python"), listing(), None)
    assert caught.value.message == "tool is a noarch Python package, and the lock has no python"


@pytest.mark.parametrize(
    "name",
    ["../x", "lib/../../x", "/etc/passwd", "lib//x", "./x", "", "lib/\x1b[2J", "lib\\x", "a\nb"],
)
def test_a_path_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        placed(locked("evil"), listing("lib/a", name), None)
    assert caught.value.message.startswith("the conda package evil 1.0 is refused: ")
    assert caught.value.message.endswith("is not a valid path for a file of a package")
    assert caught.value.exit_code == 10


@pytest.mark.parametrize("name", ["share/.wh.a", ".wh..wh..opq", "share/.wh.d/x", "site-packages/.wh.numpy"])
def test_a_name_that_deletes_what_others_bring_is_refused(name: str) -> None:
    with pytest.raises(IntegrityError, match=r"^the conda package evil 1\.0 is refused: .*begins with \.wh\."):
        placed(locked("evil"), listing("lib/a", name), None)


@pytest.mark.parametrize(
    "name",
    ["conda-meta", *(f"conda-meta/{name}" for name in ("python-3.11.7-0.json", "history", "state", "pinned", "a/b"))],
)
def test_nobody_brings_an_installer_s_records(name: str) -> None:
    with pytest.raises(IntegrityError, match=f"it contains {name}, and only installers may write to conda-meta"):
        placed(locked("evil"), listing(name), None)


def test_a_path_is_in_a_package_once() -> None:
    with pytest.raises(IntegrityError, match=r"it contains 'lib/a' twice"):
        placed(locked("evil"), listing("lib/a", "lib/a"), None)


@pytest.mark.parametrize(
    "text", ["../../x = a:b", "x/y = a:b", "x", "x = a", "x = a:b;import os", "x = a:b\nimport os"]
)
def test_an_entry_point_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(IntegrityError, match="is not an entry point"):
        placed(locked("evil", noarch="python"), listing(entry_points=(text,)), PYTHON)


@pytest.mark.parametrize("text", [".. = a:b", ". = a:b"])
def test_an_entry_point_has_a_name(text: str) -> None:
    with pytest.raises(IntegrityError, match="is not a valid path for a file of a package"):
        placed(locked("evil", noarch="python"), listing(entry_points=(text,)), PYTHON)


def test_only_a_package_s_own_scripts_count() -> None:
    found = placed(locked("a"), listing("bin/.a-post-link.sh", "bin/.b-post-link.sh", "bin/.a-pre-unlink.sh"), None)
    assert conda_package.scripts(locked("a"), found) == ("bin/.a-post-link.sh",)
    assert not conda_package.is_only_scripts(locked("a"), found)


def test_a_package_of_scripts_alone_is_known() -> None:
    found = placed(locked("a"), listing("bin/.a-post-link.sh", "bin/.a-pre-unlink.sh"), None)
    assert conda_package.is_only_scripts(locked("a"), (*found, path("share", FOLDER)))


def test_a_listing_survives_json() -> None:
    before = Listing(paths=(path("a"), path("b", LINK), Path(path="c", kind=FOLDER, content=None, size=0)),
                     entry_points=("x = y:z",))  # fmt: skip
    assert conda_package.from_json(before.to_json()) == before


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"paths": [], "entry_points": None},
        {"paths": [["a", "pipe", None, 0]], "entry_points": []},
        {"paths": [["a", "file", 7, 0]], "entry_points": []},
        {"paths": [["a", "file"]], "entry_points": []},
    ],
)
def test_what_is_no_listing_is_not_taken_for_one(tree: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        conda_package.from_json(tree)
