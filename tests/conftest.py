"""What all tests share: the switch for engine tests, the world they run in, and the count at the end."""

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.groups import PARTS, TOO_LATE, Groups
from tests.world.places import UnavailableError
from tests.world.world import World, up

IN_CI = os.environ.get("CI", "").lower() == "true"
_NEEDS_ENGINES = ("tests/engines", "tests/world")
_BEGAN_WITH = frozenset(os.environ)
_TAKEN = pytest.StashKey[set[Path]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("engines")
    group.addoption(
        "--run-engines",
        action="store_true",
        help="run engine tests, too: as root on Debian or Ubuntu this installs and starts what is missing",
    )
    group.addoption("--no-engines", action="store_true", help="leave engine tests out, whatever else is said")
    group = parser.getgroup("groups")
    group.addoption(
        "--part",
        choices=PARTS,
        help="quick: without the tests marked long; rest: those, and more generated examples; all: both",
    )
    group.addoption("--limit", type=float, default=0.0, metavar="SECONDS", help="begin no test after so long a time")
    group.addoption("--lint-seconds", type=float, default=0.0, help="what lint took before, for the table of times")


def pytest_configure(config: pytest.Config) -> None:
    part = config.getoption("--part")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or part or "quick")
    groups = Groups(part or "all", config.getoption("--lint-seconds"), config.getoption("--limit"))
    config.pluginmanager.register(groups, "groups")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=_cost)
    if config.getoption("--run-engines") and not config.getoption("--no-engines"):
        return
    left_out = pytest.mark.skip(reason="engine tests run with --run-engines, as `make test` does")
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(left_out)


def _cost(item: pytest.Item) -> int:
    """Quick tests first: what is broken is known before an engine is started."""
    return 2 * bool(item.get_closest_marker("engine")) + bool(item.get_closest_marker("long"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None]:
    """A part of the world that cannot be had skips the test, with the reason."""
    try:
        return (yield)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    try:
        return (yield)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI nobody reads why an engine test was skipped, so there the skip is a failure; `--limit` counts its own."""
    report = yield
    if TOO_LATE in str(report.longrepr):
        return report
    if IN_CI and report.skipped and item.get_closest_marker("engine") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which CI does not allow for engine tests: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI and report.skipped and str(collector.nodeid).startswith(_NEEDS_ENGINES):
        report.outcome = "failed"
        report.longrepr = f"skipped as a whole, which CI does not allow for engine tests: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """The folders that a module's fixture makes go with it: those of all modules together fill a disk."""
    if fixturedef.scope == "function":
        return (yield)
    base = request.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    taken = request.config.stash.setdefault(_TAKEN, set())
    before, made = _folders(base), set[Path]()
    if fixturedef.scope != "session":
        fixturedef.addfinalizer(lambda: _remove(made))  # registered before the fixture's own clean-up, so run after it
    try:
        return (yield)
    finally:
        # What a fixture of longer life made meanwhile is that one's.
        made |= _folders(base) - before - taken
        taken |= made


def _folders(base: Path) -> set[Path]:
    return {entry for entry in base.iterdir() if not entry.is_symlink()}


def _remove(folders: set[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """What fixtures shared goes with the run; what a failed test wrote stays until the next one."""
    made = session.config._tmp_path_factory._basetemp  # type: ignore[attr-defined]  # pytest has no public name for it
    if made is not None and made.is_dir():
        # The latter is another process's.
        _remove({folder for folder in _folders(made) if not folder.name.startswith(("test_", "popen-"))})


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of every run says the three numbers, zeros too."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    passed, failed, errors, skipped = (
        len(reporter.stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")
    )
    reporter.write_line(f"tests: {passed} passed, {failed + errors} failed, {skipped} skipped")


@pytest.fixture(autouse=True)
def _no_settings_of_the_world(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fixtures of engines set mirrors and registries for a whole process; the other tests in it do not see them."""
    with pytest.MonkeyPatch.context() as patch:
        if not request.node.nodeid.startswith(_NEEDS_ENGINES):
            for name in os.environ.keys() - _BEGAN_WITH:
                if name.startswith(("ENVKIT_", "DOCKER_", "CONTAINERS_")):
                    patch.delenv(name)
        yield


@pytest.fixture(scope="session")
def world() -> World:
    """Everything the world has here. What this run had to start ends with it."""
    return up()


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
