"""The lines of a traceback: its head, the exception that ends it, and the user's own code that it comes from.

Read are the frames of Python (`File "train.py", line 41, in main`), of IPython (`File train.py:41, in main(cfg)`,
`Cell In[3], line 2`) and of Rich (`│ /srv/train.py:41 in main │`). A frame of an installed package or of the standard
library is not the user's. If one package called another that raised the exception, both are named: they may not fit. An
exception whose frames are all of others has the place of the one that it led to. Of two tracebacks that are printed at
the same time the frames cannot be told apart, so such exceptions have no origin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEAD = "Traceback (most recent call last)"
# Between the tracebacks of an exception and of the one that it led to.
_JOINED = ("the above exception was the direct cause of", "during handling of the above exception")
# The exception of a worker, raised again in the main process: its own traceback follows.
_PASSED_ON = re.compile(r"^[\w.]{1,80}: Caught \w{1,60} in (?:DataLoader worker|pin memory thread|replica) ")
_RAISED = re.compile(r"^(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,80}(?:: |:?$)")
_FRAMES = tuple(
    re.compile(pattern)
    for pattern in (
        r"\s{0,8}File \"(?P<file>[^\"\n]{1,300})\", line (?P<line>\d{1,7})(?:, in (?P<where>\S.{0,80}))?$",
        r"File (?P<file>(?:[A-Za-z]:)?[^\s:][^:\n]{0,300}):(?P<line>\d{1,7}), in (?P<where>[\w.<>]{1,80})",
        r"(?P<file>(?:Cell )?In ?\[\d{1,5}\]), line (?P<line>\d{1,7})(?P<where>)",
        r"[│|] {1,2}(?P<file>(?:[A-Za-z]:)?[^\s:]{1,300}):(?P<line>\d{1,7}) in {1,80}(?P<where>[\w.<>]{1,80})",
    )
)
# Installed packages, the standard library, and code without a file.
_FOREIGN = re.compile(
    r"[\\/](?:site|dist)-packages[\\/]|[\\/]lib(?:64)?[\\/]python\d|[\\/]Python\d{2,3}[\\/][Ll]ib[\\/]|^<"
    r"|[\\/]envs[\\/][^\\/]{1,80}[\\/][Ll]ib[\\/]"
)
_PACKAGE = re.compile(r"[\\/](?:site|dist)-packages[\\/](\w{1,60})[\\/]")
_SHOWN = 120  # characters of a place, from its end


def may_be_raised(text: str) -> bool:
    """Return whether a line may be the exception of a traceback; `text` still has its indentation."""
    return _RAISED.match(text) is not None


def joins(line: str) -> bool:
    """Return whether a line says that the traceback after it belongs to the one before it."""
    low = line.lower()
    return any(text in low for text in _JOINED)


def is_passed_on(text: str) -> bool:
    """Return whether an exception only repeats one of another process, whose traceback follows."""
    return _PASSED_ON.match(text) is not None


@dataclass(slots=True)
class Traceback:
    """The frames that were read of one traceback."""

    own: str = ""  # the innermost frame of the user's code
    is_foreign: bool = False  # whether frames of others follow it
    packages: tuple[str, ...] = ()  # the last two of the installed packages whose frames follow it
    is_in_package: bool = False  # whether the innermost frame is of one

    def read(self, text: str) -> None:
        """Take a line of the traceback, without the prefixes of engines."""
        match = next((found for pattern in _FRAMES if (found := pattern.match(text))), None)
        if match is None:
            return
        self.is_foreign = _FOREIGN.search(match["file"]) is not None
        self._read_package(_PACKAGE.search(match["file"]))
        if not self.is_foreign:
            self.packages = ()
            where = "" if match["where"] in (None, "", "<module>") else f" in {match['where']}"
            self.own = f"{match['file']}:{match['line']}"[-_SHOWN:] + where

    def _read_package(self, package: re.Match[str] | None) -> None:
        self.is_in_package = package is not None
        if package is None or self.packages[-1:] == (package[1],):
            return
        # The modules, hooks and decorators of torch pass a call on to the package that it is for.
        before = self.packages[:-1] if self.packages[-1:] == ("torch",) else self.packages[-1:]
        self.packages = before if before == (package[1],) else (*before, package[1])

    @property
    def origin(self) -> str:
        """Where the exception was raised, in one clause; "" if no frame is the user's."""
        if not self.is_foreign:
            return self.own and f"at {self.own}"
        if not (self.is_in_package and len(self.packages) > 1):
            return self.own and f"in a call at {self.own}"
        caller, called = self.packages
        return self.own and f"in {called}, called by {caller}, in a call at {self.own}"
