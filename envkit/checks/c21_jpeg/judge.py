"""C21: do the image's JPEG decoders agree, and is another one worth using? It informs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.checks.observed import number, optional_number

if TYPE_CHECKING:
    from envkit.checks.case import Case
    from envkit.checks.model import Finding


def judge(case: Case) -> Finding:
    """Judge one image size."""
    times, gains, differences = case.mapping("decode_ms"), case.mapping("speed_up"), case.mapping("largest_difference")
    size = f"{case.value('width'):.0f} x {case.value('height'):.0f}"
    pillow, share = number(times, "pillow"), case.value("decode_share")
    case.metric("pillow_decode", pillow, "ms", "lower")
    others = {name: number(gains, name) for name in gains if name != "pillow"}
    best = max(others, key=others.__getitem__, default=None)
    case.derive(fastest=best, speed_up=others.get(best) if best else None, decode_share=share)
    case.use("C21.agreement")
    for name in differences:
        difference = optional_number(differences, name)
        if difference is None or difference > case.number("fail_above"):
            how = "different shapes" if difference is None else f"pixels up to {difference:.0f} levels apart"
            advice = f"Decode training and test data with one decoder; do not mix {name} with others."
            return case.fail("DECODERS_DISAGREE", f"{size}: {name} and Pillow decode the same image to {how}", advice)
    # Suites before 1.2 did not measure it, and their records have no threshold for it.
    errors = case.mapping("mean_error") if "mean_error" in case.observed else {}
    for name in errors:
        error = number(errors, name)
        case.use("C21.picture")
        if error > case.number("fail_above"):
            message = f"{size}: {name} decodes an image to pixels that are off by {error:.0f} levels on average"
            advice = f"Install another build of {name}; this one changes what models see."
            return case.fail("PICTURE_WRONG", message, advice)
    listed = ", ".join(f"{name} {gain:.2f}x" for name, gain in sorted(others.items())) or "no other decoder installed"
    message = f"{size}: Pillow {pillow:.1f} ms, {share:.0%} of preparing an image; {listed}"
    if not case.flag("turbo"):
        case.rule("equals", turbo=True, gates=False)  # reads no clock, so it holds on a busy machine, too
        advice = "Install a Pillow that is linked with libjpeg-turbo, such as its wheel."
        return case.warn("JPEG_WITHOUT_TURBO", f"{message}; Pillow lacks libjpeg-turbo", advice)
    case.use("C21.decoder", type="informs")
    starved = case.optional("starved_share")
    # A training that does not wait for its data gains nothing from a faster decoder.
    waits = starved is None or starved > case.number("starved_share")
    if best is not None and waits and share > case.number("decode_share") and others[best] > case.number("worth"):
        return case.passed(message, f"{best} would decode {others[best]:.2f} times as fast.")
    return case.passed(message)
