"""Explain why no candidate solves: the smallest clash over facts and packages, and changes that were tried.

The constraints of a clash are of two worlds: those of the request (torch, Python, driver, OS), which the facts decide,
and the requirements on packages, which the index decides. Both are left out one by one and solved again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envkit.ground.errors import ConflictError, EnvkitError
from envkit.lock import offers
from envkit.plan.family import CONDA_SOURCES
from envkit.resolve.candidates import Limit, candidates_of
from envkit.resolve.index import index
from envkit.resolve.model import Request, Resolution
from envkit.resolve.request import changed
from envkit.resolve.resolver import resolve
from envkit.resolve.suggest import alternatives
from envkit.resolve.wanted import Ask, asks

if TYPE_CHECKING:
    from envkit.facts.model import Facts
    from envkit.lock.known_pages import KnownPages
    from envkit.lock.limits import Allowed, Probe
    from envkit.plan.model import BuildPlan

_MOST_SOLVES = 40  # of one explanation; each takes about a second
_MOST_CHANGES = 3
_SEVERAL = 2
_SOURCE_ONLY = re.compile(r"Wheels are required for `([A-Za-z0-9._-]+)`")  # a message of uv
_MOST_PACKAGES = 6  # requirements that one explanation of the solver names


class _NoSolvesLeftError(Exception):
    """The search has used its solves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A change that solves."""

    change: str
    words: tuple[str, ...]  # options to add to the command; empty for a change of a file
    gives: str
    older: bool = False  # a release that is older than the one that was asked for


@dataclass(slots=True, kw_only=True)
class Clash:
    """The search for the constraints that clash, and for changes."""

    first: BuildPlan  # the newest candidate of the request
    request: Request
    facts: Facts
    probe_of: Callable[[BuildPlan], Probe]
    pages: KnownPages  # those that were read
    solves: int = field(default=0)

    def explained(self, error: ConflictError, command: Sequence[str]) -> ConflictError:
        """Return an error with the smallest clash and the changes that solve, or the error itself if none is known.

        Args:
            error: of the newest candidate.
            command: what the user typed, without options.
        """
        if self.first.allow_source:
            return error  # the probe leaves out what is built from source, so it cannot tell what clashes with it
        named = [line for line in self.first.pip if _is_named(line, error)]
        if self.first.resolution.source in CONDA_SOURCES or not 0 < len(named) <= _MOST_PACKAGES:
            return error
        error = self._of_newest_releases(error, named)
        try:
            stated = self._smallest((*asks(self.request), *named))
            tried = list(self._changes(stated))
        except (_NoSolvesLeftError, EnvkitError):  # such as an index that stops to answer
            error.details = (*error.details, *self._read(named))
            return error
        clash = " and ".join(map(str, stated))
        details = (f"because {error.message}", *error.details, *self._read(named), *map(_shown(command), tried))
        commands = [shlex.join((*command, *change.words)) for change in tried if change.words]
        hint = commands[0] if commands else f"write {tried[0].change}" if tried else error.hint
        if tried and error.hint and "allow_source" in error.hint:
            if not commands and tried[0].older:
                hint = error.hint  # an older release is not what was asked for, often by years
            else:
                details = (*details, f"or {error.hint}")
        return ConflictError(f"nothing satisfies {clash}", details=details, hint=hint)

    def _of_newest_releases(self, error: ConflictError, named: Sequence[str]) -> ConflictError:
        """Return the error of the newest releases alone, if the solver names the sources that several ones need.

        The source that an older release needs is not the one to build.
        """
        if len({match[1] for match in _SOURCE_ONLY.finditer(" ".join(error.details))}) < _SEVERAL:
            return error
        plan, probe = self.first, self.probe_of(self.first)
        try:
            newest = probe.newest_releases(plan, [_name(line) for line in named])
            pins = tuple(f"{name}=={version}" for name, version in newest.items())
            some = next(iter(candidates_of(self.request, self.facts, plan.resolution.python)))
            probe.newest(replace(plan, constraints=(*plan.constraints, *pins)), some)
        except ConflictError as narrower:
            return narrower if narrower.hint and "allow_source" in narrower.hint else error
        except EnvkitError:  # such as an index that stops to answer
            pass
        return error

    def _read(self, named: Sequence[str]) -> Iterator[str]:
        """Yield what the pages with prebuilt wheels of packages have, as far as they were read."""
        for name in map(_name, named):
            pages = self.pages.read(name)
            full = [(url, files) for url, files in pages if files]
            if not pages:
                continue
            many = f"{len(pages)} pages" if pages[1:] else "1 page"
            if not full:
                yield f"read {many} with wheels of {name}, such as {pages[0][0]}: none exists"
                continue
            has = offers.described(name, [file for _, files in full for file in files])
            yield f"read {many} with wheels of {name}, such as {full[0][0]}: {has}"

    def _smallest(self, stated: tuple[Ask | str, ...]) -> tuple[Ask | str, ...]:
        """Return constraints that clash and of which each is needed: without it, the others have a solution."""
        # Packages that the solver's explanation does not name are in no clash.
        needed = stated
        for member in stated:
            fewer = tuple(other for other in needed if other is not member)
            if self._solution(self._kept(fewer), _packages(fewer)) is None:
                needed = fewer
        return needed

    def _kept(self, stated: tuple[Ask | str, ...]) -> Request:
        """Return the request with only some of its constraints."""
        request = self.request
        for ask in reversed(asks(self.request)):  # from the end, so that the positions of the others stay
            if ask not in stated:
                request = changed(request, ask.field, None, ask.position)
        return request

    def _solution(self, request: Request, packages: Sequence[str]) -> tuple[Resolution, Allowed] | None:
        """Return the newest candidate of a request that solves with some packages; None if none does.

        Raises:
            _NoSolvesLeftError: the search has taken too long.
        """
        try:
            answer = resolve(request, self.facts)
        except ConflictError:
            return None
        for some in candidates_of(request, self.facts, answer.python):
            if self.solves >= _MOST_SOLVES:
                raise _NoSolvesLeftError
            self.solves += 1
            resolution = resolve(Limit(torch=some.torches[0], python=some.python).of(request), self.facts)
            plan = replace(self.first, resolution=resolution, pip=tuple(packages))
            try:
                allowed = self.probe_of(plan).newest(plan, some)
            except ConflictError:
                continue
            return resolve(Limit(torch=allowed.torch, python=some.python).of(request), self.facts), allowed
        return None

    def _changes(self, clash: tuple[Ask | str, ...]) -> Iterator[_Tried]:
        """Yield changes of single constraints with which everything solves, at most one for each constraint."""
        changes = 0
        template = any(isinstance(member, Ask) and member.field == "template" for member in clash)
        # With the wheels template, the OS decides Python, also one that is the default.
        systems = [ask for ask in asks(self.request) if ask.field == "os"] or [Ask("os", ())]
        system = [ask for ask in systems if template and ask not in clash]
        for member in (*clash, *system):
            for change, words, request, packages in self._alternatives(member):
                found = self._solution(request, packages)
                if found is None:
                    continue
                resolution, allowed = found
                runtime = f"CUDA {resolution.cuda}" if resolution.cuda else "CPU"
                gives, older = f"torch {resolution.torch}, {runtime}, Python {resolution.python}", False
                if isinstance(member, str):
                    version = allowed.versions.get(_name(member), "")
                    gives = f"{_name(member)} {version}, {gives}"
                    older = bool(version) and _is_older(version, member)
                yield _Tried(change=change, words=words, gives=gives, older=older)
                changes += 1
                break
            if changes >= _MOST_CHANGES:
                return

    def _alternatives(self, member: Ask | str) -> Iterator[tuple[str, tuple[str, ...], Request, tuple[str, ...]]]:
        """Yield changes of one constraint, in words and as options, with the request and the packages."""
        packages = self.first.pip
        if isinstance(member, str):
            wanted = Requirement(member)
            if wanted.specifier:
                extras = f"[{','.join(sorted(wanted.extras))}]" if wanted.extras else ""
                loose = f"{wanted.name}{extras}"
                yield (
                    f"{loose} instead of {member}", (), self.request,
                    tuple(loose if line == member else line for line in packages),
                )  # fmt: skip
            return
        for change, words, request in alternatives(self.request, member, index(self.facts)):
            yield change, words, request, packages


def _packages(stated: Sequence[Ask | str]) -> tuple[str, ...]:
    return tuple(member for member in stated if isinstance(member, str))


def _name(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


def _is_older(version: str, line: str) -> bool:
    """Return whether a version is below those that a requirement allows."""
    clauses = [clause for clause in Requirement(line).specifier if clause.operator in (">=", ">", "==", "~=")]
    return any(Version(version) < Version(clause.version.removesuffix(".*")) for clause in clauses)


def _is_named(line: str, error: ConflictError) -> bool:
    """Return whether the solver's explanation names a requirement on a package."""
    words = " ".join((error.message, *error.details)).replace("`", " ").replace("=", " ").replace("<", " ")
    names = {canonicalize_name(word) for word in words.replace(">", " ").replace("[", " ").split()}
    return _name(line) in names


def _shown(command: Sequence[str]) -> Callable[[_Tried], str]:
    def text(tried: _Tried) -> str:
        what = shlex.join((*command, *tried.words)) if tried.words else tried.change
        why = f"{tried.change}: " if tried.words else ""
        return f"try: {what}  ({why}{tried.gives})"

    return text
