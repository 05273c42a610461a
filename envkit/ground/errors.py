"""Every failure a user can cause, and the exit code that names its kind.

    EnvkitError
      UsageError          2   an invalid flag, setting, definition or template
      ConflictError       3   no compatible combination
      LockError           4   the lock is missing or stale
      NotVerifiedError    5   not verified (no GPU, inconclusive)
      VerificationError   6   the image was tested and failed
        PayloadError      6   what came out of the image is not the payload's document
      EngineError         8   an engine, a pull or a push failed
      EnvironmentProblem  9   no engine, disk full, no permission, driver, registry unreachable
      IntegrityError     10   a digest, hash or signature did not match
      TimeLimitError    124   a time limit was reached
    InterruptedRun      130   SIGINT (129 for SIGHUP, 143 for SIGTERM)

The library raises; only `envkit.cli` prints. `message` says what happened with the value in it,
`hint` is the next command to type, `details` are further lines (a log's tail, the other faults of a file).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

RAISE_TIMEOUT = "raise --timeout SECONDS"  # the next step wherever the time limit of a whole command was reached
MAX_FAULTS = 20  # of one file, in one message: more than a screen of them does not help


def shown(faults: Sequence[str]) -> tuple[str, ...]:
    """The first faults of a file, and how many more there are."""
    more = len(faults) - MAX_FAULTS
    return tuple(faults) if more <= 0 else (*faults[:MAX_FAULTS], f"... and {more} more")


_URL_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]*@")
# Of a URL that was cut before its @; `tcp://host:8786` has a port, and `tcp://HOST:PORT` stands in hints.
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s@:'\"\[]+:(?!(?:\d+|PORT)(?:[^\w]|$))[^/\s'\"]+")
_URL_TOKEN = re.compile(r"(://[^\s'\"]*?/t/)[^/\s'\"]+")
# `user:password@host`; `name:tag@sha256:...` is an image, and `oci:DIR@DIGEST` names no host.
_LOGIN = re.compile(r"(?<![\w.%+:/-])[\w.%+-]+:[^\s/@'\"]+@(?!sha256:)(?=[\w-]+(?:\.\w|:\d)|localhost)")


def masked(text: str) -> str:
    """A text without the logins and tokens of the URLs and image names in it."""
    if "@" not in text and "://" not in text:
        return text
    for pattern, instead in ((_URL_LOGIN, "***@"), (_URL_PASSWORD, "***"), (_URL_TOKEN, r"\1***"), (_LOGIN, "***@")):
        text = pattern.sub(instead, text)
    return text


class Ending(BaseException):
    """What ends a run: a message for the user, an optional hint and an exit code.

    A refused value stands in the message; logins and tokens in it do not.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str | None = None, details: tuple[str, ...] = ()) -> None:
        self.message = masked(message)
        super().__init__(self.message)
        self.hint = None if hint is None else masked(hint)
        self.details = tuple(map(masked, details))


class EnvkitError(Ending, Exception):
    """A failure that a user can cause or meet."""


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
    """The image ran and did not keep what its plan promises."""

    exit_code = 6


class PayloadError(VerificationError):
    """The payload's output is not the document it has to be, so nothing in it is believed."""


class EngineError(EnvkitError):
    """An engine, a pull or a push failed."""

    exit_code = 8


class EnvironmentProblem(EnvkitError):  # noqa: N818 - documents and exit codes speak of an environment problem
    """The machine is not usable as it is: no engine, no disk space, no permission, no network."""

    exit_code = 9


class IntegrityError(EnvkitError):
    """Bytes are not the bytes that were promised."""

    exit_code = 10


class TimeLimitError(EnvkitError):
    """A time limit was reached."""

    exit_code = 124


class InterruptedRun(Ending):
    """The user or the system ended the run by a signal.

    No `Exception`, as KeyboardInterrupt is none: it can come between any two instructions, and code that tries
    something and goes on without it (a probe, a fallback, a removal) must not take it for the failure of that.
    """

    def __init__(self, signal_number: int) -> None:
        name = {1: "SIGHUP", 2: "SIGINT", 15: "SIGTERM"}.get(signal_number, f"signal {signal_number}")
        super().__init__(f"ended by {name}")
        self.exit_code = 128 + signal_number
