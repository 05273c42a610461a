"""Groups of tests: which ones a run leaves out, which ones share a process, and how long each took.

A group is a folder of `tests`, and each file of `tests/engines` by itself. `--part quick` leaves out what is marked
`long`. `--part rest` runs what `quick` left out: the tests marked `long`, and those with generated examples, with more
of them.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

PARTS = ("quick", "rest", "all")
_EXAMPLES = {"quick": 25, "rest": 200, "all": 200}
_SHOWN = 10
TOO_LATE = "the limit of the run was reached before this test began"
# Tests that look for leftovers of Podman, or of a runner of files, must not run beside others that use the same one.
# The conformance suite takes a container in which Docker installs wheels for a leftover of its own, so what builds such
# images is one set with it. Those of "sound" share an image that takes a minute to make. Every other file is a set.
_OF_RUNNER = {"podman": "podman", "bubblewrap": "files", "proot": "files"}
_TOGETHER = {
    "podman": "podman",
    "bubblewrap": "files",
    "kernel_files": "files",
    "conformance": "builds",
    "source_wheels": "builds",
    "spine": "builds",
    "negative_controls": "sound",
    "self_test": "sound",
}
# What takes longest is started first, so that the processes end at about the same time. The order is that of the table
# which a run prints; a set that is not named here comes after these.
_LONGEST = (
    "builds",
    "podman",
    "sound",
    "tests/engines/test_documented_verify.py",
    "tests/engines/test_cuda_starts.py",
    "tests/engines/test_run_project.py",
    "tests/payload/test_devices_on_standin.py",
    "tests/engines/test_container_jobs.py",
    "tests/payload/test_tiers_on_standin.py",
    "files",
    "tests/engines/test_documented.py",
    "tests/engines/test_command_line.py",
    "tests/engines/test_embedded.py",
    "tests/watch/test_trainings.py",
    "tests/engines/test_plain_containers.py",
)

for _part, _examples in _EXAMPLES.items():
    settings.register_profile(_part, max_examples=_examples, deadline=None)


def group_of(nodeid: str) -> str:
    """The group of a test: `unit`, `payload`, `engines/push`, `engines/conformance`."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    folder = parts[1] if len(parts) > 2 else "tests"
    if folder != "engines":
        return folder
    return f"engines/{parts[2].removeprefix('test_').removesuffix('.py')}"


def process_of(nodeid: str) -> str:
    """Return the name that a test has in common with those that have to run in the same process."""
    folder, _, name = group_of(nodeid).partition("/")
    file = nodeid.partition("::")[0]
    if folder not in ("engines", "world"):
        return file
    for value in re.split(r"[^a-z]+", nodeid.partition("[")[2]):
        if value in _OF_RUNNER:
            return _OF_RUNNER[value]
    return next((process for prefix, process in _TOGETHER.items() if name.startswith(prefix)), file)


def _turn(item: pytest.Item) -> int:
    """The place of a test's set in the order in which sets are started."""
    process = process_of(item.nodeid)
    return _LONGEST.index(process) if process in _LONGEST else len(_LONGEST)


class _ByProcess(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Give every process of xdist whole sets of tests. (xdist's own marks for this do nothing with pytest 9.2.)"""

    def _split_scope(self, nodeid: str) -> str:
        return process_of(nodeid)


class Groups:
    """Select the tests of a part, spread them over processes, and tell what was run and left out."""

    def __init__(self, part: str, lint_seconds: float = 0.0, limit_s: float = 0.0) -> None:
        self.part = part
        self.limit_s = limit_s  # 0.0 is none
        self.begin = time.monotonic()
        self.too_late: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float, {"lint": lint_seconds} if lint_seconds else {})
        self.counts: Counter[str] = Counter()
        self.terminal: pytest.TerminalReporter | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Find the terminal's reporter; a process of xdist has none."""
        self.terminal = session.config.pluginmanager.get_plugin("terminalreporter")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> _ByProcess:
        """Say which tests stay together."""
        return _ByProcess(config, log)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what another part runs. In a process of xdist, what takes longest comes first."""
        kept = [item for item in items if self._wanted(item)]
        away = [item for item in items if not self._wanted(item)]
        self.left_out = Counter(group_of(item.nodeid) for item in away)
        if away:
            config.hook.pytest_deselected(items=away)
            items[:] = kept
        if hasattr(config, "workerinput"):
            items.sort(key=_turn)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In a process of xdist: hand over what was left out."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["left_out"] = dict(self.left_out)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:  # of xdist
        """Take over what a process left out; all of them have collected the same tests."""
        self.left_out = Counter(getattr(node, "workeroutput", {}).get("left_out", {})) or self.left_out

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Begin no test after the limit, so that a run that has to end in time also says what it found."""
        if self.limit_s and time.monotonic() - self.begin > self.limit_s:
            pytest.skip(TOO_LATE)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up the time of a test's preparation, call and clean-up, and name a failure at once.

        pytest names them at the end, which a run that is cut off never reaches.
        """
        group = group_of(report.nodeid)
        self.seconds[group] += report.duration
        self.too_late[group] += report.skipped and TOO_LATE in str(report.longrepr)
        self.counts[group] += report.when == "call" or (report.when == "setup" and report.outcome != "passed")
        if report.failed and self.terminal is not None:
            self.terminal.write_line(f"\nfailed: {report.nodeid} ({report.when})")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the slowest groups, and the groups that were left out with the command that runs them."""
        rows = sorted(self.seconds.items(), key=lambda row: -row[1])
        if len(rows) > 1:
            shown, rest = rows[:_SHOWN], rows[_SHOWN:]
            terminalreporter.section("time per group, added up over all processes")
            for name, seconds in shown:
                terminalreporter.write_line(f"{seconds:7.0f} s  {self.counts[name]:5} tests  {name}")
            if rest:
                seconds, count = sum(row[1] for row in rest), sum(self.counts[row[0]] for row in rest)
                terminalreporter.write_line(f"{seconds:7.0f} s  {count:5} tests  {len(rest)} more groups")
        if self.too_late.total():
            names = ", ".join(f"{name} ({count})" for name, count in sorted((+self.too_late).items()))
            terminalreporter.write_line(f"not run within {self.limit_s:.0f} s, {self.too_late.total()} tests: {names}")
        if self.left_out and self.part == "quick":
            names = ", ".join(f"{name} ({count})" for name, count in sorted(self.left_out.items()))
            terminalreporter.write_line(f"left out, {self.left_out.total()} tests: {names}")
            terminalreporter.write_line("they run with: make test-rest (and with all others: make test-all)")

    def _wanted(self, item: pytest.Item) -> bool:
        long = item.get_closest_marker("long") is not None
        if self.part == "quick":
            return not long
        return self.part == "all" or long or is_hypothesis_test(getattr(item, "obj", None))
