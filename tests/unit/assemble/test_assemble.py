"""A whole image without a network: base none, wheels of a folder."""

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.assemble.assemble import LAYERS, Assembled, AssemblyContext, assemble, budgets, made_by, scheme_of
from envkit.engines.layer_cache import LayerCache
from envkit.engines.log import BuildLog
from envkit.ground.errors import EnvironmentProblem, TimeLimitError
from envkit.ground.settings import Mirrors
from envkit.image import spec
from envkit.lock.index_locations import IndexLocations
from envkit.lock.model import Lock, LockedBase, Wheel
from envkit.lock.store import digest_of
from envkit.plan.model import BuildPlan
from envkit.registry.transport import Transport
from tests.support.heard import Heard
from tests.support.locks import lock_for
from tests.support.plans import shipped_plan
from tests.support.wheels import wheel_entries, write_wheel


def _plan() -> BuildPlan:
    return shipped_plan("cu126", template="wheels")


def _wheels(folder: Path) -> tuple[Wheel, ...]:
    folder.mkdir(exist_ok=True)
    rows = []
    for name in ("alpha", "beta", "gamma"):
        entries = wheel_entries({f"{name}/a.py": name.encode() * 999}, name=name)
        path = write_wheel(folder, entries, name=name)
        data = path.read_bytes()
        rows.append(
            Wheel(
                name=name, version="1.0", file=path.name, url=f"https://wheels.example.com/{path.name}",
                sha256=hashlib.sha256(data).hexdigest(), size=len(data), source="pypi",
            )
        )  # fmt: skip
    return tuple(rows)


def _lock(plan: BuildPlan, wheels: tuple[Wheel, ...]) -> Lock:
    return replace(lock_for(plan), wheels=wheels, base=LockedBase(kind="none", reference="none"))


@contextmanager
def _context(folder: Path, wheels: Path | None, **changed: object) -> Iterator[AssemblyContext]:
    with BuildLog(None, Heard()) as log, Transport() as transport:
        yield replace(
            AssemblyContext(
                cache=LayerCache(folder), indexes=IndexLocations(), mirrors=Mirrors(),
                transport=transport, log=log, reporter=Heard(), wheel_dir=wheels, offline=True,
            ),
            **changed,  # type: ignore[arg-type]
        )  # fmt: skip


def _made(tmp_path: Path, name: str, **changed: object) -> Assembled:
    plan = _plan()
    lock = _lock(plan, _wheels(tmp_path / "wheels"))
    with _context(tmp_path / name, tmp_path / "wheels", **changed) as context:
        return assemble(plan, lock, context, extra_labels=(("com.example.team", "vision"),))


def _members(image: spec.Image) -> dict[str, tarfile.TarInfo]:
    found: dict[str, tarfile.TarInfo] = {}
    for layer in image.layers:
        assert layer.blob is not None
        with tarfile.open(layer.blob, "r:gz") as tar:
            found |= {member.name: member for member in tar}
    return found


def _text(layer: spec.Layer, name: str) -> str:
    assert layer.blob is not None
    with tarfile.open(layer.blob, "r:gz") as tar:
        stream = tar.extractfile(name)
        assert isinstance(stream, io.BufferedReader)
        return stream.read().decode()


def test_the_environment_works_where_it_will_lie(tmp_path: Path) -> None:
    image = _made(tmp_path, "one").image
    found = _members(image)
    context = "opt/env/lib/python3.11/site-packages"
    assert {f"{context}/{name}/a.py" for name in ("alpha", "beta", "gamma")} <= found.keys()
    links = {
        name: found[f"opt/env/{name}"].linkname for name in ("bin/python", "bin/python3", "bin/python3.11", "lib64")
    }
    assert links == {
        "bin/python": "python3", "bin/python3": "/usr/bin/python3.11", "bin/python3.11": "python3", "lib64": "lib",
    }  # fmt: skip
    assert _text(image.layers[-1], "opt/env/pyvenv.cfg").splitlines() == [
        "home = /usr/bin", "include-system-site-packages = false", "version = 3.11", "executable = /usr/bin/python3.11",
    ]  # fmt: skip


def test_the_image_says_what_it_is_and_who_runs_it(tmp_path: Path) -> None:
    plan = _plan()
    made = _made(tmp_path, "one")
    config = json.loads(made.image.config)
    labels = config["config"]["Labels"]
    lock = _lock(plan, _wheels(tmp_path / "wheels"))
    assert labels["envkit.plan"] == plan.digest
    assert labels["envkit.lock"] == digest_of(lock)
    assert labels["com.example.team"] == "vision"
    assert config["config"]["Entrypoint"] == list(plan.entrypoint)
    top = made.image.layers[-1]
    assert _text(top, "etc/passwd") == "envkit:x:1000:1000:envkit:/tmp/home:/bin/bash\n"
    assert _text(top, "etc/group") == "envkit:x:1000:\n"
    assert json.loads(_text(top, "usr/share/envkit/plan.json"))["name"] == plan.name
    assert json.loads(_text(top, "usr/share/envkit/envkit.lock"))["plan"] == plan.digest
    assert _members(made.image)[plan.workdir.strip("/")].mode == 0o1777


def test_equal_locks_give_equal_bytes_cold_warm_and_elsewhere(tmp_path: Path) -> None:
    cold, warm, other = (_made(tmp_path, name).image for name in ("one", "one", "two"))
    assert cold.manifest == warm.manifest == other.manifest


def test_a_warm_cache_needs_no_wheel(tmp_path: Path) -> None:
    before = _made(tmp_path, "one").image
    plan = _plan()
    with _context(tmp_path / "one", None) as context:
        again = assemble(
            plan, _lock(plan, _wheels(tmp_path / "wheels")), context, extra_labels=(("com.example.team", "vision"),)
        )
    assert again.image.manifest == before.manifest


def test_a_wheel_with_other_bytes_is_not_taken(tmp_path: Path) -> None:
    plan = _plan()
    lock = _lock(plan, _wheels(tmp_path / "wheels"))
    path = tmp_path / "wheels" / lock.wheels[1].file
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with (
        _context(tmp_path / "one", tmp_path / "wheels") as context,
        pytest.raises(EnvironmentProblem, match="offline, and 1 of 1 files are not in") as caught,
    ):
        assemble(plan, lock, context)
    assert caught.value.details == (f"beta 1.0: https://wheels.example.com/{path.name}",)


def test_a_folder_of_wheels_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="nowhere cannot be read"):
        _made(tmp_path, "one", wheel_dir=tmp_path / "nowhere")


def test_a_deadline_that_is_over_ends_it(tmp_path: Path) -> None:
    with pytest.raises(TimeLimitError):
        _made(tmp_path, "one", deadline=0.0)
    assert not list((tmp_path / "one" / "layers" / "new").iterdir())


def test_layers_are_shared_out() -> None:
    assert budgets(1, conda=False, wheels=True) == (0, 38)
    assert budgets(1, conda=True, wheels=False) == (38, 0)
    assert sum(budgets(4, conda=True, wheels=True)) == LAYERS - 5
    assert budgets(100, conda=True, wheels=False) == (16, 0)
    assert sum(budgets(120, conda=True, wheels=True)) == spec.MAX_LAYERS - 121


def test_headers_go_where_the_python_looks_for_them() -> None:
    plan = _plan()
    lock = _lock(plan, ())
    assert scheme_of(plan, lock).headers is None
    assert scheme_of(shipped_plan("cu126", template="miniconda"), lock).headers == "include/python3.11"


def test_the_history_names_the_first_packages() -> None:
    assert made_by(["torch 2.7.1"]) == "envkit: torch 2.7.1"
    assert made_by(list("abcdef")) == "envkit: a, b, c, d and 2 more"


def test_wheels_that_hold_one_path_are_named_by_every_build(tmp_path: Path) -> None:
    folder, rows = tmp_path / "wheels", []
    folder.mkdir()
    for name in ("beta", "alpha"):
        entries = wheel_entries({f"{name}/a.py": b"", "shared/data.txt": name.encode()}, name=name)
        path = write_wheel(folder, entries, name=name)
        data = path.read_bytes()
        rows.append(
            Wheel(
                name=name, version="1.0", file=path.name, url=f"https://wheels.example.com/{path.name}",
                sha256=hashlib.sha256(data).hexdigest(), size=len(data), source="pypi",
            )
        )  # fmt: skip
    plan, heard, images = _plan(), [], []
    for order in (rows, rows[::-1], rows):
        with _context(tmp_path / "cache", folder) as context:
            images.append(assemble(plan, _lock(plan, tuple(order)), context).image)
            assert isinstance(context.reporter, Heard)
            heard.append(context.reporter.notes)
    shared, image = "opt/env/lib/python3.11/site-packages/shared/data.txt", images[-1]
    last = [_text(one, shared) for one in image.layers if shared in _members(replace(image, layers=(one,)))][-1]
    first = {"alpha": "beta", "beta": "alpha"}[last]
    assert heard == [[f"{first} 1.0 and {last} 1.0 both contain /{shared}; the image has the file of {last} 1.0"]] * 3


def test_zstd_layers_hold_what_gzip_layers_hold_and_never_stand_in_for_them(tmp_path: Path) -> None:
    made = {one: _made(tmp_path, "cache", compression=one).image for one in ("gzip", "zstd", "gzip")}
    first, second = made["gzip"].layers, made["zstd"].layers
    assert [one.diff_id for one in first] == [one.diff_id for one in second]
    kinds = [one.descriptor.media_type.rpartition("+")[2] for one in second]
    assert kinds == ["zstd"] * (len(kinds) - 1) + ["gzip"]  # envkit's own small layer stays as it is
    assert {one.descriptor.media_type for one in first} == {spec.LAYER_GZIP}
    for one in second[:-1]:
        assert one.descriptor.media_type == spec.LAYER_ZSTD
        assert one.blob is not None
        assert one.blob.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"
