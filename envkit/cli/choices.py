"""What the flags of `envkit build` say together: which of them exclude others, and the engine that they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from envkit.build.model import BuildOptions
    from envkit.ground.settings import Settings
    from envkit.lock.model import Lock


def exclude(**given: object) -> None:
    """Refuse flags that contradict each other.

    Raises:
        UsageError: more than one was given.
    """
    from envkit.ground.errors import UsageError

    typed = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(typed) > 1:
        raise UsageError(f"{' and '.join(typed)} contradict each other", hint="give one of them")


def engine_name(resolved: Settings, options: BuildOptions) -> str:
    """The engine to choose; only one of them writes to other places than its own storage, and from caches alone.

    Raises:
        UsageError: a flag is for another engine than the one that was named.
    """
    from envkit.ground.errors import UsageError

    name = resolved.get("engine") or "auto"
    typed = {
        "--output": options.output is not None,
        "--offline": options.offline,
        f"--compression {options.compression}": options.compression != "gzip",
    }
    flag = next((flag for flag, given in typed.items() if given), None)
    if flag is None:
        return name
    if name not in ("auto", "embedded"):
        raise UsageError(f"{flag} is for the embedded engine, not for {name}", hint="--engine embedded")
    return "embedded"


def require_lock(lock: Lock | None, options: BuildOptions, command: str) -> None:
    """Refuse to solve a lock where nothing may be asked of the network.

    Args:
        lock: the one that was named or found.
        options: of the build.
        command: the `envkit lock` command of this request.

    Raises:
        LockError: there is no lock, and the build is to be offline.
    """
    from envkit.ground.errors import LockError

    if lock is None and options.offline:
        raise LockError("--offline installs what a lock names, and there is none that fits", hint=command)
