"""Servers that answer and never end: each is given up, by the limit on an answer's head or by the command's own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.ground.errors import EnvironmentProblem, TimeLimitError
from envkit.lock import sizes
from envkit.registry.retry import Policy, persist
from envkit.registry.transport import Transport
from tests.engines.slow_server import body_bytes, continues, head_bytes, headers, slow
from tests.support.records import cpu_record

pytestmark = pytest.mark.engine
Piece = Callable[[int], bytes]
HEADS = (head_bytes, headers, continues)


@pytest.mark.requirement("R21")
@pytest.mark.parametrize("piece", HEADS)
def test_a_head_without_an_end_is_given_up(piece: Piece) -> None:
    policy = Policy(tries=2, first_s=0.01, silence_s=0.3)
    with slow(piece) as server, Transport(policy=policy) as transport:
        with pytest.raises(TimeLimitError) as caught:
            persist(lambda: transport.send("GET", f"http://{server.address}/v2/"), policy)
        assert caught.value.message == f"{server.address} did not finish the head of its response within 0.3 s"
        assert server.met == 2


@pytest.mark.requirement("R21")
@pytest.mark.parametrize("piece", HEADS)
def test_a_head_without_an_end_is_given_up_when_sizes_are_asked_for(
    piece: Piece, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(sizes, "_TRIES", 1)
    with slow(piece) as server:
        url = f"http://{server.address}/a.whl"
        with pytest.raises(EnvironmentProblem, match="the response headers took too long"):
            sizes.ask([url], index=url, ca_bundle=None)


@pytest.mark.requirement("R21")
def test_a_document_that_drips_is_given_up() -> None:
    policy = Policy(tries=1, total_s=0.3, silence_s=60)
    with slow(body_bytes) as server, Transport(policy=policy) as transport:

        def read() -> bytes:
            with transport.send("GET", f"http://{server.address}/v2/") as answer:
                return answer.read(1 << 20)

        with pytest.raises(TimeLimitError) as caught:
            persist(read, policy)
        assert caught.value.message == f"{server.address} did not finish a document within 0.3 s"


@pytest.mark.requirement("R21")
@pytest.mark.parametrize("piece", [continues, body_bytes])
@pytest.mark.parametrize(
    "argv",
    [
        ("inspect", "{}/team/train:1"),
        ("diff", "{0}/team/train:1", "{0}/team/train:2"),
        ("attest", "{}/team/train:1", "--record", "record.json", "--unsigned"),
        ("verify", "registry:{}/team/train:1", "--runner", "bubblewrap"),
        ("lock", "--template", "wheels", "--base", "{}/team/base:1", "--engine", "embedded"),
        ("push", "{}/team/train:1", "--image", "registry:{}/team/other:1", "--unverified"),
    ],
    ids=lambda argv: argv[0],
)
def test_a_commands_time_limit_ends_it(argv: tuple[str, ...], piece: Piece, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(cpu_record()))
    with slow(piece) as server:
        typed = [word.format(server.address, server.address) for word in argv]
        env = {
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            **{f"ENVKIT_{name}": f"http://{server.address}" for name in ("PYTHON_INDEX", "PYTORCH_INDEX")},
        }
        done = subprocess.run(
            [sys.executable, "-m", "envkit", *typed, "--timeout", "2"],
            env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 124, done.stderr
        assert "the time limit of 2 s was reached at: " in done.stderr
        assert server.met
