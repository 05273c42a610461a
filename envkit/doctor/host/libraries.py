"""CUDA toolkits, cuDNN libraries, and environment variables that make programs load the wrong library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from envkit.doctor.environment import of_environment
from envkit.doctor.host import loader_path
from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.knowledge import variables

# libcudnn.so.9 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcudnn.so.9
_CACHE = re.compile(r"^\s+(libcudnn\.so\.\d+)\b.* => (/\S+)$", re.MULTILINE)


def section(view: View) -> Section:
    """Describe which CUDA libraries a program on this machine would load."""
    # Only cuda-12.6: `cuda` and `cuda-12` are links to it.
    toolkits = [name for name in view.names("/usr/local") if re.fullmatch(r"cuda-\d+\.\d+", name)]
    path = view.environ.get("LD_LIBRARY_PATH", "")
    cudnn_files = cudnns(view)
    facts = (
        ("CUDA toolkits", ", ".join(toolkits) or "none"),
        ("CUDA_HOME", view.environ.get("CUDA_HOME", "not set")),
        ("LD_LIBRARY_PATH", path or "not set"),
        ("cuDNN", ", ".join(cudnn_files) or "none on the loader path"),
    )
    findings = (*_of_path(view, path), *_of_cudnns(cudnn_files), *_of_variables(view))
    return Section(id="libraries", title="Libraries and variables", facts=facts, findings=findings)


def cudnns(view: View) -> tuple[str, ...]:
    """Return the libcudnn.so.N files on LD_LIBRARY_PATH and in the loader's cache; links to one file count once."""
    paths: list[str] = []
    for folder in filter(None, view.environ.get("LD_LIBRARY_PATH", "").split(":")):
        paths += [f"{folder}/{name}" for name in view.names(folder) if re.fullmatch(r"libcudnn\.so\.\d+", name)]
    answer = view.ask(["ldconfig", "-p"])
    if answer is not None and answer.code == 0:
        paths += [cached for _, cached in _CACHE.findall(answer.out)]
    real: dict[str, str] = {}
    for path in paths:
        try:
            real.setdefault(str(view.path(path).resolve()), path)
        except OSError:
            continue
    return tuple(real.values())


def _of_path(view: View, path: str) -> Iterator[Finding]:
    yield from loader_path.findings(view, path)
    for variable, value in variables.found(view.environ, kinds=(variables.SHADOWS,)):
        if variable.match is None:  # above, the files in the folders decide
            yield Finding(
                id=variable.id, severity=Severity.INFO, title=variable.said(value),
                evidence=(Evidence(text=f"{variable.name}={value[:200]}"),),
                cause="It changes what every program on this machine loads; containers do not inherit it.",
                sources=variable.sources,
            )  # fmt: skip


def _of_cudnns(files: tuple[str, ...]) -> Iterator[Finding]:
    folders = {str(PurePosixPath(path).parent) for path in files}
    if len(files) > 1 and len(folders) > 1:
        yield Finding(
            id="two-cudnn", severity=Severity.WARN, title="the loader finds more than one cuDNN",
            evidence=tuple(Evidence(text=path) for path in files),
            cause=(
                "The cuDNN libraries load each other by name; libraries of two versions in one process "
                "are incompatible."
            ),
            check=("grep -h libcudnn /proc/PID/maps | awk '{print $6}' | sort -u",),
            fix=("Keep one: remove the system package, or remove the other from LD_LIBRARY_PATH.",),
            sources=("pytorch/pytorch#119989", "pytorch/pytorch#80637"),
        )  # fmt: skip


def _of_variables(view: View) -> Iterator[Finding]:
    # Of search paths, the files in their folders are judged.
    environ = {name: value for name, value in view.environ.items() if name != "LD_LIBRARY_PATH"}
    for finding in of_environment(environ, gpu=True, kinds=set(variables.KINDS) - {variables.SHADOWS}):
        # Containers do not inherit it, and a job without GPUs has it on purpose (Slurm: NoDevFiles).
        yield replace(finding, severity=Severity.WARN)
    home = view.environ.get("CUDA_HOME")
    if home and not view.exists(f"{home}/bin/nvcc"):
        yield Finding(
            id="cuda-home", severity=Severity.INFO, title="CUDA_HOME has no nvcc",
            evidence=(Evidence(text=f"CUDA_HOME={home}"),), cause="Extensions cannot be compiled with this CUDA_HOME.",
            fix=("Set it to the folder of a toolkit, or unset it.",),
        )  # fmt: skip
