"""What a log says of its job: no last line hides a failure, and no log gets an all-clear without evidence."""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchmarks.log_verdicts import FINAL, KEPT, entries, failures, has_cause, healthy, judge, right_rows
from envkit.doctor.logs import diagnose_log, scan
from envkit.doctor.model import Diagnosis, Severity, Verdict
from envkit.knowledge.failures import rows

FAILURES = dict(failures(KEPT))
RIGHT = right_rows()
CALM = dict(healthy(KEPT))
NOTES = {entry["name"]: entry for entry in entries(KEPT, "notes")}
OPEN = {entry["name"]: entry["line"] for entry in entries(KEPT, "open")}
HEALTHY = sorted((KEPT / "healthy").iterdir())
HIDDEN = sorted((KEPT / "hidden").iterdir())
PUBLIC = sorted((KEPT / "public").glob("*.yaml"))
# The page that prints its log: NVIDIA shows how a GPU instance is refused.
PAGE = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/getting-started-with-mig.html"


def diagnosed(text: str) -> Diagnosis:
    return diagnose_log(io.BufferedReader(io.BytesIO(text.encode())), "log")


def shown(found: Diagnosis) -> str:
    facts = [value for section in found.sections for _, value in section.facts]
    return "\n".join([*facts, *(evidence.text for finding in found.findings for evidence in finding.evidence)])


def expected(name: str) -> str:
    return "named" if has_cause(RIGHT[name]) else "unknown"


# Of thousands of logs each takes milliseconds, less than a test of its own would: one test names those that are wrong.
def test_every_failing_log_is_named_or_admitted() -> None:
    wrong = {name: found.conclusion for name in FAILURES if not is_right(name, found := alone(name))}
    assert wrong == {}


def alone(name: str) -> Diagnosis:
    return diagnosed(f"epoch 1\n{FAILURES[name]}\n")


def is_right(name: str, found: Diagnosis) -> bool:
    """Whether the cause is named where a row knows it, and a row for it is shown."""
    known = not RIGHT[name] or bool(RIGHT[name] & {finding.id for finding in found.findings})
    return known and judge(found, RIGHT[name], FAILURES[name]) == expected(name)


def answers(name: str, finals: Iterable[str]) -> set[str]:
    """What becomes of a failing log before each final line."""
    line = FAILURES[name]
    return {judge(diagnosed(f"epoch 1\n{line}\n{final}\n"), RIGHT[name], line) for final in finals}


def allowed(name: str) -> set[str]:
    # A known remark explains an exit code, and is no cause alone.
    return {expected(name), "named" if RIGHT[name] else "unknown"}


def test_one_last_line_of_eight_hides_no_failure() -> None:
    pairs = zip(FAILURES, itertools.cycle(FINAL), strict=False)
    assert hidden((name, (final,)) for name, final in pairs) == {}


@pytest.mark.long
def test_no_last_line_hides_a_failure() -> None:
    assert hidden((name, FINAL) for name in FAILURES) == {}


def hidden(pairs: Iterable[tuple[str, Iterable[str]]]) -> dict[str, set[str]]:
    """Return what becomes of the logs that a last line turns into something else."""
    return {name: found for name, finals in pairs if not (found := answers(name, finals)) <= allowed(name)}


@pytest.mark.parametrize("name", CALM)
def test_a_calm_log_gets_no_diagnosis(name: str) -> None:
    found = diagnosed(CALM[name])
    assert found.verdict is Verdict.CLEAR
    assert not [one for one in found.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize("name", NOTES)
def test_a_remark_is_no_failure(name: str) -> None:
    found = diagnosed(f"{NOTES[name]['line']}\ntraining finished\n")
    assert found.verdict is Verdict.CLEAR
    assert set(NOTES[name]["rows"]) & {one.id for one in found.findings}
    assert not [one for one in found.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize("name", OPEN)
def test_a_log_without_an_end_is_neither_failed_nor_clear(name: str) -> None:
    """It runs, or has nothing but remarks: no line is shown as a failure."""
    found = diagnosed(OPEN[name])
    assert (found.verdict, found.exit_code, found.findings) == (Verdict.OPEN, 5, ())
    assert [name for name, _ in found.sections[0].facts] == ["lines", "last line"]
    assert found.conclusion == "no sign of failure, but the log does not say how the job ended"


def test_every_log_has_its_source() -> None:
    names = [*kept_names("failures"), *kept_names("healthy"), *kept_names("notes"), *kept_names("open")]
    public = [name for name in names if "#" in name or "/" in name]
    assert len(public) >= 500
    source = re.compile(r"(?:[\w.-]+/[\w.-]+(?:#\d+|:[\w./-]+)|https://\S+)(?: [a-z])?")  # a thread, a file, a page
    assert not [name for name in public if not source.fullmatch(name)]
    assert len(set(names)) == len(names)


def test_a_log_is_named_by_what_prints_it() -> None:
    """A page says what a message means and may not print it: threads and the tools' own files do."""
    text = "".join(path.read_text() for path in PUBLIC)
    assert re.findall(r"name: '?(https://[^\s',]+)", text) == [PAGE]


def kept_names(key: str) -> list[str]:
    return [entry["name"] for entry in entries(KEPT, key)]


def test_there_are_many_logs() -> None:
    assert len(FAILURES) >= 300
    assert len(CALM) + len(HEALTHY) + len(NOTES) + sum(not known for known in RIGHT.values()) >= 100


def test_every_row_is_in_two_logs() -> None:
    texts = [*FAILURES.values(), *CALM.values(), *(note["line"] for note in NOTES.values())]
    texts += [path.read_text() for path in (*HEALTHY, *HIDDEN)]
    seen = Counter(ident for text in texts for ident in scan(io.BufferedReader(io.BytesIO(text.encode()))).hits)
    # A row without signatures is found by the codes of a table, which has its own tests.
    assert not [row.id for row in rows() if row.signatures and seen[row.id] < 2]


PREFIXES = (
    "2026-05-02T10:00:00.123456789Z ",
    "[2026-05-02T10:00:00.123] ",
    "2026-05-02T10:00:00.000000Z 01E ",
    "[rank3]: ",
    "7: ",
    "[pod/train-0/main] ",
    "2026-05-02T10:00:00.1Z stderr F ",
    "#9 [build 3/7] 34.56 ",
    "May  2 10:00:00 node7 kernel: [12345.678901] ",
    "(RayTrainWorker pid=812, ip=10.0.0.4) ",
    "trainer-1  | ",
    "\x1b[1;31m",
    "loading 12%\rloading 30%\r",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "line", ["sbatch: error: no such account", "Bus error (core dumped)", "nvcc fatal   : no input"]
)
def test_a_prefix_hides_no_failure(prefix: str, line: str) -> None:
    found = diagnosed(f"epoch 1\n{prefix}{line}\ndone\n")
    assert (found.verdict, found.exit_code) == (Verdict.UNKNOWN, 5)
    assert line in shown(found)


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_log_that_ends_well_is_clear(path: Path) -> None:
    found = diagnosed(path.read_text())
    assert (found.verdict, found.exit_code) == (Verdict.CLEAR, 0)
    assert not [one for one in found.findings if one.severity is Severity.ERROR]


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_the_same_log_without_its_end_is_not_clear(path: Path) -> None:
    lines = path.read_text().splitlines()
    kept = [line for line in lines if diagnosed(line + "\n").verdict is not Verdict.CLEAR]
    assert diagnosed("\n".join(kept)).verdict is not Verdict.CLEAR


@pytest.mark.parametrize("path", HIDDEN, ids=lambda path: path.stem)
def test_the_real_error_is_shown_beside_the_last_line(path: Path) -> None:
    found = diagnosed(path.read_text())
    assert (found.verdict, found.exit_code) == (Verdict.UNKNOWN, 5)
    lines = path.read_text().splitlines()
    number = int(found.conclusion.rpartition("line ")[2].rstrip(")"))
    assert "Error: " in lines[number - 1] or "Corrupt: " in lines[number - 1]


def test_the_lines_of_a_failure_are_in_json_in_their_order() -> None:
    tree = diagnosed("a\nzoo.LionError: out\nmake: *** [Makefile:3: all] Error 1\nfailed to feed\n").to_json()
    facts = {fact["name"]: fact["value"] for fact in tree["sections"][0]["facts"]}
    assert (tree["verdict"], tree["exit_code"]) == ("unknown", 5)
    assert list(facts) == ["lines", "line 2", "line 3", "line 4", "make"]


def test_lines_that_are_not_shown_are_counted() -> None:
    facts = dict(diagnosed("zoo.LionError: out\n" * 50).sections[0].facts)
    assert facts["more lines"].startswith("42 other lines")


@pytest.mark.parametrize("end", ["Error: Process completed with exit code 1.", "Killed", "CrashLoopBackOff"])
def test_an_end_or_an_effect_explains_nothing_alone(end: str) -> None:
    found = diagnosed(end + "\n")
    assert (found.verdict, found.exit_code) == (Verdict.UNKNOWN, 5)
    assert found.conclusion.endswith("but the log does not show why")


@pytest.mark.parametrize("code", ["0", "1"])
def test_the_digits_of_an_exit_code_decide(code: str) -> None:
    found = diagnosed(f"step one exited with code 0\ncontainer exited with code {code}\n")
    assert found.verdict is (Verdict.CLEAR if code == "0" else Verdict.UNKNOWN)


def test_a_table_of_counters_without_errors_is_no_failure() -> None:
    table = f"{'    Correctable Error':51}: {{}}\n{'    Remapping Failure Occurred':51}: {{}}\n"
    assert diagnosed(table.format("0", "No")).verdict is Verdict.OPEN
    assert diagnosed(table.format("0", "No") + f"{'    Access Timeout Recovery':51}: N/A\n").verdict is Verdict.OPEN
    assert diagnosed("the copy had an error\n" + table.format("0", "No")).verdict is Verdict.UNKNOWN
    assert diagnosed(table.format("0", "Yes")).verdict is Verdict.UNKNOWN


def test_the_rank_that_ended_first_is_named_beside_the_rank_that_noticed_it() -> None:
    (finding,) = [one for one in diagnosed(FAILURES["recorded gloo-peer-gone"]).findings if one.id == "store-gone"]
    assert "The launcher saw local rank 1 end first, with exit code 3" in finding.cause


def test_a_stack_after_a_timeout_says_where_the_program_waited() -> None:
    (finding,) = diagnosed(FAILURES["recorded ray-like-hang"]).findings
    assert finding.id == "stack-after-timeout"
    assert "A thread was in synchronize of " in finding.cause
    assert "The program was at line 3 of /job/train.py." in finding.cause
    # pytest prints the same for a test that is only slow.
    assert diagnosed(FAILURES["recorded ray-like-hang"] + "\n1 passed in 4.00s\n").verdict is Verdict.CLEAR


def test_a_log_that_ends_in_the_middle_is_open_and_shows_its_last_line() -> None:
    found = diagnosed("Successfully installed torch-2.12.1\nepoch 1 step 3 loss 0.5\n")
    assert (found.verdict, found.exit_code) == (Verdict.OPEN, 5)
    assert dict(found.sections[0].facts)["last line"] == "epoch 1 step 3 loss 0.5"


@pytest.mark.parametrize(
    "line",
    [
        "the training has not finished",
        "Training finished for epoch 3",
        "saving checkpoint to /out/3.pt",
        "Successfully built flash-attn",
        "#5 DONE 0.3s",
        "Solving environment: done",
    ],
)
def test_the_end_of_a_part_is_not_the_end(line: str) -> None:
    assert diagnosed(f"starting\n{line}\n").verdict is Verdict.OPEN


@pytest.mark.parametrize(
    "line",
    [
        "E xla/cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT",
        "E0000 00:00:1 6 cuda_dnn.cc:83] Unable to register cuDNN factory: Attempting to register factory for plugin",
        "E0000 00:00:1 2 computation_placer.cc:177] computation placer already registered. Please check linkage",
        "E tensorflow/x.cc:1] successful NUMA node read from SysFS had negative value (-1), but there must be one",
        "W dso_loader.cc:60] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open",
    ],
)
def test_noise_of_tensorflow_is_no_failure(line: str) -> None:
    assert diagnosed(f"{line}\nstep 1\n").verdict is Verdict.OPEN
    assert diagnosed(f"{line}\nRuntimeError: no data\n").verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "line",
    [
        "Encountered problems while solving:",
        "  - nothing provides libfoo needed by bar-1.0-0",
        "error    libmamba Could not solve for environment specs",
        "  - package x-1 is excluded by strict repo priority",
    ],
)
def test_a_conflict_of_a_solver_is_never_an_all_clear(line: str) -> None:
    for log in (f"{line}\n", f"{line}\ntraining finished\n"):
        assert diagnosed(log).verdict in (Verdict.NAMED, Verdict.UNKNOWN)


@pytest.mark.parametrize(
    ("lines", "conclusion"),
    [
        (
            "The actor died unexpectedly before finishing this task.\nJob entrypoint command failed with exit code 1\n",
            "A Ray worker died",
        ),
        (
            "The actor died unexpectedly before finishing this task.\nzoo.LionError: out\n",
            "and the log shows a failure that envkit does not recognize (line 2)",
        ),
    ],
)
def test_an_effect_is_named_beside_what_is_unknown(lines: str, conclusion: str) -> None:
    found = diagnosed(lines)
    assert found.verdict is Verdict.UNKNOWN
    assert conclusion in found.conclusion


def test_a_weak_sign_does_not_outweigh_a_good_end() -> None:
    assert diagnosed("could not read the cache, starting without it\ntraining finished\n").verdict is Verdict.CLEAR


def test_an_exception_of_any_name_ends_its_traceback() -> None:
    head = 'Traceback (most recent call last):\n  File "a.py", line 1\n    raise Full("error: failed")\n'
    found = diagnosed(f"{head}Full\n")
    assert dict(found.sections[0].facts) == {"lines": "4", "line 4": "Full", "line 4 raised": "at a.py:1"}


def test_tracebacks_of_two_ranks_keep_both_exceptions() -> None:
    log = "".join(f"[rank{rank}]: Traceback (most recent call last):\n" for rank in (0, 1))
    log += "".join(f"[rank{rank}]: zoo.Escaped: lion {rank}\n" for rank in (0, 1))
    assert [name for name, _ in diagnosed(log).sections[0].facts] == ["lines", "line 3", "line 4"]


SHELL = "root@gpu7:/work# "
LIST = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0c1d2a77-11aa-4b6e-9a55-7d3f2b1c9e00)"
ASK = 'python3 -c "import torch; print(torch.__version__, torch.cuda.is_available())"'


@pytest.mark.parametrize(
    ("log", "verdict"),
    [
        ("SUCCESS!", Verdict.CLEAR),
        ("success rate 0.4", Verdict.OPEN),
        ("INFO:     Application startup complete.", Verdict.CLEAR),
        ("INFO:     Waiting for application startup.", Verdict.OPEN),
        ("INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)", Verdict.CLEAR),
        (" * Running on http://127.0.0.1:5000", Verdict.CLEAR),
        ("Running on local URL:  http://127.0.0.1:7860", Verdict.CLEAR),
        ("srv  update_slots: all slots are idle", Verdict.CLEAR),
        ("[2026-03-02 10:00:00] The server is fired up and ready to roll!", Verdict.CLEAR),
        ('INFO:     172.17.0.1:48732 - "POST /v1/chat/completions HTTP/1.1" 200 OK', Verdict.CLEAR),
        ('INFO:     172.17.0.1:48732 - "POST /v1/chat/completions HTTP/1.1" 500 Internal', Verdict.OPEN),
        # A check of the server, and a client that downloads, say nothing of a job.
        ('INFO:     172.17.0.1:48732 - "GET /health HTTP/1.1" 200 OK', Verdict.OPEN),
        ('https://hub.example.com:443 "GET /api/models/x HTTP/1.1" 200 None', Verdict.OPEN),
        ('[GIN] 2026/02/03 - 22:47:31 | 200 |  9.412s |  127.0.0.1 | POST "/api/generate"', Verdict.CLEAR),
        ('[GIN] 2026/02/03 - 22:47:31 | 500 |  9.412s |  127.0.0.1 | POST "/api/generate"', Verdict.OPEN),
        ('[GIN] 2026/02/03 - 22:47:31 | 200 |  21us |  127.0.0.1 | HEAD "/"', Verdict.OPEN),
        (f"{SHELL}nvidia-smi -L\n{LIST}", Verdict.CLEAR),
        (f"[ann@login ~]$ srun -G1 nvidia-smi -L\npyxis: imported docker image: ubuntu\n{LIST}", Verdict.CLEAR),
        (f"{SHELL}sh train.sh\n{LIST}", Verdict.OPEN),
        (f"{LIST}", Verdict.OPEN),
        (f"{SHELL}{ASK}\n2.6.0+cu124 True", Verdict.CLEAR),
        (f"{SHELL}{ASK}\n2.6.0+cpu False", Verdict.OPEN),
        (f"{SHELL}python3 train.py\nshuffle: True", Verdict.OPEN),
    ],
)  # fmt: skip
def test_a_server_that_answers_and_a_gpu_that_is_found_are_good_ends(log: str, verdict: Verdict) -> None:
    found = diagnosed(f"starting\n{log}\n")
    assert found.verdict is verdict
    assert found.exit_code == (0 if verdict is Verdict.CLEAR else 5)


@pytest.mark.parametrize("end", ["INFO:     Application startup complete.", f"{SHELL}nvidia-smi -L\n{LIST}"])
def test_a_failure_before_a_server_that_answers_stays_one(end: str) -> None:
    assert diagnosed(f"zoo.LionError: the lion is out\n{end}\n").verdict is Verdict.UNKNOWN
    assert diagnosed(f"RuntimeError: No CUDA GPUs are available\n{end}\n").verdict is Verdict.NAMED


def test_a_warning_is_told_where_a_log_has_no_end() -> None:
    found = diagnosed("CUDA not available - defaulting to CPU. Note: this is slow.\nstep 3\n")
    assert (found.verdict, found.exit_code) == (Verdict.OPEN, 5)
    assert found.conclusion == (
        "The program finds no GPU that it can use and goes on with the CPU (line 1, a warning), but the log does not "
        "say how the job ended"
    )


def test_a_row_may_name_a_line_that_its_program_writes_as_information() -> None:
    line = 'time=2026-07-22T09:13:44 level=INFO source=ggml.go:494 msg="offloaded 0/49 layers to GPU"'
    assert [one.id for one in diagnosed(f"{line}\n").findings] == ["llama-cpu"]
    # Others only quote what a row knows.
    assert not diagnosed('level=info msg="RuntimeError: No CUDA GPUs are available"\n').findings


def test_a_progress_bar_of_training_is_no_preparation() -> None:
    late = "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(Timeout(ms)=1800000) ran for 1800328 ms"
    bar = "tokenizing  9%|##  | 280000/2969526 [29:55<4:48:08, 155.57 examples/s]"
    (finding,) = diagnosed(f"{bar}\n{late}\n").findings
    assert finding.id == "rank-prepares-data"
    assert "(1800000 ms) is at 9 % after 29:55, with 4:48:08 to go." in finding.cause
    for other in (
        "Epoch 3: 45%|##  | 4500/10000 [1:02:03<1:15:00,  1.21it/s]",
        "tokenizing 100%|####| 2969526/2969526 [29:55<00:00, 1555.57 examples/s]",
        f"{bar}\nstep 40 loss=1.2",
    ):
        assert [one.id for one in diagnosed(f"{other}\n{late}\n").findings] == ["nccl-watchdog-timeout"]


def test_a_long_value_ends_after_a_word() -> None:
    wheels = ", ".join(f"`manylinux_2_{number}_x86_64`" for number in range(17, 40))
    (finding,) = diagnosed(
        "hint: You're on Linux (`manylinux_2_39_aarch64`), but `zoo` (v1.2) only has wheels for the following "
        f"platforms: {wheels}; consider adding \"sys_platform == 'linux'\" to `tool.uv.required-environments` to\n"
    ).findings
    assert "and `zoo` (v1.2) has wheels for `manylinux_2_17_x86_64`, `manylinux_2_18_x86_64`," in finding.cause
    assert re.search(r"_x86_64`, \u2026\. uv proposes to add \"sys_platform == 'linux'\" to", finding.cause)
