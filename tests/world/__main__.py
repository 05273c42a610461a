"""`python -m tests.world up|down|clear|env|torch [PART ...]`: start the world, end it, print its settings for a shell.

`clear` removes the images and containers of the engines that no longer run; what is downloaded stays.

`torch` installs torch's CPU build into the running interpreter, for the tests of the payload.
"""

import argparse
import shlex
import sys

from tests.world import wheels, world
from tests.world.places import UnavailableError, say


def main() -> int:
    """Run one verb; `up` and `env` exit with 1 when a part that was asked for cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("verb", choices=["up", "down", "clear", "env", "torch"])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(world.PARTS)} (default: all)")
    arguments = parser.parse_args()
    unknown = [part for part in arguments.parts if part not in world.PARTS]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; parts are {', '.join(world.PARTS)}")
    if arguments.verb == "torch":
        try:
            wheels.install_torch()
        except UnavailableError as error:
            say(f"no torch here, tests that need it are skipped: {error}")
        return 0
    if arguments.verb == "clear":
        say(f"removed the storage of {', '.join(world.clear())}")
        return 0
    if arguments.verb == "down":
        ended = world.down()
        say(f"ended {', '.join(ended)}" if ended else "nothing of this world was running")
        return 0
    found = world.up(arguments.parts or world.PARTS, keep=True)
    for part, reason in found.missing.items():
        say(f"cannot have {part}: {reason}")
    for name, value in found.env().items():
        print(f"export {name}={shlex.quote(value)}")
    return 1 if found.missing else 0


if __name__ == "__main__":
    sys.exit(main())
