"""A machine for tests: a folder of files and a table of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from envkit.doctor.host.view import View
from envkit.ground.process import Answer


def machine(
    root: Path,
    files: Mapping[str, str] | None = None,
    answers: Mapping[str, str | Answer] | None = None,
    environ: Mapping[str, str] | None = None,
) -> View:
    """A view of files below `root`; programs that have no answer are missing."""
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def ask(argv: Sequence[str], _patience_s: float = 0, /) -> Answer | None:
        found = (answers or {}).get(argv[0])
        return Answer(code=0, out=found, err="") if isinstance(found, str) else found

    return View(root=root, environ=environ or {}, ask=ask)
