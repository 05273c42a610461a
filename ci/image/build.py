"""`make image`: build an image of envkit itself with the embedded engine, and run envkit in it.

The wheel of this checkout is unpacked to the path where pip would install it; its requirements are locked and installed
like those of any image. Prints size and time. The image is an OCI layout: build/image/layout, or `layout` in the given
folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

from envkit.facts.load import load
from envkit.ground.naming import FILE_STEM
from envkit.plan.copying import planned
from envkit.plan.definition import load as load_definition
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = "#!/opt/env/bin/python\nfrom envkit.__main__ import main\n\nmain()\n"
# The paths where pip installs a wheel; the Python version is that of the definition's OS.
TARGETS = {"site": "/opt/env/lib/python3.11/site-packages", "bin": "/opt/env/bin"}
COMMANDS = (("version",), ("resolve", "--cuda", "11.8"))


def main(folder: Path) -> None:
    """Build in a folder, which must not exist, and run `COMMANDS` in the image."""
    begin = time.monotonic()
    wheel = _wheel(folder)
    with zipfile.ZipFile(wheel) as archive:
        # Without the data files (man pages), which are not needed in the image.
        archive.extractall(folder / "site", [name for name in archive.namelist() if ".data/" not in name])
    (folder / "bin").mkdir()
    (folder / "bin" / "envkit").write_text(SCRIPT)
    (folder / "bin" / "envkit").chmod(0o755)
    (folder / "plan.json").write_text(json.dumps(_plan(folder).to_json()))
    _envkit(folder, "build", "--plan", "plan.json", "--engine", "embedded", "--base", "bootstrap:debian/bookworm",
            "--no-verify", "--output", "oci:layout")  # fmt: skip
    size = sum(path.stat().st_size for path in (folder / "layout").rglob("*") if path.is_file())
    print(
        f"image: {size / 1e6:.0f} MB compressed in {time.monotonic() - begin:.0f} s: oci:{folder / 'layout'}",
        flush=True,
    )
    for words in COMMANDS:
        _envkit(folder, "run", "oci:layout", "--", "envkit", *words)


def _wheel(folder: Path) -> Path:
    """Return the wheel of this checkout."""
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _plan(folder: Path) -> BuildPlan:
    """Return the plan of the definition without torch, with the requirements of the wheel."""
    shutil.copy(HERE / "envkit.yaml", folder)
    (metadata,) = folder.glob(f"site/{FILE_STEM}-*.dist-info/METADATA")
    fields = Parser().parsestr(metadata.read_text(encoding="utf-8"))
    requirements = [Requirement(text) for text in fields.get_all("Requires-Dist", [])]
    plan = plan_of(load_definition(str(folder / "envkit.yaml")), {}, load())
    return replace(
        plan,
        family=(),
        copy=tuple(planned(name, target, workdir="/", folder=folder, where=name) for name, target in TARGETS.items()),
        pip=tuple(sorted(str(requirement) for requirement in requirements if requirement.marker is None)),
        labels=(("org.opencontainers.image.version", fields["Version"]),),
    )


def _envkit(folder: Path, *words: str) -> None:
    """Run the envkit of this interpreter in a folder."""
    subprocess.run([sys.executable, "-m", "envkit", *words], cwd=folder, check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        shutil.rmtree(ROOT / "build" / "image", ignore_errors=True)
        main(ROOT / "build" / "image")
