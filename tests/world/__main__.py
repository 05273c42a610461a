"""`python -m tests.world up|down|clear|env|torch [PART ...]`: start or stop the world, print its settings for a shell.

`clear` removes the images and containers of engines that no longer run; downloads stay.

`torch` installs torch's CPU build into the running interpreter, for the payload's tests.
"""

import argparse
import shlex
import sys

from tests.world import wheels, world
from tests.world.places import UnavailableError, say


def main() -> int:
    """Run one command; `up` and `env` exit with 1 if a requested part is unavailable."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "clear", "env", "torch"])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(world.PARTS)} (default: all)")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in world.PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; parts are {', '.join(world.PARTS)}")
    if arguments.command == "torch":
        try:
            wheels.install_torch()
        except UnavailableError as error:
            say(f"torch is unavailable, so tests that need it are skipped: {error}")
        return 0
    if arguments.command == "clear":
        say(f"removed the storage of {', '.join(world.clear())}")
        return 0
    if arguments.command == "down":
        stopped = world.down()
        say(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")
        return 0
    running = world.up(arguments.parts or world.PARTS, keep=True)
    for part, reason in running.missing.items():
        say(f"{part} is unavailable: {reason}")
    for name, value in running.env().items():
        print(f"export {name}={shlex.quote(value)}")
    return 1 if running.missing else 0


if __name__ == "__main__":
    sys.exit(main())
