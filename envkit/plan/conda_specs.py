"""Specs of conda packages in each form: `numpy >=1.26`, `pytorch=2.4.*=cuda12*`, `numpy[version='>=1.26']`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from envkit.ground.errors import UsageError
from envkit.ground.versions import parse_constraint
from envkit.plan import names
from envkit.plan.requirements import Line, Setting

FORGE = "conda-forge"
# `conda-forge::numpy >=1.26`, `pytorch=2.1.0=py3.10_cuda12.1_cudnn8.9.2_0`
_SPEC = re.compile(r"(?:(?P<channel>[^:\s]+(?::[^:\s]+)*)::)?(?P<name>[A-Za-z0-9_.-]+)(?P<rest>.*)")
_BRACKETS = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]")
_PAIR = re.compile(r"\s*(version|build|channel)\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|([^\s,'\"]+))\s*(?:,|$)")
# `py3.10_cuda12.1_0`, `cuda126_py311`, `cuda12*`
_CUDA = re.compile(r"cuda_?(?:(\d+\.\d+)|(\d{2})(\d)|(\d{2}))(?!\d)")
_EXACT = re.compile(r"={1,2}([^=<>!~,]+)(?:=(.*))?")
# `>=2.7.0=cuda12*`
_RANGE = re.compile(r"([<>!~]=?+[^=<>!~,]*(?:,[<>!~]=?+[^=<>!~,]*)*)=([^=<>!~,]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaSpec:
    """The parts of a spec; empty texts for those that it does not have."""

    name: str
    channel: str = ""
    version: str = ""
    build: str = ""

    @property
    def text(self) -> str:
        """The spec without its channel, in the form that needs no quotes."""
        if not self.build:
            plain = f" {self.version}" if self.version[:1] in "<>=!~" else f"={self.version}"
            return f"{self.name}{plain if self.version else ''}"
        if self.version[:1] in ("<", ">", "!", "~"):
            return f"{self.name} {self.version} {self.build}"
        return f"{self.name}={self.version.lstrip('=') or '*'}={self.build}"


def parse(text: str) -> CondaSpec | None:
    """Return the parts of a spec; None if it has no name, is a path or URL, or has other keys in brackets."""
    brackets = _BRACKETS.fullmatch(text.strip())
    match = _SPEC.fullmatch(brackets[1].strip() if brackets else text.strip())
    if match is None or "[" in match["rest"] or "/" in text.strip().rpartition("::")[2]:
        return None
    version, build = _version(match["rest"])
    spec = CondaSpec(name=match["name"], channel=match["channel"] or "", version=version, build=build)
    if brackets is None:
        return spec
    pairs, at = {"version": version, "build": build, "channel": spec.channel}, 0
    while at < len(brackets[2]):
        pair = _PAIR.match(brackets[2], at)
        if pair is None or pairs[pair[1]]:
            return None
        pairs[pair[1]] = (pair[2] or pair[3] or pair[4] or "").strip()
        at = pair.end()
    # In brackets, a plain version is exactly this one.
    inside = pairs["version"]
    is_exact = not version and inside[:1].isdigit() and "*" not in inside
    shown = f"=={inside}" if is_exact else inside
    return CondaSpec(name=spec.name, channel=pairs["channel"], version=shown, build=pairs["build"])


def _version(rest: str) -> tuple[str, str]:
    """Split the part of a spec after the name into version and build: `=2.1=py310_cuda12.1`, ` 2.1.* cuda*`."""
    # `=>2.0` is not an operator, but people write it for `>=2.0`, and conda takes it.
    rest = re.sub(r"=([<>])(?!=)", r"\1=", rest.strip())
    version, _, build = rest.partition(" ")
    # In `numpy >=1.26, <2` and `numpy < 2`, the second word is no build.
    if not build or version.endswith(("=", ",", "<", ">")) or build.lstrip().startswith((",", "<", ">", "=", "!")):
        version, build = "".join(rest.split()), ""
    if exact := _EXACT.fullmatch(version):
        return exact[1], exact[2] or build.strip()
    if limits := _RANGE.fullmatch(version):
        return limits[1], limits[2]
    return version, build.strip()


def device(build: str) -> tuple[str, str] | None:
    """Return what a build string of torch says: `("cuda", "12.1")`, `("cuda", "12.*")`, `("cpu", "true")`, None."""
    if match := _CUDA.search(build):
        return "cuda", match[1] or (f"{match[2]}.{match[3]}" if match[2] else f"{match[4]}.*")
    return ("cpu", "true") if "cpu" in build else None


def check(value: str) -> str | None:
    """Check a spec of an image definition; torch may be constrained by its conda name, too."""
    spec = parse(value) if len(value) <= names.MAX_NAME else None
    if spec is None:
        return names.conda_spec(value) or "is not a conda spec"
    if spec.channel and spec.channel != FORGE:
        return f"is from the channel {spec.channel}; only {FORGE} is used"
    if spec.name.lower() != "pytorch" or not spec.version:
        return names.conda_spec(spec.text)
    try:
        parse_constraint(spec.version, "pytorch")
    except UsageError:
        return f"is not a conda spec: {spec.version} is not a version"
    return names.conda_spec(spec.text.replace(spec.name, "x", 1))


def split(specs: tuple[str, ...], where: str) -> tuple[tuple[str, ...], tuple[Setting, ...]]:
    """Return the checked specs of a definition in their plain form, and the constraints of the one for torch.

    Args:
        specs: each without an error of `check`.
        where: of the list, for messages.
    """
    plain: list[str] = []
    settings: list[Setting] = []
    for at, text in enumerate(specs):
        spec = parse(text)
        if spec is None or spec.name.lower() != "pytorch":
            # Plans keep the text of specs that need no other form.
            plain.append(spec.text if spec and ("[" in text or spec.channel) else text)
            continue
        line = Line(where=f"{where}[{at}]", text=text)
        settings.append(Setting(field="torch", value=spec.version, line=line))
        if found := device(spec.build):
            settings.append(Setting(field=found[0], value=found[1], line=line))
    return tuple(plain), tuple(settings)
