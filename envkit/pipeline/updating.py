"""`matrix update`: read new releases from the index and produce the changed tables, evidence and snapshot."""

from __future__ import annotations

import difflib
import shutil
import signal
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.evidence import proposals, update
from envkit.evidence.prove import Proved, prove_cudnn, prove_release
from envkit.evidence.read import Level
from envkit.facts import edited, evidence, snapshot
from envkit.facts.tables import TABLES
from envkit.ground import paths, signals, store
from envkit.ground.errors import EnvironmentProblem, UsageError
from envkit.ground.paths import cache_dir
from envkit.ground.versions import is_version, key
from envkit.pipeline.proving import open_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from envkit.evidence.derive import Release
    from envkit.evidence.index import Index
    from envkit.facts.model import Facts
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An update of the facts: the files to write, and what was read for it."""

    releases: tuple[str, ...]
    proved: tuple[Proved, ...]
    files: dict[Path, str]  # new text
    replaces: int  # version of the tables that it is based on
    asked: tuple[str, ...]  # values that no file has and that must be looked up in documents
    requests: int
    received: int  # bytes

    @property
    def diff(self) -> str:
        """The changes of the YAML tables as a unified diff."""
        lines: list[str] = []
        for path, text in self.files.items():
            if path.suffix == ".yaml":
                old = path.read_text(encoding="utf-8").splitlines(keepends=True)
                name = f"envkit/facts/data/{path.name}"
                lines += difflib.unified_diff(old, text.splitlines(keepends=True), f"a/{name}", f"b/{name}")
        return "".join(lines)

    def write(self) -> None:
        """Write all files or none, also if a signal arrives or the disk is full.

        Raises:
            UsageError: the tables changed since they were read.
            EnvironmentProblem: a file cannot be written.
        """
        # Again: another update may have written the tables while the index was read.
        _check_version(self.replaces)
        # A signal between two renames would leave tables of two versions; it arrives after the last one.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals.ENDING)
        try:
            with ExitStack() as opened:
                for path, text in self.files.items():
                    # All temporary files are complete before the first one is renamed.
                    stream = opened.enter_context(store.replacing(path))
                    stream.write(text.encode())
                    stream.flush()  # a full disk has to fail here, before the first rename
        except OSError as error:
            raise store.unusable(edited.DATA, error, hint="run it in a checkout, or use --into FILE") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def find_update(
    facts: Facts, settings: Settings, reporter: Reporter, *, torch: str | None, since: str | None, deep: bool
) -> Update:
    """Read the releases that are newer than the facts, that were uploaded since a day, or the named one.

    Raises:
        UsageError: the index has no such release, or the tables are newer than the loaded facts.
        EnvironmentProblem: the index does not answer, or a file cannot be read.
        IntegrityError: a file is damaged or differs from the index's hash.
    """
    _check_version(facts.version)
    with open_index(settings, reporter) as index:
        files = index.files("torch")
        if since is not None and files.is_future(since):
            raise UsageError(
                f"--since: {since} is in the future: today is {files.today} according to the index",
                hint="check this machine's clock with date -u, or give an earlier day: --since 2026-10-01",
            )
        if torch is not None:
            versions = [torch]
        else:
            oldest, newest = min(facts.releases, key=key), max(facts.releases, key=key)
            day = files.first_days()
            versions = [
                release for release in files.versions
                if is_version(release) and key(release) >= key(oldest)
                and (key(release) > key(newest) if since is None else day.get(release, "") >= since)
            ]  # fmt: skip
        proved = []
        for version in sorted(versions, key=key):
            proved.append(prove_release(index, version, facts, Level(deep=deep), cache=cache_dir()))
            reporter.note(f"torch {version}: {len(proved[-1].rows)} values")
        additions = _additions(index, proved, facts, reporter, toolkits=torch is None)
        traffic = index.traffic
    changed = _files(proved, additions, facts)
    return Update(
        releases=tuple(sorted(versions, key=key)), proved=tuple(proved), files=changed, replaces=facts.version,
        asked=tuple(line for path, text in changed.items() for line in update.questions(text, _text(path))),
        requests=traffic.requests, received=traffic.received,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Additions:
    """New rows besides those of torch's releases."""

    toolkits: list[dict[str, Any]]
    cudnns: list[dict[str, Any]]
    evidence: list[evidence.Evidence]  # of the cuDNNs


def _additions(
    index: Index, proved: Sequence[Proved], facts: Facts, reporter: Reporter, *, toolkits: bool
) -> _Additions:
    """Return new toolkits on the index and new cuDNNs of the releases; an index may have neither package."""
    additions = _Additions(toolkits=[], cudnns=[], evidence=[])
    if toolkits:
        with _optional(reporter):
            rows = proposals.toolkit_rows(index.files("cuda-toolkit"), [row.toolkit for row in facts.toolkits])
            additions.toolkits.extend(rows)
    for proof in proved:
        with _optional(reporter):
            _add_cudnn(index, proof.release, facts, additions)
    return additions


@contextmanager
def _optional(reporter: Reporter) -> Iterator[None]:
    """Report a package that cannot be read, and continue."""
    try:
        yield
    except EnvironmentProblem as error:
        reporter.note(f"{error}; no row is proposed from it")


def _add_cudnn(index: Index, release: Release, facts: Facts, additions: _Additions) -> None:
    cudnn = proposals.cudnn_of(release)
    cuda = release.wheels["linux-64"].text("cuda") if cudnn is not None else None
    if cudnn is None or cuda is None:
        return
    known = {(row.cudnn, row.cuda_major) for row in facts.cudnns}
    known |= {(row["cudnn"], row["cuda_major"]) for row in additions.cudnns}
    proofs = prove_cudnn(index, *cudnn, cache_dir()) if proposals.cudnn_key(*cudnn) not in known else None
    if proofs is not None:
        row, entry = proposals.cudnn_row(*cudnn, cuda, proofs)
        additions.cudnns.append(row)
        additions.evidence.extend([entry] if entry is not None else [])


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _check_version(version: int) -> None:
    """Check that the tables still have the version of the loaded facts, so that newer tables are never overwritten.

    Raises:
        UsageError: they have another version.
    """
    path = edited.DATA / f"{snapshot.HEAD}.yaml"
    current = snapshot.version_of(path.read_text(encoding="utf-8"))
    if current != version:
        raise UsageError(
            f"{path} has version {current} of the facts, but this update is based on version {version}; "
            "nothing was written",
            hint="python -m envkit.facts.snapshot, then run it again",
        )


def _files(proved: Sequence[Proved], additions: _Additions, facts: Facts) -> dict[Path, str]:
    """Return the new texts of all files that change."""
    root = next(row.index for row in facts.builds if row.index).rstrip("/").rpartition("/")[0]
    texts = {name: (edited.DATA / f"{name}.yaml").read_text(encoding="utf-8") for name in edited.NAMES}
    tables = update.changed_tables(proved, texts, root)
    if additions.toolkits:
        tables[update.TOOLKITS] = update.with_toolkits(texts[update.TOOLKITS], additions.toolkits)
    if additions.cudnns:
        tables[update.CUDNNS] = update.with_cudnns(texts[update.CUDNNS], additions.cudnns)
    if tables:
        head = tables.get(snapshot.HEAD, texts[snapshot.HEAD])
        tables[snapshot.HEAD] = snapshot.with_version(head, facts.version + 1)
    files = {edited.DATA / f"{name}.yaml": text for name, text in tables.items()}
    current = {table.name: evidence.read(table.name) for table in TABLES}
    more = [("cudnns", entry) for entry in additions.evidence]
    for table, text in update.evidence_texts(proved, current, more).items():
        path = evidence.path_of(table)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            files[path] = text
    if tables:
        files[snapshot.PATH] = _snapshot(tables)
    return files


def _snapshot(tables: dict[str, str]) -> str:
    """Return the snapshot of the new tables, compiled in a temporary folder before any file is written."""
    with paths.scratch() as folder:
        for name in edited.NAMES:
            shutil.copy(edited.DATA / f"{name}.yaml", folder)
        for name, text in tables.items():
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        with edited.reading_from(folder):
            return snapshot.text(snapshot.tree())
