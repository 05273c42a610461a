"""What of the user's data goes into a run, and what of it stays out of a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.catalog import catalog
from envkit.ground.errors import EnvironmentProblem, EnvkitError, UsageError
from envkit.ground.progress import Silent
from envkit.image.name import image_name
from envkit.run.model import DATA
from envkit.smoke import user_data as inside
from envkit.verify import driver
from envkit.verify import user_data as module
from envkit.verify.driver import FOLDER, Options, verify_image
from envkit.verify.user_data import UserData, user_data, without_folder
from tests.support.again import assert_same_again
from tests.support.heard import Heard
from tests.support.judging import Load, Replay, document, inspected, observation, plan, printed

PLAN = plan(cuda=None)
SUMMARY: dict[str, Any] = {
    "dataset": None,
    "folder": {"files": 3, "bytes": 5_000_000, "kinds": {".jpg": 3}, "lost": 0, "whole": True},
    "error": None,
    "samples": 3,
    "tried": 3,
    "broken": 0,
    "exceptions": [],
    "ms_per_sample": 1.5,
}


def answer(spec: dict[str, Any]) -> bytes:
    checks = [observation(entry.id, "host", "skip") for entry in catalog()]
    return printed(
        document(*checks, observation("C12.data", "host", observed=SUMMARY), nonce=spec["nonce"]), spec["nonce"]
    )


def given(folder: Path | None, dataset: str | None = None, here: Path | None = None) -> UserData:
    found = user_data(folder, dataset, here or Path("/nowhere"))
    assert found is not None
    return found


def test_both_sides_agree_on_the_lines_for_the_user() -> None:
    assert module.SAYS == inside.SAYS


def test_nothing_asked_is_nothing() -> None:
    assert user_data(None, None, Path("/nowhere")) is None


def test_the_folder_goes_in_as_a_mount_and_its_path_is_in_no_document(tmp_path: Path) -> None:
    folder = tmp_path / "patients"
    folder.mkdir()
    runner = Replay(answer, image=inspected(PLAN))
    argv = ("envkit", "verify", "img", "--data", str(folder))
    record = verify_image(image_name("img"), PLAN, runner, Silent(), Options(argv=argv, data=given(folder)))
    assert runner.limits.data == folder
    assert runner.argv[-2:] == ("--data", DATA)
    assert "patients" not in json.dumps(runner.spec)
    assert b"patients" not in record.to_bytes()
    assert record.tree["run"]["argv"] == ["envkit", "verify", "img", "--data", "DIR"]
    assert record.tree["subject"]["spec"]["data"]["folder"] is True
    assert_same_again(record)


def test_runs_with_and_without_data_are_not_compared(tmp_path: Path) -> None:
    runner = Replay(answer, image=inspected(PLAN))
    prints = [
        verify_image(image_name("img"), PLAN, runner, Silent(), Options(data=data)).tree["env"]["fingerprint"]["policy"]
        for data in (None, given(tmp_path), given(tmp_path, "package:make"))
    ]
    assert len(set(prints)) == 3


def test_what_is_for_the_user_is_noted_and_kept_nowhere(tmp_path: Path) -> None:
    said = f"user data: secret.jpg: OSError: truncated\n{DATA}/secret.jpg\n{tmp_path}/secret.jpg\nplain\n".encode()

    class Telling(Replay):
        def run(self, *args: Any, **options: Any) -> Any:
            for line in said.decode().splitlines():
                options["reporter"].log(line)
            return super().run(*args, **options)

    heard = Heard()
    runner = Telling(answer, image=inspected(PLAN), exit_code=139, stderr=said)
    record = verify_image(image_name("img"), PLAN, runner, heard, Options(data=given(tmp_path)))
    assert "user data: secret.jpg: OSError: truncated" in heard.notes
    assert record.tree["run"]["payload"]["stderr_tail"] == ["plain"]
    assert b"secret" not in record.to_bytes()


def test_the_users_code_and_folder_get_time_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "Pressure", Load)
    runner = Replay(answer, image=inspected(PLAN))
    verify_image(image_name("img"), PLAN, runner, Silent(), Options())
    without = runner.limits.timeout_s
    verify_image(image_name("img"), PLAN, runner, Silent(), Options(data=given(None, "package:make")))
    assert runner.limits.timeout_s == without + module.LIMIT_S
    assert runner.spec["data"]["limit_s"] == module.LIMIT_S
    assert "--data" not in runner.argv


def test_a_module_of_the_working_folder_goes_in_by_archive(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_bytes(b"make = list\n")
    (tmp_path / "other.py").write_bytes(b"")
    runner = Replay(answer, image=inspected(PLAN))
    verify_image(image_name("img"), PLAN, runner, Silent(), Options(data=given(None, "ours:make", tmp_path)))
    assert runner.files[f"{FOLDER}/code/ours.py"] == b"make = list\n"
    assert f"{FOLDER}/code/other.py" not in runner.files
    changed = runner.spec["data"]["code_sha256"]
    (tmp_path / "ours.py").write_bytes(b"make = tuple\n")
    assert given(None, "ours:make", tmp_path).spec["code_sha256"] != changed


def test_a_package_of_the_working_folder_goes_in_with_its_modules(tmp_path: Path) -> None:
    for name in ("__init__.py", "sub/deep.py", "data.bin"):
        (tmp_path / "ours" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ours" / name).write_bytes(b"")
    assert set(given(None, "ours.sub.deep:make", tmp_path).code) == {"ours/__init__.py", "ours/sub/deep.py"}


def test_a_module_that_is_not_here_is_one_of_the_image(tmp_path: Path) -> None:
    found = given(None, "torchvision.datasets:FakeData", tmp_path)
    assert (dict(found.code), found.spec["code_sha256"]) == ({}, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", r"--data: '.*absent' does not exist"),
        ("file", r"--data: '.*file' is not a folder"),
        ("a:b", "has a character that runners cannot mount"),
        ("a,b", "has a character that runners cannot mount"),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in ("a:b", "a,b"):
        (tmp_path / folder).mkdir()
    with pytest.raises(UsageError, match=message) as caught:
        given(tmp_path / name)
    assert caught.value.hint


def test_a_folder_that_cannot_be_reached_is_an_environment_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(EnvironmentProblem, match="cannot be read: Permission denied"):
        given(tmp_path)


def test_an_image_cannot_fill_the_terminal_with_notes(tmp_path: Path) -> None:
    class Flooding(Replay):
        def run(self, *args: Any, **options: Any) -> Any:
            for number in range(100):
                options["reporter"].log(f"user data: {number}")
            return super().run(*args, **options)

    for data, notes in ((given(tmp_path), 20), (None, 0)):
        heard = Heard()
        verify_image(image_name("img"), PLAN, Flooding(answer, image=inspected(PLAN)), heard, Options(data=data))
        assert len([note for note in heard.notes if note.startswith("user data")]) == notes


def test_a_folder_is_mounted_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert given(Path("data/../data")).folder == tmp_path / "data"


@pytest.mark.parametrize("name", ["", "module", ":make", "module:", "a b:make", "../x:make", "module:make()"])
def test_what_names_no_callable_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not MODULE:CALLABLE"):
        given(None, name)


def test_too_much_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours.py").write_bytes(b"#" * 100)
    monkeypatch.setattr(module, "CODE_BYTES", 99)
    with pytest.raises(UsageError, match="have 100 bytes, more than 99"):
        given(None, "ours:make", tmp_path)


def test_code_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ours.py").write_bytes(b"")

    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(EnvironmentProblem, match=r"ours.py cannot be read: Permission denied") as caught:
        given(None, "ours:make", tmp_path)
    assert isinstance(caught.value, EnvkitError)


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("verify", "--data", "/home/a", "-q"), ("verify", "--data", "DIR", "-q")),
        (("verify", "--data=/home/a"), ("verify", "--data=DIR")),
        (("verify", "--dataset", "a:b"), ("verify", "--dataset", "a:b")),
        ((), ()),
    ],
)
def test_a_record_has_the_command_without_the_folder(argv: tuple[str, ...], shown: tuple[str, ...]) -> None:
    assert without_folder(argv) == shown
