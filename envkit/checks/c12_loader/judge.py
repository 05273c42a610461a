"""C12: is the DataLoader correct? Its throughput informs and gives the number of workers to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number, optional_number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.model import Env, Observation, Spec

_EXACT = {"type": "equals", "expected": 0, "gates": True, "unit": "samples"}
_WHOLE = {"type": "equals", "expected": True, "gates": True, "unit": "1"}
_INFORMS = {"type": "informs", "gates": False}
_WORKLOADS = {"cpu": "when bound by decoding", "data": "from your files", "dataset": "from your Dataset"}
_PRINTED = "The samples and the full message are in the output of the run; the record has neither."
_OPENED = "Try it alone in the image: its only argument is the folder of --data; without --data it has none."
_READABLE = "The run reads as the image's user without privileges: `chmod -R a+rX DIR` makes the files readable for it."
_SHM = "Give the container shared memory and try again: `--shm-size=1g` (or `--ipc=host`)."


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge order, exception, timeout and pinned exactly. Throughput and the user's data inform."""
    observed = mapping(observation, "observed")
    part = str(observation["id"]).split(".")[1:2]
    if part == ["order"]:
        return _order(observed)
    if part == ["exception"]:
        return _exception(observed)
    if part == ["timeout"]:
        return _timeout(observed)
    if part == ["pinned"]:
        return _pinned(observed)
    if part == ["data"]:
        return _data(observed)
    return _throughput(observed)  # C12.throughput.* and C12.matrix.*


def _order(observed: Mapping[str, Any]) -> Finding:
    expected = number(observed, "samples")
    faults = {key: number(observed, key) for key in ("missing", "out_of_place", "damaged")}
    wrong = {key: value for key, value in faults.items() if value}
    received = number(observed, "received")
    workers = number(observed, "num_workers")
    metric = {"name": "wrong_samples", "value": sum(faults.values()), "unit": "samples", "better": "lower"}
    if wrong or received != expected:
        parts = ", ".join(f"{value:g} {key.replace('_', ' ')}" for key, value in wrong.items())
        message = f"{received:g} of {expected:g} samples with {workers:g} workers: {parts or 'some twice'}"
        return Finding(Verdict.FAIL, message, "SAMPLES_WRONG", (_SHM,), _EXACT, metric)
    message = f"{received:g} samples with {workers:g} workers: each once, in order and intact"
    return Finding(Verdict.PASS, message, None, (), _EXACT, metric)


def _exception(observed: Mapping[str, Any]) -> Finding:
    name = observed.get("exception")
    if name is None:
        message = "an exception in a worker never reached the main process"
        return Finding(Verdict.FAIL, message, "EXCEPTION_LOST", (_SHM,), _WHOLE)
    if name != "ValueError" or not flag(observed, "carries_text"):
        message = f"a worker's ValueError arrived as {name} without its text"
        advice = ("Read the worker's own message on the container's stderr.", _SHM)
        return Finding(Verdict.FAIL, message, "EXCEPTION_CHANGED", advice, _WHOLE)
    return Finding(Verdict.PASS, "a worker's exception arrives with its type and text", None, (), _WHOLE)


def _timeout(observed: Mapping[str, Any]) -> Finding:
    limit, took = number(observed, "timeout_s"), number(observed, "took_s")
    if not flag(observed, "timed_out"):
        message = f"a hanging worker was not reported within timeout={limit:g}: {observed.get('exception')}"
        return Finding(Verdict.FAIL, message, "TIMEOUT_IGNORED", (_SHM,), _WHOLE)
    derived = {"took_s": took}
    return Finding(Verdict.PASS, f"a hanging worker ends in an error ({took:.1f} s)", None, (), _WHOLE, None, derived)


def _pinned(observed: Mapping[str, Any]) -> Finding:
    pinned, batches = number(observed, "pinned_batches"), number(observed, "batches")
    if pinned != batches or not batches:
        message = f"{pinned:g} of {batches:g} batches are page-locked with pin_memory=True"
        advice = ("Check that memory can be page-locked: `envkit verify IMAGE --only C09`.",)
        return Finding(Verdict.FAIL, message, "BATCHES_NOT_PINNED", advice, _WHOLE)
    if number(observed, "damaged") or number(observed, "missing") or number(observed, "out_of_place"):
        return Finding(Verdict.FAIL, "page-locked batches contain wrong samples", "SAMPLES_WRONG", (_SHM,), _EXACT)
    return Finding(Verdict.PASS, f"all {batches:g} batches are page-locked and intact", None, (), _WHOLE)


def _data(observed: Mapping[str, Any]) -> Finding:
    """Report on the user's data and on what could not be measured. It only informs."""
    dataset, error = observed.get("dataset"), observed.get("error")
    what = f"the Dataset {dataset}" if dataset else "the files of --data"
    kinds = ", ".join(map(str, observed.get("exceptions") or ())) or "an exception in a worker"
    if error is not None:
        message = f"{what} could not be opened: {error}"
        return Finding(Verdict.WARN, message, "DATA_FAILED", (_PRINTED, _OPENED), _INFORMS)
    folder = observed.get("folder") and mapping(observed, "folder")
    if folder and not number(folder, "files"):
        lost = number(folder, "lost")
        message = "the folder of --data has no files"
        if lost:
            message = f"the folder of --data has no readable file ({lost:g} unreadable entries)"
        code = "DATA_UNREADABLE" if lost else "DATA_EMPTY"
        return Finding(Verdict.WARN, message, code, (_READABLE,), _INFORMS)
    tried, broken = number(observed, "tried"), number(observed, "broken")
    samples = number(observed, "samples")
    if not samples:
        return Finding(Verdict.WARN, f"{what} has no samples", "DATA_EMPTY", (_OPENED,), _INFORMS)
    about = f"{what}: {samples:g} samples{_folder(folder)}"
    if broken:
        left = "nothing was measured" if broken >= samples else "the others were measured"
        message = f"{about}; {broken:g} raised {kinds}; {left}"
        return Finding(Verdict.WARN, message, "SAMPLES_BROKEN", (_PRINTED, _READABLE), _INFORMS)
    lost = number(folder, "lost") if folder else 0
    if lost:
        message = f"{about}; {lost:g} entries of the folder cannot be read"
        return Finding(Verdict.WARN, message, "DATA_UNREADABLE", (_READABLE,), _INFORMS)
    return Finding(Verdict.PASS, f"{about}; {tried:g} were tried", None, (), _INFORMS)


def _folder(folder: Mapping[str, Any] | None) -> str:
    if not folder:
        return ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in mapping(folder, "kinds").items())
    more = "" if flag(folder, "whole") else "more than "
    return f" of {more}{number(folder, 'files'):g} files, {number(folder, 'bytes') / 1e9:.3g} GB ({kinds})"


def _throughput(observed: Mapping[str, Any]) -> Finding:
    row = thresholds.load().row("C12.worker_gain")
    gain = optional_number(observed, "best_workers_over_none")
    rate = number(observed, "samples_per_s")
    chosen = mapping(observed, "recommended")
    workers = number(chosen, "num_workers")
    use = _options(chosen)
    bound = _WORKLOADS.get(str(observed.get("workload")), "when bound by waiting for storage")
    metric = {"name": "samples_per_second", "value": rate, "unit": "samples/s", "better": "higher"}
    derived = {"best_workers_over_none": gain, "recommended_num_workers": workers}
    if gain is not None and number(observed, "effective_cpus") >= 2 and gain < row.number("warn_below"):  # noqa: PLR2004 - one CPU cannot gain
        message = f"workers give {gain:.2f}x the throughput of num_workers=0 {bound}"
        advice = ("Check the CPU quota and the threads: `envkit verify IMAGE --only C08`.", use)
        return Finding(Verdict.WARN, message, "WORKERS_BRING_NOTHING", advice, row.record(), metric, derived)
    message = f"{rate:.0f} samples/s {bound}; {use}"
    return Finding(Verdict.PASS, message, None, _declared(observed, workers), row.record(), metric, derived)


def _options(chosen: Mapping[str, Any]) -> str:
    words = [f"num_workers={number(chosen, 'num_workers'):g}"]
    prefetch = optional_number(chosen, "prefetch_factor")
    words += [] if prefetch is None else [f"prefetch_factor={prefetch:g}"]
    words += [f"{name}=True" for name in ("persistent_workers", "pin_memory") if flag(chosen, name)]
    return "best of the sweep: " + ", ".join(words)


def _declared(observed: Mapping[str, Any], workers: float) -> tuple[str, ...]:
    declared = optional_number(observed, "declared_num_workers")
    if declared is None or declared == workers:
        return ()
    return (f"The image declares num_workers={declared:g}; this machine did best with {workers:g}.",)
