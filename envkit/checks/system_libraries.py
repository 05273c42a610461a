"""Which system package has a shared library that a Python package does not find."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from envkit.ground import strictyaml
from envkit.ground.errors import UsageError

_DEB_LIKE = frozenset({"debian", "ubuntu"})
_RPM_LIKE = frozenset({"rhel", "fedora", "centos", "rocky", "almalinux", "suse"})
# How the loader, cffi and packages that search for a library themselves say that it is missing.
_SAYINGS = (
    re.compile(r"(?P<name>lib[\w.+-]{1,80}\.so(?:\.\d+)*): cannot open shared object file"),
    re.compile(r"Error loading shared library (?P<name>lib[\w.+-]{1,80}\.so(?:\.\d+)*)"),  # musl
    re.compile(r"cannot load library '(?P<name>lib[\w.+-]{1,80})'"),
    re.compile(r"locate a library called [`'\"](?P<name>[\w.+-]{1,80})[`'\"]"),
    re.compile(r"no library called \"(?P<name>[\w.+-]{1,80})\" was found"),
    re.compile(r"(?:find|failed to find) (?P<name>lib\w{1,40})"),
    re.compile(r"Unable to find (?P<name>\w{1,40}) shared library"),
    re.compile(r"\b(?P<name>\w{1,40}) library not found"),
)


@cache
def _table() -> Any:
    text = (resources.files(__package__) / "system_libraries.yaml").read_text(encoding="utf-8")
    return strictyaml.read(text, "checks/system_libraries.yaml")


def missing_program(text: str) -> str | None:
    """Return the system package of the program that an error message says is missing; None if it names none."""
    return next((str(row["package"]) for row in _table()["programs"] if str(row["says"]) in text), None)


@cache
def debian_packages() -> Mapping[str, str]:
    """Return the Debian package of each library by its soname.

    Raises:
        UsageError: the table has a library twice.
    """
    tree = _table()
    rows = {str(row["library"]): str(row["deb"]) for row in tree["rows"]}
    if len(rows) != len(tree["rows"]):
        raise UsageError("checks/system_libraries.yaml: a library is listed twice")
    return rows


def missing_library(text: str) -> str | None:
    """Return the library that an error message says is missing, by its soname where the table knows it; else None."""
    for saying in _SAYINGS:
        match = saying.search(text)
        if match is None:
            continue
        name = match["name"]
        if ".so." in name:
            return name
        # `sndfile`, `libsndfile.so` and `libgobject-2.0-0` name a library without the version that a soname has.
        stem = "lib" + name.removeprefix("lib").partition(".so")[0].lower()
        known = [soname for soname in debian_packages() if _stem(soname) in (stem, re.sub(r"-\d+$", "", stem))]
        if known or name.startswith("lib"):
            return known[0] if known else name
    return None


def _stem(soname: str) -> str:
    return soname.partition(".so")[0].lower()


def advice(sonames: Iterable[str], programs: Iterable[str], system: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how to install what is missing on a distribution.

    Args:
        sonames: libraries.
        programs: packages from `missing_program`.
        system: `{id, version, like}` of the distribution's os-release.
    """
    wanted, packages = list(dict.fromkeys(sonames)), list(dict.fromkeys(programs))
    kinds = {str(system.get("id")), *map(str, system.get("like") or ())}
    if kinds & _DEB_LIKE:
        known = debian_packages()
        packages = list(dict.fromkeys([*(known[name] for name in wanted if name in known), *packages]))
        unknown = [name for name in wanted if name not in known]
        lines = [f"Add to the definition: apt: [{', '.join(packages)}]"] if packages else []
        lines += [f"Find the package of {', '.join(unknown)}: apt-file search {unknown[0]}"] if unknown else []
        return tuple(lines)
    if kinds & _RPM_LIKE:
        lines = [f"Add to the definition: rpm: [{', '.join(packages)}]"] if packages else []
        lines += [
            f"Find the package of {name}, and list it under rpm: dnf provides '{name}()(64bit)'" for name in wanted
        ]
        return tuple(lines)
    return (f"Install the system packages that have {', '.join([*wanted, *packages])}.",) if wanted or packages else ()
