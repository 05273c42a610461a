"""C01: are the versions in the image the ones the plan promises?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.model import Verdict
from envkit.checks.observed import MalformedError, promises, version_key
from envkit.ground import versions

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_REBUILD = "Build the image again from its plan: envkit build"
_CPU_BUILD = (
    "The solver fell back to the CPU build, or another index answered first: pin torch with its local version, like "
    "torch==2.7.1+cu126 from that CUDA's wheel index, or use conda-forge with CONDA_OVERRIDE_CUDA at build time."
)


def judge(case: Case) -> Finding:
    """Judge one component. SKIP if the plan does not promise it, ERROR if it is promised but cannot be read."""
    name = case.part
    if name == "spec":
        return _spec(case)
    if name == "numpy":
        return _numpy(case)
    installed, promised = case.observed.get("found"), case.spec.get(name)
    if name not in _RULES or not (installed is None or isinstance(installed, str)):
        raise MalformedError(f"{name}: found is {installed!r}")
    if name == "cuda" and case.spec.get("gpu") is False and installed is not None:
        case.rule("equals", field=name, value=None)
        return case.warn("CUDA_BUILD_INSTALLED", f"a CPU image contains a torch built for CUDA {installed}", _REBUILD)
    case.rule("equals", field=name, value=None if promised is None else str(promised))
    if promised is None:
        return case.skip("NOT_PROMISED", f"the plan specifies no {name}; found {installed or 'none'}")
    if installed is None:
        return _absent(case, str(promised))
    return _RULES[name](case, installed, str(promised))


def _absent(case: Case, promised: str) -> Finding:
    name, error = case.part, case.observed.get("error")
    if name == "cuda":
        return case.fail("CPU_BUILD_INSTALLED", f"torch is a CPU build, not CUDA {promised}", _CPU_BUILD)
    if error is not None:
        code = "TORCH_BROKEN" if name == "torch" else f"{name.upper()}_UNREADABLE"
        # A torch that cannot be imported is useless; of the others, only the version is unknown.
        verdict = Verdict.FAIL if name == "torch" else Verdict.ERROR
        return case.finding(verdict, code, f"{name} {promised} is planned, but cannot be read: {error}", _REBUILD)
    return case.fail(f"{name.upper()}_MISSING", f"{name} {promised} is planned, but not installed", _REBUILD)


def _compared(case: Case, installed: str, promised: str, *, same: bool) -> Finding:
    """Return PASS for the version that was promised, else FAIL."""
    name = case.part
    case.rule("equals", field=name, value=promised)
    if same:
        return case.passed(f"{name} {installed}")
    return case.fail(f"{name.upper()}_MISMATCH", f"{name} is {installed}, the plan says {promised}", _REBUILD)


def _prefix(case: Case, installed: str, promised: str) -> Finding:
    """Compare by prefix: 3.12 allows every 3.12.x."""
    # A conda spec may end in .*; a Python that was built from a git checkout ends in +, such as 3.14.0a1+.
    wanted = promised.removesuffix(".*").split(".")
    found = installed.partition("+")[0].split(".")[: len(wanted)]
    return _compared(case, installed, promised, same=found == wanted)


def _torch(case: Case, installed: str, promised: str) -> Finding:
    """Compare the release exactly, and the local part too if it is promised."""
    release, _, build = installed.partition("+")
    wanted, _, local = promised.partition("+")
    promised_local = case.spec.get("local_version")
    # The local version may be given as cu126, +cu126 or 2.7.1+cu126.
    local = local if promised_local is None else str(promised_local).rpartition("+")[2]
    same = version_key(release) == version_key(wanted)
    if same and local and build != local:
        return _compared(case, installed, f"{wanted}+{local}", same=False)
    return _compared(case, installed, promised, same=same)


def _cuda(case: Case, installed: str, promised: str) -> Finding:
    # Only for its error: `minor` accepts any text.
    version_key(installed)
    return _compared(case, installed, promised, same=versions.minor(installed) == versions.minor(promised))


def _newer_minor(case: Case, installed: str, promised: str) -> Finding:
    """Require the same major and at least this minor, and a loaded library as new as the one torch was built with."""
    name, compiled = case.part, case.observed.get("compiled")
    loaded = version_key(installed)[:2]
    if not _serves(loaded, version_key(promised)[:2]):
        return _compared(case, installed, promised, same=False)
    if isinstance(compiled, str):
        # torch itself refuses a cuDNN with another major, or an older minor, than it was compiled with.
        built = version_key(compiled)[:2]
        message = f"{name} {installed} is loaded; torch was compiled with"
        if not _serves(loaded, built):
            return case.fail(f"{name.upper()}_OLDER_THAN_COMPILED", f"{message} {compiled}", _REBUILD)
        if loaded > built:
            advice = f"Pin {name} to {compiled}, unless the newer one is wanted."
            return case.warn(f"{name.upper()}_DRIFT", f"{message} the older {compiled}", advice)
    return _compared(case, installed, promised, same=True)


def _serves(loaded: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return loaded[0] == wanted[0] and loaded >= wanted


def _companion(case: Case, installed: str, promised: str) -> Finding:
    """Compare the release exactly; if it was tried with this torch, it must also work."""
    name = case.part
    if case.observed.get("works") is False:
        error = case.observed.get("error") or "wrong result"
        advice = f"Take {name} and torch from the same index, or remove {name} from the definition."
        return case.fail(f"{name.upper()}_BROKEN", f"{name} {installed} does not work with this torch: {error}", advice)
    return _compared(case, installed, promised, same=version_key(installed) == version_key(promised))


def _numpy(case: Case) -> Finding:
    case.rule("equals", field="round_trip", value=True)
    installed = case.observed.get("found")
    if installed is None:
        return case.skip("NOT_PROMISED", "numpy is not installed, and the plan does not ask for it")
    if case.observed.get("round_trip") is not True:
        error = case.observed.get("error") or "wrong result"
        advice = "torch before 2.3 was built for NumPy 1: add numpy<2 to the image definition."
        return case.fail("NUMPY_ABI", f"numpy {installed} and torch do not share arrays: {error}", advice)
    return case.passed(f"numpy {installed} shares arrays with torch")


def _spec(case: Case) -> Finding:
    case.rule("equals", unknown_fields=[])
    promised = [name for name in case.strings("unknown_fields") if case.spec.get(name) is not None]
    if promised:
        message = f"the plan specifies {', '.join(promised)}, which no check covers"
        return case.error("SPEC_FIELD_UNKNOWN", message, "Verify with the version of envkit that made the plan.")
    if not promises(case.spec):
        return case.skip("NOT_PROMISED", "the plan specifies no version")
    return case.passed("all planned versions are covered by a check")


_RULES = {
    "python": _prefix,
    "torch": _torch,
    "cuda": _cuda,
    "cudnn": _newer_minor,
    "nccl": _newer_minor,
    "triton": _companion,
    "torchvision": _companion,
    "torchaudio": _companion,
}
