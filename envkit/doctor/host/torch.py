"""The torch of the active environment: its CUDA version, whether it sees a GPU and, if not, the reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envkit.doctor.host import gpu
from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.doctor.trees import mapping
from envkit.facts.model import Facts
from envkit.ground.versions import key
from envkit.knowledge import matching, variables
from envkit.knowledge.failures import Row

_PATIENCE_S = 25.0  # importing torch from a cold disk takes most of it
_MARK = "envkit-doctor:"
# Runs on Python 3.8 and later with any torch. The current folder is not searched, as it may contain a torch.py.
_PROBE = f"""
import sys
if sys.path and sys.path[0] in ("", "."): del sys.path[0]
import json, platform, warnings
report = {{"python": platform.python_version(), "path": sys.executable}}
try:
    import torch
    report.update(torch=str(torch.__version__), cuda=torch.version.cuda, hip=getattr(torch.version, "hip", None))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        report["available"] = bool(torch.cuda.is_available())
        report["count"] = int(torch.cuda.device_count())
        if report["cuda"] and not report["available"]:
            try:
                torch.cuda.init()
            except Exception as error:
                report["why"] = str(error)
    report["warnings"] = [str(warning.message) for warning in caught][:5]
except Exception as error:
    report["error"] = type(error).__name__ + ": " + str(error)
print({_MARK!r} + json.dumps(report))
"""
_INSTALL = "envkit resolve --here   # finds a build for this machine"


def section(view: View, facts: Facts, python: str | None) -> Section:
    """Check the torch of `python`; None means the active environment, else the first Python on PATH."""
    interpreter, origin = _interpreter(view, python)
    answer = None if interpreter is None else view.ask([interpreter, "-c", _PROBE], _PATIENCE_S)
    if answer is None:
        return _section([("Python", "none" if interpreter is None else f"{interpreter} cannot be run")], ())
    report_line = next((line for line in answer.out.splitlines() if line.startswith(_MARK)), None)
    if report_line is None:
        output = (answer.err or answer.out).strip()[-300:] or f"it ended with code {answer.code}"
        finding = Finding(
            id="torch-unanswered", severity=Severity.WARN, title="importing torch failed",
            evidence=(Evidence(text=output),), check=(f"{interpreter} -c 'import torch'",),
        )  # fmt: skip
        return _section([("Python", f"{interpreter} ({origin})")], (finding,))
    report = mapping(json.loads(report_line.removeprefix(_MARK)))
    rows = [("Python", f"{report.get('python')}, {report.get('path') or interpreter} ({origin})")]
    rows.append(("torch", str(report.get("torch") or "none")))
    if report.get("torch"):
        rows.append(("built for CUDA", str(report.get("cuda") or "no, it is a CPU build")))
        rows.append(("sees GPUs", str(report.get("count")) if report.get("available") else "no"))
    problem = _finding(report, view, facts)
    return _section(rows, () if problem is None else (problem,))


def _section(rows: list[tuple[str, str]], findings: tuple[Finding, ...]) -> Section:
    return Section(id="torch", title="torch", facts=tuple(rows), findings=findings)


def _interpreter(view: View, python: str | None) -> tuple[str | None, str]:
    """Return the Python to run and what selected it: `--python`, a variable, or PATH."""
    if python is not None:
        return python, "--python"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        folder = view.environ.get(variable)
        if folder and view.exists(f"{folder}/bin/python"):
            return f"{folder}/bin/python", variable
    for name in ("python3", "python"):
        # An empty program: only whether there is such an interpreter is of interest.
        if view.ask([name, "-c", ""]) is not None:
            return name, "first on PATH"
    return None, ""


def _finding(report: Mapping[str, Any], view: View, facts: Facts) -> Finding | None:
    error = report.get("error")
    driver = gpu.driver(view)
    if error is not None and report.get("torch") is None:
        return _no_torch(str(error), driver)
    if report.get("available"):
        return None
    if report.get("cuda") is None:
        return _cpu_build(str(report.get("torch")), driver, rocm=report.get("hip") is not None)
    return _unseen(report, driver, view, facts)


def _unseen(report: Mapping[str, Any], driver: str | None, view: View, facts: Facts) -> Finding:
    """Return the finding that explains why a CUDA build sees no GPU."""
    version, cuda = report.get("torch"), report.get("cuda")
    messages = [str(text) for text in (report.get("why"), *report.get("warnings", ())) if text]
    evidence = tuple(Evidence(text=" ".join(text.split())[:300]) for text in messages[:2])
    title = f"torch {version} for CUDA {cuda} sees no GPU: "
    hidden = view.environ.get("CUDA_VISIBLE_DEVICES")
    if driver is None:
        return Finding(
            id="torch-without-driver", severity=Severity.WARN, title=f"{title}no NVIDIA driver was found",
            evidence=evidence, cause="CUDA needs the driver's libcuda; without it, torch computes on the CPU.",
            fix=("See the finding about the driver above.",),
        )  # fmt: skip
    # In this order, because each of these causes makes those after it irrelevant.
    lowest = _lowest_driver(str(cuda), facts)
    if lowest is not None and key(driver) < key(lowest):
        return Finding(
            id="torch-driver-too-old", severity=Severity.ERROR,
            title=f"{title}driver {driver} is older than CUDA {cuda} needs ({lowest})",
            evidence=evidence, cause=f"The driver runs CUDA {gpu.runs(driver, facts)}.",
            fix=(_INSTALL, f"Or update the driver to {lowest} or later."),
            sources=("https://docs.nvidia.com/deploy/cuda-compatibility/",),
        )  # fmt: skip
    if hidden is not None and variables.one("CUDA_VISIBLE_DEVICES", variables.HIDES).applies(hidden):
        return Finding(
            id="torch-devices-hidden", severity=Severity.ERROR,
            title=f"{title}CUDA_VISIBLE_DEVICES={hidden} hides them all", evidence=evidence,
            fix=("unset CUDA_VISIBLE_DEVICES",),
        )  # fmt: skip
    known = _known("\n".join(messages))
    reason = known.title if known is not None else "CUDA does not start"
    return Finding(
        id="torch-sees-no-gpu", severity=Severity.ERROR, title=f"{title}{reason}",
        evidence=evidence, cause=known.cause if known else "", check=known.check if known else ("nvidia-smi",),
        fix=known.fix if known else ("In a container, start it with --gpus all. Or restart after a driver update.",),
        sources=known.sources if known else (),
    )  # fmt: skip


def _no_torch(error: str, driver: str | None) -> Finding:
    if "No module named 'torch'" in error:
        install = "envkit resolve --cpu   # finds a build for this machine" if driver is None else _INSTALL
        return Finding(
            id="torch-missing", severity=Severity.INFO, title="the active Python has no torch",
            evidence=(Evidence(text=error),),
            fix=("Activate the environment that has torch, or use its Python: envkit doctor --python PATH", install),
        )  # fmt: skip
    known = _known(error)
    return Finding(
        id="torch-import-fails", severity=Severity.ERROR,
        title="torch is installed but cannot be imported" + (f": {known.title}" if known else ""),
        evidence=(Evidence(text=" ".join(error.split())[:300]),), cause=known.cause if known else "",
        check=known.check if known else (), fix=known.fix if known else ("Install torch again, in a new environment.",),
        sources=known.sources if known else (),
    )  # fmt: skip


def _cpu_build(version: str, driver: str | None, *, rocm: bool) -> Finding:
    if rocm:
        return Finding(
            id="torch-rocm", severity=Severity.WARN,
            title=f"torch {version} is built for AMD GPUs, so it does not see NVIDIA GPUs", fix=(_INSTALL,),
        )  # fmt: skip
    return Finding(
        id="torch-cpu-build", severity=Severity.INFO if driver is None else Severity.ERROR,
        title=f"torch {version} is a CPU build, so it sees no GPU",
        cause="torch.version.cuda is None; only a different build of torch can use GPUs.",
        fix=(
            ("On the machine with the GPU: " if driver is None else "") + _INSTALL,
            "Then install that build from its index: pip install torch==VERSION+cuXXX --index-url URL",
        ),
        sources=("conda/conda#14761", "pytorch/pytorch#160804"),
    )  # fmt: skip


def _known(text: str) -> Row | None:
    """Return the known failure that an error message shows."""
    return next(iter(matching.shown(text)), None)


def _lowest_driver(cuda: str, facts: Facts) -> str | None:
    """Return the lowest driver version that runs the major version of `cuda`."""
    major = cuda.partition(".")[0]
    return next((row.linux_min for row in facts.compat if str(row.cuda_major) == major), None)
