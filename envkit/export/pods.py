"""Parts of Kubernetes manifests: names, commands without variable expansion, and the ConfigMaps that pods read."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache

from envkit.fleet.model import Cell
from envkit.ground.errors import UsageError
from envkit.ground.platforms import platform
from envkit.plan.names import repository
from envkit.render.quoting import yaml
from envkit.verify.payload import payload_archive
from envkit.verify.question import EXIT_MARK, KEY, Question, questions_json

FOLDER = "/run/envkit"
PAYLOAD = "payload.pyz"
INSTALLED = "/opt/installed"  # the folder in a build's pod into which the init container installs envkit
# A ConfigMap is limited to 1 MiB in total; this leaves room for keys and metadata.
_MAX_DATA = 1000 * 1024
_SLUG = 30  # characters; with prefix and digest, a name stays within 52 characters
# `kubectl logs` mixes both streams, so stderr goes to a file: a warning of torch between the lines of the document
# would damage it. The last 3000 bytes of stderr become the message in `kubectl describe pod`.
_RUN = (
    'read -r nonce <"$1"; shift; "$@" 2>/tmp/envkit.stderr; code=$?; '
    "tail -c 3000 /tmp/envkit.stderr >/dev/termination-log; "
    f'printf "\\n%s %s %s\\n" {EXIT_MARK} "$code" "$nonce"; '
)
_ONCE = f'{_RUN}exit "$code"'
_STAY = f"{_RUN}: >/tmp/envkit.ended; exec sleep 2147483647"
BUILD = (
    f"shift $((2 * JOB_COMPLETION_INDEX)); exec {INSTALLED}/bin/envkit build "
    f'--plan "{FOLDER}/$JOB_COMPLETION_INDEX.json" --engine embedded --base "$2" --output "registry:$1" --no-verify '
    "--progress plain"
)


def resource_name(prefix: str, name: str) -> str:
    """Return the name of a cell's resource: a DNS label of at most 52 characters, to leave room for a pod's suffix.

    Characters that a label cannot contain are replaced, and a digest keeps such names distinct.
    """
    slug = repository(name)
    if slug == name and len(slug) <= _SLUG:
        return f"{prefix}-{slug}"
    return f"{prefix}-{slug[:_SLUG].strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def literal(word: str) -> str:
    """Return a word of `command` or `args`, escaped so that Kubernetes does not expand `$(NAME)` in it."""
    return re.sub(r"\$(?=[$(])", "$$", word)


def question_argv(index: int, question: Question, prefix: str, *, stay: bool) -> list[str]:
    """Return the command of a pod that runs the payload in its image, then exits with its code, or sleeps (`stay`)."""
    payload, spec = f"{FOLDER}/{PAYLOAD}", f"{FOLDER}/{index}.json"
    python = (f"{prefix}/bin/python", *question.arguments(payload, spec))
    return ["/bin/sh", "-c", _STAY if stay else _ONCE, "envkit", f"{FOLDER}/{index}.nonce", *python]


def build_argv(images: Sequence[tuple[str, str]]) -> list[str]:
    """Return the command of a pod that builds the image of its index; `images` are pairs of a name and a base."""
    return ["/bin/sh", "-c", BUILD, "envkit", *(word for pair in images for word in pair)]


def question_data(questions: Sequence[Question]) -> dict[str, str]:
    """Return the data of the ConfigMap that the pods of a verification read, and `envkit verify --questions`.

    Raises:
        UsageError: it exceeds the limit of a ConfigMap.
    """
    data = {KEY: questions_json(questions)}
    for index, question in enumerate(questions):
        data |= {f"{index}.json": question.spec_json(), f"{index}.nonce": question.nonce}
    return _fitting(data, len(payload_text()))


def plan_data(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the data of the ConfigMap that the pods of a build read.

    Raises:
        UsageError: it exceeds the limit of a ConfigMap.
    """
    return _fitting({f"{index}.json": json.dumps(cell.plan.to_json()) for index, cell in enumerate(cells)}, 0)


@cache
def payload_text() -> str:
    """Return the payload in base64, for a ConfigMap's binaryData."""
    return base64.b64encode(payload_archive()).decode()


def architecture(cell: Cell) -> str:
    """Return the label `kubernetes.io/arch` of the nodes that can run a cell's image."""
    return platform(cell.plan.resolution.platform).architecture


def user_of(cell: Cell) -> tuple[int, int]:
    """Return the UID and GID of a pod: those of the image, or 54321 instead of root, because no pod runs as root."""
    user, _, group = cell.plan.user.partition(":")
    uid = int(user) if user.isdigit() else 0
    gid = int(group) if group.isdigit() else uid
    return (uid, gid) if uid else (_NOBODY, _NOBODY)


_NOBODY = 54321  # a UID that images and packages do not use


def listed(words: Sequence[str]) -> list[str]:
    """Return the words of a command as YAML scalars."""
    return [yaml(literal(word)) for word in words]


def _fitting(data: dict[str, str], more: int) -> dict[str, str]:
    size = more + sum(len(key) + len(value.encode()) for key, value in data.items())
    if size > _MAX_DATA:
        raise UsageError(
            f"the {len(data)} files have {size} bytes, more than the limit of {_MAX_DATA} for one ConfigMap",
            hint="export the images into several folders",
        )
    return data
