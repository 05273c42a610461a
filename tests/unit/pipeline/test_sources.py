"""Where sources are built, and what an error says is missing."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from envkit.engines.model import Probe
from envkit.ground import settings
from envkit.ground.errors import ConflictError, EnvironmentProblem, UsageError
from envkit.ground.progress import Silent
from envkit.lock import sdists
from envkit.lock.built import Outcome
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Lock
from envkit.pipeline import sources
from envkit.pipeline.sources import SourceContext
from envkit.plan.model import BuildPlan
from envkit.source.fetch import Archive
from tests.support.heard import Heard
from tests.support.plans import facts, plan_from
from tests.support.sources import FASTSUM, sdist
from tests.unit.lock.samples import from_source

CUDA = {"setup.py": "import torch.utils.cpp_extension\n", "csrc/kernel.cu": "", "pyproject.toml": ""}


@dataclass
class Engine:
    """An engine that is there or not, and builds nothing."""

    name: str
    available: bool

    def probe(self) -> Probe:
        return Probe(name=self.name, available=self.available, detail=f"{self.name}: no daemon", hint="start it")


@pytest.fixture
def no_docker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sources, "builder_of", lambda name, *_, **__: Engine(name, available=False))
    return iter(())


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _source_context(plan: BuildPlan, reporter: Any = None) -> SourceContext:
    def lock_builder(builder: BuildPlan, *_: object) -> Lock:
        return replace(from_source().builders[0], plan=builder.digest, request=(("pip", builder.pip),))

    return SourceContext(
        plan=plan,
        facts=facts(),
        settings=settings.load({}, {}, Path("/nonexistent")),
        indexes=IndexLocations(),
        lock_builder=lock_builder,
        reporter=reporter or Silent(),
    )


def _archive(folder: Path, files: Any) -> Archive:
    path = folder / "source"
    path.write_bytes(sdist(files))
    return Archive(
        name="fastsum",
        version="1.2",
        url="https://files.example.com/fastsum-1.2.tar.gz",
        commit=None,
        path=path,
        sha256="8" * 64,
    )


def _build(context: SourceContext, archive: Archive) -> Outcome:
    return sources._built(context, archive, lambda plan: sources._locked_builder(context, archive.name, plan))[1]


@pytest.mark.usefixtures("no_docker")
def test_without_docker_what_needs_nvcc_says_that_docker_is_missing(tmp_path: Path) -> None:
    context = _source_context(plan_from('request: {cuda: "12.6", os: ubuntu22.04}\n'))
    with pytest.raises(EnvironmentProblem) as caught:
        _build(context, _archive(tmp_path, CUDA))
    assert caught.value.message == (
        "building fastsum needs nvcc, which requires an image of the devel flavor and docker; "
        "docker is not available: docker: no daemon"
    )
    assert (caught.value.exit_code, caught.value.hint) == (9, "start it")


def test_what_needs_nvcc_needs_a_system_that_nvidia_has_an_image_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"building fastsum needs nvcc: .* none for debian12") as caught:
        _build(_source_context(plan_from('request: {cuda: "12.6"}\n')), _archive(tmp_path, CUDA))
    assert (caught.value.hint or "").startswith("--os ")


@pytest.mark.usefixtures("no_docker")
def test_without_a_sandbox_the_error_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "mmdebstrap" else program)
    with pytest.raises(EnvironmentProblem, match="none works here: mmdebstrap is not installed") as caught:
        _build(_source_context(plan_from("request: {cpu: true}\n")), _archive(tmp_path, FASTSUM))
    assert caught.value.details == ("docker: no daemon",)


@pytest.mark.usefixtures("no_docker")
def test_another_system_than_debian_needs_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shutil, "which", lambda program: program
    )  # else the hint asks the kernel what could be installed
    with pytest.raises(EnvironmentProblem, match="builder images exist only for debian12, not for rockylinux9"):
        _build(_source_context(plan_from("template: wheels\nrequest: {cpu: true, source: pytorch, os: rockylinux9}\n")),
               _archive(tmp_path, FASTSUM))  # fmt: skip


class Sandbox:
    """Stands for the builder image and its sandbox: answers in turn."""

    def __init__(self, *answers: Outcome) -> None:
        self.answers, self.plans = list(answers), list[BuildPlan]()

    def __call__(self, _source_context: SourceContext, plan: BuildPlan, *_: object) -> Outcome:
        self.plans.append(plan)
        return self.answers.pop(0)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "builder_of", lambda name, *_, **__: Engine(name, available=True))
    monkeypatch.setattr(sources, "_no_root", lambda *_: None)


@pytest.mark.usefixtures("engine")
def test_what_the_backend_asks_for_is_locked_and_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "fastsum-1.2-py3-none-any.whl"
    wheel.write_bytes(b"x")
    sandbox = Sandbox(Outcome(wheel=None, requires=("wheel",)), Outcome(wheel=wheel))
    monkeypatch.setattr(sources, "_run", sandbox)
    found = _build(_source_context(plan_from("request: {cpu: true}\n")), _archive(tmp_path, FASTSUM))
    assert [plan.pip for plan in sandbox.plans] == [("setuptools",), ("setuptools", "wheel")]
    assert found.wheel is not None
    assert found.wheel.is_relative_to(tmp_path / "cache" / "envkit" / "built")


@pytest.mark.usefixtures("engine")
def test_what_was_built_once_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "fastsum-1.2-py3-none-any.whl"
    wheel.write_bytes(b"x")
    sandbox = Sandbox(Outcome(wheel=wheel))
    monkeypatch.setattr(sources, "_run", sandbox)
    context, archive = _source_context(plan_from("request: {cpu: true}\n")), _archive(tmp_path, FASTSUM)
    assert _build(context, archive) == _build(context, archive)
    assert len(sandbox.plans) == 1


@pytest.mark.usefixtures("engine")
def test_a_backend_that_never_has_enough_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (Outcome(wheel=None, requires=(f"more{number}",)) for number in range(5))
    monkeypatch.setattr(sources, "_run", Sandbox(*answers))
    with pytest.raises(ConflictError, match="requests more packages each time"):
        _build(_source_context(plan_from("request: {cpu: true}\n")), _archive(tmp_path, FASTSUM))


def test_one_package_named_twice_is_refused() -> None:
    plan = plan_from('allow_source: [fastsum, "fast_sum", "fastsum>=1"]\n')
    with pytest.raises(ConflictError, match="allow_source lists fastsum twice"):
        sources.build_sources(_source_context(plan), glibc="2.36", preferred={}, as_of=None)


def test_a_package_with_a_wheel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdists, "choose", lambda *_, **__: ())
    heard = Heard()
    found = sources.build_sources(
        _source_context(plan_from("allow_source: [fastsum]\n"), heard), glibc="2.36", preferred={}, as_of=None
    )
    assert found.rows == ()
    assert heard.notes == ["fastsum has a wheel, so it is not built from source"]
