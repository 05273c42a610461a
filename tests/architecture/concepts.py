"""Print who reads each table of known failures: `python -m tests.architecture.concepts`."""

from __future__ import annotations

from pathlib import Path

import envkit
from tests.architecture import measures

_CODES = ("envkit.knowledge.codes", "envkit.knowledge.matching")
_ROWS = ("envkit.knowledge.failures", "envkit.knowledge.matching")
_PROGRAMS = ("envkit.knowledge.programs",)
# The modules through which a table is read.
CONCEPTS = {
    "variables": ("envkit.knowledge.variables", "envkit.doctor.environment", "envkit.doctor.images.rules"),
    "NVML errors": _CODES,
    "CUDA errors": _CODES,
    "cuDNN errors": _CODES,
    "NCCL errors": _CODES,
    "Xid": _CODES,
    "compile failures": _ROWS,
    "NVIDIA hook": _ROWS,
    "states": _PROGRAMS,
    "tools": _PROGRAMS,
    "exceptions": _PROGRAMS,
    "contexts": ("envkit.knowledge.contexts", "envkit.knowledge.matching"),
}
VERBS = {
    "envkit.doctor.logs": "doctor --log",
    "envkit.doctor.shapes": "doctor --log",
    "envkit.doctor.host": "doctor",
    "envkit.doctor.files": "doctor --file",
    "envkit.doctor.compose": "doctor --file",
    "envkit.doctor.images": "doctor --image",
    "envkit.doctor.records": "doctor --record",
    "envkit.checks": "checks",
    "envkit.verify": "checks",
    "envkit.engines": "run, build",
    "envkit.pipeline": "run",
}
_ERRORS = {"doctor --log", "doctor", "doctor --record", "checks", "run, build"}
EXPECTED = {
    "variables": {"doctor --log", "doctor", "doctor --file", "doctor --image", "doctor --record", "checks", "run"},
    **dict.fromkeys(("NVML errors", "CUDA errors", "cuDNN errors", "NCCL errors", "Xid"), _ERRORS),
    **dict.fromkeys(("compile failures", "NVIDIA hook"), _ERRORS),
    "states": {"doctor --log"},
    "tools": {"doctor --log"},
    "exceptions": {"doctor --log"},
    "contexts": _ERRORS,
}


def readers(package: list[measures.Module]) -> dict[str, dict[str, list[str]]]:
    """Return for each concept the commands that read its table, each with the modules that do."""
    found: dict[str, dict[str, list[str]]] = {}
    for concept, through in CONCEPTS.items():
        modules = {name for module in through for name in measures.importers(package, module)}
        by_verb: dict[str, list[str]] = {}
        for name in sorted(modules):
            verb = next((verb for prefix, verb in VERBS.items() if f"{name}.".startswith(f"{prefix}.")), None)
            if verb is not None:
                by_verb.setdefault(verb, []).append(name.removeprefix("envkit."))
        found[concept] = by_verb
    return found


def main() -> None:
    """Print the table."""
    for concept, verbs in readers(measures.modules(Path(envkit.__file__).parent)).items():
        print(concept)
        for verb, modules in verbs.items():
            print(f"    {verb:<17}{', '.join(modules)}")


if __name__ == "__main__":
    main()
