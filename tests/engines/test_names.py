"""What the name of an image means on a machine on which no engine answers."""

from pathlib import Path

import pytest

from envkit.ground.paths import state_dir
from envkit.ground.state import own_layout
from envkit.image.name import InLayout, image_name
from envkit.run.runners import located


def test_where_no_engine_answers_a_name_means_what_the_embedded_engine_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("PATH", str(tmp_path))
    layout = own_layout(state_dir(), "train:1")
    layout.mkdir(parents=True)
    (layout / "index.json").write_text("{}")
    assert located(image_name("train:1")) == InLayout(path=layout)
    assert located(image_name("train:2")) == image_name("train:2")
