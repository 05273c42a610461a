"""Each item of a project's file is in exactly one list, and the plan has what is called taken over, and no more."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from envkit.facts.load import load as load_facts
from envkit.ground.errors import EnvkitError
from envkit.plan.definition import parse
from envkit.plan.planner import plan_of
from envkit.project.definition import Drafted, draft

FACTS = load_facts()
# Of each kind; the long run takes 1000.
EXAMPLES = int(os.environ.get("ENVKIT_TEST_EXAMPLES", "60"))
# What definitions add by themselves, because torch or the template needs it.
OWN = {"mkl", "numpy", "setuptools", "tini", "torch", "torchvision", "torchaudio", "triton"}
NAMES = [f"pkg{letter}" for letter in "abcdefgh"]
MARKERS = [
    "", "", "", " ; python_version < '3.13'", " ; python_version >= '3.12'", " ; python_version >= '3.9'",
    " ; sys_platform == 'win32'", " ; platform_machine == 'aarch64'", " ; platform_machine != 'aarch64'",
    " ; python_version < '3.0'", " ; extra == 'x'", " ; platform_release >= '5'",
]  # fmt: skip
TORCH = [
    "torch", "torch==2.6.0", "torch>=2.1", "torch==2.7.1 ; python_version < '3.13'", "torchvision", "torchaudio",
    "torchvision==0.21.0", "torchaudio>=2.5", "triton==3.2.0", "nvidia-cuda-runtime-cu12==12.4.127",
]  # fmt: skip
ODD = [
    "-e .", "git+https://code.example.com/a.git", "./wheels/pkg-1.0-py3-none-any.whl", "one two", "--pre",
    "https://files.example.com/pkg-1.0-py3-none-any.whl#sha256=00", "--find-links https://wheels.example.org/page.html",
    "pkgz @ https://files.example.com/z.whl ; sys_platform == 'win32'", "--no-cache-dir", "pkgy==${VERSION}",
]  # fmt: skip

packages = st.builds(
    lambda name, version, marker: f"{name}{version}{marker}",
    st.sampled_from(NAMES),
    st.sampled_from(["", "==1.2", ">=0.3,<2", "~=1.4"]),
    st.sampled_from(MARKERS),
)
lines = st.lists(packages | st.sampled_from(TORCH) | st.sampled_from(ODD), max_size=9, unique_by=lambda line: line[:5])
platforms = st.sampled_from(["linux-64", "linux-aarch64"])


def requirements(rows: list[str]) -> tuple[str, str, list[int]]:
    """Name, text and the line numbers of the items of a requirements file."""
    return "requirements.txt", "".join(f"{row}\n" for row in rows), list(range(1, len(rows) + 1))


def environment(rows: list[str]) -> tuple[str, str, list[int]]:
    head = "dependencies:\n  - pip:\n"
    return "environment.yml", head + "".join(f"    - {row!r}\n" for row in rows), list(range(3, len(rows) + 3))


def pyproject(rows: list[str]) -> tuple[str, str, list[int]]:
    head = '[project]\nname = "x"\ndependencies = [\n'
    text = head + "".join(f'  "{row}",\n' for row in rows) + "]\n"
    return "pyproject.toml", text, list(range(4, len(rows) + 4))


def setup_cfg(rows: list[str]) -> tuple[str, str, list[int]]:
    head = "[options]\ninstall_requires =\n"
    return "setup.cfg", head + "".join(f"    {row}\n" for row in rows), list(range(3, len(rows) + 3))


def dockerfile(rows: list[str]) -> tuple[str, str, list[int]]:
    """Options stand before their values without quotes, requirements in quotes, as people write them."""
    rows[:] = [row for row in rows if row != "--no-cache-dir"]  # no item, but a word of its command
    text = "".join(f"RUN pip install {row}\n" if row[0] == "-" else f'RUN pip install "{row}"\n' for row in rows)
    return "Dockerfile", "FROM debian:12\n" + text, list(range(2, len(rows) + 2))


def name_of(spec: str) -> str:
    match = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", spec)
    return canonicalize_name(match.group()) if match else spec


def lists(drafted: Drafted) -> dict[str, set[str]]:
    """The places of the items in each list; the Python that markers decide has the place of one of them."""
    return {
        "used": {one.line.where for one in drafted.taken if one.field != "python"},
        "same without it": {row.line.where for row in drafted.skipped if row.harmless and not row.elsewhere},
        "not for this target": {row.line.where for row in drafted.skipped if row.elsewhere},
        "lost": {row.line.where for row in drafted.skipped if not row.harmless},
    }


@pytest.mark.parametrize("kind", [requirements, environment, pyproject, setup_cfg, dockerfile])
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=lines, platform=platforms)
def test_each_item_is_in_one_list_and_the_plan_has_what_is_used(
    kind: Callable[[list[str]], tuple[str, str, list[int]]], tmp_path: Path, rows: list[str], platform: str
) -> None:
    assume({*rows} != {"one two"})  # no line is a requirement, so the file is refused
    name, text, numbers = kind(rows)
    (tmp_path / name).write_text(text)
    flags = {"platform": platform}
    drafted = draft(name, tmp_path, FACTS, flags)
    definition = parse(drafted.text, where=name, folder=tmp_path, given=flags)
    found, taken = lists(drafted), {one.value for one in drafted.taken}
    referred = {f"{name}:{number}" for number in numbers} if definition.requirements else set()
    for number, row in zip(numbers, rows, strict=True):
        where = f"{name}:{number}"
        holding = [title for title, places in found.items() if where in places]
        if not holding and (where in referred or row.partition(" ;")[0] in taken):
            holding = ["used"]  # the definition names the file, or an equal line
        assert len(holding) == 1, (row, holding)
    try:
        plan = plan_of(definition, flags, FACTS)
    except EnvkitError:
        return  # lines that contradict each other; `init` says so
    planned = {name_of(spec) for spec in (*plan.pip, *plan.conda)}
    used = {name_of(one.value) for one in drafted.taken if one.field in ("pip", "conda")}
    used |= {canonicalize_name(Requirement(spec).name) for spec in definition.listed.specs}
    assert used <= planned
    assert {one.value for one in drafted.taken if one.field == "find_links"} <= {*plan.find_links}
    assert planned <= used | OWN
