"""C21: do the image's JPEG decoders agree, and is another one worth using? It informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks import thresholds
from envkit.checks.fields import flag, mapping, number, optional_number
from envkit.checks.model import Finding, Verdict

if TYPE_CHECKING:
    from envkit.checks.model import Env, Observation, Spec


def judge(observation: Observation, _spec: Spec, _env: Env) -> Finding:
    """Judge one image size."""
    observed = mapping(observation, "observed")
    table = thresholds.load()
    agreement, row = table.row("C21.agreement"), table.row("C21.decoder")
    times, gains = mapping(observed, "decode_ms"), mapping(observed, "speed_up")
    differences = mapping(observed, "largest_difference")
    size = f"{number(observed, 'width'):.0f} x {number(observed, 'height'):.0f}"
    pillow, share = number(times, "pillow"), number(observed, "decode_share")
    metric = {"name": "pillow_decode", "value": pillow, "unit": "ms", "better": "lower"}
    others = {name: number(gains, name) for name in gains if name != "pillow"}
    best = max(others, key=others.__getitem__, default=None)
    derived = {"fastest": best, "speed_up": others.get(best) if best else None, "decode_share": share}
    for name in differences:
        difference = optional_number(differences, name)
        if difference is None or difference > agreement.number("fail_above"):
            how = "different shapes" if difference is None else f"pixels up to {difference:.0f} levels apart"
            message = f"{size}: {name} and Pillow decode the same image to {how}"
            advice = (f"Decode training and test data with one decoder; do not mix {name} with others.",)
            return Finding(Verdict.FAIL, message, "DECODERS_DISAGREE", advice, agreement.record(), metric, derived)
    # Suites before 1.2 did not measure it, and their records have no threshold for it.
    errors = mapping(observed, "mean_error") if "mean_error" in observed else {}
    for name in errors:
        error, picture = number(errors, name), table.row("C21.picture")
        if error > picture.number("fail_above"):
            message = f"{size}: {name} decodes an image to pixels that are off by {error:.0f} levels on average"
            advice = (f"Install another build of {name}; this one changes what models see.",)
            return Finding(Verdict.FAIL, message, "PICTURE_WRONG", advice, picture.record(), metric, derived)
    listed = ", ".join(f"{name} {gain:.2f}x" for name, gain in sorted(others.items())) or "no other decoder installed"
    message = f"{size}: Pillow {pillow:.1f} ms, {share:.0%} of preparing an image; {listed}"
    rule = row.record(type="informs")
    if not flag(observed, "turbo"):
        advice = ("Install a Pillow that is linked with libjpeg-turbo, such as its wheel.",)
        message = f"{message}; Pillow lacks libjpeg-turbo"
        linked = {"type": "equals", "turbo": True, "gates": False}  # reads no clock, so it holds on a busy machine, too
        return Finding(Verdict.WARN, message, "JPEG_WITHOUT_TURBO", advice, linked, metric, derived)
    starved = optional_number(observed, "starved_share")
    pays = share > row.number("decode_share") and best is not None and others[best] > row.number("worth")
    lines = (f"{best} would decode {others[best]:.2f} times as fast.",) if best is not None and pays else ()
    # A training that does not wait for its data gains nothing from a faster decoder.
    if starved is not None and starved <= row.number("starved_share"):
        lines = ()
    return Finding(Verdict.PASS, message, None, lines, rule, metric, derived)
