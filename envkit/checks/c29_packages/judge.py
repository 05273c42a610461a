"""C29: can what the plan names be imported, and does it fit the image's CUDA?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envkit.checks import system_libraries
from envkit.checks.model import Verdict
from envkit.checks.observed import MalformedError, flag, mapping, objects, strings, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from envkit.checks.case import Case
    from envkit.checks.model import Finding, Spec

_SHOWN = 3  # problems in the message; all of them are in the record
_ADVICE_LINES = 6
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_CUDA_LIBRARY = re.compile(
    r"lib(?:cudart|cublas|cublasLt|cudnn\w*|nccl|nvrtc|cufftw?|curand|cusolver(?:Mg)?|cusparse|cupti|nvJitLink)\.so"
)
_DRIVER = re.compile(r"lib(?:cuda|nvidia-ml|nvcuvid|nvidia-encode)\.so")
# What the sandbox or the machine lacks, so the image is not the cause: (words of the error, code, what is lacking)
_ELSEWHERE = (
    (
        ("DISPLAY", "display name", "connect to display", "no display"),
        "IMPORT_NEEDS_DISPLAY",
        "its import needs a display",
    ),
    (
        ("name resolution", "Network is unreachable", "Max retries exceeded", "urlopen error", "getaddrinfo"),
        "IMPORT_NEEDS_NETWORK",
        "its import needs a network, which the sandbox has not",
    ),
    (
        ("Read-only file system",),
        "IMPORT_WRITES",
        "its import writes to a folder that is read-only here",
    ),
)
_NO_GPU_WORDS = (
    "Found no NVIDIA driver",
    "no CUDA-capable device",
    "CUDA driver version is insufficient",
    "No CUDA GPUs",
)
# (words of the error, advice)
_KNOWN = (
    (
        ("compiled with different CUDA versions",),
        "Install {name}'s build for CUDA {cuda} from torch's own index, or remove {name} from the definition.",
    ),
    (("No module named 'pkg_resources'",), "Add to the definition: pip: ['setuptools<81']"),
    (
        ("undefined symbol: _Z",),
        "{name} was compiled for another torch: choose its release for torch {torch}.",
    ),
    (
        (
            "compiled using NumPy 1",
            "_ARRAY_API not found",
            "numpy.dtype size changed",
            "was removed in the NumPy 2.0 release",
        ),
        "Add to the definition: pip: ['numpy<2']",
    ),
    (
        ("module 'numpy' has no attribute", "was a deprecated alias for the builtin"),
        "Add to the definition: pip: ['numpy<1.24']",
    ),
)
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
# The versions of these sonames are CUDA's own major versions; of the others (libcufft.so.11 in CUDA 12) they are not.
_AS_CUDA = ("libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink")
# Optional in most packages, and versioned apart from CUDA.
_APART = ("libcudnn", "libnccl", "libcupti")
_UNFINISHED = ("timeout", "not tried")
_RANK = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.WARN)


def judge(case: Case) -> Finding:
    """Judge C29.imports and C29.cuda."""
    return case.by_part({"imports": _imports, "cuda": _cuda})


@dataclass(frozen=True, slots=True)
class _Problem:
    verdict: Verdict
    code: str
    message: str
    advice: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()  # sonames that the system lacks
    programs: tuple[str, ...] = ()  # packages of programs that it lacks


def _imports(case: Case) -> Finding:
    rows, system = case.objects("packages"), case.mapping("system")
    promised = [str(item["name"]) for item in case.spec.get("packages") or ()]
    seen = [text(row, "name") for row in rows]
    case.rule("equals", packages=len(promised))
    if seen != promised:
        raise MalformedError(f"packages are {seen!r:.200}, the plan names {promised!r:.200}")
    problems = [problem for row in rows if (problem := _problem(row, case)) is not None]
    late = [text(row, "name") for row in rows if row["outcome"] in _UNFINISHED]
    problems += [_late(late)] if late else []
    imported = [row for row in rows if row["outcome"] == "imported"]
    empty = [text(row, "name") for row in rows if row["outcome"] == "no modules"]
    elsewhere = [text(row, "name") for row in rows if row["outcome"] == "not conda"]
    case.derive(imported=len(imported), without_modules=empty, not_conda=elsewhere)
    if problems:
        libraries = [soname for problem in problems for soname in problem.libraries]
        programs = [package for problem in problems for package in problem.programs]
        return _worst(case, problems, system_libraries.advice(libraries, programs, system))
    message = f"{_counted(len(imported), 'package')} of the plan imported"
    message += f"; without modules, so not tried: {', '.join(empty)}" if empty else ""
    message += f"; not a conda environment, so not looked for: {', '.join(elsewhere)}" if elsewhere else ""
    return case.passed(message) if imported else case.skip("NOTHING_TO_IMPORT", message)


def _late(names: Sequence[str]) -> _Problem:
    message = f"{_counted(len(names), 'import')} did not end within the time limit of C29: {', '.join(names)}"
    advice = ("Run it again while nothing else uses this machine.",)
    return _Problem(Verdict.INCONCLUSIVE, "IMPORT_TIME", message, advice)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _worst(case: Case, problems: Sequence[_Problem], first: tuple[str, ...] = ()) -> Finding:
    """Return one finding with the most severe verdict, whose problems come first; `first` is the first advice."""
    ordered = sorted(problems, key=lambda problem: _RANK.index(problem.verdict))
    message = "; ".join(problem.message for problem in ordered[:_SHOWN])
    message += f"; and {len(ordered) - _SHOWN} more, which are in the record" if len(ordered) > _SHOWN else ""
    advice = dict.fromkeys((*first, *(line for problem in ordered for line in problem.advice)))
    case.derive(problems=sorted({problem.code for problem in problems}))
    return case.finding(ordered[0].verdict, ordered[0].code, message, *tuple(advice)[:_ADVICE_LINES])


def _problem(row: Mapping[str, Any], case: Case) -> _Problem | None:
    name, outcome = text(row, "name"), text(row, "outcome")
    called = f"{name} {row['version']}" if row.get("version") else name
    modules = strings(row, "modules")
    by_hand = (f"Try it by hand: envkit run IMAGE -- python -c 'import {modules[0] if modules else name}'",)
    if outcome == "imported":
        return _not_whole(row, called)
    if outcome in ("no modules", "not conda", *_UNFINISHED):
        return None
    if outcome == "absent":
        advice = ("Build the image again from its plan: envkit build",)
        return _Problem(Verdict.FAIL, "PACKAGE_MISSING", f"{name} is planned, but not installed", advice)
    if outcome == "failed":
        return _failed(row, called, case)
    if outcome in ("crashed", "exited"):
        return _Problem(Verdict.FAIL, f"IMPORT_{outcome.upper()}", f"{called}: {_ending(row)}", by_hand)
    raise MalformedError(f"outcome is {outcome!r:.80}")


def _ending(row: Mapping[str, Any]) -> str:
    number = row.get("signal")
    name = _SIGNALS.get(number, f"signal {number}") if isinstance(number, int) else None
    return f"its import ended Python with {name or 'exit code {}'.format(row.get('code'))}{_printed(row)}"


def _printed(row: Mapping[str, Any]) -> str:
    line = row.get("printed")
    return f" ({line:.160})" if isinstance(line, str) and line else ""


def _failed(row: Mapping[str, Any], called: str, case: Case) -> _Problem:
    failures, modules = objects(row, "failed"), strings(row, "modules")
    # The module with the package's own name comes first. If only others fail, the package can be used.
    first = next((item for item in failures if item.get("module") == modules[0]), failures[0] if failures else {})
    module, kind = text(first, "module"), text(first, "type")
    line, words = text(first, "line"), f"{text(first, 'line')} | {text(first, 'text')}"
    message = f"{called}: import {module}: {kind}: {line}{_printed(row) if kind == 'SystemExit' else ''}"
    partial = len(modules) > 1 and module != modules[0]
    name = text(row, "name")
    library = system_libraries.missing_library(words)
    if library is not None:
        return _without_library(row, called, message, library, verdict=_verdict(partial), case=case)
    program = system_libraries.missing_program(words)
    if program is not None:
        return _Problem(_verdict(partial), "PROGRAM_MISSING", message, programs=(program,))
    elsewhere = _elsewhere(called, module, f"{kind}: {line:.160}", words)
    if elsewhere is not None:
        return elsewhere
    if any(needle in words for needle in _NO_GPU_WORDS):
        return _without_driver(called, message, case)
    return _Problem(_verdict(partial), "IMPORT_FAILED", message, (_hint(name, module, words, case.spec),))


def _without_library(
    row: Mapping[str, Any], called: str, message: str, library: str, *, verdict: Verdict, case: Case
) -> _Problem:
    name, cuda = text(row, "name"), case.spec.get("cuda")
    if _DRIVER.match(library):
        return _without_driver(called, message, case)
    if _CUDA_LIBRARY.match(library):
        what = f"the build of {name} for CUDA {cuda}" if cuda else f"the CPU build of {name}"
        return _Problem(Verdict.FAIL, "CUDA_LIBRARY_MISSING", message, (f"Install {what}.",))
    others = _needed(row, library)
    more = f" (and {', '.join(others)})" if others else ""
    return _Problem(verdict, "SYSTEM_LIBRARY_MISSING", f"{message}{more}", libraries=(library, *others))


def _elsewhere(called: str, module: str, error: str, words: str) -> _Problem | None:
    """Return the warning for an import that only the sandbox or the machine keeps from working."""
    for needles, code, lacking in _ELSEWHERE:
        if any(needle in words for needle in needles):
            advice = (f"Try it where it is used: python -c 'import {module}'",)
            return _Problem(Verdict.WARN, code, f"{called} is not verified: {lacking} ({error})", advice)
    return None


def _verdict(partial: bool) -> Verdict:
    return Verdict.WARN if partial else Verdict.FAIL


def _needed(row: Mapping[str, Any], library: str) -> list[str]:
    """Return what else the package's own shared objects need of the system and do not find, known libraries only."""
    known = system_libraries.debian_packages()
    return [name for name in mapping(row, "missing_libraries") if name in known and name != library]


def _not_whole(row: Mapping[str, Any], called: str) -> _Problem | None:
    """Return the warning for a package whose top-level module is imported, but not each of its compiled modules."""
    known, paths = system_libraries.debian_packages(), mapping(row, "missing_libraries")
    lacking = tuple(name for name in strings(row, "missing_of_modules") if name in known)
    if not lacking:
        return None
    message = f"{called} is imported, but a part of it ({paths.get(lacking[0])}) needs {_listed(lacking)}"
    return _Problem(Verdict.WARN, "SYSTEM_LIBRARY_ABSENT", f"{message}, which the image lacks", libraries=lacking)


def _without_driver(called: str, message: str, case: Case) -> _Problem:
    if case.env.get("gpu"):
        advice = ("Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",)
        return _Problem(Verdict.FAIL, "DRIVER_LIBRARY_MISSING", message, advice)
    text = f"{called} is not verified: its import needs the NVIDIA driver, and there is no GPU here"
    return _Problem(Verdict.WARN, "IMPORT_NEEDS_DRIVER", text, ("Verify the image on a machine with a GPU.",))


def _hint(name: str, module: str, words: str, spec: Spec) -> str:
    for needles, advice in _KNOWN:
        if any(needle in words for needle in needles):
            return advice.format(name=name, cuda=spec.get("cuda"), torch=spec.get("torch"))
    absent = _NO_MODULE.search(words)
    if absent is not None and absent[1].partition(".")[0] != module.partition(".")[0]:
        return f"Add the package that has the module {absent[1]} to the definition; {name} does not require it itself."
    return f"Try it by hand: envkit run IMAGE -- python -c 'import {module}'"


def _cuda(case: Case) -> Finding:
    case.rule("equals", cuda=case.spec.get("cuda"))
    has = {name: strings(case.mapping("has"), name) for name in case.mapping("has")}
    packages = case.objects("packages")
    problems = [problem for row in packages if (problem := _of_cuda(row, has, case.spec)) is not None]
    case.derive(packages=len(packages))
    if problems:
        return _worst(case, problems)
    if not packages:
        return case.passed("no installed package needs libraries of CUDA")
    number = _counted(len(packages), "package")
    return case.passed(f"{number} with libraries of CUDA, none of another version than the image's")


def _of_cuda(row: Mapping[str, Any], has: Mapping[str, Sequence[str]], spec: Spec) -> _Problem | None:
    """Return the problem of a package that needs versions of CUDA's libraries of which the image has only others.

    A package may bring its code for several versions (bitsandbytes): then one that fits is enough.
    """
    needs = {name: list(mapping(mapping(row, "needs"), name)) for name in mapping(row, "needs")}
    wrong = {name: wanted for name, wanted in needs.items() if name in has and not _fits(wanted, has[name])}
    if not wrong:
        return None
    name = text(row, "name")
    sonames = [f"{library}.so.{version}" for library, wanted in sorted(wrong.items()) for version in wanted]
    instead = [f"{library}.so.{min(has[library], key=len)}" for library in sorted(wrong)]
    majors = {version.partition(".")[0] for library in _AS_CUDA for version in wrong.get(library, ())}
    built = f" is built for CUDA {'/'.join(sorted(majors))}:" if majors else ""
    example = next(iter(mapping(mapping(row, "needs"), min(wrong)).values()))
    message = (
        f"{name} {row.get('version')}{built} needs {_listed(sonames)} ({example}); the image has {_listed(instead)}"
    )
    # cuDNN and NCCL alone: most packages work without that part.
    optional = all(library.startswith(_APART) for library in wrong)
    certain = flag(row, "named") and not optional
    cuda = f" for CUDA {spec['cuda']}" if spec.get("cuda") else ""
    advice = (
        f"Choose a build of {name}{cuda} (another release or index, or its own name, such as -cuda12x), or remove it.",
    )
    return _Problem(Verdict.FAIL if certain else Verdict.WARN, "OTHER_CUDA_MAJOR", message, advice)


def _fits(wanted: Sequence[str], present: Sequence[str]) -> bool:
    return any(version == other or other.startswith(f"{version}.") for version in wanted for other in present)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
