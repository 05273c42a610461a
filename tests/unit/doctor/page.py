"""docs/reference/failures.md, made from the knowledge base: `python -m tests.unit.doctor.page` writes it."""

from __future__ import annotations

from pathlib import Path

from envkit.knowledge import codes
from envkit.knowledge.failures import Row, rows

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "failures.md"
_HEAD = """# Known failures

<!-- Made from the knowledge base by `python -m tests.unit.doctor.page`. -->

What `envkit doctor` recognizes in logs, files, images and records. `envkit doctor --log FILE` says why each happens and
how to fix it ([diagnosis](../doctor.md))."""
TITLES = {
    "driver": "Driver and GPU",
    "kernels": "Kernels, cuDNN and cuBLAS",
    "interpreters": "Python, its modules and its packages",
    "libraries": "Libraries at import",
    "install": "Solving, installing, compiling",
    "engine": "Engines and kernel limits",
    "containers": "Images, Compose files, engines",
    "hooks": "GPUs in containers: the NVIDIA hook and CDI",
    "network": "Registries, mirrors, proxies",
    "loader": "Data loading",
    "training": "Training code",
    "tensors": "Tensors, gradients, optimizers",
    "launch": "Launchers and sharded training",
    "files": "Files, media and storage",
    "hub": "Hugging Face libraries",
    "serving": "Servers, JAX and TensorFlow",
    "cluster": "Clusters and machines",
    "distributed": "Multi-process training",
    "resolvers": "Choosing packages: uv, Poetry, pixi, pip, conda",
    "packaging": "Installers, build backends, git",
    "packages": "Installers: pip, uv, Poetry, pixi, conda",
    "extensions": "Compiling extensions and drivers",
    "toolchains": "Compilers, linkers, CMake, cargo",
    "sources": "Compiler errors in the source of a package",
    "system": "Packages of the distribution: apt, dnf, apk",
    "hosts": "Drivers, GPU hosts, CI runners",
    "compile": "torch.compile and triton",
    "jobs": "Schedulers, launchers and networks",
    "programs": "Programs, checkpoints, model hubs",
    "models": "Loading and serving models",
    "ends": "Final errors",
}


def page() -> str:
    """Return the page: one table for each file of the knowledge base."""
    every = rows()
    assert {row.group for row in every} == set(TITLES)
    signatures = sum(len(row.signatures) for row in every)
    parts = [f"{_HEAD} {len(every)} failures, {signatures} signatures."]
    for group, title in TITLES.items():
        parts += [
            f"## {title}",
            "\n".join(["| id | what is wrong | seen as |", "|---|---|---|", *_rows(every, group)]),
        ]
    return "\n\n".join(parts) + "\n"


def _rows(every: tuple[Row, ...], group: str) -> list[str]:
    return [
        f"| {row.id} | {row.title}{'' if row.severity == 'error' else f' ({row.severity})'} | `{_shown(row)}` |"
        for row in every
        if row.group == group
    ]


def _shown(row: Row) -> str:
    if row.signatures:
        return row.signatures[0].has.strip().replace("|", "\\|").replace("`", "'")
    named = [code for name in codes.NAMES for code in codes.table(name).codes if row in code.rows]
    return named[0].text.lower() or named[0].symbol if named else "Xid (PCI:...): N"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
