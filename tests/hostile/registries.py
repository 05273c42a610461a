"""Hostile documents of a registry: one on loopback answers what a case wrote down."""

import atexit
import json
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

from envkit.image import spec
from tests.engines.lying_registry import PLACE, Liar, liar
from tests.hostile.archives import archive

MINE = f"{PLACE}/manifests/1"
SECRET = "hunter2xyz"
refused = partial(archive, "registries", code=10, says=("team/train",))
accepted = partial(archive, "registries", gives=("team/train:1",))


@cache
def _running() -> Liar:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(liar())


def registry() -> Liar:
    """The one registry of this process, which knows nothing yet. Cases run one after the other."""
    there = _running()
    there.answers.clear()
    there.seen.clear()
    return there


def holding(labels: dict[str, str] | None = None) -> Liar:
    """The registry with a sound image."""
    there = registry()
    there.holds(labels=labels)
    return there


def manifest(there: Liar) -> dict[str, Any]:
    """The image's manifest."""
    found: dict[str, Any] = json.loads(there.answers[MINE][2])
    return found


def said(there: Liar, tree: Any, kind: str = spec.MANIFEST) -> list[str]:
    """Put a document in the place of the image's manifest; gives the command that reads it."""
    data = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    there.has(spec.sha256(data), data, "1", kind=kind)
    return ["inspect", there.image]


def configured(config: Any) -> list[str]:
    """An image of this configuration."""
    there = holding()
    row = there.blob(config if isinstance(config, bytes) else json.dumps(config).encode())
    return said(there, manifest(there) | {"config": row})


def answered(status: int, headers: dict[str, str], body: bytes = b"") -> list[str]:
    """A registry that answers the first question so."""
    there = registry()
    there.answers[MINE] = (status, headers, body)
    return ["inspect", there.image]


@accepted()
def ok_sound(_: Path) -> list[str]:
    return ["inspect", holding().image]


@accepted()
def ok_further_members(_: Path) -> list[str]:
    there = holding()
    return said(there, manifest(there) | {"annotations": {"a": "b"}, "com.example": [1]})


@accepted()
def ok_another_medias_letters(_: Path) -> list[str]:
    there = holding()
    return said(there, manifest(there), f"{spec.MANIFEST}; charset=utf-8")


@accepted(gives=("torch 2.7",))
def ok_a_label_that_steers_a_terminal_is_shown_as_words(_: Path) -> list[str]:
    return ["inspect", holding({"envkit.torch": "2.7\x1b[2J\u202e"}).image]


@refused(code=8)
def no_image(_: Path) -> list[str]:
    return ["inspect", registry().image]


@refused()
def a_manifest_that_is_no_json(_: Path) -> list[str]:
    return said(registry(), b"<html>404</html>")


@refused()
def a_manifest_of_100_000_brackets(_: Path) -> list[str]:
    return said(registry(), b"[" * 100_000)


@refused()
def a_manifest_that_is_a_list(_: Path) -> list[str]:
    return said(registry(), [])


@refused()
def a_manifest_of_bytes(_: Path) -> list[str]:
    return said(registry(), b"\xff\xfe\x00")


@refused(code=8)
def a_manifest_of_30_megabytes(_: Path) -> list[str]:
    return said(registry(), b" " * (30 << 20))


@refused()
def another_digest_than_announced(_: Path) -> list[str]:
    there = holding()
    status, headers, data = there.answers[MINE]
    there.answers[MINE] = (status, {**headers, "Docker-Content-Digest": f"sha256:{'0' * 64}"}, data)
    return ["inspect", there.image]


@refused()
def another_digest_than_asked_for(_: Path) -> list[str]:
    there = holding()
    wanted = f"sha256:{'0' * 64}"
    there.answers[f"{PLACE}/manifests/{wanted}"] = there.answers[MINE]
    return ["inspect", f"{there.address}/team/train@{wanted}"]


@refused()
def an_image_and_an_index_at_once(_: Path) -> list[str]:
    there = holding()
    return said(there, manifest(there) | {"manifests": []})


@refused(code=2)
def an_index(_: Path) -> list[str]:
    return said(registry(), {"manifests": [{"digest": f"sha256:{'a' * 64}", "size": 1}]}, spec.INDEX)


@refused(code=8)
def a_kind_that_nobody_knows(_: Path) -> list[str]:
    return said(registry(), {}, "text/html")


@refused(says=("team/train", "is not a valid descriptor"))
def a_configuration_whose_digest_is_a_path(folder: Path) -> list[str]:
    there = holding()
    row = {"mediaType": spec.CONFIG, "digest": f"sha256:{folder}/victim", "size": 2}
    return said(there, manifest(there) | {"config": row})


@refused()
def a_configuration_that_is_null(_: Path) -> list[str]:
    there = holding()
    return said(there, manifest(there) | {"config": None})


@refused()
def a_configuration_of_an_exabyte(_: Path) -> list[str]:
    there = holding()
    return said(there, manifest(there) | {"config": manifest(there)["config"] | {"size": 10**18}})


@refused()
def a_configuration_of_other_bytes(_: Path) -> list[str]:
    there = holding()
    row = manifest(there)["config"]
    there.blob(b"x" * row["size"], row["digest"])
    return ["inspect", there.image]


@refused()
def a_configuration_that_is_no_json(_: Path) -> list[str]:
    return configured(b"{")


@refused(code=8)
def a_configuration_without_layers(_: Path) -> list[str]:
    return configured({"rootfs": []})


@refused(says=("team/train", "Labels"))
def labels_that_are_a_list(_: Path) -> list[str]:
    return configured({"rootfs": {}, "config": {"Labels": ["a"]}})


@refused(says=("team/train", "Cmd"))
def a_command_that_is_a_number(_: Path) -> list[str]:
    return configured({"rootfs": {}, "config": {"Cmd": 3}})


@refused(code=8, says=("team/train", "403"))
def words_that_steer_a_terminal(_: Path) -> list[str]:
    body = json.dumps({"errors": [{"code": "X", "message": "\x1b[2J\x9b"}]}).encode()
    return answered(403, {}, body)


@refused(code=8, says=("127.0.0.1", "not an http or https address"))
def a_redirect_to_a_file(_: Path) -> list[str]:
    return answered(307, {"Location": "file:///etc/passwd"})


@refused(code=8, says=("127.0.0.1", "contains a login"), secret=(SECRET,))
def a_redirect_with_a_login_to_another_host(_: Path) -> list[str]:
    return answered(307, {"Location": f"http://me:{SECRET}@169.254.169.254/latest"})


@refused(code=8, says=("not a URL",))
def a_login_at_a_file(_: Path) -> list[str]:
    return answered(401, {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'})
