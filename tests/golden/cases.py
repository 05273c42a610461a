"""Which images are kept, and what each renders to."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from envkit.cli.schema import SCHEMAS
from envkit.facts.load import load
from envkit.ground.errors import ConflictError
from envkit.ground.settings import Mirrors
from envkit.plan.definition import shipped
from envkit.plan.model import BuildPlan
from envkit.plan.toolchain import Needs, builder_plan
from envkit.render.inline import inline
from envkit.render.model import SYNTAXES, Rendered
from envkit.render.render import render
from tests.golden import reference
from tests.golden.exports import exports
from tests.golden.manual import FOLDER as MANUAL
from tests.golden.manual import manual_pages
from tests.golden.matrix_page import PAGE as MATRIX_PAGE
from tests.golden.matrix_page import matrix_page
from tests.golden.pages import API_PAGE, api_page
from tests.golden.projects import projects
from tests.golden.reports import reports
from tests.support import documented
from tests.support.locks import locked_conda, locked_source, locked_wheels
from tests.support.plans import shipped_plan

FOLDER = Path(__file__).parent / "files"
ROOT = Path(__file__).parents[2]
ROOT_FILES = ("Dockerfile", "environment.yml")
_LOCKS = {"miniconda": locked_conda, "wheels": locked_wheels}
IMPOSSIBLE = frozenset({("centos7", "wheels")})  # Python 3.6, for which there is no torch with CUDA 11.8

# Every mirror at once, on hosts that nobody has.
MIRRORS = Mirrors(
    registry="registry.example.com",
    conda_channel_alias="https://conda.example.com/channels",
    miniconda="https://mirror.example.com/miniconda",
    pytorch_index="https://wheels.example.com/whl",
    python_index="https://index.example.com/simple",
    debian_mirror="http://debian.example.com/debian",
    debian_security_mirror="http://debian.example.com/debian-security",
    ubuntu_mirror="https://ubuntu.example.com/ubuntu",
    rpm_mirror="https://rpm.example.com/pub/rocky",
    ca_bundle="/etc/example/ca.pem",
)


@dataclass(frozen=True, slots=True)
class Case:
    """One image with one template, and the mirrors it is rendered for."""

    image: str
    template: str
    mirrored: bool = False
    locked: bool = False  # a lock is installed, through the mirrors
    source: str = ""  # 'built': with a wheel from source; 'builder': the image in which an extension of torch is built

    @property
    def name(self) -> str:
        more = ("mirrored" if self.mirrored else "", "locked" if self.locked else "", self.source)
        return "-".join(filter(None, (self.image, self.template, *more)))


INLINE = (Case("cu118", "miniconda"), Case("rocky9", "wheels", mirrored=True))  # of which the inline form is kept


def cases() -> list[Case]:
    """Every shipped image with every template that can carry it, one of each behind mirrors, and one of each locked."""
    found = [Case(image, template) for image in shipped() for template in ("miniconda", "wheels")]
    found += [Case("jupyter", "miniconda", mirrored=True), Case("jupyter", "wheels", mirrored=True)]
    found += [Case("rocky9", "wheels", mirrored=True)]
    found += [Case("cpu", "miniconda", locked=True), Case("cu126", "wheels", locked=True)]
    found += [Case("cu126", template, locked=True, source="built") for template in ("miniconda", "wheels")]
    found += [Case("cu126", "miniconda", locked=True, source="builder")]
    return [case for case in found if (case.image, case.template) not in IMPOSSIBLE]


@cache
def plan(case: Case) -> BuildPlan:
    if case.source == "builder":  # nvidia/cuda has no image of Debian
        made = shipped_plan(case.image, template=case.template, os="ubuntu22.04", gpu=["A100"])
        needs = Needs(requires=("ninja", "packaging", "setuptools"), torch=True, nvcc=True)
        return builder_plan(made, needs, load())
    made = shipped_plan(case.image, template=case.template)
    return replace(made, allow_source=("fastsum",)) if case.source else made


@cache
def rendered(case: Case, syntax: str) -> Rendered:
    lock = _LOCKS[case.template](plan(case)) if case.locked and not case.source else None
    if case.source:
        lock = locked_source(plan(case)) if case.source == "built" else locked_wheels(plan(case))
    return render(plan(case), lock=lock, syntax=syntax, mirrors=MIRRORS if case.mirrored or case.locked else None)


def expected(case: Case) -> dict[str, bytes]:
    """The kept files of a case by name; the syntaxes differ in the Dockerfile alone."""
    classic = rendered(case, SYNTAXES[0])
    files = {name: data for name, data in classic.files.items() if _kept(name, case)}
    files |= {f"{syntax}.Dockerfile": rendered(case, syntax).files["Dockerfile"] for syntax in SYNTAXES}
    kept_inline = SYNTAXES if case in INLINE else ()
    return files | {f"{syntax}.inline.Dockerfile": inlined(case, syntax).encode() for syntax in kept_inline}


def context_files(case: Case, syntax: str) -> dict[str, bytes]:
    """Every file of the build context, with those that an engine adds."""
    made = rendered(case, syntax)
    built = [word for word in made.dockerfile.split() if word.startswith("wheels/") and word.endswith(".whl")]
    extra = {"ca-bundle.pem": b"-----BEGIN CERTIFICATE-----\n"} | dict.fromkeys(built, bytes(range(256)) * 300)
    return made.files | extra


def inlined(case: Case, syntax: str) -> str:
    """The Dockerfile that holds its build context."""
    return inline(rendered(case, syntax), context_files(case, syntax))


def _kept(name: str, case: Case) -> bool:
    """The files people read; of a case behind mirrors all but the scripts, which lie in `templates/files` already."""
    if case.mirrored or case.locked:
        return not name.endswith((".py", ".sh")) and name != "Dockerfile"
    return name in ("environment.yml", "plan.json", "torch.txt", "requirements.txt")


def root_files() -> dict[str, bytes]:
    """The repository's own Dockerfile and environment.yml."""
    made = render(shipped_plan("default"), command="envkit render images/default.yaml")
    return {name: made.files[name] for name in ROOT_FILES}


def schema_files() -> dict[str, bytes]:
    """The JSON Schemas that are made from readers; the others are files of the package."""
    made = {name: SCHEMAS[name][1]() for name in ("image", "matrix", "lock", "settings")}
    return {f"{name}.json": json.dumps(tree, indent=1).encode() + b"\n" for name, tree in made.items()}


def kept() -> Iterator[tuple[Path, bytes]]:
    """Every kept file with its bytes."""
    for case in cases():
        for name, data in expected(case).items():
            yield FOLDER / case.name / name, data
    for folder, name, data in exports():
        yield FOLDER / folder / name, data
    for folder, name, data in projects():
        yield FOLDER / folder / name, data
    for name, data in schema_files().items():
        yield FOLDER / "schema" / name, data
    for name, data in root_files().items():
        yield ROOT / name, data
    for name, data in manual_pages().items():
        yield MANUAL / name, data
    yield MATRIX_PAGE, matrix_page()
    yield API_PAGE, api_page()
    yield from reference.pages().items()
    yield FOLDER / "documented.txt", documented.summary().encode()
    for name, data in reports().items():
        yield FOLDER / "report" / name, data


def impossible(case: Case) -> bool:
    """Whether a case really has no answer."""
    try:
        plan(case)
    except ConflictError:
        return True
    return False
