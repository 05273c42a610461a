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
from collections.abc import Sequence

RAISE_TIMEOUT = "raise --timeout SECONDS"  # the hint for every command whose time limit was reached
MAX_FAULTS = 20  # errors of one file in one message: more than a screen full does not help


def shown(faults: Sequence[str]) -> tuple[str, ...]:
    """Return the first errors of a file, and a count of the others."""
    more = len(faults) - MAX_FAULTS
    return tuple(faults) if more <= 0 else (*faults[:MAX_FAULTS], f"... and {more} more")


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
