"""One build of conda layers: `python -m tests.engines.conda_build < JSON` prints the digests of the layers."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from envkit.assemble.conda import conda_layers
from envkit.engines.layer_cache import LayerCache
from envkit.ground.progress import Silent
from envkit.lock.model import CondaPackage


def main() -> None:
    """Build the rows from archives on this machine, below the folder that the document names."""
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    rows = [CondaPackage(**{**row, "depends": tuple(row["depends"])}) for row in asked["packages"]]
    found = conda_layers(
        rows,
        cache=LayerCache(folder),
        archives=lambda wanted, *_: {one.sha256: Path(asked["archives"][one.sha256]) for one in wanted},
        budget=40,
        reporter=Silent(),
        workers=asked["workers"],
    )
    print(json.dumps([asdict(one.cached.layer) for one in found.layers]))


if __name__ == "__main__":
    main()
