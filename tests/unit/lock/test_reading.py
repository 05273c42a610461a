"""A lock is complete or it is refused: every field of a real one is taken away and altered in turn."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from envkit.ground.errors import EnvkitError, IntegrityError, UsageError
from envkit.lock.reading import lock_from_json
from envkit.lock.store import to_text
from tests.unit.lock.samples import bootstrapped, from_source, lock

TREES = {
    name: json.loads(to_text(found))
    for name, found in (("registry", lock()), ("bootstrap", bootstrapped()), ("source", from_source()))
}
Path = tuple[str | int, ...]


def _places(tree: Any, path: Path = ()) -> Iterator[Path]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield (*path, key)
            if key != "request":
                yield from _places(value, (*path, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from _places(value, (*path, number))


def _holder(tree: Any, path: Path) -> Any:
    for key in path[:-1]:
        tree = tree[key]
    return tree


CASES = [(name, path) for name, tree in TREES.items() for path in _places(tree) if isinstance(path[-1], str)]


@pytest.mark.parametrize(("name", "path"), CASES, ids=str)
def test_no_field_can_be_left_out(name: str, path: Path) -> None:
    tree = copy.deepcopy(TREES[name])
    del _holder(tree, path)[path[-1]]
    with pytest.raises(EnvkitError) as caught:
        lock_from_json(tree, "envkit.lock")
    assert caught.value.exit_code == (10 if path[-1] == "sha256" else 2)
    assert "schema" in caught.value.message or "missing" in caught.value.message
    assert str(path[-1]) in caught.value.message


@pytest.mark.parametrize("wrong", [7, True, {"a": 1}, [[1]], "\x1b[31m", -1, 1.5], ids=repr)
def test_no_field_takes_a_value_of_another_kind(wrong: object) -> None:
    cases = [case for case in CASES if not (case[1][-1] == "size" and wrong == 7)]
    said = {(name, path): _refusal(_changed(path, wrong, name)) for name, path in cases}
    assert not [case for case, text in said.items() if text is None or "\x1b" in text]


def _refusal(tree: Any) -> str | None:
    """Return why a lock is refused, None if it is taken."""
    try:
        lock_from_json(tree, "envkit.lock")
    except (UsageError, IntegrityError) as error:
        return error.message
    return None


@pytest.mark.parametrize(("name", "path"), [case for case in CASES if len(case[1]) > 1], ids=str)
def test_no_field_can_be_added(name: str, path: Path) -> None:
    tree = copy.deepcopy(TREES[name])
    _holder(tree, path)["extra"] = {}
    with pytest.raises(UsageError, match=r"extra"):
        lock_from_json(tree, "envkit.lock")


def _changed(path: Path, value: object, name: str = "registry") -> Any:
    tree = copy.deepcopy(TREES[name])
    _holder(tree, path)[path[-1]] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value", "kind", "message"),
    [
        (
            ("conda", 0, "sha256"),
            None,
            IntegrityError,
            r"conda\[0\] \(numpy\)\.sha256: missing: the bytes cannot be verified",
        ),
        (("wheels", 1, "sha256"), "", IntegrityError, r"wheels\[1\] \(torch\)\.sha256: missing"),
        (("conda", 0, "sha256"), "0" * 32, IntegrityError, "is an MD5; a lock accepts SHA-256 only"),
        (("wheels", 0, "sha256"), "md5:" + "0" * 32, IntegrityError, "is an MD5"),
        (("wheels", 0, "sha256"), "A" * 64, IntegrityError, "not 64 hex digits"),
        (("conda", 0, "size"), 0, UsageError, r"conda\[0\] \(numpy\)\.size: 0 is not a size in bytes"),
        (("platform",), "win-64", UsageError, "platform: 'win-64' is not one of linux-64, linux-aarch64"),
        (("platform",), "linux-aarch64", UsageError, r"conda\[0\] \(numpy\)\.subdir: linux-64 is not linux-aarch64"),
        (("conda", 0, "subdir"), "osx-64", UsageError, "osx-64 is not linux-64"),
        (("conda", 0, "url"), "https://conda.anaconda.org/x/linux-64/numpy-2.conda", UsageError, "another package"),
        (("conda", 0, "url"), "https://me:pw@conda.example.com/a.conda", UsageError, "contains a login or a token"),
        (("conda", 0, "url"), "https://conda.example.com/t/abc/x/a.conda", UsageError, "contains a login or a token"),
        (("wheels", 0, "url"), "http://files.example.com/a.whl", UsageError, "is plain http"),
        (("conda", 0, "url"), "https://[x/y.conda", UsageError, "not an http or https URL"),
        (("wheels", 0, "url"), "https://[::1/y.whl", UsageError, "not an http or https URL"),
        (("conda", 0, "url"), "https://[v1.x]:99999999/y.conda", UsageError, "conda\\[0\\]"),
        (("wheels", 0, "url"), "file:///etc/passwd", UsageError, "not an http or https URL"),
        (("wheels", 0, "url"), "https://files.example.com/a?token=1", UsageError, "not an http or https URL"),
        (("wheels", 0, "url"), "https://files.example.com/other.whl", UsageError, "does not end with filelock-4.2.11"),
        (("wheels", 0, "file"), "../x-1-py3-none-any.whl", UsageError, "not a wheel file name"),
        (("wheels", 0, "name"), "zzz", UsageError, "wheels: not sorted by name"),
        (("conda", 1, "name"), "numpy", UsageError, "numpy is listed twice"),
        (("as_of",), "2026-06-01", UsageError, "not a time like"),
        (("base", "digest"), None, UsageError, "pinned by digest"),
        (("base", "digest"), "sha256:abc", UsageError, "sha256: and 64 hex digits"),
        (("plan",), "sha512:0", UsageError, "plan: 'sha512:0' is not"),
        (("request",), {"pip": [1]}, UsageError, "request.pip: neither a string nor a list of strings"),
    ],
)
def test_each_fault_is_named_with_its_place(path: Path, value: object, kind: type[EnvkitError], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        lock_from_json(_changed(path, value), "envkit.lock")
    assert caught.value.message.startswith("envkit.lock: ")
    assert caught.value.hint == "envkit lock writes a new one"


def test_a_wheel_for_another_machine_is_refused() -> None:
    tree = copy.deepcopy(TREES["registry"])
    file = "torch-2.7.1-cp311-cp311-manylinux_2_28_aarch64.whl"
    tree["wheels"][1] |= {"version": "2.7.1", "file": file, "url": f"https://files.example.com/{file}"}
    with pytest.raises(UsageError, match=f"{file} is not for linux-64"):
        lock_from_json(tree, "envkit.lock")


@pytest.mark.parametrize("change", [{"name": "torchaudio"}, {"version": "2.7.2+cu126"}, {"version": "2.7.1"}])
def test_a_wheel_s_file_names_its_package_and_version(change: dict[str, str]) -> None:
    tree = copy.deepcopy(TREES["registry"])
    tree["wheels"][1] |= change
    with pytest.raises(UsageError, match=r"torch-2\.7\.1\+cu126-py3-none-any\.whl is not torch"):
        lock_from_json(tree, "envkit.lock")


def test_a_changed_row_breaks_the_seal() -> None:
    tree = _changed(("wheels", 1, "sha256"), "0" * 64)
    with pytest.raises(
        IntegrityError, match=r"^envkit\.lock was modified after it was written: its seal is sha256:"
    ) as caught:
        lock_from_json(tree, "envkit.lock")
    assert caught.value.exit_code == 10
    assert caught.value.hint == "restore it from version control, or run envkit lock"


def test_a_lock_of_another_schema_is_refused_with_what_writes_a_new_one() -> None:
    tree = copy.deepcopy(TREES["registry"])
    tree["schema"] = "envkit.lock/1"
    with pytest.raises(UsageError, match=r"schema: 'envkit\.lock/1' is not envkit\.lock/2") as caught:
        lock_from_json(tree, "envkit.lock")
    assert "envkit lock" in str(caught.value.hint)


def test_a_bootstrapped_base_needs_its_packages() -> None:
    with pytest.raises(UsageError, match="a bootstrapped base needs a suite and packages"):
        lock_from_json(_changed(("base", "packages"), [], "bootstrap"), "envkit.lock")


def test_all_faults_come_at_once_and_those_of_form_first() -> None:
    tree = _changed(("conda", 0, "sha256"), None)
    tree["wheels"][0]["size"] = "large"
    tree["platform"] = 1
    with pytest.raises(UsageError) as caught:
        lock_from_json(tree, "x")
    told = [caught.value.message, *caught.value.details]
    assert len(told) == 3
    assert told[-1].startswith("x: conda[0] (numpy).sha256")
