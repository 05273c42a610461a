"""Kubernetes: an unprivileged Job that builds every image, and Jobs and DaemonSets that verify them on the nodes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from envkit.export.model import Option, Order, installed, needs_gpu
from envkit.fleet.expand import base_of
from envkit.fleet.model import Cell
from envkit.ground.errors import UsageError
from envkit.ground.naming import FILE_STEM
from envkit.ground.platforms import platform
from envkit.ground.requirement import Form
from envkit.plan.names import repository
from envkit.render.quoting import yaml
from envkit.render.texts import text_of
from envkit.verify.payload import payload_archive
from envkit.verify.question import EXIT_MARK, KEY, Question, question_of, questions_json

_QUANTITY = r"[1-9][0-9]*(?:\.[0-9]+)?(?:[KMGT]i?)?"
_LABEL = r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?"
OPTIONS: Mapping[str, Option] = {
    "namespace": Option(
        default="", about="namespace of the resources [default: that of kubectl]", pattern=f"|{_LABEL}"
    ),
    "login": Option(
        default="", about="secret with a registry login (kubernetes.io/dockerconfigjson)", pattern=f"|{_LABEL}"
    ),
    "nodes": Option(
        default="1", about="number of nodes on which the Job verifies each image", pattern=r"[1-9][0-9]{0,3}"
    ),
    "cpus": Option(default="4", about="CPUs of one pod", pattern=r"[1-9][0-9]{0,3}"),
    "memory": Option(default="16Gi", about="memory of one pod, /dev/shm included", pattern=_QUANTITY),
    "storage": Option(default="60Gi", about="disk of one build, caches included", pattern=_QUANTITY),
    "runtime_class": Option(default="", about="runtime class for GPUs, such as nvidia", pattern=f"|{_LABEL}"),
    "builder": Option(
        default="docker.io/library/python:3.12-slim",
        about="image with Python and pip in which envkit is installed",
        pattern=r"[A-Za-z0-9][A-Za-z0-9._/:@-]*",
    ),
    "only": Option(
        default="", about="IDs of the checks to run, separated by commas", pattern=r"|C[0-9]{2}(,C[0-9]{2})*"
    ),
}
_FILES = ("verify.yaml", "verify-every-node.yaml", "build.yaml", "plans/questions.yaml", "plans/plans.yaml")
_FOLDER = "/run/envkit"
_PAYLOAD = "payload.pyz"
_INSTALLED = "/opt/installed"  # the folder in a build's pod into which the init container installs envkit
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
# A DaemonSet restarts a container that ends, so this one sleeps. Not every `sleep` accepts `infinity`.
_STAY = f"{_RUN}: >/tmp/envkit.ended; exec sleep 2147483647"
# As `export.model.install_script`, with the requirement as an argument.
INSTALL = (
    f"wheels=$(mktemp -d) && python3 -m venv {_INSTALLED} && "
    'printf "%s\\n" "$1" > "$wheels/requirement.txt" && '
    f'{_INSTALLED}/bin/pip wheel --no-cache-dir --no-deps --wheel-dir "$wheels" '
    f'--requirement "$wheels/requirement.txt" && '
    f'exec {_INSTALLED}/bin/pip install --no-cache-dir "$wheels"/{FILE_STEM}-*.whl'
)
# Two words for each index: the name of its image and its base.
BUILD = (
    f"shift $((2 * JOB_COMPLETION_INDEX)); exec {_INSTALLED}/bin/envkit build "
    f'--plan "{_FOLDER}/$JOB_COMPLETION_INDEX.json" --engine embedded --base "$2" --output "registry:$1" --no-verify '
    "--progress plain"
)
_NOBODY = 54321  # a UID that images and packages do not use


def export(order: Order) -> Mapping[str, str]:
    """Return the Jobs and DaemonSets that verify, the Job that builds, and the ConfigMaps that their pods read.

    Raises:
        UsageError: there is no registry, the engine needs a daemon, or a ConfigMap would be too large.
    """
    if order.registry is None:
        raise UsageError("--registry is required", hint="--registry registry.example.com/team/train")
    if order.engine != "embedded":
        raise UsageError(
            f"--engine {order.engine} needs a daemon, which an unprivileged pod does not have",
            hint="leave out --engine",
        )
    only = tuple(name for name in order.options["only"].split(",") if name)
    questions = [
        question_of(cell.plan, name=cell.name, image=order.image(cell), tier=order.tier, only=only)
        for cell in order.cells
    ]
    values = _values(order, questions)
    return {
        name: text_of(f"export/kubernetes-{name.rpartition('/')[2]}.j2", values, order.template_dirs) for name in _FILES
    }


def _values(order: Order, questions: list[Question]) -> dict[str, Any]:
    chosen, cells = order.options, order.cells
    shared = {name: chosen[name] for name in OPTIONS if name != "only"} | {
        "folder": _FOLDER,
        "payload_key": _PAYLOAD,
        "installed": _INSTALLED,
    }
    return {
        **shared,
        "v": shared,  # passed to the macros, because imported macros do not see the template's variables
        "command": order.command,
        "minutes": order.minutes,
        "seconds": order.minutes * 60,
        # Time limit of the whole build Job: it builds `jobs` images at once, so this many rounds.
        "build_seconds": order.minutes * 60 * -(-len(cells) // order.jobs),
        "jobs": min(order.jobs, len(cells)),
        "count": len(cells),
        "rows": [_row(order, index, *pair) for index, pair in enumerate(zip(cells, questions, strict=True))],
        **_installation(order),
        "questions": _question_data(questions),
        "plans": _plan_data(cells),
        "payload": _payload_text(),
    }


def _row(order: Order, index: int, cell: Cell, question: Question) -> dict[str, Any]:
    uid, gid = _user_of(cell)
    return {
        "index": index,
        "name": cell.name,
        "job": resource_name("envkit-verify", cell.name),
        "image": question.image,
        "once": _listed(_question_argv(index, question, cell.plan.prefix, stay=False)),
        "stay": _listed(_question_argv(index, question, cell.plan.prefix, stay=True)),
        "uid": uid,
        "gid": gid,
        "gpus": order.gpus if needs_gpu(cell) else 0,
        "arch": _architecture(cell),
        "shm_mb": cell.plan.smoke.shm_mb,
    }


# Parts of the manifests: names, commands without variable expansion, and the data of ConfigMaps.


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


def _question_argv(index: int, question: Question, prefix: str, *, stay: bool) -> list[str]:
    """Return the command of a pod that runs the payload in its image, then exits with its code, or sleeps (`stay`)."""
    payload, spec = f"{_FOLDER}/{_PAYLOAD}", f"{_FOLDER}/{index}.json"
    python = (f"{prefix}/bin/python", *question.arguments(payload, spec))
    return ["/bin/sh", "-c", _STAY if stay else _ONCE, "envkit", f"{_FOLDER}/{index}.nonce", *python]


def _installation(order: Order) -> dict[str, Any]:
    """Return the builder image, the command that installs envkit into a pod, and the command of a pod that builds.

    Raises:
        UsageError: the pods cannot install the requirement.
    """
    builder = order.options["builder"]
    refused = {Form.PATH: "a pod has no checkout"}
    if builder == OPTIONS["builder"].default:
        refused[Form.GIT] = f"{builder} has no git (--set builder=docker.io/library/python:3.12 has)"
    requirement = installed(order, refused)
    in_image = requirement.form is Form.IMAGE
    script = BUILD.replace(f"{_INSTALLED}/bin/envkit", "envkit") if in_image else BUILD
    # The image of the pod's index: its name and its base.
    images = [word for cell in order.cells for word in (order.image(cell), base_of(cell, "auto"))]
    return {
        "builder": requirement.text if in_image else builder,
        "install_command": None if in_image else _listed(["/bin/sh", "-c", INSTALL, "install", requirement.text]),
        "build_command": _listed(["/bin/sh", "-c", script, "envkit", *images]),
    }


def _question_data(questions: Sequence[Question]) -> dict[str, str]:
    """Return the data of the ConfigMap that the pods of a verification read, and `envkit verify --questions`.

    Raises:
        UsageError: it exceeds the limit of a ConfigMap.
    """
    data = {KEY: questions_json(questions)}
    for index, question in enumerate(questions):
        data |= {f"{index}.json": question.spec_json(), f"{index}.nonce": question.nonce}
    return _fitting(data, len(_payload_text()))


def _plan_data(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the data of the ConfigMap that the pods of a build read.

    Without bytecode: a restricted pod has neither bubblewrap nor proot, in which the image's Python could compile.

    Raises:
        UsageError: it exceeds the limit of a ConfigMap.
    """
    plans = [replace(cell.plan, bytecode=False) for cell in cells]
    return _fitting({f"{index}.json": json.dumps(plan.to_json()) for index, plan in enumerate(plans)}, 0)


@cache
def _payload_text() -> str:
    """Return the payload in base64, for a ConfigMap's binaryData."""
    return base64.b64encode(payload_archive()).decode()


def _architecture(cell: Cell) -> str:
    """Return the label `kubernetes.io/arch` of the nodes that can run a cell's image."""
    return platform(cell.plan.resolution.platform).architecture


def _user_of(cell: Cell) -> tuple[int, int]:
    """Return the UID and GID of a pod: those of the image, or 54321 instead of root, because no pod runs as root."""
    user, _, group = cell.plan.user.partition(":")
    uid = int(user) if user.isdigit() else 0
    gid = int(group) if group.isdigit() else uid
    return (uid, gid) if uid else (_NOBODY, _NOBODY)


def _listed(words: Sequence[str]) -> list[str]:
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
