"""Retries: which answers of a server are retried, how often, and after how long."""

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
# A time-out, too many requests, and what servers and the proxies before them answer while they restart. Any other
# refusal would be the same on the next try.
RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Limits of trying; seconds."""

    tries: int = 5
    first_s: float = 1.0
    longest_s: float = 60.0
    total_s: float = 900.0  # no retry begins after that
    silence_s: float = 60.0  # a connection without data for that long counts as lost
    deadline: float | None = None  # of the whole run, on the monotonic clock

    def check(self) -> None:
        """Raise TimeLimitError when the run's time is over."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise TimeLimitError("the build reached its time limit", hint=RAISE_TIMEOUT)

    def within(self, seconds: float) -> float:
        """So many seconds, or the fewer that the run has left; never quite none."""
        # A socket with a time limit of 0 does not block, and fails at once with another error than a time-out.
        return seconds if self.deadline is None else max(min(seconds, self.deadline - time.monotonic()), 0.01)


class TransientError(Exception):
    """It may succeed on a retry. `final` is the error for the user if it does not."""

    def __init__(self, final: EnvkitError, *, wait_s: float | None = None, progressed: bool = False) -> None:
        super().__init__(final.message)
        self.final = final
        self.wait_s = wait_s  # what the server asked for
        self.progressed = progressed  # it got further than before, so the count of tries starts again


def persist(
    work: Callable[[], Answer],
    policy: Policy,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> Answer:
    """Call `work` until it succeeds, with growing pauses between.

    Raises:
        EnvkitError: what `work` raises, or the `final` error of its last TransientError.
        TimeLimitError: the run's time is over.
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
    """Return the seconds until the next try: what the server asked for, else doubled, minus up to half at random."""
    if asked_s is not None:
        # A server that is down for maintenance may ask for hours; nobody would know why the build waits.
        return min(max(asked_s, 0.0), policy.longest_s)
    # At random, so that builds which were refused at the same moment do not come back at the same moment.
    return min(policy.first_s * 2.0 ** (tries - 1), policy.longest_s) * (1.0 - chance / 2)


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3); None where it says nothing usable.

    Args:
        header: a number of seconds or an HTTP date.
        now: seconds since 1970.
    """
    if not header:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])  # `delay` shortens it; no server's number is too long for a float
    try:
        moment = email.utils.parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return max(moment.timestamp() - now, 0.0)
