"""What made a log: each sign of each context has a line, and a line that merely names it shows nothing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from envkit.doctor.logs import diagnose_log, scan
from envkit.doctor.logtext import plain
from envkit.ground import strictyaml
from envkit.ground.errors import UsageError
from envkit.knowledge import contexts, failures, matching
from envkit.knowledge.contexts import Context
from tests.support.linear import MOST_WAYS, ways


def _cases() -> dict[str, Any]:
    tree = strictyaml.read_file(Path(__file__).parent / "contexts.yaml")
    assert isinstance(tree, dict)
    assert isinstance(tree["contexts"], dict)
    return tree["contexts"]


CONTEXTS = _cases()
TABLE = contexts.table()


def shown(log: str) -> set[str]:
    return scan(io.BufferedReader(io.BytesIO(log.encode()))).contexts


def test_every_context_has_its_cases() -> None:
    assert {context.name for context in TABLE} == set(CONTEXTS)
    assert all(context.what for context in TABLE)


@pytest.mark.parametrize("context", TABLE, ids=lambda one: one.name)
def test_every_sign_has_a_line_of_its_own(context: Context) -> None:
    lines = [plain(line) for line in CONTEXTS[context.name]["seen"]]
    for sign in context.signs:
        assert any(sign.has in line.lower() and sign.fits(line) for line in lines), sign
    for line in lines:
        assert context.name in shown(f"epoch 1\n{line}\n"), line


@pytest.mark.parametrize("context", TABLE, ids=lambda one: one.name)
def test_a_line_that_names_a_context_does_not_show_it(context: Context) -> None:
    for line in CONTEXTS[context.name]["near"]:
        assert context.name not in shown(f"{line}\n"), line


@pytest.mark.parametrize("context", TABLE, ids=lambda one: one.name)
def test_the_work_of_a_sign_is_bounded(context: Context) -> None:
    for sign in context.signs:
        assert len(sign.has) >= 3
        assert all(pattern is None or ways(pattern) <= MOST_WAYS for pattern in (sign.match, sign.unless))


def test_a_context_counts_wherever_it_is_shown() -> None:
    error = "FAILED_PRECONDITION: DNN library initialization failed."
    jax = 'File "/opt/venv/lib/python3.11/site-packages/jax/_src/random.py", line 160'
    for log in (f"{jax}\n{error}\n", f"{error}\n{jax}\n"):
        (finding,) = diagnose_log(io.BufferedReader(io.BytesIO(log.encode())), "log").findings
        assert finding.title == "cuDNN could not start under JAX"
        assert "XLA_PYTHON_CLIENT_PREALLOCATE" in finding.fix[0]
        assert matching.shown(log)[0].title == finding.title
    assert matching.shown(error)[0].title.endswith("could not start under TensorFlow or XLA")


def test_a_row_of_another_system_is_not_named() -> None:
    error = "error: failed to copy file from x to y: Broken pipe (os error 32)"
    assert "windows-file-in-use" in {row.id for row in matching.shown(f"C:\\Users\\a\\x.py\n{error}")}
    assert "windows-file-in-use" not in {row.id for row in matching.shown(f"/home/ann/.cache/uv\n{error}")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("only_in: [solaris]", "unknown context 'solaris'"),
        ("in: {docker: {severity: warn}}", "in docker: only cause, check, fix, title can be replaced"),
        ("reads: [{has: version}]", "reads: an entry is a mapping"),
        ("after: [no-such-row]", "comes after 'no-such-row', which is not a row"),
    ],
)
def test_a_row_with_an_invalid_context_is_refused(
    change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.yaml").write_text(
        "schema: 1\nrows:\n  - id: x\n    title: x\n    role: cause\n    severity: error\n    signatures: [abc]\n"
        f"    cause: x.\n    check: [x]\n    fix: [x]\n    distinguish: x.\n    sources: [a/b]\n    {change}\n"
    )
    monkeypatch.setattr(failures, "DATA", tmp_path)
    with pytest.raises(UsageError, match=message):
        failures.rows.__wrapped__()
