"""C01: are the versions in the image the ones the plan promises?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envkit.checks.fields import MalformedError, part_of, promises, strings, version_key
from envkit.checks.model import Finding, Verdict
from envkit.ground import versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envkit.checks.model import Env, Observation, Spec

_REBUILD = "Build the image again from its plan: envkit build"
_CPU_BUILD = (
    "The solver fell back to the CPU build, or another index answered first: pin torch with its local version, like "
    "torch==2.7.1+cu126 from that CUDA's wheel index, or use conda-forge with CONDA_OVERRIDE_CUDA at build time."
)


def judge(observation: Observation, spec: Spec, _env: Env) -> Finding:
    """Judge one component. SKIP if the plan does not promise it, ERROR if it is promised but cannot be read."""
    name, observed = part_of(observation), observation["observed"]
    if name == "spec":
        return _spec(observed, spec)
    if name == "numpy":
        return _numpy(observed)
    installed, promised = observed.get("found"), spec.get(name)
    if name not in _RULES or not (installed is None or isinstance(installed, str)):
        raise MalformedError(f"{name}: found is {installed!r}")
    if name == "cuda" and spec.get("gpu") is False and installed is not None:
        message = f"a CPU image contains a torch built for CUDA {installed}"
        return Finding(Verdict.WARN, message, "CUDA_BUILD_INSTALLED", (_REBUILD,), _rule(name, None))
    if promised is None:
        message = f"the plan specifies no {name}; found {installed or 'none'}"
        return Finding(Verdict.SKIP, message, "NOT_PROMISED", rule=_rule(name, None))
    if installed is None:
        return _absent(name, observed, str(promised))
    return _RULES[name](name, observed, str(promised), spec)


def _rule(name: str, promised: str | None) -> dict[str, Any]:
    return {"type": "equals", "field": name, "value": promised}


def _absent(name: str, observed: Mapping[str, Any], promised: str) -> Finding:
    rule, error = _rule(name, promised), observed.get("error")
    if name == "cuda":
        return Finding(
            Verdict.FAIL, f"torch is a CPU build, not CUDA {promised}", "CPU_BUILD_INSTALLED", (_CPU_BUILD,), rule
        )
    if error is not None:
        code = "TORCH_BROKEN" if name == "torch" else f"{name.upper()}_UNREADABLE"
        # A torch that cannot be imported is useless; of the others, only the version is unknown.
        verdict = Verdict.FAIL if name == "torch" else Verdict.ERROR
        return Finding(verdict, f"{name} {promised} is planned, but cannot be read: {error}", code, (_REBUILD,), rule)
    message = f"{name} {promised} is planned, but not installed"
    return Finding(Verdict.FAIL, message, f"{name.upper()}_MISSING", (_REBUILD,), rule)


def _passed(name: str, observed: Mapping[str, Any], promised: str) -> Finding:
    return Finding(Verdict.PASS, f"{name} {observed['found']}", rule=_rule(name, promised))


def _mismatch(name: str, observed: Mapping[str, Any], promised: str) -> Finding:
    message = f"{name} is {observed['found']}, the plan says {promised}"
    return Finding(Verdict.FAIL, message, f"{name.upper()}_MISMATCH", (_REBUILD,), _rule(name, promised))


def _prefix(name: str, observed: Mapping[str, Any], promised: str, _spec: Spec) -> Finding:
    """Compare by prefix: 3.12 allows every 3.12.x."""
    # A conda spec may end in .*; a Python that was built from a git checkout ends in +, such as 3.14.0a1+.
    wanted = promised.removesuffix(".*").split(".")
    same = observed["found"].split("+")[0].split(".")[: len(wanted)] == wanted
    return (_passed if same else _mismatch)(name, observed, promised)


def _torch(name: str, observed: Mapping[str, Any], promised: str, spec: Spec) -> Finding:
    """Compare the release exactly, and the local part too if it is promised."""
    installed, wanted = observed["found"].partition("+"), promised.partition("+")
    promised_local = spec.get("local_version")
    # The local version may be given as cu126, +cu126 or 2.7.1+cu126.
    local = str(promised_local).rpartition("+")[2] if promised_local is not None else wanted[2]
    if version_key(installed[0]) != version_key(wanted[0]):
        return _mismatch(name, observed, promised)
    if local and installed[2] != local:
        return _mismatch(name, observed, f"{wanted[0]}+{local}")
    return _passed(name, observed, promised)


def _cuda(name: str, observed: Mapping[str, Any], promised: str, _spec: Spec) -> Finding:
    # Only for its error: `minor` accepts any text.
    version_key(observed["found"])
    same = versions.minor(observed["found"]) == versions.minor(promised)
    return (_passed if same else _mismatch)(name, observed, promised)


def _newer_minor(name: str, observed: Mapping[str, Any], promised: str, _spec: Spec) -> Finding:
    """Require the same major and at least this minor, and a loaded library as new as the one torch was built with."""
    installed, wanted = version_key(observed["found"])[:2], version_key(promised)[:2]
    if installed[0] != wanted[0] or installed < wanted:
        return _mismatch(name, observed, promised)
    compiled = observed.get("compiled")
    if isinstance(compiled, str):
        # torch itself refuses a cuDNN with another major, or an older minor, than it was compiled with.
        built = version_key(compiled)[:2]
        if installed[0] != built[0] or installed < built:
            message = f"{name} {observed['found']} is loaded; torch was compiled with {compiled}"
            return Finding(
                Verdict.FAIL, message, f"{name.upper()}_OLDER_THAN_COMPILED", (_REBUILD,), _rule(name, promised)
            )
        if installed > built:
            message = f"{name} {observed['found']} is loaded; torch was compiled with the older {compiled}"
            advice = (f"Pin {name} to {compiled}, unless the newer one is wanted.",)
            return Finding(Verdict.WARN, message, f"{name.upper()}_DRIFT", advice, _rule(name, promised))
    return _passed(name, observed, promised)


def _companion(name: str, observed: Mapping[str, Any], promised: str, _spec: Spec) -> Finding:
    """Compare the release exactly; if it was tried with this torch, it must also work."""
    if observed.get("works") is False:
        message = f"{name} {observed['found']} does not work with this torch: {observed.get('error') or 'wrong result'}"
        advice = (f"Take {name} and torch from the same index, or remove {name} from the definition.",)
        return Finding(Verdict.FAIL, message, f"{name.upper()}_BROKEN", advice, _rule(name, promised))
    same = version_key(observed["found"]) == version_key(promised)
    return (_passed if same else _mismatch)(name, observed, promised)


def _numpy(observed: Mapping[str, Any]) -> Finding:
    rule = {"type": "equals", "field": "round_trip", "value": True}
    if observed.get("found") is None:
        message = "numpy is not installed, and the plan does not ask for it"
        return Finding(Verdict.SKIP, message, "NOT_PROMISED", rule=rule)
    if observed.get("round_trip") is not True:
        message = f"numpy {observed['found']} and torch do not share arrays: {observed.get('error') or 'wrong result'}"
        advice = ("torch before 2.3 was built for NumPy 1: add numpy<2 to the image definition.",)
        return Finding(Verdict.FAIL, message, "NUMPY_ABI", advice, rule)
    return Finding(Verdict.PASS, f"numpy {observed['found']} shares arrays with torch", rule=rule)


def _spec(observed: Mapping[str, Any], spec: Spec) -> Finding:
    rule = {"type": "equals", "unknown_fields": []}
    promised = [name for name in strings(observed, "unknown_fields") if spec.get(name) is not None]
    if promised:
        message = f"the plan specifies {', '.join(promised)}, which no check covers"
        advice = ("Verify with the version of envkit that made the plan.",)
        return Finding(Verdict.ERROR, message, "SPEC_FIELD_UNKNOWN", advice, rule)
    if not promises(spec):
        return Finding(Verdict.SKIP, "the plan specifies no version", "NOT_PROMISED", rule=rule)
    return Finding(Verdict.PASS, "all planned versions are covered by a check", rule=rule)


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
