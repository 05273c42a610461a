"""Where no root for the sandbox can be made, Docker builds the builder image, and the source in it."""

import os
import subprocess
from pathlib import Path

import pytest

from envkit.ground import settings
from envkit.lock.model import BUILT
from envkit.pipeline import sources
from envkit.pipeline.locking import LockRequest, lock_alone
from envkit.plan.definition import load
from envkit.plan.planner import plan_of
from tests.lock.served import Served
from tests.support.heard import Heard
from tests.support.plans import facts
from tests.support.sources import FASTSUM, put_files, sdist, wheel_files
from tests.world.channel import packed
from tests.world.world import World

pytestmark = [pytest.mark.engine, pytest.mark.long]
DEFINITION = """schema: envkit.image/1
title: From source
template: wheels
companions: []
request: {torch: "2.13.0", cpu: true, source: pytorch}
allow_source: [fastsum]
"""


def test_docker_builds_the_source(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world.require("docker", "registry", "base", "channel")
    file = tmp_path / "train.yaml"
    file.write_text(DEFINITION)
    monkeypatch.setattr(sources, "_no_root", lambda *_: "no root can be made here")
    heard = Heard()
    with Served() as site:
        index = put_files(
            site, "/simple", {"fastsum-1.2.tar.gz": sdist(FASTSUM), **wheel_files(packed(), "setuptools")}
        )
        own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
        for name, value in {**world.env(), **own, "ENVKIT_PYTHON_INDEX": index}.items():
            monkeypatch.setenv(name, value)
        here = settings.load({}, os.environ, tmp_path)
        lock = lock_alone(LockRequest(plan=plan_of(load(str(file)), {}, facts()), settings=here, base="none"), heard)
    assert "build fastsum 1.2 from source in a sandbox (docker, without network)" in heard.steps
    assert [one.name for one in lock.wheels if one.source == BUILT] == ["fastsum"]
    (builder,) = lock.builders
    assert builder.base.kind == "registry"
    tag = f"envkit/builder:{builder.seal[7:19]}"
    subprocess.run(["docker", "rmi", "--force", tag], check=True, capture_output=True)
