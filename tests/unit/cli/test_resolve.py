import json
from pathlib import Path
from typing import Any

import pytest

from envkit.cli import main
from envkit.facts.load import load
from envkit.ground import nvidia
from envkit.ground.nvidia import Driver, HostGpu
from envkit.ground.versions import key


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENVKIT_FACTS", raising=False)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(["resolve", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_table_with_a_reason_per_field_and_the_warnings_below(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--cuda", "11.8"], capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["field", "value", "why"]
    assert lines[1].split(maxsplit=2) == ["torch", "2.7.1", "last release with CUDA 11.8 builds"]
    assert [line.split()[0] for line in lines[1:7]] == ["torch", "cuda", "cudnn", "python", "source", "driver"]
    assert lines[7].startswith("warning: torch 2.7.1 is the last release with CUDA 11.8 wheels")
    assert lines[-1].startswith("install: pip install torch==2.7.1+cu118 ")
    assert "\x1b" not in out


def test_verbose_shows_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["--cuda", "11.8", "-v"], capsys)
    told = [line.split()[0] for line in out.splitlines()[1:21]]
    assert told == [
        *("torch", "cuda", "cudnn", "nccl", "triton", "python", "pythons", "torchvision", "torchaudio", "source"),
        *("index", "local_version", "driver", "gpus", "gpu_archs", "ptx", "glibc", "platform", "os", "pins"),
    ]


def test_the_size_of_the_download_is_shown_where_it_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [run(["--torch", "2.15.0", *more], capsys)[1] for more in (["--source", "pypi"], [], ["-v"])]
    said = [next((line.split()[1] for line in out.splitlines() if line.startswith("download")), None) for out in rows]
    assert said == ["2.99", None, "-"]


def test_the_json_has_the_size_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    tree = json.loads(run(["--torch", "2.15.0", "--source", "pypi", "--json"], capsys)[1])["download"]
    assert tree["total"] == tree["torch"] + tree["pulled"] == 2994502404
    unknown = json.loads(run(["--torch", "2.15.0", "--json"], capsys)[1])["download"]
    assert (unknown["total"], unknown["why"].partition(":")[0]) == (None, "unknown")


def test_support_is_that_of_the_source_date(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1830211200")  # 2027-12-31
    _, plain, _ = run(["--python", "3.14"], capsys)
    _, whole, _ = run(["--python", "3.14", "-v"], capsys)
    rows = [line for line in whole.splitlines() if line.startswith("support")]
    assert "support" not in plain
    assert [row.split()[1] for row in rows] == ["security"]
    assert rows[0].endswith("Python 3.14 gets security fixes only, until 2030-10-01 (on 2027-12-31)")
    assert "python_releases" in whole
    found = json.loads(run(["--python", "3.14", "--json"], capsys)[1])["support"]
    assert (found["level"], found["day"]) == ("security", "2027-12-31")
    assert found["sources"] == ["pytorch_patch_releases", "python_releases"]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1917302400")  # 2030-10-04
    assert run(["--supported-only", "--python", "3.14"], capsys)[0] == 3
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    assert run(["--supported-only"], capsys)[0] == 2


@pytest.mark.parametrize(
    ("typed", "message"),
    [("3", "--max-size: '3' has no unit"), ("0", "--max-size: '0' does not allow any download"),
     ("big", "--max-size: 'big' is not a size")],
)  # fmt: skip
def test_a_limit_that_is_no_size(capsys: pytest.CaptureFixture[str], typed: str, message: str) -> None:
    code, out, err = run(["--max-size", typed], capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {message}\n")
    assert "hint:" in err


def test_conda_builds_show_their_channels(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--source", "conda-pytorch", "--driver", "550.54.15", "-v"], capsys)
    assert code == 0
    assert "selector" in out
    assert "local_version" not in out
    assert "native: 550.54.15" in out


def test_a_format_prints_nothing_else_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--cuda", "11.8", "--format", "pip"], capsys)
    assert code == 0
    assert out.startswith("pip install torch==2.7.1+cu118 ")
    assert out.count("\n") == 1
    assert err.startswith("warning: torch 2.7.1 is the last release")


def test_the_conda_format_chooses_a_conda_source(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--cuda", "12.6", "--format", "conda"], capsys)
    assert code == 0
    assert "--channel conda-forge" in out
    code, _, err = run(["--cuda", "12.6", "--source", "pytorch", "--format", "conda"], capsys)
    assert code == 2
    assert "--source conda-forge" in err


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([], "note: torchvision and torchaudio are not in that line; to add: --with torchvision --with torchaudio"),
        (["--with", "torchaudio"], "note: torchvision is not in that line; to add: --with torchvision"),
        (["--with", "torchvision", "--with", "torchaudio"], None),
    ],
)
def test_a_line_for_conda_says_what_is_not_in_it(
    asked: list[str], told: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(["--source", "conda-forge", "--cuda", "12.9", *asked], capsys)
    notes = [line for line in err.splitlines() if "not in that line" in line]
    assert (code, notes) == (0, [told] if told else [])


def test_a_conflict_names_the_format_and_not_the_source_that_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--cuda", "12.1", "--format", "conda"], capsys)
    lines = err.splitlines()
    assert (code, out, lines[0]) == (3, "", "error: no build matches --cuda 12.1 and --format conda")
    assert "--source conda-forge" not in err
    assert lines[3].startswith("  try: envkit resolve --cuda 12.0 --format conda  (--cuda 12.0 instead of 12.1: torch")
    assert lines[4].startswith("  try: envkit resolve --cuda 12.1  (without --format conda: torch")
    assert lines[5].startswith(
        "  try: envkit resolve --cuda 12.1 --source pytorch  (--source pytorch instead of --format"
    )
    assert lines[-1] == "hint: envkit resolve --cuda 12.0 --format conda"
    typed = run(["--cuda", "12.1", "--format", "conda", "--source", "conda-forge"], capsys)[2]
    assert typed.startswith("error: no build matches --cuda 12.1 and --source conda-forge")


def test_format_and_json_contradict(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--format", "pip", "--json"], capsys)[0] == 2


def test_here_is_this_machines_gpu_and_driver(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = HostGpu("NVIDIA A100-SXM4-80GB", "8.0")
    here = Driver(version="535.104.05", gpus=(gpu,), source="NVML")
    monkeypatch.setattr(nvidia, "read", lambda: here)
    _, asked, _ = run(["--gpu", "auto", "--driver", "auto", "--json"], capsys)
    code, out, _ = run(["--here", "--json"], capsys)
    assert (code, out) == (0, asked)


def test_verbose_names_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["--cuda", "11.8", "-v"], capsys)
    assert code == 0
    assert "whl_index_2025_07" in out


def test_json_has_every_promised_key(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--gpu", "A100", "--driver", "535.104.05", "--json"], capsys)
    assert (code, err) == (0, "")
    tree = json.loads(out)
    promised = (
        "schema torch cuda cudnn nccl triton python pythons torchvision torchaudio source index local_version driver "
        "gpu_archs ptx glibc platform os pins warnings reasons sources rejected_count"
    )
    assert set(promised.split()) <= set(tree)
    assert tree["schema"] == "envkit.resolution/1"
    assert tree["driver"]["mode"] == "minor-compatible"
    assert tree["facts"] == {"version": load().version, "collected": load().collected, "digest": load().digest}
    assert all(isinstance(tree[name], str) for name in ("torch", "cuda", "python"))


def test_a_conflict_explains_itself_and_exits_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--torch", "1.12.1", "--cuda", "12.1"], capsys)
    assert (code, out) == (3, "")
    assert err.splitlines()[0] == "error: no build matches --torch 1.12.1 and --cuda 12.1"
    assert "  because CUDA 12.1 is available for torch 2.1.0 to 2.5.1" in err
    assert err.rstrip().endswith("hint: envkit resolve --torch 1.12.1 --cuda 11.6")


def test_a_conflict_is_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["--torch", "2.99", "--json"], capsys)
    assert code == 3
    tree = json.loads(out)
    assert (tree["schema"], tree["message"]) == ("envkit.conflict/1", "no build matches --torch 2.99")
    assert set(tree["facts"]) == {"version", "collected", "digest"}
    assert "error: no build matches --torch 2.99" in err


def test_a_users_own_row_is_an_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["--facts", str(tmp_path / "none.yaml")], capsys)
    assert code in (2, 9)
    assert "none.yaml" in err


def test_auto_reads_this_host(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cards = (HostGpu("Tesla T4", "7.5"), HostGpu("Tesla T4", "7.5"), HostGpu("NVIDIA A100-PCIE-40GB", None))
    here = Driver(version="535.104.05", gpus=cards, source="nvidia-smi")
    monkeypatch.setattr(nvidia, "read", lambda: here)
    code, out, _ = run(["--driver", "auto", "--gpu", "auto", "--gpu", "L4", "--json"], capsys)
    assert code == 0
    tree = json.loads(out)
    assert tree["driver"]["given"] == "535.104.05"
    assert tree["gpus"] == ["7.5", "8.0", "8.9"]


def test_auto_on_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = Driver(version=None, gpus=(), source=None)
    monkeypatch.setattr(nvidia, "read", lambda: nothing)
    code, out, err = run(["--gpu", "auto"], capsys)
    assert (code, out) == (9, "")
    assert "hint: use --gpu with the GPU of the machine that will run the image" in err


@pytest.mark.parametrize("words", [["--rocm"], ["--rocm", "6.2"], ["--torch", "2.4", "--rocm"]])
def test_rocm_is_not_supported(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert (code, out) == (3, "")
    assert err.startswith("error: --rocm: AMD GPUs are not supported\n")
    assert "hint: use an NVIDIA GPU, or --cpu for a build without CUDA" in err


def test_all_faults_of_the_flags_come_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["--cuda", "a.b", "--gpu", "sm_1"], capsys)
    assert code == 2
    assert "error: --cuda: 'a.b' is not a version" in err
    assert "  --gpu: unknown GPU 'sm_1'" in err


def test_a_templates_name_says_how_it_installs(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["--template", "wheels-berlin", "--source", "conda-forge"], capsys)
    assert code == 3
    assert "--template wheels" in err
    code, out, err = run(["--template", "wheel"], capsys)
    assert (code, out) == (2, "")
    assert "--template: 'wheel' is not a template name" in err


def hosts(text: str) -> str:
    Path("hosts.csv").write_text(text)
    return "hosts.csv"


def test_the_machine_of_a_file_is_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    file = hosts("name,gpu,driver,arch\ngpu01,NVIDIA A100-SXM4-80GB,535.104.05,x86_64\ngpu02,A100,535.104.05,x86_64\n")
    code, out, err = run(["--for-host", file, "--json"], capsys)
    typed = run(["--gpu", "A100", "--driver", "535.104.05", "--json"], capsys)
    found, other = json.loads(out), json.loads(typed[1])
    assert (code, err, found["gpus"], found["driver"]["given"]) == (0, "", ["8.0"], "535.104.05")
    assert (found["torch"], found["cuda"]) == (other["torch"], other["cuda"])


def test_flags_override_the_file_and_complete_it(capsys: pytest.CaptureFixture[str]) -> None:
    complete = hosts("name,gpu,driver\ngpu01,V100,535.104.05\n")
    over = json.loads(run(["--for-host", complete, "--driver", "580.95.05", "--json"], capsys)[1])
    assert (over["gpus"], over["driver"]["given"]) == (["7.0"], "580.95.05")
    lacking = hosts("name,gpu\ngpu01,V100\n")
    code, _, err = run(["--for-host", lacking], capsys)
    assert (code, "has no driver" in err) == (2, True)
    assert run(["--for-host", lacking, "--driver", "535.104.05"], capsys)[0] == 0


def test_the_platform_of_the_file_counts(capsys: pytest.CaptureFixture[str]) -> None:
    file = hosts("name,gpu,driver,arch\ngrace,GH200,580.95.05,aarch64\n")
    assert json.loads(run(["--for-host", file, "--json"], capsys)[1])["platform"] == "linux-aarch64"


def test_a_diagnosis_is_a_machine_too(capsys: pytest.CaptureFixture[str]) -> None:
    known = [{"name": "driver", "value": "535.104.05"}, {"name": "GPU 0", "value": "Tesla V100-SXM2-16GB, 16384 MiB"}]
    document = {"schema": "envkit.doctor/1", "subject": "host", "sections": [{"id": "gpu", "facts": known}]}
    found = json.loads(run(["--for-host", hosts(json.dumps(document)), "--json"], capsys)[1])
    assert (found["gpus"], found["driver"]["given"]) == (["7.0"], "535.104.05")
    code, out, err = run(["--for-host", hosts(json.dumps(document | {"subject": "image"}))], capsys)
    assert (code, out) == (2, "")
    assert err == (
        "error: hosts.csv is a diagnosis of 'image', not of a machine ('host')\n\n"
        "hint: envkit doctor --json > FILE, on the machine with the GPUs\n"
    )


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("name,gpu,driver\na,V100,535.104.05\nb,B200,580.95.05\n", [],
         "2 kinds of machines, but a request is for one: V100 (sm_70), driver 535.104.05 / B200 (sm_100), driver 580"),
        ("hello\n", [], "hosts.csv has an unknown format; it begins with 'hello'"),
        ("name,gpu,driver\na,V100,535.104.05\n", ["--here"], "--for-host and --here contradict each other"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_one_kind_of_machine(
    capsys: pytest.CaptureFixture[str], text: str, more: list[str], message: str
) -> None:
    code, out, err = run(["--for-host", hosts(text), *more], capsys)
    assert (code, out) == (2, "")
    assert message in err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["--for-host", "none.csv"], capsys)
    assert (code, err) == (2, "error: --for-host none.csv: No such file or directory\n\nhint: ls -l none.csv\n")


def answered(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run([*arguments, "--json"], capsys)[1])
    return found


@pytest.mark.parametrize(
    "typed",
    [
        ["--gpu", "A100", "--driver", "450.80.02"],
        ["--gpu", "V100", "--gpu", "B200", "--driver", "570.26"],
        ["--gpu", "V100", "--gpu", "A100"],
    ],
)
def test_advice_gives_what_it_says(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first = answered([*typed, "--advise"], capsys)
    assert first["advice"]
    for one in first["advice"]:
        then = answered(one["arguments"], capsys)
        assert one["gives"] == f"torch {then['torch']}, CUDA {then['cuda']}, Python {then['python']}"
        if one["field"] == "driver":
            assert (key(then["torch"]), key(then["cuda"])) > (key(first["torch"]), key(first["cuda"]))


def test_advice_names_the_gpu_that_no_driver_helps(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["--gpu", "V100", "--driver", "535.104.05", "--advise"], capsys)
    assert "\nleave out --gpu V100, --driver " in out


def test_no_advice_where_nothing_newer_exists(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["--gpu", "B200", "--driver", "999.1", "--advise"], capsys)
    assert out.endswith("\nno newer driver allows a newer torch or CUDA, and no GPU prevents one\n")


def test_advice_needs_a_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(["--cuda", "12.6", "--advise"], capsys)
    assert (code, err.splitlines()[0]) == (2, "error: --advise needs a driver or a GPU")
