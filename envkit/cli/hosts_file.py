"""Files that list machines: their text, and the fields of a request for `resolve --for-host`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.ground import foreign
from envkit.ground.errors import UsageError
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from envkit.facts.model import Facts

_LARGEST = 64 << 20  # bytes; the nodes of a thousand-node cluster are 20 MB of JSON


def read_text(name: str, option: str) -> str:
    """Return the text of a file, or of stdin for `-`.

    Raises:
        UsageError: it cannot be read, or is too large.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(_LARGEST + 1)  # one byte more shows that it is larger
        else:
            with foreign.stream(Path(name)) as file:
                data = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"{option} {name}: {error.strerror or error}", hint=f"ls -l {name}") from error
    if len(data) > _LARGEST:
        raise UsageError(
            f"{option} {name} is larger than {shown_size(_LARGEST, 'MiB')}, too large for an inventory",
            hint=f"head {name}",
        )
    return data.decode(errors="replace")


def machine(name: str, typed: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Return the fields `gpu`, `driver` and `platform` of a request for the machines of a file.

    Args:
        name: path of the file, or `-` for stdin.
        typed: the fields of the request; fields that are given override the file.
        facts: for the names of GPUs.

    Raises:
        UsageError: the file cannot be read, or its machines differ in GPUs, driver or platform.
    """
    from envkit.cover.hosts import Completion, classes
    from envkit.cover.inventory.detect import read_inventory
    from envkit.resolve import gpus

    where = "stdin" if name == "-" else name
    inventory = read_inventory(read_text(name, "--for-host"), facts, where=where)
    given = Completion(driver=typed["driver"], gpus=tuple(typed["gpu"] or ()), platform=typed["platform"])
    host_classes = classes(inventory, facts, given)
    if len(host_classes) > 1:
        kinds = " / ".join(host_class.title for host_class in host_classes[:3])
        raise UsageError(
            f"--for-host {where}: {len(host_classes)} kinds of machines, but a request is for one: {kinds}",
            hint=f"envkit cover --hosts {name} finds the fewest images for all of them",
        )
    own = host_classes[0]
    # A GPU whose name in the file is not in the facts is described by its compute capability.
    names = [card.typed if gpus.find(card.typed, facts.gpus, short=True) is card.gpu else card.sm for card in own.cards]
    fields = {"gpu": tuple(names), "driver": own.driver, "platform": own.platform}
    return {field: typed[field] or value for field, value in fields.items()}
