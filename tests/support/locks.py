"""Small locks for a plan. Their artifacts do not exist, and all of their hosts are examples."""

import re
from dataclasses import replace

from packaging.requirements import Requirement

from envkit.lock.model import CONDA_PUBLIC, CondaPackage, DebPackage, Lock, LockedBase, Wheel
from envkit.lock.request import conda_specs, request_of, torch_wheels
from envkit.plan.model import BuildPlan
from tests.unit.lock.samples import conda as a_package
from tests.unit.lock.samples import from_source, wheel

DIGEST = "sha256:" + "d" * 64
_TORCH = "https://wheels.example.com/whl/cu126"


def lock_for(
    plan: BuildPlan, *, conda: tuple[CondaPackage, ...] = (), wheels: tuple[Wheel, ...] = (), base: str | None = None
) -> Lock:
    """Return a lock of this plan with these artifacts, and a small package for each other name that the plan needs."""
    conda, wheels = completed(plan, conda, wheels)
    return Lock(
        plan=plan.digest,
        request=request_of(plan, glibc="2.36", base=plan.base),
        platform=plan.resolution.platform,
        python=plan.resolution.python,
        as_of=None,
        base=LockedBase(kind="registry", reference=base or plan.base, digest=DIGEST),
        conda=conda,
        wheels=wheels,
    )


def completed(
    plan: BuildPlan, conda: tuple[CondaPackage, ...] = (), wheels: tuple[Wheel, ...] = ()
) -> tuple[tuple[CondaPackage, ...], tuple[Wheel, ...]]:
    """Return the packages and those that the plan needs in addition, sorted by name."""
    packages = {package.name: package for package in conda}
    for spec in conda_specs(plan):
        name = re.split("[ <>=!~]", spec, maxsplit=1)[0]
        version = spec.split("=")[1] if spec.startswith(f"{name}=") else ""
        packages.setdefault(name, a_package(name, f"{version}.7" if name == "python" else version or "1.0"))
    files = {file.name: file for file in wheels}
    for text in (*torch_wheels(plan), *plan.pip):
        requirement = Requirement(text)
        exact = [clause.version for clause in requirement.specifier if clause.operator == "=="]
        version = next(version for version in (*exact, "1.0", "99.0") if requirement.specifier.contains(version))
        source = "pytorch" if text in plan.family else "pypi"
        files.setdefault(requirement.name, wheel(requirement.name, version, source=source))
    return tuple(packages[name] for name in sorted(packages)), tuple(files[name] for name in sorted(files))


def debian_base(*names: str) -> LockedBase:
    """Return a base of these Debian packages in version 1.0, with the SHA-256 `aaa...`, `bbb...` and so on."""
    rows = (DebPackage(name=name, version="1.0", arch="amd64", sha256=digit * 64, size=1)
            for name, digit in zip(names, "abcdef", strict=False))  # fmt: skip
    return LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm", suite="bookworm", packages=tuple(rows))


def locked_conda(plan: BuildPlan) -> Lock:
    """Return a lock of a plan whose packages all come from conda."""
    rows = (
        a_package("numpy", "2.4.6", sha256="1" * 64),
        a_package("python", "3.11.7", build="h0_0", sha256="2" * 64),
        a_package("pytorch", plan.resolution.torch, build="cpu_generic_py311_0", sha256="3" * 64),
        a_package("tini", "0.19.0", build="h0_0", url=f"{CONDA_PUBLIC}/conda-forge/linux-64/tini-0.19.0-h0_0.tar.bz2"),
    )
    return lock_for(plan, conda=rows)


def locked_wheels(plan: BuildPlan, *, conda: tuple[CondaPackage, ...] = ()) -> Lock:
    """Return a lock of a plan with torch from its own index and one package from the Python index."""
    version = plan.family[0].partition("==")[2]
    file = f"torch-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    address = f"{_TORCH}/{file.replace('+', '%2B')}"
    rows = (
        wheel("einops", "0.9.0", sha256="4" * 64),
        wheel("nvidia-cudnn-cu12", "9.5.1.17", sha256="5" * 64, source="pytorch"),
        wheel("torch", version, file=file, url=address, sha256="6" * 64, source="pytorch"),
    )
    return lock_for(plan, conda=conda, wheels=rows)


def locked_source(plan: BuildPlan) -> Lock:
    """Return the lock of `locked_wheels` for a plan with `allow_source: [fastsum]`, with fastsum built from source."""
    lock, sample = locked_wheels(plan), from_source()
    source = replace(sample.sources[0], torch=None, cuda=None, cxx11_abi=None)
    rows = sorted((*lock.wheels, sample.wheels[0]), key=lambda row: row.name)
    return replace(lock, wheels=tuple(rows), sources=(source,), builders=sample.builders)
