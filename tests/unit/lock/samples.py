"""Locks for the tests: every host in them is an example."""

from dataclasses import replace

from envkit.lock.model import BUILT, CONDA_PUBLIC, CondaPackage, DebPackage, Lock, LockedBase, Source, Wheel

DIGEST = "sha256:" + "d" * 64
FILES = "https://files.example.com/packages"


def conda(name: str, version: str = "1.0", **more: object) -> CondaPackage:
    row: dict[str, object] = {
        "name": name,
        "version": version,
        "build": "py311_0",
        "subdir": "linux-64",
        "channel": "conda-forge",
        "sha256": "a" * 64,
        "size": 1000,
    }
    row |= more
    stem = f"{row['name']}-{row['version']}-{row['build']}"
    row.setdefault("url", f"{CONDA_PUBLIC}/{row['channel']}/{row['subdir']}/{stem}.conda")
    return CondaPackage(**row)  # type: ignore[arg-type]


def wheel(name: str, version: str = "1.0", **more: object) -> Wheel:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    row: dict[str, object] = {
        "name": name,
        "version": version,
        "file": file,
        "url": f"{FILES}/{file.replace('+', '%2B')}",
        "sha256": "b" * 64,
        "size": 2000,
        "source": "pypi",
    }
    return Wheel(**row | more)  # type: ignore[arg-type]


def lock(**more: object) -> Lock:
    row: dict[str, object] = {
        "plan": "sha256:" + "c" * 64,
        "request": (
            ("python", "3.11"),
            ("index", "https://download.pytorch.org/whl/cu126"),
            ("channels", ("conda-forge",)),
            ("conda", ("python=3.11", "numpy")),
        ),
        "platform": "linux-64",
        "python": "3.11",
        "as_of": None,
        "base": LockedBase(kind="registry", reference="docker.io/library/debian:bookworm-slim", digest=DIGEST),
        "conda": (
            conda("numpy", "2.4.6", depends=("python 3.11.*",)),
            conda("pip", "26.3", build="py_0", subdir="noarch", noarch="python"),
            conda("python", "3.11.7", build="h0_0"),
        ),
        "wheels": (wheel("filelock", "4.2.11"), wheel("torch", "2.7.1+cu126", source="pytorch")),
    }
    return Lock(**row | more)  # type: ignore[arg-type]


def from_source() -> Lock:
    """A lock with a wheel that was built from source."""
    request = (("python", "3.11"), ("glibc", "2.36"), ("cuda", "12.6"), ("pip", ("setuptools",)))
    builder = replace(bootstrapped(), request=request, as_of=None, wheels=(wheel("setuptools", "84.2.1"),))
    sdist = f"{FILES}/fastsum-1.2.tar.gz"
    file = "fastsum-1.2-cp311-cp311-linux_x86_64.whl"
    source = Source(
        name="fastsum",
        version="1.2",
        url=sdist,
        commit=None,
        sha256="8" * 64,
        size=500,
        builder=builder.seal,
        key="9" * 64,
        torch="2.7.1+cu126",
        cuda="12.6",
        cxx11_abi="true",
    )
    return lock(
        request=(*lock().request, ("cuda", "12.6"), ("allow_source", ("fastsum",))),
        wheels=(wheel("fastsum", "1.2", file=file, url=sdist, source=BUILT), *lock().wheels),
        sources=(source,),
        builders=(builder,),
    )


def bootstrapped() -> Lock:
    packages = (
        DebPackage(name="apt", version="2.6.2", arch="amd64", sha256="e" * 64, size=3000),
        DebPackage(name="libc6", version="2.36-9+deb12u14", arch="amd64", sha256=None, size=4000),
    )
    base = LockedBase(kind="bootstrap", reference="bootstrap:debian/bookworm", suite="bookworm", packages=packages)
    return lock(base=base, conda=(), as_of="2026-06-01T23:59:59Z")
