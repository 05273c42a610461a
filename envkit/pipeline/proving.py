"""Compare the facts with the files on the Python index.

`matrix prove`, `matrix check --online` and `matrix update` all open the index with `open_index`.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.engines.host_environment import ca_file
from envkit.evidence import pages
from envkit.evidence.compare import DIFFERENT, MISSING, Compared, compare
from envkit.evidence.index import Index, NoListError
from envkit.evidence.prove import Proved, prove_file, prove_release, release_named
from envkit.evidence.ranges import PATIENCE, Traffic
from envkit.evidence.read import Level
from envkit.ground.errors import IntegrityError, UsageError
from envkit.ground.paths import cache_dir
from envkit.ground.settings import FLAT
from envkit.ground.versions import is_version, key
from envkit.lock.index_locations import python_index
from envkit.lock.uv import default_index
from envkit.registry.transport import Transport
from envkit.render import sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envkit.evidence.index import FileList
    from envkit.facts.model import Facts
    from envkit.ground.progress import Reporter
    from envkit.ground.settings import Settings

MOST = 600_000_000
"""Bytes that one command may download; reading every release with an empty cache takes 410 MB."""
_MOST_OF_ONE = 120_000_000  # bytes for one release, --deep included


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What was read of a release, a file or a folder of an index, compared with the facts."""

    name: str
    compared: tuple[Compared, ...]
    requests: int
    received: int  # bytes
    refused: tuple[str, ...] = ()  # errors about files that are damaged or differ from the index's hashes

    @property
    def differences(self) -> tuple[Compared, ...]:
        """Values that differ from the facts, and rows that are missing there."""
        return tuple(comparison for comparison in self.compared if comparison.state in (DIFFERENT, MISSING))

    def to_json(self) -> dict[str, Any]:
        """Return the document of `matrix prove --json`."""
        return {
            "name": self.name,
            "requests": self.requests,
            "bytes": self.received,
            "refused": list(self.refused),
            "values": [
                {"table": comparison.table, **comparison.evidence.to_json(), "grade": comparison.evidence.grade,
                 "facts": comparison.stated, "state": comparison.state}
                for comparison in self.compared
            ],
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof(Reading):
    """The evidence from a release or a file, compared with the facts."""

    proved: Proved


@contextmanager
def open_index(settings: Settings, reporter: Reporter, limit: int = MOST) -> Iterator[Index]:
    """Open the Python index of the settings, else the one that pip or uv is configured with.

    Raises:
        UsageError: the index or the CA bundle of the settings cannot be used.
        EnvironmentProblem: no index is configured.
    """
    mirrors = settings.mirrors()
    url = sources.python_index(mirrors) or python_index(os.environ) or default_index()
    bundle = ca_file(mirrors, reporter)
    with Transport(ca_bundle=bundle, policy=PATIENCE) as transport:
        yield Index(url=url, transport=transport, traffic=Traffic(limit), ca_bundle=bundle)


def prove(name: str, facts: Facts, settings: Settings, reporter: Reporter, *, deep: bool) -> Proof:
    """Read the evidence in the files of `torch==V`, or in one wheel on this machine, and compare it with the facts.

    Raises:
        UsageError: the name is neither, or the index has no such release.
        EnvironmentProblem: the index does not answer, or a file cannot be read.
        IntegrityError: a file is damaged or differs from the index's hash.
    """
    level = Level(deep=deep)
    if name.endswith(".whl") or "/" in name:
        proved = prove_file(Path(name), level)
        return Proof(name=Path(name).name, proved=proved, compared=_compared(facts, proved), requests=0, received=0)
    torch = release_named(name)
    with open_index(settings, reporter, _MOST_OF_ONE) as index:
        proved = prove_release(index, torch, facts, level, cache=cache_dir())
        traffic = index.traffic
    return Proof(
        name=f"torch=={torch}", proved=proved, compared=_compared(facts, proved), requests=traffic.requests,
        received=traffic.received,
    )  # fmt: skip


def _compared(facts: Facts, proved: Proved) -> tuple[Compared, ...]:
    return tuple(compare(facts, proved.rows))


def check_online(
    facts: Facts, settings: Settings, reporter: Reporter, *, torch: str | None, deep: bool
) -> tuple[tuple[Proof, ...], Traffic]:
    """Read the evidence of every release in the facts, or of one, and compare it with the facts.

    Releases on the index that the facts lack are read, too, so that missing rows are reported. A damaged file does not
    end the check: it is listed in the `refused` of its release.

    Raises:
        UsageError: the index has no such release.
        EnvironmentProblem: the index does not answer, or a file cannot be read.
        IntegrityError: a file list contradicts itself.
    """
    level = Level(deep=deep)
    with open_index(settings, reporter) as index:
        # Releases before the first one of the facts do not count as missing.
        oldest = min(facts.releases, key=key)
        listed = [
            release for release in index.files("torch").versions if is_version(release) and key(release) >= key(oldest)
        ]
        proofs = []
        for version in [torch] if torch is not None else sorted(listed, key=key):
            before = (index.traffic.requests, index.traffic.received)
            refused: list[IntegrityError] = []
            proved = prove_release(index, version, facts, level, cache=cache_dir(), refused=refused)
            reporter.note(f"torch {version}: {len(proved.rows)} values")
            proofs.append(Proof(
                name=f"torch=={version}", proved=proved, compared=_compared(facts, proved),
                requests=index.traffic.requests - before[0], received=index.traffic.received - before[1],
                refused=tuple(error.message for error in refused),
            ))  # fmt: skip
        return tuple(proofs), index.traffic


def check_pages(
    facts: Facts, settings: Settings, reporter: Reporter, *, torch: str | None
) -> tuple[tuple[Reading, ...], Traffic]:
    """Compare the names of all files on the PyTorch index, or of those for one release, with the facts.

    A page that is damaged or cut short does not end the check: it is listed in the `refused` of its folder, and says
    nothing about files.

    Raises:
        UsageError: the index or the CA bundle of the settings cannot be used, or it has flat pages.
        EnvironmentProblem: the index does not answer.
    """
    mirrors = settings.mirrors()
    root = mirrors.pytorch_index or sources.PYTORCH
    if root.startswith(FLAT):
        raise UsageError(
            f"--index pytorch reads a page for each package, and {root} lists the files of a folder",
            hint="ENVKIT_PYTORCH_INDEX=URL of an index, such as that of PyTorch",
        )
    root = sources.url(root, "pytorch_index")
    readings, traffic = [], Traffic(MOST)
    with Transport(ca_bundle=ca_file(mirrors, reporter), policy=PATIENCE) as transport:
        for folder in pages.folders(facts):
            before = (traffic.requests, traffic.received)
            index = Index(url=f"{root}/{folder}", transport=transport, traffic=traffic, variable="ENVKIT_PYTORCH_INDEX")
            compared, refused = list[Compared](), list[str]()
            for package in pages.packages(facts):
                try:
                    compared += pages.compare_page(facts, folder, _page(index, package), torch=torch)
                except IntegrityError as error:
                    refused.append(error.message)
            reporter.note(f"{folder}: {len(compared)} values")
            readings.append(Reading(
                name=folder, compared=tuple(compared), refused=tuple(refused),
                requests=traffic.requests - before[0], received=traffic.received - before[1],
            ))  # fmt: skip
    return tuple(readings), traffic


def _page(index: Index, package: str) -> FileList:
    """Return the page of a package; without files if the folder has no such page."""
    try:
        return index.files(package)
    except NoListError:
        return index.empty(package)
