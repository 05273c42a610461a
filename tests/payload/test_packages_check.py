"""Packages that cannot be imported, in an environment of small wheels with real shared objects; and their processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from envkit.checks.catalog import judges, select
from envkit.checks.model import Finding, Verdict
from envkit.verify.judge import judge
from envkit.verify.payload import parse_document, payload_archive
from tests.support.payloads import module
from tests.support.wheels import wheel_entries

NONCE = "5f0d"
ABSENT = "libenvkit-absent.so.3"
SOURCES = {
    "good": "VALUE = 1\n",
    "loud": "import os, sys\nos.write(1, b'envkit.payload.end 5f0d\\n')\nsys.stderr.write('x' * 9000)\n",
    "raises": "raise RuntimeError('\\n=====\\nTwo parts were compiled with different CUDA versions.\\nMore text.')\n",
    "leaves": "import sys\nprint('a license is needed')\nsys.exit(5)\n",
    "quits": "import os, sys\nsys.stderr.write('no license found\\n')\nsys.stderr.flush()\nos._exit(3)\n",
    "crashes": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    "wants_more": "import envkit_no_such_dependency\n",
    "wants_screen": "import os\nos.environ['DISPLAY']\n",
    "wants_home": "import os\nopen(os.path.expanduser('~/settings'), 'w').close()\n",
    "envkit": "WHICH = 'the package of an image, not the payload'\nassert __file__.find('payload.pyz') < 0\n",
}
HANGS = "import time\ntime.sleep(600)\n"
GREEDY = "data = bytearray(4 << 30)\n"


def put(site: Path, name: str, files: dict[str, bytes], *, requires: tuple[str, ...] = ()) -> None:
    """Install a wheel with these files."""
    for entry in wheel_entries(files, name=name, requires=requires):
        path = site / str(entry.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(entry.data)


def shared_object(folder: Path, name: str, needs: str) -> bytes:
    """Return a shared object that needs a library which is only there while it is linked."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "empty.c").write_text("void envkit_nothing(void) {}\n")
    (folder / "user.c").write_text("void envkit_nothing(void);\nvoid PyInit_native(void) { envkit_nothing(); }\n")
    for output, source, more in (
        (needs, "empty.c", [f"-Wl,-soname,{needs}"]),
        (name, "user.c", ["-Wl,--no-as-needed", f"-l:{needs}", "-L."]),
    ):
        command = [compiler, "-shared", "-fPIC", "-o", output, source, *more]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / name).read_bytes()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    for name, source in SOURCES.items():
        put(folder, name, {f"{name}/__init__.py": source.encode()})
    put(folder, "named-space", {"company/tools/__init__.py": b"", "company/tools/one.py": b""})
    put(folder, "only-data", {"only_data.json": b"{}", "bin/tool": b""})
    return folder


def checked(tmp_path: Path, site: Path, *names: str, **spec: Any) -> dict[str, tuple[dict[str, Any], Finding]]:
    """Run C29 as in an image, with these packages in the plan; return observation and finding by ID."""
    (tmp_path / "payload.pyz").write_bytes(payload_archive())
    promised = {"nonce": NONCE, "packages": [{"name": name, "conda": False} for name in names], **spec}
    (tmp_path / "spec.json").write_text(json.dumps(promised))
    home = tmp_path / "home"
    env = {**os.environ, "PYTHONPATH": str(site), "HOME": str(home)}
    command = [sys.executable, "payload.pyz", "--spec", "spec.json", "--only", "C29"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, env=env, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    document = parse_document(ended.stdout, NONCE)
    items = judge(document, promised, select("quick", ("C29",)), judges())
    return {item.id: (dict(item.observation or {}), item.finding) for item in items}


def outcomes(found: dict[str, tuple[dict[str, Any], Finding]]) -> dict[str, str]:
    return {row["name"]: row["outcome"] for row in found["C29.imports"][0]["observed"]["packages"]}


def test_each_ending_is_one_packages_own(tmp_path: Path, site: Path) -> None:
    found = checked(tmp_path, site, *SOURCES, "named-space", "only-data", "not-there")
    assert outcomes(found) == {
        "good": "imported",
        "loud": "imported",
        "raises": "failed",
        "leaves": "failed",
        "quits": "exited",
        "crashes": "crashed",
        "wants_more": "failed",
        "wants_screen": "failed",
        "wants_home": "imported",
        "envkit": "imported",
        "named-space": "imported",
        "only-data": "no modules",
        "not-there": "absent",
    }
    observation, finding = found["C29.imports"]
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "IMPORT_FAILED")
    assert (
        "raises 1.0: import raises: RuntimeError: Two parts were compiled with different CUDA versions."
        in finding.message
    )
    assert "leaves 1.0: import leaves: SystemExit: 5 (a license is needed)" in finding.message
    assert set(finding.derived["problems"]) == {
        "IMPORT_FAILED", "IMPORT_EXITED", "IMPORT_CRASHED", "IMPORT_NEEDS_DISPLAY", "PACKAGE_MISSING",
    }  # fmt: skip
    rows = {row["name"]: row for row in observation["observed"]["packages"]}
    assert (rows["quits"]["code"], rows["quits"]["printed"]) == (3, "no license found")
    assert rows["crashes"]["signal"] == 11
    assert rows["named-space"]["modules"] == ["company.tools"]


def test_sound_packages_pass_and_the_controls_hold(tmp_path: Path, site: Path) -> None:
    found = checked(tmp_path, site, "good", "loud", "only-data")
    assert (
        found["C29.imports"][1].message == "2 packages of the plan imported; without modules, so not tried: only-data"
    )
    for observation, finding in found.values():
        assert finding.verdict is Verdict.PASS
        assert observation["controls"]
        assert all(control["held"] for control in observation["controls"])


def test_a_library_that_the_loader_does_not_find(tmp_path: Path, site: Path) -> None:
    native = shared_object(tmp_path, "native.so", ABSENT)
    put(
        site,
        "needs-library",
        {"needs_library/__init__.py": b"from . import native\n", "needs_library/native.so": native},
    )
    observation, finding = checked(tmp_path, site, "good", "needs-library")["C29.imports"]
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "SYSTEM_LIBRARY_MISSING")
    assert (
        f"needs-library 1.0: import needs_library: ImportError: {ABSENT}: cannot open shared object" in finding.message
    )
    (row,) = [row for row in observation["observed"]["packages"] if row["name"] == "needs-library"]
    assert row["missing_libraries"] == {ABSENT: "needs_library/native.so"}
    assert any(ABSENT in line for line in finding.advice)


def test_a_package_that_loads_its_code_for_cuda_only_later(tmp_path: Path, site: Path) -> None:
    provider = shared_object(tmp_path, "libprovider.so", "libcublas.so.99")
    put(site, "late-cuda", {"late_cuda/__init__.py": b"", "late_cuda/capi/libprovider.so": provider})
    put(site, "nvidia-cublas-cu12", {"nvidia/cublas/lib/libcublas.so.12": b""})
    found = checked(tmp_path, site, "late-cuda", cuda="12.6")
    assert found["C29.imports"][1].verdict is Verdict.PASS
    finding = found["C29.cuda"][1]
    assert (finding.verdict, finding.reason_code) == (Verdict.FAIL, "OTHER_CUDA_MAJOR")
    assert (
        "late-cuda 1.0 is built for CUDA 99: needs libcublas.so.99 (late_cuda/capi/libprovider.so)" in finding.message
    )
    named = checked(tmp_path, site, "good", cuda="12.6")["C29.cuda"][1]
    assert named.verdict is Verdict.WARN


def test_without_a_plan_nothing_is_promised(tmp_path: Path, site: Path) -> None:
    ((_, finding),) = checked(tmp_path, site).values()
    assert (finding.verdict, finding.reason_code) == (Verdict.SKIP, "NOT_PROMISED")


def imported(tmp_path: Path, site: Path, sources: dict[str, str], **job: Any) -> dict[str, Any]:
    """Run the program that imports, alone."""
    for name, source in sources.items():
        put(site, name, {f"{name}/__init__.py": source.encode()})
    path = tmp_path / "job.json"
    jobs = [[name, [name]] for name in sources]
    whole = {"preload": None, "jobs": jobs, "width": 2, "limit_s": 30, "deadline_s": 60, "memory_bytes": None, **job}
    path.write_text(json.dumps(whole))
    code = module("probe").code_of("importing")
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    return dict(json.loads(ended.stdout.splitlines()[-1])["imports"])


def test_one_that_hangs_is_ended_and_the_others_are_not(tmp_path: Path, site: Path) -> None:
    begin = time.monotonic()
    found = imported(tmp_path, site, {"hangs": HANGS, "fine": "", "fine_too": ""}, limit_s=8)
    assert {name: answer["outcome"] for name, answer in found.items()} == {
        "hangs": "timeout",
        "fine": "ended",
        "fine_too": "ended",
    }
    assert time.monotonic() - begin < 60


def test_what_all_need_may_be_broken_itself(tmp_path: Path, site: Path) -> None:
    found = imported(tmp_path, site, {"fine": "", "builds_on_it": "import raises\n"}, preload="raises")
    assert found["fine"]["failed"] == []
    assert found["builds_on_it"]["failed"][0]["type"] == "RuntimeError"


def test_what_did_not_start_in_time_has_no_answer(tmp_path: Path, site: Path) -> None:
    found = imported(tmp_path, site, {"hangs": HANGS, "later": ""}, width=1, deadline_s=1)
    assert {name: answer["outcome"] for name, answer in found.items()} == {"hangs": "timeout"}


def test_memory_is_limited_for_each(tmp_path: Path, site: Path) -> None:
    found = imported(tmp_path, site, {"greedy": GREEDY, "fine": ""}, memory_bytes=1 << 30)
    assert found["greedy"]["failed"][0]["type"] == "MemoryError"
    assert found["fine"]["failed"] == []


def test_processes_that_an_import_starts_are_ended(tmp_path: Path, site: Path) -> None:
    mark = tmp_path / "pid"
    starts = f"import subprocess\nopen({str(mark)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))\n"
    imported(tmp_path, site, {"starts": starts})
    pid = int(mark.read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/cmdline").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}/cmdline").exists()
