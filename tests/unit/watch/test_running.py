"""What a container gets so that its training is recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground.errors import EnvkitError, UsageError
from envkit.image.name import image_name
from envkit.pipeline.running import Ready
from envkit.run.runners import make
from envkit.run.session import Mount, Session
from envkit.watch.child import _packed
from envkit.watch.running import INJECTED, MODULE, with_probes

DATA = Mount(source=Path("/datasets"), target="/data", read_only=True)
SESSION = Session(
    image=image_name("train:1"), argv=("python", "train.py"), mounts=(DATA,), env=(("A", "1"), ("PYTHONPATH", "/b"))
)
READY = Ready(runner=make("docker"), session=SESSION, lines=(), env={"PYTHONPATH": "/b", "A": "1"})


def test_the_module_is_mounted_read_only_and_the_folder_for_events_is_not(tmp_path: Path) -> None:
    session, place = with_probes(READY, tmp_path)
    assert session.mounts == (
        DATA,
        Mount(source=INJECTED.resolve(), target=MODULE, read_only=True),
        Mount(source=tmp_path, target=place, read_only=False),
    )


@pytest.mark.parametrize("text", ["a short one", "\U0001f600" * 70_000])
def test_an_error_of_the_child_fits_into_a_pipe(text: str) -> None:
    packed = _packed(EnvkitError(text, details=(text,)))
    assert len(packed) <= 1 << 16
    assert text.startswith(json.loads(packed)["message"])


def test_the_probes_come_first_on_the_path_that_the_image_sets(tmp_path: Path) -> None:
    session, place = with_probes(READY, tmp_path)
    assert dict(session.env) == {"A": "1", "PYTHONPATH": f"{MODULE}:/b", "ENVKIT_WATCH_DIR": place}


def test_without_a_path_of_its_own_there_is_no_empty_entry(tmp_path: Path) -> None:
    session, _ = with_probes(replace(READY, env={}), tmp_path)
    assert dict(session.env)["PYTHONPATH"] == MODULE


def test_a_folder_that_engines_would_read_as_two_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    with pytest.raises(UsageError, match=r"TMPDIR: .* has a character that engines read as a separator"):
        with_probes(READY, tmp_path / "a,b")
