"""States of schedulers and engines, and the tools whose names lines begin with."""

from __future__ import annotations

import io

import pytest

from envkit.doctor import shapes
from envkit.doctor.logs import diagnose_log
from envkit.doctor.model import Diagnosis, Verdict
from envkit.knowledge import programs
from envkit.knowledge.failures import rows
from envkit.knowledge.programs import FAILED, RUNS, WELL, State, Tool

# How each system prints a state.
LINES = {
    "Slurm": "812.batch      train  gpu  4  {}  0:9",
    "Kubernetes": "  Reason:       {}",
    "Compose": "Status: {}",
    "enroot": "{} /etc/enroot/hooks.d/98-nvidia.sh exited with return code 1",
    "pyxis": "slurmstepd: error: {}",
    "Apptainer": "{} container creation failed",
}


def line(state: State) -> str:
    if state.ends == WELL and state.system == "Slurm":
        return "812  train  gpu  4  COMPLETED  0:0"
    if state.name == "is unhealthy":
        return "dependency failed to start: container db-1 is unhealthy"
    if state.is_alone and state.ends in (WELL, RUNS):
        return f"Status: {state.name}"
    return LINES[state.system].format(state.name).strip()


def diagnosed(text: str) -> Diagnosis:
    return diagnose_log(io.BufferedReader(io.BytesIO(text.encode())), "log")


@pytest.mark.parametrize(
    "state", [one for one in programs.states() if one.ends == FAILED], ids=lambda one: f"{one.system}-{one.name}"
)
def test_a_state_that_ends_a_job_badly_is_a_failure_and_explained(state: State) -> None:
    found = diagnosed(f"epoch 1\n{line(state)}\n")
    assert found.verdict in (Verdict.UNKNOWN, Verdict.NAMED)
    facts = dict(found.sections[0].facts)
    assert found.verdict is Verdict.NAMED or facts.get(state.name) == state.said
    # The same word inside of another one is something else.
    if not state.name[0].isalpha():
        return
    assert state not in programs.states_in(f"the model x{state.name}y was saved")


@pytest.mark.parametrize("state", [one for one in programs.states() if one.system in ("Slurm", "Kubernetes")],
                         ids=lambda one: one.name)  # fmt: skip
def test_a_state_that_ends_well_is_a_good_end_and_no_other(state: State) -> None:
    is_good = shapes.is_good_end(line(state))
    assert is_good is (state.ends == WELL or (state.ends == RUNS and state.system == "Kubernetes"))


def test_a_table_of_states_has_sources_and_rows_that_exist() -> None:
    known = {row.id for row in rows()}
    for state in programs.states():
        assert all(source.startswith("https://") for source in state.sources)
        assert set(state.rows) <= known
        assert state.means
        assert not state.means.endswith(".")
    assert {state.system for state in programs.states()} == set(LINES)


@pytest.mark.parametrize("tool", programs.tools(), ids=lambda one: one.prefix)
def test_a_tool_is_named_beside_its_line(tool: Tool) -> None:
    assert tool.source.startswith("https://")
    assert tool in programs.tools_of([f"{tool.prefix}: error: something that no row knows"])
    assert tool not in programs.tools_of([f"my{tool.prefix}: error: something", f"the {tool.prefix} of the model"])


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("slurmstepd: error: pyxis: something new", ["slurmstepd", "pyxis"]),
        ("slurmstepd[812]: error: something new", ["slurmstepd"]),
        ("/usr/bin/ld: something new of the linker: error", ["ld"]),
        ("collect2: error: ld returned 1 exit status", ["collect2"]),
        ("ninja: build stopped: something new.", ["ninja"]),
        ("torch.distributed.elastic.multiprocessing.errors.Odd: x", ["torch.distributed.elastic"]),
        ("nvcc fatal   : something new", ["nvcc"]),
        ("make[2]: *** [Makefile:3: all] Error 1", ["make"]),
        ("ldconfig.real: Can't open cache", []),
        ("make sure that the model is there", []),
    ],
)
def test_the_tools_of_a_line(text: str, tools: list[str]) -> None:
    assert [tool.prefix for tool in programs.tools_of([text])] == tools


def test_an_unknown_failure_says_what_each_tool_is() -> None:
    log = "srun: error: node07: something new\nninja: fatal: something else\n"
    facts = dict(diagnosed(log).sections[0].facts)
    assert facts["srun"].startswith("the launcher of Slurm")
    assert facts["ninja"].startswith("the program that runs the compilers")
    assert list(facts)[:3] == ["lines", "line 1", "line 2"]


def test_what_many_programs_print_is_no_state_of_a_scheduler() -> None:
    launcher = "[ERROR] [launch.py:321:sigkill_handler] ['python', 'train.py'] exits with return code = -7"
    assert not programs.states_in(launcher)
    assert not programs.states_in("FAILED: main.cu.o")
    assert [state.system for state in programs.states_in("812  train  gpu  4  FAILED  1:0")] == ["Slurm"]
