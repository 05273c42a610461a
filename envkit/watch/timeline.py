"""The timeline of a record as SVG: one track per quantity, all on the same time axis. Lengths are in user units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envkit.checks.sheet import short
from envkit.report.html.charts import WIDE, at, bar, both_widths, label, line, ticks
from envkit.report.html.markup import Markup, el
from envkit.watch.model import Card, Process, Record, Sample

_EDGE = 8  # pixels
_NAME, _TRACK = 26, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One quantity over time; unknown values are None."""

    name: str
    unit: str
    most: float  # top of the scale
    values: tuple[float | None, ...]


def tracks(record: Record) -> tuple[Track, ...]:
    """Return the quantities with at least one value above 0."""
    samples, cpus = record.samples, record.machine.cpus

    def track(name: str, unit: str, most: float | None, value: Callable[[Sample], float | None]) -> Track:
        values = tuple(value(sample) for sample in samples)
        highest = max((number for number in values if number is not None), default=0.0)
        return Track(name=name, unit=unit, most=max(most or highest, 1e-9), values=values)

    shown = [
        track("waiting for data", "%", 100, lambda sample: _times(sample.waiting, 100)),
        track("CPUs busy", "", max(cpus, 1), lambda sample: min(sample.cpus, cpus)),
        track("waiting for a CPU", "%", 100, lambda sample: _times(sample.main_queued, 100)),
        track(
            "steps per second", "", None, lambda sample: None if sample.steps is None else sample.steps / sample.seconds
        ),
        track("memory", "GB", None, lambda sample: sample.resident_bytes / 1e9),
        track("read from disks", "MB/s", None, lambda sample: sample.read_mb_per_s),
    ]
    for index in sorted({card.index for sample in samples for card in sample.gpus}):
        card = _card(index)
        name = f"GPU {index}"
        # `card=card` binds the value now; otherwise every lambda would use the last GPU of the loop.
        shown += [
            track(f"{name} utilization", "%", 100, lambda sample, card=card: card(sample).util),  # type: ignore[misc]
            track(f"{name} clock", "MHz", None, lambda sample, card=card: card(sample).sm_mhz),  # type: ignore[misc]
            track(f"{name} power", "W", None, lambda sample, card=card: card(sample).watts),  # type: ignore[misc]
            track(f"{name} memory", "GB", None, lambda sample, card=card: _times(card(sample).memory_used, 1e-9)),  # type: ignore[misc]
            track(f"{name} PCIe in", "MB/s", None, lambda sample, card=card: card(sample).rx_mb_per_s),  # type: ignore[misc]
        ]
    return tuple(quantity for quantity in shown if any(value for value in quantity.values if value is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timeline:
    """The names of a figure, and its summary."""

    ident: str
    title: str
    summary: str
    better: str = ""


def draw(record: Record) -> Markup | None:
    """Return the timeline as SVG, None for a record without samples."""
    shown = tracks(record)
    if not shown or not record.samples:
        return None
    figure = _Timeline(ident="timeline", title="Over time", summary="; ".join(_range(track) for track in shown))
    return both_widths(figure, lambda width: _draw_at(record, shown, width))


def _draw_at(record: Record, shown: Sequence[Track], width: float) -> tuple[float, list[object]]:
    """Return the height and the elements. Each track has its name and the top of its scale above it."""
    bottom = (_NAME + _TRACK) * len(shown)
    end = max(sample.at_s for sample in record.samples)

    def x_of(seconds: float) -> float:
        return _EDGE + (width - 2 * _EDGE) * min(seconds, end) / end

    times = [value for value in ticks(end, 8 if width == WIDE else 4) if value <= end]
    # Only behind the tracks, so that no line crosses a name.
    behind = [
        part
        for index in range(len(shown))
        for top in [(_NAME + _TRACK) * index + _NAME]
        for part in (
            *_steady(record.ranks, x_of, top),
            *(line(x_of(value), top, x_of(value), top + _TRACK, "grid") for value in times),
        )
    ]
    parts: list[object] = [*behind]
    for value in times:
        anchor = "start" if value == 0 else "end" if x_of(value) > width - 4 * _EDGE else "middle"
        parts += [label(x_of(value), bottom + 18, f"{value:g} s", anchor=anchor, kind="quiet")]
    for index, track in enumerate(shown):
        parts += _track(track, record.samples, (_NAME + _TRACK) * index + _NAME, x_of, width)
    return bottom + 24, parts


def _track(
    track: Track, samples: Sequence[Sample], top: float, x_of: Callable[[float], float], width: float
) -> list[object]:
    floor = top + _TRACK
    return [
        label(_EDGE, top - 6, track.name),
        label(width - _EDGE, top - 6, f"{short(track.most)} {track.unit}".strip(), anchor="end", kind="quiet"),
        line(_EDGE, floor, width - _EDGE, floor, "grid"),
        *_areas(track, samples, floor, x_of),
    ]


def _areas(track: Track, samples: Sequence[Sample], floor: float, x_of: Callable[[float], float]) -> list[object]:
    """Return step-shaped areas under the values, with gaps for unknown values."""
    areas: list[list[tuple[float, float]]] = []
    before = False
    for sample, value in zip(samples, track.values, strict=True):
        if value is not None:
            y = floor - _TRACK * min(1.0, value / track.most)
            areas += [] if before else [[]]
            areas[-1] += [(x_of(max(0.0, sample.at_s - sample.seconds)), y), (x_of(sample.at_s), y)]
        before = value is not None
    closed = ([(area[0][0], floor), *area, (area[-1][0], floor)] for area in areas)
    return [el("polygon", points=" ".join(f"{at(x)},{at(y)}" for x, y in area), class_="area") for area in closed]


def _steady(ranks: Sequence[Process], x_of: Callable[[float], float], top: float) -> list[object]:
    """Mark the time that was judged, behind the track that begins at `top`."""
    begins = [process.begin_s for process in ranks if process.begin_s is not None]
    ends = [process.end_s for process in ranks if process.end_s is not None]
    if not begins or not ends:
        return []
    left, right = x_of(min(begins)), x_of(max(ends))
    return [bar(left, top, right - left, _TRACK, "judged")]


def _range(track: Track) -> str:
    known = [value for value in track.values if value is not None]
    return f"{track.name}: {short(min(known))} to {short(max(known))} {track.unit}".strip()


def _card(index: int) -> Callable[[Sample], Card]:
    def card_of(sample: Sample) -> Card:
        return next((card for card in sample.gpus if card.index == index), Card(index=index))

    return card_of


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
