"""Retries: which responses are retried, how often, and after which delay."""

from __future__ import annotations

import email.utils
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from envkit.ground.errors import RAISE_TIMEOUT, TimeLimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from envkit.ground.errors import EnvkitError

Answer = TypeVar("Answer")
# Time-out, too many requests, and the responses of servers and their proxies during a restart. Any other error would
# repeat.
RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits for retries; times in seconds."""

    tries: int = 5
    first_s: float = 1.0
    longest_s: float = 60.0
    total_s: float = 900.0  # no retry starts after this time
    silence_s: float = 60.0  # a connection without data for this time is lost
    deadline: float | None = None  # of the whole run, on the monotonic clock

    def check(self) -> None:
        """Raise TimeLimitError if the deadline has passed."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimeLimitError("the build reached its time limit", hint=RAISE_TIMEOUT)

    def within(self, seconds: float) -> float:
        """Return `seconds`, or the time until the deadline if that is less; always more than 0."""
        # A socket with a time-out of 0 is non-blocking, and fails at once with an error other than a time-out.
        return seconds if self.deadline is None else max(min(seconds, self.deadline - time.monotonic()), 0.01)


class TransientError(Exception):
    """A failure that a retry may fix. `final` is the user's error if no retry succeeds."""

    def __init__(self, final: EnvkitError, *, wait_s: float | None = None, progressed: bool = False) -> None:
        super().__init__(final.message)
        self.final = final
        self.wait_s = wait_s  # from the server's Retry-After
        self.progressed = progressed  # more was transferred than before, so the count of tries starts again


def persist(
    work: Callable[[], Answer],
    policy: Policy,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> Answer:
    """Call `work` until it succeeds, with increasing delays.

    Raises:
        EnvkitError: raised by `work`, or the `final` error of its last TransientError.
        TimeLimitError: the deadline has passed.
    """
    began, tries = clock(), 0
    while True:
        try:
            return work()
        except TransientError as error:
            policy.check()
            tries = 1 if error.progressed else tries + 1
            pause = delay(tries, error.wait_s, policy, chance())
            if tries >= policy.tries or clock() - began + pause > policy.total_s:
                times = f"{tries} times" if tries > 1 else "once"
                error.final.details = (*error.final.details, f"tried {times} within {clock() - began:.0f} s")
                raise error.final from error
        sleep(policy.within(pause))


def delay(tries: int, asked_s: float | None, policy: Policy, chance: float) -> float:
    """Return the seconds until the next try: the server's value, else a doubling delay, randomly up to half less."""
    if asked_s is not None:
        # During maintenance a server may ask for hours; users would not know why the build waits.
        return min(max(asked_s, 0.0), policy.longest_s)
    # Random, so that builds that failed at the same moment do not retry at the same moment.
    return min(policy.first_s * 2.0 ** (tries - 1), policy.longest_s) * (1.0 - chance / 2)


def retry_after(header: str | None, now: float) -> float | None:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3); None if it is missing or invalid.

    Args:
        header: a number of seconds or an HTTP date.
        now: seconds since 1970.
    """
    if not header:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])  # enough digits, because `delay` limits the result
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(moment.timestamp() - now, 0.0)
