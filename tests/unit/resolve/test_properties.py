"""What holds for every request, against the shipped facts."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from envkit.facts.load import load
from envkit.facts.model import Facts
from envkit.ground.platforms import PLATFORMS
from envkit.ground.versions import key, parse_constraint
from envkit.resolve.conflict import Unresolvable
from envkit.resolve.explain import smallest
from envkit.resolve.gpus import find
from envkit.resolve.index import Index, index
from envkit.resolve.model import SOURCES, Request
from envkit.resolve.request import parse
from envkit.resolve.resolver import resolve
from envkit.resolve.rules import cudnn_runs, satisfiable, scoped
from envkit.resolve.wanted import asks, keep, wanted

DRIVERS = (
    "440.33",
    "450.80.02",
    "470.57.02",
    "525.60.13",
    "535.104.05",
    "550.54.15",
    "570.26",
    "580.65.06",
    "595.45.04",
)
GPUS = ("K80", "P100", "V100", "T4", "A100", "RTX 4090", "H100", "B200", "RTX 5090")
FLAGS = ("cpu", "supported_only", "allow_forward_compat")


@cache
def known() -> Facts:
    return load()


def sometimes(*values: str) -> st.SearchStrategy[str | None]:
    return st.one_of(st.none(), st.none(), st.sampled_from(values))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    def version(field: str, *values: str) -> object:
        text = draw(sometimes(*values))
        return parse_constraint(text, field) if text else None

    gpu_side = draw(st.booleans())
    return Request(
        torch=version("torch", "1.12.1", "2.0", "2.4.*", "2.7.1", ">=2.8,<2.11", "2.12", "2.14.1", "2.15"),  # type: ignore[arg-type]
        python=version("python", "3.8", "3.10", ">=3.11", "3.14"),  # type: ignore[arg-type]
        cuda=version("cuda", "10.2", "11.8", "12.1", "12.*", "12.8", "13.0") if gpu_side else None,  # type: ignore[arg-type]
        cudnn=version("cudnn", "8.9", "9.*") if gpu_side else None,  # type: ignore[arg-type]
        driver=draw(sometimes(*DRIVERS)) if gpu_side else None,
        gpus=tuple(draw(st.lists(st.sampled_from(GPUS), max_size=2, unique=True))) if gpu_side else (),
        os=draw(sometimes(*(row.id for row in known().oses))),
        platform=draw(st.sampled_from((PLATFORMS[0], *PLATFORMS))),
        source=draw(st.sampled_from(("auto", *SOURCES))),
        cpu=not gpu_side and draw(st.booleans()),
        template=draw(sometimes("wheels")),
        supported_only=draw(st.sampled_from((False, False, True))),
        allow_forward_compat=draw(st.booleans()),
        today=draw(sometimes("2026-12-01", "2029-02-01", "2032-01-01")),
    )


@cache
def rows() -> Index:
    return index(known())


def resolvable(request: Request) -> bool:
    return satisfiable(scoped(wanted(request, known()), rows()), rows())


def outcome(request: Request, facts: Facts) -> object:
    try:
        return resolve(request, facts).to_json()
    except Unresolvable as error:
        return error.conflict.to_json()


@settings(deadline=None)
@given(requests())
def test_the_answer_satisfies_the_request(request: Request) -> None:
    assume(resolvable(request))
    facts = known()
    found = resolve(request, facts)
    assert request.torch is None or request.torch.allows(found.torch)
    assert request.cuda is None or (found.cuda is not None and request.cuda.allows(found.cuda))
    assert request.cudnn is None or (found.cudnn is not None and request.cudnn.allows(found.cudnn))
    assert request.python is None or request.python.allows(found.python)
    assert found.pythons is None or found.python in found.pythons
    assert found.platform == request.platform
    assert request.source in ("auto", found.source)
    assert (found.cuda is None) == request.cpu
    system = next(row for row in facts.oses if row.id == (request.os or "debian12"))
    assert found.glibc is None or key(system.glibc) >= key(found.glibc)
    if request.template == "wheels":
        assert found.python in system.pythons
        assert found.source in ("pytorch", "pypi")
    if request.driver and found.driver:
        forward = found.driver.mode == "forward-compatible"
        assert forward or found.driver.mode in ("native", "minor-compatible")
        assert forward or key(request.driver) >= key(found.driver.minimum)
        assert not forward or (request.allow_forward_compat and request.gpus)
        assert (found.driver.package is not None) == forward
    assert found.support is not None
    assert not request.supported_only or found.support.level in ("supported", "security")
    # The row it came from is a row of the facts, and it has code for every GPU.
    made = (found.torch, found.cuda, found.source, found.platform)
    builds = [row for row in facts.builds if (row.torch, row.cuda, row.source, row.platform) == made]
    assert len(builds) == 1
    for typed in request.gpus:
        gpu = find(typed, facts.gpus)
        assert gpu is not None
        major, minor = map(int, gpu.capability.split("."))
        archs = [tuple(map(int, arch.split("."))) for arch in builds[0].archs or ()]
        cubin = any(have == major and below <= minor for have, below in archs)
        ptx = any(key(arch) <= key(gpu.capability) for arch in builds[0].ptx)
        assert cubin or ptx or (builds[0].archs is None and any("may not work" in text for text in found.warnings))
        assert cudnn_runs(builds[0], gpu, rows())
        if request.driver:
            branch = key(request.driver)[0]
            assert (gpu.min_driver_branch or 0) <= branch <= (gpu.last_driver_branch or branch)


@settings(deadline=None)
@given(requests(), st.integers(0, 99))
def test_the_order_of_rows_changes_nothing(request: Request, seed: int) -> None:
    facts, random = known(), Random(seed)
    builds = list(facts.builds)
    random.shuffle(builds)
    releases = list(facts.releases.items())
    random.shuffle(releases)
    toolkits, cudnns = list(facts.toolkits), list(facts.cudnns)
    random.shuffle(toolkits)
    random.shuffle(cudnns)
    shuffled = replace(
        facts,
        builds=tuple(builds),
        releases=dict(releases),
        toolkits=tuple(toolkits),
        cudnns=tuple(cudnns),
    )
    assert outcome(request, shuffled) == outcome(request, facts)


@settings(deadline=None)
@given(requests(), st.sampled_from(DRIVERS), st.sampled_from(DRIVERS))
def test_a_newer_driver_never_removes_an_answer(request: Request, one: str, other: str) -> None:
    assume(not request.cpu)
    request = replace(request, allow_forward_compat=False)  # its packages list branches one by one
    older, newer = sorted((one, other), key=key)
    # Drivers give up on old GPUs after a last branch; up to there, newer is never worse.
    ends = [gpu.last_driver_branch for typed in request.gpus if (gpu := find(typed, known().gpus))]
    assume(all(end is None or key(newer)[0] <= end for end in ends))
    if resolvable(replace(request, driver=older)):
        assert resolvable(replace(request, driver=newer))


@settings(deadline=None)
@given(requests())
def test_every_suggestion_resolves_and_changes_one_constraint(request: Request) -> None:
    try:
        resolve(request, known())
    except Unresolvable as error:
        found = error.conflict
    else:
        return
    assert found.clash
    for way in found.suggestions:
        fields: dict[str, object] = {}
        words = list(way.words)
        while words:
            name = words.pop(0).removeprefix("--").replace("-", "_")
            if name == "gpu":
                fields["gpu"] = (*fields.get("gpu", ()), words.pop(0))  # type: ignore[misc]
            else:
                fields[name] = True if name in FLAGS else words.pop(0)
        other = parse(fields | {"today": request.today}, known())  # type: ignore[arg-type]
        resolved = resolve(other, known())
        assert way.gives.startswith(f"torch {resolved.torch}, ")
        compared = (
            "torch",
            "cuda",
            "cudnn",
            "python",
            "driver",
            "gpus",
            "os",
            "platform",
            "source",
            "cpu",
            "max_size",
            "supported_only",
            "allow_forward_compat",
            "template",
        )
        changed = [name for name in compared if getattr(other, name) != getattr(request, name)]
        assert changed == [{"gpu": "gpus"}.get(way.field, way.field)]


@settings(deadline=None)
@given(requests())
def test_every_member_of_a_clash_is_needed(request: Request) -> None:
    facts = rows()
    full = scoped(wanted(request, known()), facts)
    assume(not satisfiable(full, facts))
    stated = asks(request)
    clash = smallest(stated, full, facts)
    assert not satisfiable(keep(full, stated, clash), facts)
    for ask in clash:
        assert satisfiable(keep(full, stated, tuple(one for one in clash if one != ask)), facts)


@pytest.mark.requirement("R13")
@settings(deadline=None)
@given(requests())
def test_the_same_request_gives_the_same_answer(request: Request) -> None:
    assert outcome(request, known()) == outcome(request, known())


@pytest.mark.parametrize("gpu", GPUS)
def test_every_gpu_alone_has_an_answer(gpu: str) -> None:
    assert resolve(Request(gpus=(gpu,)), known()).gpu_archs
