"""`envkit matrix prove` with real servers and real files."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envkit.cli.main import run
from envkit.evidence import index as lists
from envkit.evidence import ranges
from envkit.pipeline import proving
from tests.evidence.conftest import Index
from tests.evidence.faults import documented, refused
from tests.lock.served import Served
from tests.support.certificate import certificate
from tests.support.torch_wheels import FLAGS, REQUIRES, TorchWheel, fat_binary, html_page, library, release
from tests.support.wheels import Raw, raw_zip


def prove(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["matrix", "prove", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def _other(old: str, new: str) -> dict[str, Any]:
    """A change of the requirements."""
    return {"requires": [one.replace(old, new) for one in REQUIRES]}


@pytest.mark.usefixtures("index")
def test_a_release_that_says_what_the_facts_say(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = prove(capsys, "torch==2.15.0")
    assert (code, "DIFFERENT" in out, "NO ROW" in out) == (0, False, False), out
    assert "all match the facts" in err


@pytest.mark.parametrize(
    ("changed", "field", "value"),
    [
        (_other("9.26.0.51", "9.26.0.52"), "cudnn", "9.26.0.52"),
        pytest.param(_other("2.30.7", "2.30.8"), "nccl", "2.30.8", marks=pytest.mark.long),
        pytest.param(_other("~=3.9.0", "==3.9.1"), "triton", "3.9.1", marks=pytest.mark.long),
        pytest.param(_other("77.0.3", "80"), "setuptools", ">=80", marks=pytest.mark.long),
        ({"flags": "sm_75 sm_80"}, "archs", "7.5 8.0"),
        pytest.param({"flags": FLAGS["x86_64"] + " compute_120"}, "ptx", "12.0", marks=pytest.mark.long),
        ({"uploaded": "2026-11-29T00:00:00Z"}, "released", "2026-11-29"),
    ],
)
def test_a_value_that_differs_is_shown(
    index: Index, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], field: str, value: str
) -> None:
    index.put(release(**changed))
    code, out, _ = prove(capsys, "torch==2.15.0", "--json")
    rows = [one for one in json.loads(out)["proof"]["values"] if one["state"] == "different"]
    said = {one["field"]: one["value"] if isinstance(one["value"], str) else " ".join(one["value"]) for one in rows}
    assert (code, said.get(field)) == (2, value)


def test_the_sizes_of_a_wheel_and_of_what_it_pulls(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest that was there on the day of the release; what came later does not count."""
    wheels = release(requires=("setuptools>=77.0.3", "sympy"))
    pulled = [
        TorchWheel(name=name, version=version, python="py3", tag="any", requires=(), uploaded=f"{day}T00:00:00Z")
        for name, version, day in (
            ("setuptools", "78.0", "2026-01-01"), ("sympy", "1.13", "2026-02-01"), ("sympy", "1.14", "2026-11-01"),
        )
    ]  # fmt: skip
    index.put([*wheels, *pulled], sizes=True)
    code, out, _ = prove(capsys, "torch==2.15.0", "--json")
    rows = [one for one in json.loads(out)["proof"]["values"] if one["row"] == "2.15.0 13.2 pypi linux-64"]
    said = {one["field"]: one for one in rows}
    own = [len(one.data()) for one in wheels if one.name == "torch" and one.machine == "x86_64"]
    assert (code, said["wheel_size"]["value"]) == (2, max(own))
    assert said["pulled_size"]["value"] == sum(len(one.data()) for one in pulled[:2])
    assert said["pulled_size"]["quote"] == "; ".join(
        f"{one.name} {one.version} {len(one.data())}" for one in pulled[:2]
    )
    assert said["pulled_size"]["file"] == "2 wheels for Python 3.11, newest of 2026-10-28"


def test_a_package_that_the_index_lacks_leaves_the_size_unknown(
    index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    index.put(release(requires=("setuptools>=77.0.3",)), sizes=True)
    _, out, _ = prove(capsys, "torch==2.15.0", "--json")
    said = {one["field"] for one in json.loads(out)["proof"]["values"]}
    assert "wheel_size" in said
    assert "pulled_size" not in said


def test_another_cuda_is_a_build_that_the_facts_lack(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    index.put(release(cuda="13.4"))
    code, out, _ = prove(capsys, "torch==2.15.0")
    assert (code, "NO ROW" in out) == (2, True)


def test_a_missing_python_is_shown(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    index.put([one for one in release() if one.python != "cp314"])
    code, out, _ = prove(capsys, "torch==2.15.0", "--json")
    assert code == 2
    assert {one["field"] for one in json.loads(out)["proof"]["values"] if one["state"] == "different"} == {
        "pythons",
    }  # fmt: skip


@pytest.mark.usefixtures("index")
def test_deep_reads_the_machine_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = prove(capsys, "torch==2.15.0", "--deep")
    assert (code, out.count("machine code")) == (0, 8)


def test_a_second_run_reads_only_lists(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    prove(capsys, "torch==2.15.0")
    before = index.requests()
    code, _, err = prove(capsys, "torch==2.15.0")
    assert (code, index.requests() - before) == (0, 3), err


def test_an_html_index_will_do(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("torch", "torchvision", "torchaudio"):
        index.site.put(f"/simple/{name}/", html_page(name, release()), "text/html")
    code, out, err = prove(capsys, "torch==2.15.0")
    assert (code, "cudnn" in out) == (0, True), err


def test_the_highest_build_of_a_wheel_is_read(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    """As installers do: 10 is more than 9, and a wheel without a build tag comes last."""
    other = [_other("2.30.7", f"2.30.{number}") for number in (8, 9)]
    index.put([*release(build="9", **other[0]), *release(build="10"), *release(**other[1])])
    code, out, _ = prove(capsys, "torch==2.15.0", "--json")
    values = json.loads(out)["proof"]["values"]
    assert code == 0
    assert {one["file"].split("-")[2] for one in values if one["field"] == "nccl"} == {"10"}


def test_days_are_those_of_the_index(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    """An index without a usable Date header is held against the clock of this machine, which is after 2026-11."""
    index.clock[0] = "Wed, 28 Oct 2026 23:00:00 GMT"  # the wheels are of that day
    assert prove(capsys, "torch==2.15.0")[0] == 0
    index.clock[0] = "Sun, 25 Oct 2026 23:00:00 GMT"
    code, _, err = prove(capsys, "torch==2.15.0")
    assert (code, "as uploaded on 2026-10-28, and today is 2026-10-25" in err) == (10, True)
    index.clock[0] = "no date"
    assert prove(capsys, "torch==2.15.0")[0] == 0


def test_a_wheel_of_this_machine(index: Index, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wheel = TorchWheel(tag="linux_x86_64")
    (tmp_path / wheel.file).write_bytes(wheel.data())
    code, out, _ = prove(capsys, f"./{wheel.file}")
    assert (code, index.requests()) == (0, 0), out


@pytest.mark.usefixtures("index")
def test_an_overlay_makes_an_unknown_wheel_resolvable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    versions = {"torch/version.py": b"__version__ = '2.15.0+cu134'\ncuda = '13.0'\nhip = None\n"}
    wheel = TorchWheel(version="2.15.0+cu134", cuda="13.0", tag="linux_x86_64", more=versions)
    (tmp_path / wheel.file).write_bytes(wheel.data())
    code, out, err = prove(capsys, f"./{wheel.file}", "--as-overlay")
    assert code == 0, err
    (tmp_path / "mine.yaml").write_text(out)
    assert run(["resolve", "--facts", "mine.yaml", "--torch", "2.15.0", "--cuda", "13.0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cudnn"] == "9.26.0.51"


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.15.0+cu132", "2.15.0+cu130"),
        ("2.15.0+cu132", "2.15.0"),
        ("2.15.0", "2.14.1+cu132"),
        ("2.15.0+cu132", "2.15.1+cu132"),
    ],
)
@pytest.mark.usefixtures("index")
def test_a_wheel_whose_version_py_contradicts_its_metadata_is_named(
    version: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    versions = {"torch/version.py": f"__version__ = '{said}'\ncuda = '13.2'\nhip = None\n".encode()}
    wheel = TorchWheel(version=version, tag="linux_x86_64", more=versions)
    (tmp_path / wheel.file).write_bytes(wheel.data())
    code, out, err = prove(capsys, f"./{wheel.file}")
    assert (code, out) == (10, "")
    assert f"{wheel.file} is refused: METADATA has version {version}, and torch/version.py has {said}" in err
    assert "hint: the wheel is invalid" in err


def test_a_companion_whose_version_py_contradicts_its_metadata_is_named(
    index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"torchaudio/version.py": b"__version__ = '2.10.0+cu130'\n"}
    index.put([replace(one, more=other) if one.name == "torchaudio" else one for one in release()])
    code, _, err = prove(capsys, "torch==2.15.0")
    assert code == 10
    assert "is refused: METADATA has version 2.11.0, and torchaudio/version.py has 2.10.0+cu130" in err


# Fault -> part of the path, and what the server does with it. contributing/facts.md has message, exit code and bytes.
BENT = {
    "answers HTML": ("/simple/torch/", "html"),
    "requires a login": ("/simple/torch/", "login"),
    "redirects to another host": ("/simple/torch/", "elsewhere"),
    "stays silent": ("/simple/torch/", "silent"),
    "ignores ranges": ("x86_64.whl", "no ranges"),
    "sends another range": ("x86_64.whl", "other range"),
    "sends another length": ("x86_64.whl", "other size"),
    "requires a login for a wheel": ("x86_64.whl", "login"),
    "sends too slowly": ("/simple/torch/", "sends too slowly"),
    "sends other bytes": ("x86_64.whl", "other bytes"),
    "sends more bytes": ("x86_64.whl", "more bytes"),
    "sends fewer bytes": ("x86_64.whl", "fewer bytes"),
}
# Fault -> the wheels on the index.
LISTED = {
    "yanks the release": release(yanked=True) + release("2.14.1"),
    "has only invalid build tags": release(build="x1") + release("2.14.1"),
    "lists an upload in the future": release(uploaded="2099-01-01T00:00:00Z"),
}
# Fault -> the days between which the index's certificate is valid.
CLOCKS = {"has a certificate that is not valid yet": (30, 60), "has an expired certificate": (-60, -30)}
OTHERS = {
    "is down", "changes between two parts", "lists a wheel twice", "sends an HTML page that is cut short",
    "is older than `--since`", "fills the disk while tables are written", "is terminated while tables are written",
}  # fmt: skip


def test_every_fault_of_the_table_is_caused_here() -> None:
    assert set(documented()) == {*BENT, *BAD, *LISTED, *CLOCKS, *OTHERS}


def test_a_part_that_breaks_off_is_asked_for_again(
    index: Index, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first part of a file, too, which tells its size."""
    monkeypatch.setattr(ranges, "PATIENCE", replace(ranges.PATIENCE, first_s=0.0))
    index.bent["x86_64.whl"] = "fewer bytes"
    index.before["x86_64.whl"] = lambda: index.bent.clear() if index.requests() > 1 else None
    code, _, err = prove(capsys, "torch==2.15.0")
    assert (code, "all match the facts" in err) == (0, True), err


@pytest.mark.parametrize("fault", LISTED)
def test_a_list_that_has_no_wheel_to_read(index: Index, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    index.put(LISTED[fault])
    refused(fault, prove(capsys, "torch==2.15.0"), index.site.sent)


@pytest.mark.parametrize("fault", CLOCKS)
def test_a_clock_that_a_certificate_contradicts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str
) -> None:
    """The certificate is trusted, and this machine's clock is before or after its validity."""
    path = certificate(tmp_path, *CLOCKS[fault])
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", str(path))
    with Served(certificate=path) as site:
        monkeypatch.setenv("ENVKIT_PYTHON_INDEX", f"{site.url}/simple")
        refused(fault, prove(capsys, "torch==2.15.0"), site.sent)


@pytest.mark.parametrize("fault", BENT)
def test_a_server_that_answers_otherwise(
    index: Index, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    impatient = replace(ranges.PATIENCE, tries=1, silence_s=0.2)
    monkeypatch.setattr(proving, "PATIENCE", impatient)
    monkeypatch.setattr(lists, "PATIENCE", impatient)
    monkeypatch.setattr(ranges, "PATIENCE", impatient)
    index.put(release(), sizes=True)
    path, how = BENT[fault]
    index.bent[path] = how
    refused(fault, prove(capsys, "torch==2.15.0"), index.site.sent)


def test_a_file_that_changes_between_two_parts(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    """Its directory and its members are in two parts."""
    filling = {"torch/filling.bin": random.Random(1).randbytes(300_000)}
    index.put([replace(one, more=filling) if one.name == "torch" else one for one in release()])
    index.bent["x86_64.whl"] = "changes"
    refused("changes between two parts", prove(capsys, "torch==2.15.0"), index.site.sent)


@pytest.mark.usefixtures("index")
def test_an_index_that_is_down(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVKIT_PYTHON_INDEX", "http://127.0.0.1:9/simple")
    refused("is down", prove(capsys, "torch==2.15.0"), 0)


def _zip(**members: bytes) -> bytes:
    return raw_zip([Raw(name=name, data=data) for name, data in members.items()])


def _with(name: str, data: bytes) -> bytes:
    return replace(TorchWheel(), more={name: data}).data()


METADATA = "torch-2.15.0.dist-info/METADATA"
HEAD = b"Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n"
PYTHON_LIBRARY = "torch/lib/libtorch_python.so"
# Fault -> the bytes of the wheel.
BAD = {
    "is truncated": TorchWheel().data()[:-30],
    "is not a zip file": b"hello" * 99,
    "has 1,000,000 names": raw_zip([Raw(name="a", data=b"1")], zip64=True, count=10**6),
    "has two members with the same name": raw_zip([Raw(name="a", data=b"1"), Raw(name="a", data=b"2")]),
    "has no METADATA": _zip(a=b"1"),
    "has METADATA of another package": _with(METADATA, HEAD.replace(b"torch", b"jax")),
    "has METADATA of 5 MB": _with(METADATA, HEAD + b"\n" + b"ab " * 1_700_000),
    "has METADATA in Latin-1": _with(METADATA, HEAD + b"Requires-Dist: caf\xe9\n"),
    "has METADATA with a CR": _with(METADATA, HEAD + b"Requires-Dist: a\rRequires-Dist: b\n"),
    "has an invalid requirement": _with(METADATA, HEAD + b"Requires-Dist: a b\n"),
    "has a member that inflates past its size": raw_zip([Raw(name=METADATA, data=b"Name: torch\n" * 99, size=100)]),
    "has a member with another CRC": raw_zip([Raw(name=METADATA, data=b"Name: torch\n" * 99, crc=1)]),
    "has a 32-bit library": _with(PYTHON_LIBRARY, b"\x7fELF\1\1" + b"\0" * 9999),
    "has a big-endian library": _with(PYTHON_LIBRARY, b"\x7fELF\2\2" + b"\0" * 9999),
    "has no flags": _with(PYTHON_LIBRARY, library()),
    "has two lists of flags": _with(PYTHON_LIBRARY, library(flags=b"sm_75\0sm_80")),
    "has 10 MB of flags": _with(PYTHON_LIBRARY, library(flags=b"sm_75 " * 1_700_000)),
    "has a fat binary that points outside": _with(
        "torch/lib/libtorch_cuda.so", library() + fat_binary((2, 90), cut=99)
    ),
    "has a version.py that contradicts METADATA": _with("torch/version.py", b"__version__ = '2.14.1'\ncuda = '13.2'\n"),
    "has a version.py that does not parse": _with("torch/version.py", b"cuda = ("),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_wheel_that_is_not_sound(capsys: pytest.CaptureFixture[str], tmp_path: Path, fault: str) -> None:
    path = tmp_path / TorchWheel().file
    path.write_bytes(BAD[fault])
    refused(fault, prove(capsys, str(path), "--deep"), len(BAD[fault]))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("lost", "where"),
    [("</body></html>", "<body>"), ("</a>\n</body></html>", "<a>"), (">x</a>\n</body></html>", "<body>")],
)
def test_a_page_that_is_cut_short(index: Index, capsys: pytest.CaptureFixture[str], lost: str, where: str) -> None:
    """Between links, inside of a link, and inside of its tag."""
    page = html_page("torch", release()).decode()
    assert page.endswith(lost)
    index.site.put("/simple/torch/", page.removesuffix(lost).encode(), "text/html")
    found = prove(capsys, "torch==2.15.0")
    refused("sends an HTML page that is cut short", found, index.site.sent)
    assert f"it ends inside {where}\n" in found[2]


def test_a_release_listed_twice_with_other_hashes(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    page = json.loads(index.site.files["/simple/torch/"][1])
    page["files"].append({**page["files"][0], "hashes": {"sha256": "0" * 64}})
    index.site.put("/simple/torch/", json.dumps(page).encode(), "application/json")
    refused("lists a wheel twice", prove(capsys, "torch==2.15.0"), index.site.sent)


def test_control_characters_do_not_reach_the_terminal(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    index.put(release(requires=[*REQUIRES, "evil\x1b[31m"]))
    code, _, err = prove(capsys, "torch==2.15.0")
    assert (code, "\x1b" in err) == (10, False)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("what", ["jax==1.0", "torch", "torch==2.x", "./x.whl", "./jax-1.0-py3-none-any.whl"])
def test_something_else_is_a_usage_error(capsys: pytest.CaptureFixture[str], what: str) -> None:
    code, _, err = prove(capsys, what)
    assert (code, "hint: envkit matrix prove" in err) == (2, True)
