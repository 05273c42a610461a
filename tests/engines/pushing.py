"""A push in a process of its own, to be killed: `python -m tests.engines.pushing < JSON` says `ready` and pushes."""

import json
import sys
from pathlib import Path

from envkit.ground.progress import Silent
from envkit.image.name import parse_reference
from envkit.registry.registry import Registry
from envkit.registry.transport import Transport
from tests.engines.oci_images import push
from tests.support.file_images import read_folder


def main() -> None:
    """Push the layout that the document names, and let its tag replace another."""
    asked = json.load(sys.stdin)
    image, reference = read_folder(Path(asked["layout"])), parse_reference(asked["where"])
    with Transport() as transport:
        registry = Registry(reference.registry, transport, {})
        print("ready", flush=True)
        push(image, reference, registry, Silent(), replace_tag=True)


if __name__ == "__main__":
    main()
