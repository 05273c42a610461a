"""Kubernetes: an unprivileged Job that builds every image, and Jobs and DaemonSets that verify them on the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envkit.export import pods
from envkit.export.model import Option, Order, needs_gpu
from envkit.fleet.cells import base_of
from envkit.fleet.model import Cell
from envkit.ground.errors import UsageError
from envkit.render.texts import text_of
from envkit.verify.question import Question, question_of

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
        "folder": pods.FOLDER,
        "payload_key": pods.PAYLOAD,
        "installed": pods.INSTALLED,
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
        "requirement_word": pods.listed([order.requirement])[0],
        "rows": [_row(order, index, *pair) for index, pair in enumerate(zip(cells, questions, strict=True))],
        "build_command": pods.listed(pods.build_argv([(order.image(cell), base_of(cell, "auto")) for cell in cells])),
        "questions": pods.question_data(questions),
        "plans": pods.plan_data(cells),
        "payload": pods.payload_text(),
    }


def _row(order: Order, index: int, cell: Cell, question: Question) -> dict[str, Any]:
    uid, gid = pods.user_of(cell)
    return {
        "index": index,
        "name": cell.name,
        "job": pods.resource_name("envkit-verify", cell.name),
        "image": question.image,
        "once": pods.listed(pods.question_argv(index, question, cell.plan.prefix, stay=False)),
        "stay": pods.listed(pods.question_argv(index, question, cell.plan.prefix, stay=True)),
        "uid": uid,
        "gid": gid,
        "gpus": order.gpus if needs_gpu(cell) else 0,
        "arch": pods.architecture(cell),
        "shm_mb": cell.plan.smoke.shm_mb,
    }
