"""Remove torch releases from the tables one by one and restore them from the files of the Python index.

    python -m benchmarks.facts_restore [--releases 10] [--torch V]

A release is removed from the releases, and its default wheel from the variants. `matrix update` then makes both rows
again from the wheels. The report has the lines that differ from the removed ones, by field, with bytes, requests and
seconds. Lines that only documents can give (notes, references, build with NumPy, newest Python of torch.compile) are
counted separately, and so are rows for other CUDA versions that are proposed with a question.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import time

from benchmarks._report import Figure, finish, tell
from envkit.evidence.prove import prove_release
from envkit.evidence.read import Level
from envkit.evidence.update import RELEASES, VARIANTS, changed_tables
from envkit.facts import edited
from envkit.facts.load import load
from envkit.ground import settings
from envkit.ground.paths import cache_dir
from envkit.ground.progress import Silent
from envkit.ground.versions import key
from envkit.pipeline.proving import open_index

# Fields that no file of a release has.
DOCUMENTS = frozenset({
    "note", "refs", "built_with_numpy", "compile_max_python", "confidence", "torchvision_also", "matrix_live",
    "arch_refs", "arch_aarch64_refs", "cudnn_refs", "released",
    "manylinux_2_28_aarch64",  # of the PyTorch index where the Python index has a CPU wheel
})  # fmt: skip
_ROOT = "https://download.pytorch.org/whl"


def without(text: str, torch: str, only: str = "") -> str:
    """Return a table without the rows of a release; only rows with the line `only` are removed."""
    text, lts, after = text.partition("\nlts:")
    head, *rows = re.split(r"(?m)^(?=  - torch: )", text + "\n" * bool(lts))
    kept = [row for row in rows if not (row.startswith(f"  - torch: {torch}\n") and only in row)]
    return head + "".join(kept) + lts.lstrip("\n") + after


def answered(text: str) -> tuple[str, int]:
    """Return a table without the rows that ask a question, and the number of those."""
    head, *rows = re.split(r"(?m)^(?=  - torch: )", text)
    kept = [row for row in rows if "  # ask: " not in row]
    return head + "".join(kept), len(rows) - len(kept)


def fields_that_differ(old: str, new: str) -> list[str]:
    """Return the field of every line that differs."""
    fields, field = [], ""
    for line in difflib.ndiff(old.splitlines(), new.splitlines()):
        match = re.match(r"[-+ ] +(?:- )?([a-z_0-9]+):", line)
        if match:
            field = match[1]
        if line[0] in "-+":
            fields.append(field)
    return fields


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--releases", type=int, default=10)
    parser.add_argument("--torch")
    options = parser.parse_args()
    facts = load()
    texts = {name: (edited.DATA / f"{name}.yaml").read_text() for name in (RELEASES, VARIANTS)}
    versions = [options.torch] if options.torch else sorted(facts.releases, key=key)[-options.releases :]
    rows, wrong = [], 0
    with open_index(settings.load({}, os.environ, edited.DATA), Silent()) as index:
        for torch in versions:
            began, before = time.monotonic(), dataclasses.replace(index.traffic)
            left = dataclasses.replace(facts, releases={v: row for v, row in facts.releases.items() if v != torch})
            proved = prove_release(index, torch, left, Level(), cache=cache_dir())
            removed = {
                RELEASES: without(texts[RELEASES], torch),
                VARIANTS: without(texts[VARIANTS], torch, "pypi_default: true"),
            }
            made = removed | changed_tables([proved], removed, _ROOT)
            made[VARIANTS], proposed = answered(made[VARIANTS])
            fields = [field for name, text in texts.items() for field in fields_that_differ(text, made[name])]
            others = [field for field in fields if field not in DOCUMENTS]
            wrong += bool(others)
            rows.append((
                torch, str(len(fields) - len(others)), ", ".join(sorted(set(others))) or "none",
                str(index.traffic.requests - before.requests),
                f"{(index.traffic.received - before.received) / 1e6:.1f}", f"{time.monotonic() - began:.1f}",
                str(proposed),
            ))  # fmt: skip
    for row in rows:
        tell(
            "torch {}: {} lines from documents differ; other fields: {}; {} requests, {} MB, {} s; "
            "{} rows proposed with a question".format(*row)
        )
    restored = Figure(
        name="releases restored", figure=float(len(versions) - wrong), unit="of", better="higher",
        goal=float(len(versions)), against="the rows that were removed",
    )  # fmt: skip
    return finish("facts_restore", [restored])


if __name__ == "__main__":
    raise SystemExit(main())
