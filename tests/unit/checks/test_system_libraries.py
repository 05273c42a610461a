"""Which library an error message names, and the package of the image's distribution that has it."""

from __future__ import annotations

import re

import pytest

from envkit.checks.system_libraries import advice, debian_packages, missing_library, missing_program

DEBIAN = {"id": "debian", "version": "12", "like": []}
UBUNTU = {"id": "ubuntu", "version": "24.04", "like": ["debian"]}
ROCKY = {"id": "rocky", "version": "9", "like": ["rhel", "centos", "fedora"]}


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("libGL.so.1: cannot open shared object file: No such file or directory", "libGL.so.1"),
        ("libxcb.so.1: cannot open shared object file", "libxcb.so.1"),
        ("cannot load library 'libsndfile.so': libsndfile.so: cannot open shared object file", "libsndfile.so.1"),
        ("sndfile library not found using ctypes.util.find_library", "libsndfile.so.1"),
        ("ctypes.util.find_library() did not manage to locate a library called 'sndfile'", "libsndfile.so.1"),
        ("cannot load library 'libgobject-2.0-0': libgobject-2.0-0: cannot open", "libgobject-2.0.so.0"),
        ('no library called "cairo-2" was found', "libcairo.so.2"),
        ("failed to find libmagic.  Check your installation", "libmagic.so.1"),
        ("PortAudio library not found", "libportaudio.so.2"),
        ("Unable to find zbar shared library", "libzbar.so.0"),
        ("Error loading shared library libpq.so.5: No such file or directory (needed by x.so)", "libpq.so.5"),
        ("libodd-thing.so.3.1: cannot open shared object file", "libodd-thing.so.3.1"),
        ("undefined symbol: _ZN3c105ErrorC2E", None),
        ("No module named 'torch'", None),
        ("the configuration library not found", None),
        ("", None),
    ],
)
def test_the_library_that_a_message_names(text: str, library: str | None) -> None:
    assert missing_library(text) == library


def test_debian_and_ubuntu_get_one_line_for_the_definition() -> None:
    wanted = ["libGL.so.1", "libgthread-2.0.so.0", "libglib-2.0.so.0"]
    for system in (DEBIAN, UBUNTU, {"id": "mint", "like": ["ubuntu", "debian"]}):
        assert advice(wanted, ["git"], system) == ("Add to the definition: apt: [libgl1, libglib2.0-0, git]",)


def test_an_unknown_library_is_looked_up_by_its_name() -> None:
    assert advice(["libodd.so.3"], [], DEBIAN) == ("Find the package of libodd.so.3: apt-file search libodd.so.3",)
    assert advice(["libGL.so.1"], ["git"], ROCKY) == (
        "Add to the definition: rpm: [git]",
        "Find the package of libGL.so.1, and list it under rpm: dnf provides 'libGL.so.1()(64bit)'",
    )
    assert advice(["libGL.so.1"], [], {"id": "void"}) == ("Install the system packages that have libGL.so.1.",)
    assert [advice([], [], system) for system in (DEBIAN, ROCKY, {})] == [(), (), ()]


def test_a_missing_program_is_named() -> None:
    assert missing_program("Failed to initialize: Bad git executable.") == "git"
    assert missing_program("No module named 'git'") is None


def test_the_table_has_sonames_and_names_of_packages() -> None:
    for soname, package in debian_packages().items():
        assert re.fullmatch(r"lib[\w.+-]+\.so(\.\d+)*", soname), soname
        assert re.fullmatch(r"lib[a-z0-9.+-]+", package), package
