"""Registries that lie: no file of the user is touched, nothing is believed, and no message steers a terminal."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.attest.statement import PROVENANCE, TYPE
from envkit.image import spec
from tests.engines.lying_registry import PLACE, Liar, liar

pytestmark = pytest.mark.engine
Envkit = Callable[..., "subprocess.CompletedProcess[str]"]
SUBJECT_LABEL = {"envkit.plan": f"sha256:{'0' * 64}"}


@pytest.fixture
def there() -> Iterator[Liar]:
    with liar() as found:
        yield found


@pytest.fixture
def envkit(tmp_path: Path) -> Envkit:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ENVKIT_", "XDG_"))}
    environ = kept | {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()

    def typed(*argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "envkit", *argv],
            env=environ, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    return typed


def about(digest: str, kind: str, predicate: object) -> dict[str, object]:
    subject = [{"digest": {"sha256": digest.removeprefix("sha256:")}}]
    return {"_type": TYPE, "subject": subject, "predicateType": kind, "predicate": predicate}


@pytest.mark.parametrize("where", ["layer", "config", "index"])
def test_a_digest_that_is_a_path_touches_no_file(envkit: Envkit, there: Liar, tmp_path: Path, *, where: str) -> None:
    victim = tmp_path / "home" / "kept"
    victim.write_bytes(b"words")
    evil = there.blob(b"other", f"sha256:{victim}")
    there.has(f"sha256:{victim}", b"{}")
    if where == "layer":
        there.holds([evil])
    elif where == "config":
        there.has("x", spec.canonical({"config": evil, "layers": []}), "1")
    else:
        row = evil | {"mediaType": spec.MANIFEST, "platform": {"os": "linux", "architecture": "amd64"}}
        there.has("x", spec.canonical({"manifests": [row]}), "1", kind=spec.INDEX)
    there.answers["POST /v2/copy/blobs/uploads/"] = (202, {"Location": "/upload"}, b"")
    done = envkit("push", "--no-tag", f"{there.address}/copy", "--image", f"registry:{there.image}")
    assert done.returncode == 10, done.stderr
    assert "a descriptor has no SHA-256 digest" in done.stderr
    assert [(path.name, path.read_bytes()) for path in victim.parent.iterdir() if path.is_file()] == [
        ("kept", b"words")
    ]
    assert not any(str(victim) in line for line in there.seen)


@pytest.mark.parametrize("verb", ["inspect", "diff", "push"])
def test_layers_that_are_no_list(envkit: Envkit, there: Liar, verb: str) -> None:
    there.holds(5)
    argv = {
        "inspect": [there.image],
        "diff": [there.image, there.image],
        "push": ["--no-tag", f"{there.address}/copy", "--image", f"registry:{there.image}"],
    }[verb]
    done = envkit(verb, *argv)
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if verb == "inspect" else 10)


@pytest.mark.parametrize("row", [{}, {"digest": "sha512:0"}, {"digest": "latest"}])
def test_a_descriptor_without_a_digest_names_no_image(envkit: Envkit, there: Liar, row: dict[str, str]) -> None:
    there.holds()
    kind = {"mediaType": spec.MANIFEST, "platform": {"os": "linux", "architecture": "amd64"}}
    there.has("x", spec.canonical({"manifests": [kind | row]}), "1", "latest", "sha512:0", kind=spec.INDEX)
    for _ in range(2):
        done = envkit("push", "--no-tag", f"{there.address}/copy", "--image", f"registry:{there.image}")
        assert done.returncode == 10
        assert "a descriptor has no SHA-256 digest" in done.stderr
        there.has("x", spec.canonical({"config": row, "layers": []}), "1")


@pytest.mark.parametrize("more", [{"manifests": []}, {"mediaType": spec.INDEX}])
def test_an_image_that_is_an_index_as_well_is_no_subject(envkit: Envkit, there: Liar, more: dict[str, object]) -> None:
    there.holds()
    tree = json.loads(there.answers[f"{PLACE}/manifests/1"][2]) | more
    there.has("x", spec.canonical(tree), "1")
    done = envkit("inspect", there.image)
    assert done.returncode == 10
    assert "but the manifest itself has another media type" in done.stderr


@pytest.mark.parametrize("realm", ["https://[::1/token", "https://a.example.com:65536/token", "file:///etc/passwd"])
def test_a_login_that_is_asked_for_nowhere(envkit: Envkit, there: Liar, realm: str) -> None:
    there.answers[f"{PLACE}/manifests/1"] = (401, {"WWW-Authenticate": f'Bearer realm="{realm}"'}, b"")
    done = envkit("inspect", there.image)
    assert done.returncode == 8
    assert f"requires a login at {realm!r}, which is not a URL" in done.stderr


@pytest.mark.parametrize("location", ["https://a.example.com:65536/", "file:///etc/passwd"])
def test_a_redirect_that_leads_nowhere(envkit: Envkit, there: Liar, location: str) -> None:
    there.answers[f"{PLACE}/manifests/1"] = (307, {"Location": location}, b"")
    done = envkit("inspect", there.image)
    assert done.returncode == 8
    assert "which is not an http or https address" in done.stderr


@pytest.mark.parametrize("location", ["https://[::1", "https://a.example.com:65536/", "file:///etc/passwd"])
def test_an_upload_that_leads_nowhere(envkit: Envkit, there: Liar, location: str) -> None:
    there.holds()
    there.answers["POST /v2/copy/blobs/uploads/"] = (202, {"Location": location}, b"")
    done = envkit("push", "--no-tag", f"{there.address}/copy", "--image", f"registry:{there.image}")
    assert done.returncode == 8
    assert "which is not an http or https address" in done.stderr


def test_its_words_steer_no_terminal(envkit: Envkit, there: Liar) -> None:
    said = json.dumps({"errors": [{"code": "X", "message": "\x1b[2J\x1b[Hproved\x9b"}]}).encode()
    there.answers[f"{PLACE}/manifests/1"] = (403, {}, said)
    done = envkit("inspect", there.image)
    assert done.returncode == 8
    assert "the registry answers 403: X proved\\x9b\n" in done.stderr
    digest = there.holds(labels=SUBJECT_LABEL)
    predicate = {"buildDefinition": {"externalParameters": {"planDigest": "\x1b[2J\x1b[Hproved"}}}
    there.attaches(digest, about(digest, PROVENANCE, predicate), about("\x1b[1Jx", PROVENANCE, {}))
    done = envkit("inspect", there.image)
    assert done.returncode == 10
    assert "is broken: the provenance is of the plan proved, but" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_what_is_said_of_an_image_is_told_as_json_whatever_it_is(envkit: Envkit, there: Liar) -> None:
    digest = there.holds()
    there.attaches(digest, about(digest, "\ud800", {}))
    done = envkit("inspect", there.image, "--json")
    assert done.returncode == 0, done.stderr
    assert [one["kind"] for one in json.loads(done.stdout)["attestations"]] == ["\ud800"]


def test_a_list_without_an_end_is_left_at_once(envkit: Envkit, there: Liar) -> None:
    digest = there.holds()
    there.lists(digest, [0] * 1001, link=f'<{PLACE}/referrers/{digest}>; rel="next"')
    done = envkit("inspect", there.image)
    assert done.returncode == 8
    assert "has 1001 attached documents, more than 1000" in done.stderr
    assert sum("/referrers/" in line for line in there.seen) == 1
    there.lists(digest, [], link=f'<{PLACE}/referrers/{digest}>; rel="next"')
    assert "list of attached documents does not end" in envkit("inspect", there.image).stderr
