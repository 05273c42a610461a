"""The tables of docs/doctor.md, made from the knowledge base: `python -m tests.unit.doctor.page` writes them."""

from __future__ import annotations

from pathlib import Path

from envkit.knowledge import codes
from envkit.knowledge.failures import Row, rows

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
BEGIN, END = "<!-- knowledge base: begin -->", "<!-- knowledge base: end -->"
TITLES = {
    "driver": "Driver and GPU",
    "kernels": "Kernels, cuDNN and cuBLAS",
    "libraries": "Libraries at import",
    "install": "Solving, installing, compiling",
    "engine": "Engines and kernel limits",
    "network": "Registries, mirrors, proxies",
    "loader": "Data loading",
    "training": "Training code",
    "distributed": "Multi-process training",
    "resolvers": "Choosing packages: uv, Poetry, pixi, pip, conda",
    "extensions": "Compiling extensions and drivers",
    "jobs": "Schedulers, launchers and networks",
    "programs": "Programs, checkpoints, model hubs",
    "ends": "Final errors",
}


def tables() -> str:
    """One table for each file of the knowledge base."""
    every = rows()
    assert {row.group for row in every} == set(TITLES)
    signatures = sum(len(row.signatures) for row in every)
    parts = [f"{len(every)} failures, {signatures} signatures."]
    for group, title in TITLES.items():
        parts += [
            f"### {title}",
            "\n".join(["| id | what is wrong | seen as |", "|---|---|---|", *_rows(every, group)]),
        ]
    return "\n\n".join(parts)


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


def page() -> str:
    """The whole page with its tables as they have to be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
