"""C23: where a training step's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from envkit.checks.reading import Tree, is_noisy, is_number, mapping, number, sequence
from envkit.checks.sheet import LOWER, Parts, Sheet, Shown, Tile, cell, short, tables
from envkit.ground.text import clean

_WHOLE = 1.05  # the parts are timed one by one, so their sum may be 5 % above the step

_FILLS = {"data_wait": "hatched", "h2d": "s2", "compute": "s0"}

_PARTS = {"data_wait": "waiting for data", "h2d": "copying to the device", "compute": "computing"}


@dataclass(frozen=True, slots=True)
class StepTime:
    """A training step in milliseconds: the whole and its parts, with one batch reused, and the loader alone."""

    full_ms: float
    reused_ms: float
    loader_ms: float | None
    parts: tuple[tuple[str, float], ...]  # ('data_wait' | 'h2d' | 'compute', ms)
    starved: float  # share of the full step that the loader costs, 0..1
    noisy: bool
    bottleneck: str = ""  # as in the finding
    message: str = ""  # of the finding
    advice: tuple[str, ...] = ()

    @property
    def overlapping(self) -> bool:
        """Whether the parts exceed the whole, because the host waits for data while the device still computes."""
        return sum(value for _, value in self.parts) > self.full_ms * _WHOLE


def step_time(checks: Sequence[Tree]) -> StepTime | None:
    """Return C23's breakdown, or None if it was not measured."""
    for check in checks:
        observed = mapping(check.get("observed"))
        full, reused = _ms(observed.get("step_s")), _ms(observed.get("step_without_loader_s"))
        if full and reused is not None:
            # On a noisy machine the step without the loader can be the longer one.
            starved = min(max(1 - reused / full, 0.0), 1.0)
            timed = ((part, _ms(observed.get(f"{part}_s"))) for part in ("data_wait", "h2d", "compute"))
            parts = tuple((part, value) for part, value in timed if value is not None)
            return StepTime(
                full_ms=full,
                reused_ms=reused,
                loader_ms=_ms(observed.get("loader_alone_s")),
                parts=parts,
                starved=starved,
                noisy=is_noisy(check),
                bottleneck=clean(mapping(check.get("derived")).get("bottleneck") or ""),
                # A failure is about the loss and not about the time.
                message="" if check.get("verdict") == "FAIL" else clean(check.get("message") or ""),
                advice=() if check.get("verdict") == "FAIL" else tuple(map(clean, sequence(check.get("advice")))),
            )
    return None


def _ms(seconds: object) -> float | None:
    return seconds * 1e3 if is_number(seconds) and seconds >= 0 else None


def _figure(step: StepTime) -> Parts:
    parts = [(_PARTS[name], value, _FILLS[name]) for name, value in step.parts]
    named = f"A training step, {step.starved:.0%} starved"
    bars: list[tuple[str, list[tuple[str, float, str]]]] = [(named, parts)]
    if step.overlapping or not parts:
        # Stacked they would be longer than the step.
        bars = [(named, [("total", step.full_ms, "s0")]), *((f"Of which {part[0]}", [part]) for part in parts)]
    bars.append(("The same batch again, without the loader", [("total", step.reused_ms, "s0")]))
    if step.loader_ms is not None:
        bars.append(("The loader alone", [("loading a batch", step.loader_ms, "s1")]))
    return Parts("step-time", "A step, with and without its loader", _starved(step), bars, unit="ms", better=LOWER)


def _tile(step: StepTime) -> Tile:
    return Tile("Starved share", f"{step.starved:.0%}", "of a training step waits for its loader", LOWER)


def _starved(step: StepTime) -> str:
    return (
        f"Starved share {step.starved:.0%}: a step takes {short(step.full_ms)} ms,"
        f" and {short(step.reused_ms)} ms without waiting for its loader."
    )


def _sheet(step: StepTime) -> Sheet:
    times = [("a training step", step.full_ms), *((f"of which {_PARTS[name]}", value) for name, value in step.parts)]
    times.append(("the same batch again, without the loader", step.reused_ms))
    times += [] if step.loader_ms is None else [("the loader alone", step.loader_ms)]
    notes = [_starved(step)]
    if step.bottleneck:
        notes.append(f"Bottleneck {step.bottleneck}{': ' if step.message else ''}{step.message}.")
    if step.overlapping:
        notes.append(
            "The host waits for data while the device still computes, so the parts add up to more than a step."
        )
    return Sheet(
        title="Where a training step's time goes",
        head=("what", "ms", "of a step"),
        rows=[[name, cell(took, ".3g"), cell(took / step.full_ms, ".0%")] for name, took in times],
        notes=tuple(notes),
        advice=step.advice,
        noisy=step.noisy,
    )


_FORMS = {"optimizer": "AdamW", "channels_last": "memory format", "attention": "attention"}


def _options(checks: Sequence[Tree]) -> Sheet:
    """Return a table with a row for each form of each option that was timed."""
    rows, advice = [], []
    for check in checks:
        observed, part = mapping(check.get("observed")), str(check.get("id")).partition(".")[2]
        took, gains = mapping(observed.get("took_ms")), mapping(observed.get("speed_up"))
        for name in took if part in _FORMS else ():
            mark = "yes" if name == observed.get("default") else ""
            times = (cell(number(took[name]), ".3g"), cell(number(gains.get(name)), ".2f", "x"))
            rows.append([_FORMS[part], clean(name), *times, mark])
        advice += [clean(line) for line in sequence(check.get("advice"))] if part in _FORMS else []
    head = ("what", "form", "ms", "speedup", "by default")
    return Sheet(title="Options of a training step", head=head, rows=rows, advice=tuple(advice))


def show(checks: Sequence[Tree]) -> Shown:
    """Show the parts of a training step, the share lost to the loader, the bottleneck and what to do about it."""
    step = step_time(checks)
    return Shown(
        ident="step",
        title="Where a training step's time goes",
        sheets=tables(*(() if step is None else (_sheet(step),)), _options(checks)),
        figures=() if step is None else (_figure(step),),
        tiles=() if step is None else (_tile(step),),
    )
