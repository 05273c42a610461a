"""Runs a case below an empty folder, and says what it did there."""

import os
from pathlib import Path

from tests.hostile.model import Case, Outcome
from tests.support.forked import CommandLine

_CPU = 30  # seconds of processor time, far above what the judge allows


class Server(CommandLine):
    """The command line, for cases."""

    def outcome(self, case: Case, root: Path) -> Outcome:
        """Run one case below an empty folder."""
        for name in ("work", "home", "tmp"):
            (root / name).mkdir(parents=True)
        argv = case.prepare(root / "work")
        before = _files(root)
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(root / "home"),
            "TMPDIR": str(root / "tmp"),
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            # Whoever opens a connection all the same gets none.
            "https_proxy": "http://127.0.0.1:9",
            "http_proxy": "http://127.0.0.1:9",
        } | {name: value.replace("{folder}", str(root / "work")) for name, value in case.env.items()}
        answer = self.run(argv, root / "work", root, env, cpu=_CPU)
        out, err = ((root / name).read_text(errors="backslashreplace") for name in ("stdout", "stderr"))
        after = _files(root)
        new = tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))
        return Outcome(**answer, stdout=out, stderr=err, new=new)


def _files(root: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if name not in ("stdout", "stderr") and (path.is_symlink() or not path.is_dir()):
            status = path.lstat()
            found[name] = (status.st_size, status.st_mtime_ns)
    return found
