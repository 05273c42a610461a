"""How a job failed: which processes died, where, and whether the probes were in their tracebacks. Pure."""

from __future__ import annotations

import shlex
import signal
from dataclasses import dataclass

from envkit.watch.model import Process, Record

# A training is stopped with these on purpose: Ctrl-C, a closed terminal, a scheduler's limit.
_STOPPED = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
_SIGNALLED = 128  # from here on, exit codes are a signal's number and this
_SHOWN = 5  # processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One process that died."""

    process: str
    error: str  # the class of an exception, or a signal
    where: str | None  # the last place in the program itself
    raised: str | None  # the innermost place
    probes: bool  # code of the probes is in the traceback

    @property
    def text(self) -> str:
        """One line."""
        at = f" at {self.where}" if self.where else ""
        inside = f", raised at {self.raised}" if self.raised and self.raised != self.where else ""
        return f"{self.process}: {self.error}{at}{inside}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A job that failed."""

    code: int
    deaths: tuple[Death, ...]
    without: str  # the command that runs it without the probes

    @property
    def headline(self) -> str:
        """The exit code, and how the first process died."""
        return ", ".join([described(self.code), *(f"{death.error} in {death.process}" for death in self.deaths[:1])])

    @property
    def evidence(self) -> tuple[str, ...]:
        """What is known: the processes that died, and what the probes have to do with it."""
        shown = [death.text for death in self.deaths[:_SHOWN]]
        if len(self.deaths) > _SHOWN:
            shown.append(f"and {len(self.deaths) - _SHOWN} more")
        if not self.deaths:
            return (
                "no process left a traceback, so it is not known where it died, or whether the probes had a part in it",
            )
        inside = sum(death.probes for death in self.deaths)
        if not inside:
            return (*shown, "no code of the probes is in the tracebacks")
        # Probes call what they replace, so they are in many tracebacks of other errors.
        where = f"code of the probes (envkit_watch_*) is in {inside} of {len(self.deaths)} tracebacks"
        return (*shown, f"{where}, which alone does not make it the cause")


def ending(record: Record) -> Ending | None:
    """Return how a job failed; None if it did not, was stopped on purpose, or was observed from outside."""
    code = record.exit_code
    if not record.injected or not code or code in _STOPPED:
        return None
    deaths = [death for process in record.processes for death in _deaths(process)]
    # A signal ended the process in which the cause is; the exceptions of the others follow from it.
    deaths.sort(key=lambda death: not death.error.startswith("SIG"))
    command = shlex.join(record.command)
    without = command if record.image is None else f"envkit run {shlex.quote(record.image)} -- {command}"
    return Ending(code=code, deaths=tuple(deaths), without=without)


def _deaths(process: Process) -> list[Death]:
    name = f"process {process.pid}" + (f" ({process.program})" if process.program else "")
    found = []
    for kind, who in (("crash", f"{name}, or one that it forked"), ("end", name)):
        if kind in process.facts:
            fact = process.facts[kind]
            death = Death(
                process=who,
                error=fact.get("error") or "an error",
                where=fact.get("where"),
                raised=fact.get("raised"),
                probes=bool(fact.get("probes")),
            )
            found.append(death)
    return found


def described(code: int) -> str:
    """Return an exit code, with the signal that shells mean by it."""
    try:
        name = signal.Signals(code - _SIGNALLED).name
    except ValueError:
        return f"exit code {code}"
    return f"exit code {code} ({name})"
