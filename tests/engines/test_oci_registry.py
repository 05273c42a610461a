"""Pushing to a real registry, and what happens when it or the way to it fails."""

import base64
import email.utils
import json
import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.ground.errors import EngineError, EnvironmentProblem, EnvkitError, IntegrityError, TimeLimitError
from envkit.image import spec
from envkit.image.name import parse_reference
from envkit.registry.push import Blob, Pushed, Transfers
from envkit.registry.registry import Registry
from envkit.registry.retry import Policy
from envkit.registry.transport import Transport
from tests.engines.faults import Fault, Proxy, proxy_before
from tests.engines.oci_images import image_of, push, registry
from tests.support.heard import Heard

pytestmark = pytest.mark.engine
QUICK = Policy(first_s=0.01, longest_s=1.0, silence_s=1.5)
HOME: dict[str, str] = {"HOME": "/nonexistent"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def proxy(host: str) -> Iterator[Proxy]:
    with proxy_before(host) as found:
        yield found


@pytest.fixture
def repository() -> str:
    return f"team/{secrets.token_hex(4)}"


@pytest.fixture
def image(tmp_path: Path) -> spec.Image:
    return image_of(tmp_path, salt=secrets.token_hex(8), big=5_000_000)


def send(
    image: spec.Image,
    where: str,
    *,
    environ: dict[str, str] | None = None,
    policy: Policy = QUICK,
    heard: Heard | None = None,
    replace_tag: bool = False,
    sources: tuple[str, ...] = (),
) -> Pushed:
    reference = parse_reference(where)
    with Transport(policy=policy) as transport:
        target = Registry(reference.registry, transport, environ or HOME)
        return push(image, reference, target, heard or Heard(), replace_tag=replace_tag, sources=sources)


def held(where: str) -> str | None:
    reference = parse_reference(where)
    with Transport(policy=QUICK) as transport:
        found = Registry.of(reference, transport).manifest(reference)
    return None if found is None else found.digest


def test_an_answer_at_its_end_can_be_cut(host: str) -> None:
    """Downloads are cut from another thread, which does not know how far they are."""
    with Transport(policy=QUICK) as transport, transport.send("GET", f"http://{host}/v2/") as answer:
        assert answer.read(1000) == b"{}"
        answer.cut()


def test_the_second_push_sends_nothing(image: spec.Image, host: str, repository: str) -> None:
    heard = Heard()
    first = send(image, f"{host}/{repository}:1", heard=heard)
    assert (first.digest, first.mounted, first.present) == (image.digest, 0, 0)
    assert first.sent == sum(layer.descriptor.size for layer in image.layers) + len(image.config)
    assert heard.progress[-1] == (first.sent, first.sent)
    second = send(image, f"{host}/{repository}:1")
    assert (second.sent, second.present) == (0, first.sent)


def test_blobs_of_another_repository_are_mounted(image: spec.Image, host: str, repository: str) -> None:
    first = send(image, f"{host}/{repository}:1")
    layers = tuple(replace(layer, blob=None, origin=f"{host}/{repository}") for layer in image.layers)
    second = send(
        replace(image, layers=layers), f"{host}/{repository}/other:1", sources=(f"{repository}/none", repository)
    )
    assert (second.sent, second.mounted) == (0, first.sent)


def test_a_blob_that_is_nowhere(image: spec.Image, host: str, repository: str) -> None:
    layers = tuple(replace(layer, blob=None, origin="registry.example.com/a") for layer in image.layers)
    with pytest.raises(EngineError, match=r"is only in registry\.example\.com/a, and"):
        send(replace(image, layers=layers), f"{host}/{repository}:1")
    assert held(f"{host}/{repository}:1") is None


def test_a_tag_moves_only_when_asked(image: spec.Image, host: str, repository: str, tmp_path: Path) -> None:
    send(image, f"{host}/{repository}:1")
    (tmp_path / "other").mkdir()
    other = image_of(tmp_path / "other", salt="other")
    with pytest.raises(EngineError) as caught:
        send(other, f"{host}/{repository}:1")
    assert caught.value.message == f"{host}/{repository}:1 already points to another image ({image.digest})"
    assert held(f"{host}/{repository}:1") == image.digest
    send(other, f"{host}/{repository}:1", replace_tag=True)
    assert held(f"{host}/{repository}:1") == other.digest
    assert held(f"{host}/{repository}@{image.digest}") == image.digest


@pytest.mark.requirement("R54")
def test_the_tag_comes_last_and_after_the_verification(image: spec.Image, proxy: Proxy, repository: str) -> None:
    send(image, f"{proxy.address}/{repository}:1")
    lines = [one.line.split("?")[0] for one in proxy.seen]
    assert lines[-6:] == [
        f"PUT /v2/{repository}/manifests/{image.digest}",
        f"GET /v2/{repository}/manifests/{image.digest}",
        f"GET /v2/{repository}/manifests/1",
        f"GET /v2/{repository}/manifests/{image.digest}",
        f"PUT /v2/{repository}/manifests/1",
        f"GET /v2/{repository}/manifests/1",
    ]
    assert not [line for line in lines[:-6] if line.startswith("PUT") and "/manifests/" in line]


@pytest.mark.requirement("R19", "R52")
@pytest.mark.parametrize(("after", "least", "most"), [("1", 1.0, 5.0), ("date", 0.9, 5.0), ("86400", 1.0, 5.0)])
def test_retry_after_is_honoured_within_limits(
    image: spec.Image, proxy: Proxy, repository: str, *, after: str, least: float, most: float
) -> None:
    header = email.utils.formatdate(time.time() + 3, usegmt=True) if after == "date" else after
    proxy.faults = [Fault("^HEAD ", status=429, headers={"Retry-After": header}, times=1)]
    assert send(image, f"{proxy.address}/{repository}:1").digest == image.digest
    first, last = (
        next(one.at for one in proxy.seen if one.status == 429),
        proxy.seen[-1].at,
    )
    assert least <= last - first <= most


def test_an_overloaded_registry_is_given_up(image: spec.Image, proxy: Proxy, repository: str) -> None:
    proxy.faults = [Fault("^GET .*/manifests/", status=503)]
    with pytest.raises(EngineError) as caught:
        send(image, f"{proxy.address}/{repository}:1")
    assert caught.value.message == f"{proxy.address} answers 503 Service Unavailable"
    assert caught.value.details[0].startswith("tried 5 times within ")
    assert proxy.count("manifests") == 5


@pytest.mark.requirement("R51")
@pytest.mark.parametrize("status", [400, 403, 413])
def test_a_refusal_is_not_tried_again(image: spec.Image, proxy: Proxy, repository: str, status: int) -> None:
    proxy.faults = [Fault("^PUT .*/manifests/", status=status)]
    with pytest.raises(EngineError, match=f"the registry answers {status}"):
        send(image, f"{proxy.address}/{repository}:1")
    assert proxy.count("^PUT .*/manifests/") == 1


def test_a_cut_upload_is_sent_again(image: spec.Image, proxy: Proxy, repository: str) -> None:
    proxy.faults = [Fault("^PATCH ", cut=2_000_000, times=2)]
    heard = Heard()
    pushed = send(image, f"{proxy.address}/{repository}:1", heard=heard)
    assert proxy.count("^PATCH ") == 3
    assert heard.progress[-1] == (pushed.sent, pushed.sent)


@pytest.mark.requirement("R51")
def test_an_upload_that_is_always_cut(image: spec.Image, proxy: Proxy, host: str, repository: str) -> None:
    proxy.faults = [Fault("^PATCH ", cut=2_000_000)]
    with pytest.raises(EnvironmentProblem, match=r"the connection to .* broke"):
        send(image, f"{proxy.address}/{repository}:1")
    assert proxy.count("^PATCH ") == 5
    assert held(f"{host}/{repository}:1") is None


@pytest.mark.requirement("R21")
def test_a_silent_registry(image: spec.Image, proxy: Proxy, repository: str) -> None:
    proxy.faults = [Fault("^GET ", silent_s=3)]
    with pytest.raises(TimeLimitError) as caught:
        send(image, f"{proxy.address}/{repository}:1", policy=Policy(tries=2, first_s=0.01, silence_s=0.3))
    assert caught.value.message == f"{proxy.address} was silent for 0.3 s"
    assert caught.value.exit_code == 124


def test_no_registry_at_all(image: spec.Image, repository: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(EnvironmentProblem, match=f"{where} cannot be reached: connection refused"):
            send(image, f"{where}/{repository}:1")


def test_a_registry_that_stores_something_else(image: spec.Image, proxy: Proxy, repository: str) -> None:
    proxy.faults = [Fault("^GET .*/manifests/sha256", flip=100)]
    with pytest.raises(IntegrityError, match=r"has the digest sha256:.*, not sha256:"):
        send(image, f"{proxy.address}/{repository}:1")
    assert proxy.count("^PUT .*/manifests/1$") == 0


@pytest.mark.requirement("R53")
def test_a_damaged_blob_is_refused_by_the_registry(image: spec.Image, host: str, repository: str) -> None:
    blob = image.layers[1].blob
    assert blob is not None
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    blob.write_bytes(data)
    with pytest.raises(IntegrityError, match="the registry received other bytes"):
        send(image, f"{host}/{repository}:1")
    assert held(f"{host}/{repository}:1") is None


def test_a_blob_whose_file_changes_while_it_is_sent(host: str, repository: str, tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(bytes(2_000_000))
    reference = parse_reference(f"{host}/{repository}:1")
    with Transport(policy=QUICK) as transport:
        work = Transfers(Registry(reference.registry, transport, HOME), reference, ())
        with pytest.raises(IntegrityError, match=r"/blob was truncated while it was sent"):
            work.blob(Blob(f"sha256:{'0' * 64}", 3_000_000, path, b"", None))
        path.unlink()
        with pytest.raises(EnvironmentProblem, match=r"/blob cannot be read: No such file or directory"):
            work.blob(Blob(f"sha256:{'0' * 64}", 3_000_000, path, b"", None))


def config(folder: Path, host: str, login: str) -> dict[str, str]:
    auths = {host: {"auth": base64.b64encode(login.encode()).decode()}}
    (folder / "config.json").write_text(json.dumps({"auths": auths}))
    return {"DOCKER_CONFIG": str(folder)}


def test_a_registry_with_passwords(image: spec.Image, repository: str, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir()
    with registry(tmp_path / "locked", password=True) as host:
        where = f"{host}/{repository}:1"
        right, wrong = config(tmp_path, host, "someone:not-a-secret"), "someone:sesame-open"
        assert send(image, where, environ=right).digest == image.digest
        with pytest.raises(EngineError) as caught:
            send(image, where, environ=config(tmp_path, host, wrong))
        assert caught.value.message.startswith(f"reading {where}: the registry answers 401")
        assert caught.value.hint == f"docker login {host}   # and check the repository's name"
        assert "sesame" not in told(caught.value)
        with pytest.raises(
            EngineError, match=r"requires a login, and none was found in /nonexistent/\.docker/config\.json"
        ):
            send(image, where)


def test_tokens(image: spec.Image, proxy: Proxy, repository: str, tmp_path: Path) -> None:
    proxy.login = "someone:not-a-secret"
    environ = config(tmp_path, proxy.address, proxy.login)
    assert send(image, f"{proxy.address}/{repository}:1", environ=environ).digest == image.digest
    for one in proxy.seen:
        sent = one.headers.get("Authorization", "")
        assert sent.startswith("Basic ") if one.line.startswith("GET /token") else "Basic" not in sent
    assert any(f"repository%3A{repository.replace('/', '%2F')}%3Apull%2Cpush" in one.line for one in proxy.seen)


def test_an_identity_token_is_exchanged(
    image: spec.Image, proxy: Proxy, repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.login, proxy.identity = "nobody:nothing", "an-identity-token"
    where = f"{proxy.address}/{repository}:1"
    for text, works in (("an-identity-token", True), ("another-one", False)):
        tree = {"auths": {proxy.address: {"identitytoken": text}}}
        (tmp_path / "config.json").write_text(json.dumps(tree))
        environ = {"DOCKER_CONFIG": str(tmp_path)}
        if works:
            assert send(image, where, environ=environ).digest == image.digest
            continue
        with pytest.raises(EngineError, match=r"requires a login and rejects the one in .*config\.json") as caught:
            send(image, where, environ=environ)
        assert text not in told(caught.value)
    program = tmp_path / "docker-credential-ours"
    program.write_text("""#!/bin/sh\necho '{"Username": "<token>", "Secret": "an-identity-token"}'\n""")
    program.chmod(stat.S_IRWXU)
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {proxy.address: "ours"}}))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert send(image, where, environ={"DOCKER_CONFIG": str(tmp_path)}).digest == image.digest
    assert proxy.count("^POST /token") > 2
    assert proxy.count("^GET /token") == 0


def test_a_token_server_that_is_busy_is_asked_again(
    image: spec.Image, proxy: Proxy, repository: str, tmp_path: Path
) -> None:
    proxy.login = "someone:not-a-secret"
    proxy.faults = [
        Fault("^GET /token", status=429, headers={"Retry-After": "0"}, times=1),
        Fault("^GET /token", status=503, times=1),
    ]
    environ = config(tmp_path, proxy.address, proxy.login)
    assert send(image, f"{proxy.address}/{repository}:1", environ=environ).digest == image.digest
    assert [one.status for one in proxy.seen if one.line.startswith("GET /token")][:2] == [429, 503]


def test_a_token_that_ends_before_a_blob_is_sent(
    image: spec.Image, proxy: Proxy, repository: str, tmp_path: Path
) -> None:
    proxy.login = "someone:not-a-secret"
    proxy.faults = [Fault("^PATCH ", status=401, times=1)]
    environ = config(tmp_path, proxy.address, proxy.login)
    assert send(image, f"{proxy.address}/{repository}:1", environ=environ).digest == image.digest
    assert proxy.count("^PATCH ") == 2
    proxy.faults = [Fault("^PATCH ", status=401)]
    with pytest.raises(EngineError, match="the registry's token expired"):
        send(image, f"{proxy.address}/{repository}/other:1", environ=environ)


@pytest.mark.requirement("R55")
def test_a_login_is_not_sent_to_another_host(image: spec.Image, proxy: Proxy, repository: str, tmp_path: Path) -> None:
    proxy.login, proxy.realm = "someone:not-a-secret", "http://auth.example.com/token"
    environ = config(tmp_path, proxy.address, proxy.login)
    with pytest.raises(EngineError, match=r"redirects the login to another host, auth\.example\.com: refused"):
        send(image, f"{proxy.address}/{repository}:1", environ=environ)


def test_an_upload_elsewhere_carries_no_token(image: spec.Image, host: str, repository: str, tmp_path: Path) -> None:
    with proxy_before(host) as first, proxy_before(host) as second:
        first.login = "someone:not-a-secret"
        elsewhere = f"http://{second.address}/v2/{repository}/blobs/uploads/1?_state=x"
        first.faults = [Fault("^POST ", status=202, headers={"Location": elsewhere})]
        environ = config(tmp_path, first.address, first.login)
        # The proxy breaks the rule that logging in comes first, so let a token be there before the uploads.
        with pytest.raises(EnvkitError):
            send(image, f"{first.address}/{repository}:1", environ=environ)
        assert second.seen
        assert not [one for one in second.seen if "Authorization" in one.headers]


def helper(folder: Path, text: str) -> dict[str, str]:
    program = folder / "docker-credential-ours"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(stat.S_IRWXU)
    (folder / "config.json").write_text('{"credsStore": "ours"}')
    return {"DOCKER_CONFIG": str(folder)}


@pytest.mark.requirement("R55")
def test_credential_helpers(
    image: spec.Image, proxy: Proxy, repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    proxy.login = "someone:not-a-secret"
    where = f"{proxy.address}/{repository}:1"
    right = f"""[ "$(cat)" = {proxy.address} ] && echo '{{"Username":"someone","Secret":"not-a-secret"}}'"""
    assert send(image, where, environ=helper(tmp_path, right)).digest == image.digest
    for text, fault in (
        ("echo junk not-a-secret", "returned no valid login for .*"),
        ("echo not-a-secret >&2; exit 3", "ended with exit code 3 for "),
    ):
        with pytest.raises(EngineError, match=fault) as caught:
            send(image, where, environ=helper(tmp_path, text))
        assert str(tmp_path / "config.json") in caught.value.message
        assert "not-a-secret" not in told(caught.value)
    with pytest.raises(EngineError, match="requires a login, and none was found"):
        send(image, where, environ=helper(tmp_path, "echo credentials not found in native keychain; exit 1"))
    (tmp_path / "docker-credential-ours").unlink()
    with pytest.raises(EngineError, match="has docker-credential-ours as the credential helper of"):
        send(image, where, environ={"DOCKER_CONFIG": str(tmp_path)})


def test_pushing_from_several_threads_logs_in_once(
    image: spec.Image, proxy: Proxy, repository: str, tmp_path: Path
) -> None:
    proxy.login = "someone:not-a-secret"
    environ = config(tmp_path, proxy.address, proxy.login)
    send(image, f"{proxy.address}/{repository}:1", environ=environ)
    assert proxy.count("^GET /token") == 2  # one to read, one to write
    assert threading.active_count() < 20


def told(error: EnvkitError) -> str:
    return " ".join((error.message, error.hint or "", *error.details))
