"""`envkit matrix update` and `matrix check --online` against an index on loopback, with tables of their own."""

import errno
import hashlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.facts_restore import DOCUMENTS, fields_that_differ, without
from envkit.cli.main import run
from envkit.facts import edited, evidence, load, snapshot
from envkit.ground import strictyaml
from tests.evidence.conftest import Index
from tests.evidence.faults import documented, refused
from tests.support.torch_wheels import REQUIRES, fat_library, release
from tests.support.wheels import Raw, raw_zip

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def matrix(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["matrix", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tables and of the snapshot, without torch 2.15.0 from the Python index."""
    folder = tmp_path_factory.mktemp("older") / "facts" / "data"
    shutil.copytree(edited.DATA, folder)
    for name in ("builds", "releases"):
        path = folder / "evidence" / f"{name}.jsonl"
        path.write_text("".join(row for row in path.read_text().splitlines(keepends=True) if '"2.15.0' not in row))
    for name in ("torch_releases", "torch_cuda_variants"):
        path = folder / f"{name}.yaml"
        path.write_text(without(path.read_text(), "2.15.0"))
    with edited.reading_from(folder):
        (folder.parent / "snapshot.json").write_text(snapshot.text(snapshot.tree()))
    return folder.parent


@pytest.fixture
def tables(older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the older tables that envkit uses."""
    shutil.copytree(older, tmp_path / "facts")
    folder = tmp_path / "facts" / "data"
    monkeypatch.setattr(edited, "DATA", folder)
    again()
    made = folder.parent / "snapshot.json"
    monkeypatch.setattr(snapshot, "PATH", made)
    monkeypatch.setattr(load, "SNAPSHOT", made)
    return folder


def again() -> None:
    """Read the tables again, as another process does."""
    edited.read.cache_clear()
    evidence._read.cache_clear()


@pytest.fixture(autouse=True)
def _read_again() -> Any:
    yield
    again()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.parent.rglob("*")) if path.is_file()}


def test_a_removed_release_is_restored(index: Index, tables: Path, matrix: Command) -> None:
    shipped = Path(snapshot.__file__).parent / "data"
    code, _, err = matrix("update", "--write")
    assert code == 0, err
    assert "torch 2.15.0; written: torch_releases.yaml, torch_cuda_variants.yaml" in err
    old, new = ((folder / "torch_releases.yaml").read_text() for folder in (shipped, tables))
    # The small wheels have no free-threaded Pythons, no cuda-toolkit and no sizes.
    assert set(fields_that_differ(old, new)) <= DOCUMENTS | {
        "pythons",
        "cuda_runtime",
        "version",
        "wheel_size",
        "pulled_size",
    }
    assert len(index.site.seen) < 60


@pytest.mark.usefixtures("index", "tables")
def test_what_was_written_is_sound_and_has_evidence(matrix: Command) -> None:
    matrix("update", "--write")
    again()
    code, out, _ = matrix("check")
    assert (code, out.startswith("clean")) == (0, True), out
    code, out, _ = matrix("show", "2.15.0", "-v")
    assert (code, "proved" in out) == (0, True)


@pytest.mark.usefixtures("index")
def test_without_write_nothing_changes(tables: Path, matrix: Command) -> None:
    before = contents(tables)
    code, out, _ = matrix("update")
    assert (code, "+  - torch: 2.15.0" in out) == (0, True)
    assert contents(tables) == before


@pytest.mark.usefixtures("index")
def test_written_tables_have_the_next_version(tables: Path, matrix: Command) -> None:
    before = load.load().version
    matrix("update", "--write")
    assert snapshot.version_of((tables / "torch_releases.yaml").read_text()) == before + 1
    assert load.load().version == before + 1


@pytest.mark.usefixtures("index")
def test_newer_tables_are_not_overwritten(tables: Path, matrix: Command) -> None:
    """The tables were changed after the snapshot was made, as after a merge."""
    head = tables / "torch_releases.yaml"
    head.write_text(snapshot.with_version(head.read_text(), 99))
    before = contents(tables)
    code, out, err = matrix("update", "--write")
    assert (code, out, contents(tables)) == (2, "", before)
    assert "has version 99 of the facts, but this update is based on version" in err
    assert "hint: python -m envkit.facts.snapshot" in err


def test_tables_that_another_update_wrote_meanwhile_stay(index: Index, tables: Path, matrix: Command) -> None:
    """The other one writes while this one reads wheels."""
    head = tables / "torch_releases.yaml"
    index.before["x86_64.whl"] = lambda: head.write_text(snapshot.with_version(head.read_text(), 99))
    code, _, err = matrix("update", "--write")
    assert (code, "has version 99 of the facts" in err) == (2, True)
    assert "2.15.0" not in head.read_text()


@pytest.mark.usefixtures("index", "tables")
def test_an_overlay_of_newer_facts_is_not_overwritten(matrix: Command) -> None:
    Path("new.yaml").write_text("schema: 1\nfacts_version: '99'\n")
    code, _, err = matrix("update", "--into", "new.yaml")
    assert (code, "new.yaml was made with version 99 of the facts" in err) == (2, True)
    assert Path("new.yaml").read_text() == "schema: 1\nfacts_version: '99'\n"


@pytest.mark.long
@pytest.mark.usefixtures("tables")
def test_a_second_run_has_nothing_to_do(index: Index, matrix: Command) -> None:
    matrix("update", "--write")
    again()
    before = len(index.site.seen)
    code, out, err = matrix("update")
    assert (code, out, len(index.site.seen) - before) == (0, "", 2)  # the lists of torch and of cuda-toolkit
    assert "no new release; would change: nothing changes" in err


def test_a_companion_for_any_python_keeps_its_pythons(index: Index, tables: Path, matrix: Command) -> None:
    """torchvision 0.29.2 has one wheel per platform, for any Python: also for those that this torch does not have."""

    def pythons() -> list[str]:
        rows = rows_of(tables, "companions")
        return list(next(row for row in rows if row["version"] == "0.29.2")["linux-64"]["pythons"])

    before = pythons()
    wheels = release()
    vision = [replace(one, python="py3") for one in wheels if one.name == "torchvision" and one.python == "cp311"]
    index.put([*(one for one in wheels if one.name != "torchvision"), *vision])
    code, _, err = matrix("update", "--write")
    assert (code, pythons()) == (0, before), err
    assert "3.10" in before  # torch 2.15.0 has no wheel for it


@pytest.mark.usefixtures("index", "tables")
def test_a_new_release_is_resolved_on_its_first_day(matrix: Command, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = matrix("update", "--into", "new.yaml")
    assert (code, "new.yaml written" in err) == (0, True)
    assert run(["resolve", "--torch", "2.15.0", "--facts", "new.yaml", "--source", "pypi", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cuda"] == "13.2"


@pytest.mark.usefixtures("index")
def test_an_overlay_without_a_new_release_is_not_written(matrix: Command) -> None:
    """A daily job ends well on a day without a release."""
    code, _, err = matrix("update", "--into", "new.yaml")
    assert (code, "no new release; new.yaml not written" in err, Path("new.yaml").exists()) == (0, True, False)


@pytest.mark.usefixtures("tables")
def test_what_no_file_says_is_asked(index: Index, matrix: Command) -> None:
    """No torchvision accepts this torch yet."""
    wheels = [replace(one, requires=("torch==9.9",)) if one.name == "torchvision" else one for one in release()]
    index.put(wheels)
    code, out, _ = matrix("update")
    assert (code, "torchvision: null  # ask: which torchvision goes with torch 2.15.0?" in out) == (0, True)


@pytest.mark.usefixtures("index")
def test_other_cuda_variants_are_proposed_with_questions(tables: Path, matrix: Command) -> None:
    """The table of the wheel has flags for CUDA 12.6; that such a wheel was published, nothing says."""
    code, out, err = matrix("update", "--write", "--json")
    assert code == 0, err
    row = next(
        row for row in rows_of(tables, "torch_cuda_variants") if (row["torch"], row["cuda"]) == ("2.15.0", "12.6")
    )
    assert (row["arch"], row["arch_aarch64"], row["files"], row["cudnn"]) == (
        ["5.0", "9.0"],
        ["8.0", "9.0"],
        None,
        None,
    )
    assert "which NCCL does torch 2.15.0+cu126 require?" in json.loads(out)["asked"]
    again()
    # The row is sound, and no build is made of it until somebody answers.
    assert matrix("check")[0] == 0
    assert not [one for one in load.load().builds if (one.torch, one.cuda) == ("2.15.0", "12.6")]
    code, out, _ = matrix("update", "--torch", "2.15.0")
    assert (code, out) == (0, "")


@pytest.mark.usefixtures("tables")
def test_new_toolkits_of_the_index_are_proposed(index: Index, matrix: Command) -> None:
    wheels = [small(f"cuda_toolkit-{version}") for version in ("10.0.130", "13.5.0", "13.6.0rc1", "13.6.1.0", "13.7.0")]
    serve(index, "cuda-toolkit", wheels)
    code, out, _ = matrix("update")
    new = [line.partition(": ")[2] for line in out.splitlines() if line.startswith("+  - toolkit")]
    assert (code, new) == (0, ["13.7.0", "13.6.1"])
    assert "+    linux_min: null  # ask: which driver do the release notes of CUDA 13.7.0 name for Linux?" in out


def test_a_new_cudnn_is_proposed_from_its_machine_code(index: Index, tables: Path, matrix: Command) -> None:
    code = {"nvidia/cudnn/lib/libcudnn_cnn.so.9": fat_library("sm_80 sm_90 compute_90")}
    serve(index, "nvidia-cudnn-cu13", [small("nvidia_cudnn_cu13-9.99.0.1", code)])
    index.put(release(requires=[one.replace("9.26.0.51", "9.99.0.1") for one in REQUIRES]))
    matrix("update", "--write")
    row = rows_of(tables, "cudnn_cuda")[-1]
    assert (row["cudnn"], row["cuda_major"], row["capabilities"]) == ("9.99.0", "13", ["8.0+"])
    assert row["linux_min_driver"] is None
    again()
    assert [(one.row, one.grade) for one in evidence.read("cudnns") if "9.99" in one.row] == [("9.99.0 13 -", "proved")]
    assert matrix("check")[0] == 0


@pytest.mark.usefixtures("index", "tables")
def test_an_index_without_other_lists_says_so(matrix: Command) -> None:
    code, _, err = matrix("update")
    assert (code, "cuda-toolkit/ answers 404; no row is proposed from it" in err) == (0, True), err


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    tree = strictyaml.read((folder / f"{table}.yaml").read_text(), table)
    assert isinstance(tree, dict)
    found: list[dict[str, Any]] = tree["rows"]
    return found


def small(name: str, members: dict[str, bytes] | None = None) -> tuple[str, bytes]:
    """A wheel with little more than METADATA."""
    package, _, version = name.partition("-")
    text = f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: {version}\n\n".encode()
    data = {f"{name}.dist-info/METADATA": text, **(members or {})}
    return f"{name}-py3-none-manylinux_2_27_x86_64.whl", raw_zip([Raw(name=at, data=had) for at, had in data.items()])


def serve(index: Index, package: str, wheels: list[tuple[str, bytes]]) -> None:
    """Put the wheels of a package on the index."""
    rows = [
        {"filename": name, "url": f"../files/{name}", "size": len(data), "upload-time": "2026-11-20T00:00:00Z",
         "hashes": {"sha256": hashlib.sha256(data).hexdigest()}}
        for name, data in wheels
    ]  # fmt: skip
    index.site.put(
        f"/simple/{package}/", json.dumps({"meta": {"api-version": "1.1"}, "name": package, "files": rows}).encode(),
        "application/vnd.pypi.simple.v1+json",
    )  # fmt: skip
    for name, data in wheels:
        index.site.put(f"/simple/files/{name}", data)


def test_a_full_disk_leaves_every_file_as_it_was(
    index: Index, tables: Path, matrix: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, count = contents(tables), os.fsync, iter(range(99))

    def full(descriptor: int) -> None:
        if next(count) == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    refused("fills the disk while tables are written", matrix("update", "--write"), index.site.sent)
    assert contents(tables) == before


def test_a_signal_between_two_files_waits_for_the_last(
    index: Index, tables: Path, matrix: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, before = os.fsync, load.load().version

    def ended(descriptor: int) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)  # not to the thread of the index of this test
        real(descriptor)

    monkeypatch.setattr(os, "fsync", ended)
    code, out, err = matrix("update", "--write")
    line, expected, most = documented()["is terminated while tables are written"]
    assert (code, out, line in err, index.site.sent <= most) == (expected, "", True, True), err
    again()
    assert (load.load().version, matrix("check")[0]) == (before + 1, 0)
    assert "torch: 2.15.0" in (tables / "torch_releases.yaml").read_text()


def test_check_online_reports_a_difference(index: Index, matrix: Command) -> None:
    code, out, err = matrix("check", "--online")
    assert (code, "1 releases" in out) == (0, True), err
    index.put(release(requires=[one.replace("2.30.7", "2.30.8") for one in REQUIRES]))
    code, out, err = matrix("check", "--online", "--torch", "2.15.0")
    assert (code, out.count("nccl: the facts say 2.30.7")) == (2, 2)
    assert "2 differ from the facts" in err


def test_a_refused_file_is_one_of_the_differences(index: Index, matrix: Command) -> None:
    """The wheel for x86-64 is damaged, and the one for aarch64 has another NCCL."""
    wheels = release(requires=[one.replace("2.30.7", "2.30.8") for one in REQUIRES])
    broken = {"torch-2.15.0.dist-info/METADATA": b"Name: torch\nVersion: 2.15.0\nRequires-Dist: a b\n"}
    index.put([replace(one, more=broken) if "x86_64" in one.file and one.name == "torch" else one for one in wheels])
    code, out, err = matrix("check", "--online")
    assert (code, "x86_64.whl is refused: METADATA: 'a b' is not a requirement" in out) == (2, True), err
    assert "13.2 pypi linux-aarch64: nccl: the facts say 2.30.7" in out
    assert "1 differ from the facts, 1 files rejected" in err


def test_check_online_without_an_answer(index: Index, matrix: Command) -> None:
    index.bent["/simple/torch/"] = "html"
    code, out, err = matrix("check", "--online")
    assert (code, out, "is not a list of torch's files" in err) == (9, "", True)


@pytest.mark.parametrize("arguments", [("--deep",), ("--torch", "2.15.0")])
def test_online_options_need_online(matrix: Command, arguments: tuple[str, ...]) -> None:
    code, _, err = matrix("check", *arguments)
    assert (code, "need --online" in err) == (2, True)


@pytest.mark.usefixtures("tables")
def test_a_day_of_the_future_is_refused(index: Index, matrix: Command) -> None:
    """The clock of this machine may be wrong, and a script compute the day from it: the clock of the index decides."""
    refused("is older than `--since`", matrix("update", "--since", "2026-12-03"), index.site.sent)
    assert matrix("update", "--since", "2026-12-02")[0] == 0  # today, on the other side of the date line


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--write", "--into", "x"), "contradict"),
        (("--torch", "2.1.0", "--since", "2026-01-01"), "contradict"),
        (("--since", "yesterday"), "is not a date"),
    ],
)
def test_options_of_update_that_are_at_fault(matrix: Command, arguments: tuple[str, ...], line: str) -> None:
    code, _, err = matrix("update", *arguments)
    assert (code, line in err) == (2, True), err
