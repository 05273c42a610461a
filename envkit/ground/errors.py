"""The errors that users can meet, each with its exit code.

    EnvkitError
      UsageError          2   an invalid flag, setting, definition or template
      ConflictError       3   no compatible versions
      LockError           4   the lock is missing or stale
      NotVerifiedError    5   not verified (no GPU, inconclusive)
      VerificationError   6   the image was tested and failed
        PayloadError      6   the output of the payload in the image is invalid
      EngineError         8   an engine, a pull or a push failed
      EnvironmentProblem  9   no engine, disk full, no permission, driver, registry unreachable
      IntegrityError     10   a checksum or signature did not match
      TimeLimitError    124   a time limit was reached
    InterruptedRun      130   SIGINT (129 for SIGHUP, 143 for SIGTERM)

The library raises; only `envkit.cli` prints. `message` is what happened, with the value, `hint` is the next command to
type, and `details` are further lines (the end of a log, the other errors of a file).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

RAISE_TIMEOUT = "raise --timeout SECONDS"  # the hint for every command whose time limit was reached
MAX_FAULTS = 20  # errors of one file in one message: more than a screen full does not help


def shown(faults: Sequence[str], most: int = MAX_FAULTS) -> tuple[str, ...]:
    """Return the first errors of a file, and a count of the others."""
    more = len(faults) - most
    return tuple(faults) if more <= 0 else (*faults[:most], f"... and {more} more")


_URL_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]*@")  # https://user:secret@host
# The login of a URL that was cut off before its @. `tcp://host:8786` has a port, and `tcp://HOST:PORT` is in hints.
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s@:'\"\[]+:(?!(?:\d+|PORT)(?:[^\w]|$))[^/\s'\"]+")
_URL_TOKEN = re.compile(r"(://[^\s'\"]*?/t/)[^/\s'\"]+")  # https://host/t/TOKEN/channel
# `user:password@host`, but not the image `name:tag@sha256:...` or the layout `oci:DIR@DIGEST`.
_LOGIN = re.compile(r"(?<![\w.%+:/-])[\w.%+-]+:[^\s/@'\"]+@(?!sha256:)(?=[\w-]+(?:\.\w|:\d)|localhost)")


def masked(text: str) -> str:
    """Return a text with the logins and tokens in its URLs and image names replaced by ***."""
    if "@" not in text and "://" not in text:
        return text
    for pattern, instead in ((_URL_LOGIN, "***@"), (_URL_PASSWORD, "***"), (_URL_TOKEN, r"\1***"), (_LOGIN, "***@")):
        text = pattern.sub(instead, text)
    return text


class Ending(BaseException):
    """The end of a run: a message for the user, an optional hint and an exit code.

    Messages contain the refused value; logins and tokens in it are masked.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, details: tuple[str, ...] = ()) -> None:
        self.message = masked(message)
        super().__init__(self.message)
        self.hint = None if hint is None else masked(hint)
        self.details = tuple(map(masked, details))


class EnvkitError(Ending, Exception):
    """An error that a user can cause or meet."""


class UsageError(EnvkitError):
    """A flag, a setting, an image definition, a facts file or a template is invalid."""


class ConflictError(EnvkitError):
    """No combination of the known facts satisfies the request."""

    exit_code = 3


class LockError(EnvkitError):
    """The lock is missing, or it was made for another request."""

    exit_code = 4


class NotVerifiedError(EnvkitError):
    """No check failed, but the image is not verified: no GPU, or an inconclusive result."""

    exit_code = 5


class VerificationError(EnvkitError):
    """The image was tested and failed a required check."""

    exit_code = 6


class PayloadError(VerificationError):
    """The payload's output is not a valid document, so no result is taken from it."""


class EngineError(EnvkitError):
    """An engine, a pull or a push failed."""

    exit_code = 8


class EnvironmentProblem(EnvkitError):  # noqa: N818 - the documented name of exit code 9
    """An environment problem: no engine, no disk space, no permission or no network."""

    exit_code = 9


class IntegrityError(EnvkitError):
    """A checksum, digest or signature does not match."""

    exit_code = 10


class TimeLimitError(EnvkitError):
    """A time limit was reached."""

    exit_code = 124


class InterruptedRun(Ending):
    """A signal ended the run.

    It is not an `Exception`, as KeyboardInterrupt is not: it can be raised between any two instructions, and code that
    catches the failure of a probe, a fallback or a removal must not catch it.
    """

    def __init__(self, signal_number: int) -> None:
        name = {1: "SIGHUP", 2: "SIGINT", 15: "SIGTERM"}.get(signal_number, f"signal {signal_number}")
        super().__init__(f"ended by {name}")
        self.exit_code = 128 + signal_number


class Faults:
    """All errors of a document or of a request: they are reported together, so that one run shows all of them."""

    __slots__ = ("_faults",)

    def __init__(self) -> None:
        self._faults: list[tuple[str, str | None, str]] = []  # message, its own hint, path

    def __len__(self) -> int:
        return len(self._faults)

    def say(self, *messages: str) -> None:
        """Add errors."""
        self._faults += [(message, None, "") for message in messages]

    def add(self, path: str, why: str) -> None:
        """Add an error at a path."""
        self._faults.append((f"{path}: {why}", None, path))

    def note(self, error: EnvkitError) -> None:
        """Add an error that has its own hint."""
        self._faults.append((error.message, error.hint, ""))

    def take(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of `read`, or None after adding its error."""
        try:
            return read(*args, **kwargs)
        except UsageError as error:
            self.note(error)
            return None

    def refuse(self, hint: str | None = None, *, hashes: str | None = None, most: int = MAX_FAULTS) -> None:
        """Raise the first error with the others as its details, if there is any.

        Args:
            hint: for an error that has none itself.
            hashes: the end of the paths of hashes. Their errors come last, and are an IntegrityError if there are no
                others, which put other fields in doubt.
            most: the details that are shown; the rest is counted.

        Raises:
            UsageError: there are errors.
            IntegrityError: as `hashes` says.
        """

        def is_hash(fault: tuple[str, str | None, str]) -> bool:
            return hashes is not None and fault[2].endswith(hashes)

        faults = sorted(self._faults, key=is_hash)
        if faults:
            details = [f"{message} ({own})" if own else message for message, own, _ in faults[1:]]
            kind = IntegrityError if is_hash(faults[0]) else UsageError
            raise kind(faults[0][0], hint=faults[0][1] or hint, details=shown(details, most))
