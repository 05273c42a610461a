"""C12: is the DataLoader correct? Its throughput informs and gives the number of workers to use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import flag, mapping, number, optional_number
from envkit.ground.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from envkit.checks.case import Case
    from envkit.checks.model import Finding

_WORKLOADS = {"cpu": "when bound by decoding", "data": "from your files", "dataset": "from your Dataset"}
_PRINTED = "The samples and the full message are in the output of the run; the record has neither."
_OPENED = "Try it alone in the image: its only argument is the folder of --data; without --data it has none."
_READABLE = "The run reads as the image's user without privileges: `chmod -R a+rX DIR` makes the files readable for it."
_SHM = "Give the container shared memory and try again: `--shm-size=1g` (or `--ipc=host`)."


def judge(case: Case) -> Finding:
    """Judge order, exception, timeout and pinned exactly. Throughput and the user's data inform."""
    kinds = {"order": _order, "exception": _exception, "timeout": _timeout, "pinned": _pinned, "data": _data}
    return kinds.get(case.kind, _throughput)(case)  # C12.throughput.* and C12.matrix.*


def _samples_intact(case: Case) -> None:
    case.rule("equals", expected=0, gates=True, unit="samples")


def _holds(case: Case) -> None:
    case.rule("equals", expected=True, gates=True, unit="1")


def _order(case: Case) -> Finding:
    _samples_intact(case)
    expected = case.value("samples")
    faults = {key: case.value(key) for key in ("missing", "out_of_place", "damaged")}
    wrong = {key: value for key, value in faults.items() if value}
    received, workers = case.value("received"), case.value("num_workers")
    case.metric("wrong_samples", sum(faults.values()), "samples", "lower")
    if wrong or received != expected:
        parts = ", ".join(f"{value:g} {key.replace('_', ' ')}" for key, value in wrong.items())
        message = f"{received:g} of {expected:g} samples with {workers:g} workers: {parts or 'some twice'}"
        return case.fail("SAMPLES_WRONG", message, _SHM)
    return case.passed(f"{received:g} samples with {workers:g} workers: each once, in order and intact")


def _exception(case: Case) -> Finding:
    _holds(case)
    name = case.observed.get("exception")
    if name is None:
        return case.fail("EXCEPTION_LOST", "an exception in a worker never reached the main process", _SHM)
    if name != "ValueError" or not case.flag("carries_text"):
        advice = "Read the worker's own message on the container's stderr."
        return case.fail("EXCEPTION_CHANGED", f"a worker's ValueError arrived as {name} without its text", advice, _SHM)
    return case.passed("a worker's exception arrives with its type and text")


def _timeout(case: Case) -> Finding:
    _holds(case)
    limit, took = case.value("timeout_s"), case.value("took_s")
    if not case.flag("timed_out"):
        message = f"a hanging worker was not reported within timeout={limit:g}: {case.observed.get('exception')}"
        return case.fail("TIMEOUT_IGNORED", message, _SHM)
    case.derive(took_s=took)
    return case.passed(f"a hanging worker ends in an error ({took:.1f} s)")


def _pinned(case: Case) -> Finding:
    _holds(case)
    pinned, batches = case.value("pinned_batches"), case.value("batches")
    if pinned != batches or not batches:
        message = f"{pinned:g} of {batches:g} batches are page-locked with pin_memory=True"
        advice = "Check that memory can be page-locked: `envkit verify IMAGE --only C09`."
        return case.fail("BATCHES_NOT_PINNED", message, advice)
    if case.value("damaged") or case.value("missing") or case.value("out_of_place"):
        _samples_intact(case)
        return case.fail("SAMPLES_WRONG", "page-locked batches contain wrong samples", _SHM)
    return case.passed(f"all {batches:g} batches are page-locked and intact")


def _data(case: Case) -> Finding:
    """Report on the user's data and on what could not be measured. It only informs."""
    case.rule("informs", gates=False)
    dataset, error = case.observed.get("dataset"), case.observed.get("error")
    what = f"the Dataset {dataset}" if dataset else "the files of --data"
    kinds = ", ".join(map(str, case.observed.get("exceptions") or ())) or "an exception in a worker"
    if error is not None:
        return case.warn("DATA_FAILED", f"{what} could not be opened: {error}", _PRINTED, _OPENED)
    folder = case.observed.get("folder") and case.mapping("folder")
    if folder and not number(folder, "files"):
        lost = number(folder, "lost")
        none = f"readable file ({lost:g} unreadable entries)" if lost else "files"
        code = "DATA_UNREADABLE" if lost else "DATA_EMPTY"
        return case.warn(code, f"the folder of --data has no {none}", _READABLE)
    tried, broken, samples = case.value("tried"), case.value("broken"), case.value("samples")
    if not samples:
        return case.warn("DATA_EMPTY", f"{what} has no samples", _OPENED)
    about = f"{what}: {samples:g} samples{_folder(folder)}"
    if broken:
        left = "nothing was measured" if broken >= samples else "the others were measured"
        return case.warn("SAMPLES_BROKEN", f"{about}; {broken:g} raised {kinds}; {left}", _PRINTED, _READABLE)
    lost = number(folder, "lost") if folder else 0
    if lost:
        return case.warn("DATA_UNREADABLE", f"{about}; {lost:g} entries of the folder cannot be read", _READABLE)
    return case.passed(f"{about}; {tried:g} were tried")


def _folder(folder: Mapping[str, Any] | None) -> str:
    if not folder:
        return ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in mapping(folder, "kinds").items())
    more = "" if flag(folder, "whole") else "more than "
    return f" of {more}{number(folder, 'files'):g} files, {shown_size(number(folder, 'bytes'))} ({kinds})"


def _throughput(case: Case) -> Finding:
    case.use("C12.worker_gain")
    gain, rate = case.optional("best_workers_over_none"), case.value("samples_per_s")
    chosen = case.mapping("recommended")
    workers, use = number(chosen, "num_workers"), _options(chosen)
    bound = _WORKLOADS.get(str(case.observed.get("workload")), "when bound by waiting for storage")
    case.metric("samples_per_second", rate, "samples/s", "higher")
    case.derive(best_workers_over_none=gain, recommended_num_workers=workers)
    # One CPU cannot gain.
    if gain is not None and case.value("effective_cpus") >= 2 and gain < case.number("warn_below"):  # noqa: PLR2004
        message = f"workers give {gain:.2f}x the throughput of num_workers=0 {bound}"
        advice = "Check the CPU quota and the threads: `envkit verify IMAGE --only C08`."
        return case.warn("WORKERS_BRING_NOTHING", message, advice, use)
    return case.passed(f"{rate:.0f} samples/s {bound}; {use}", *_declared(case, workers))


def _options(chosen: Mapping[str, Any]) -> str:
    words = [f"num_workers={number(chosen, 'num_workers'):g}"]
    prefetch = optional_number(chosen, "prefetch_factor")
    words += [] if prefetch is None else [f"prefetch_factor={prefetch:g}"]
    words += [f"{name}=True" for name in ("persistent_workers", "pin_memory") if flag(chosen, name)]
    return "best of the sweep: " + ", ".join(words)


def _declared(case: Case, workers: float) -> tuple[str, ...]:
    declared = case.optional("declared_num_workers")
    if declared is None or declared == workers:
        return ()
    return (f"The image declares num_workers={declared:g}; this machine did best with {workers:g}.",)
