from typing import Any

import pytest

from tests.support.verdicts import CLEAN, FAIL, INCONCLUSIVE, NOISY, PASS, WARN, found, said

FED = {
    "step_s": 0.0105,
    "step_without_loader_s": 0.010,
    "loader_alone_s": 0.004,
    "data_wait_s": 0.0003,
    "h2d_s": 0.0004,
    "compute_s": 0.0095,
    "launch_share": 0.2,
    "loss_first": 2.2,
    "loss_last": 1.1,
}
STARVED = {"step_s": 0.025, "data_wait_s": 0.015}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (PASS, None)),
        ({**STARVED, "loader_alone_s": 0.024}, (WARN, "DATA_BOUND")),
        (STARVED, (WARN, "LOADING_NOT_OVERLAPPED")),
        ({**STARVED, "data_wait_s": 0.001}, (WARN, "LOADER_TAKES_CPU")),
        ({"h2d_s": 0.004}, (WARN, "COPY_BOUND")),
        ({"launch_share": 0.97}, (WARN, "LAUNCH_BOUND")),
        ({"launch_share": None}, (PASS, None)),
        ({"loss_last": 2.2}, (FAIL, "LOSS_DOES_NOT_FALL")),
    ],
)
def test_arithmetic_names_the_bottleneck(changed: dict[str, Any], expected: tuple[Any, Any]) -> None:
    assert said("C23.training", {**FED, **changed}, subject="gpu:0", noise=CLEAN) == expected


def test_it_informs_and_tells_the_shares() -> None:
    finding = found("C23.training", {**FED, **STARVED}, subject="gpu:0", noise=CLEAN)
    assert finding.rule["gates"] is False
    assert finding.derived["starved_share"] == pytest.approx(0.6)
    assert finding.derived["bottleneck"] == "overlap"
    assert "starved 60% of 25.0 ms a step (data wait 60%, h2d 2%, compute 38%)" in finding.message


@pytest.mark.parametrize("changed", [{"loader_alone_s": 0.024}, {"data_wait_s": 0.001}])
def test_on_a_cpu_loader_and_training_share_one_processor(changed: dict[str, Any]) -> None:
    finding = found("C23.training", {**FED, **STARVED, **changed}, noise=CLEAN)
    assert finding.verdict is PASS
    assert finding.derived["bottleneck"] in ("data", "contention")
    assert finding.advice


@pytest.mark.parametrize("changed", [{"loader_alone_s": 0.024}, {"data_wait_s": 0.001}])
def test_a_loader_that_the_image_did_not_declare_is_not_held_against_it(changed: dict[str, Any]) -> None:
    """Decoding by 8 CPUs is slower than an H100 trains, so every image was DATA_BOUND there."""
    slow = {**FED, **STARVED, **changed}
    own = {**slow, "loader": {"num_workers": 8, "declared_num_workers": None}}
    finding = found("C23.training", own, subject="gpu:0", noise=CLEAN)
    assert (finding.verdict, finding.derived["bottleneck"] in ("data", "contention")) == (PASS, True)
    declared = {**slow, "loader": {"num_workers": 8, "declared_num_workers": 8}}
    assert said("C23.training", declared, subject="gpu:0", noise=CLEAN)[0] is WARN


def test_a_busy_machine_leaves_it_open_but_not_the_loss() -> None:
    assert said("C23.training", {**FED, **STARVED}, subject="gpu:0", noise=NOISY) == (INCONCLUSIVE, "NOISY")
    assert said("C23.training", {**FED, "loss_last": 2.3}, noise=NOISY) == (FAIL, "LOSS_DOES_NOT_FALL")


ATTENTION: dict[str, Any] = {
    "base": "math",
    "default": "flash",
    "refused": {"cudnn": "RuntimeError: no"},
    "took_ms": {"math": 8.0, "flash": 2.0, "efficient": 4.0},
    "speed_up": {"math": 1.0, "flash": 4.0, "efficient": 2.0},
    "largest_difference": {"math": 0.0, "flash": 0.004, "efficient": 0.004},
    "line": 0.03,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, (PASS, None)),
        ({"default": None}, (PASS, None)),
        ({"default": "math"}, (WARN, "ATTENTION_UNFUSED")),
        ({"largest_difference": {"math": 0.0, "flash": 0.9}}, (FAIL, "OPTION_CHANGES_RESULT")),
    ],
)
def test_an_option_of_a_step_informs(changed: dict[str, Any], expected: tuple[Any, Any]) -> None:
    finding = found("C23.attention", {**ATTENTION, **changed}, subject="gpu:0")
    assert (finding.verdict, finding.reason_code) == expected
    assert finding.rule["gates"] is False


def test_a_form_that_is_faster_than_the_default_is_advised() -> None:
    told = found("C23.attention", ATTENTION, subject="gpu:0")
    assert told.message == (
        "scaled dot product attention: torch uses flash; over math: flash 4.00x, efficient 2.00x; not available: cudnn"
    )
    assert told.advice == ()
    slower = found("C23.attention", {**ATTENTION, "default": "efficient"}, subject="gpu:0")
    assert slower.advice == (
        "Select it with torch.nn.attention.sdpa_kernel: flash is 2.00 times as fast as what torch uses by default.",
    )
    forms = {
        "base": "loop",
        "default": "foreach",
        "refused": {},
        "speed_up": {"loop": 1.0, "foreach": 3.0, "fused": 6.0},
    }
    fused = found("C23.optimizer", {**ATTENTION, **forms, "largest_difference": {}}, subject="gpu:0")
    assert fused.advice == ("Pass fused=True to torch.optim.AdamW: its step is 2.00 times as fast.",)


def test_a_default_that_fails_is_named_and_nothing_is_compared_with_it() -> None:
    # Recorded on an H200 in an image without libnvrtc-builtins: torch chose cuDNN, which compiles its kernel then.
    refused = {"cudnn": "RuntimeError: cuDNN Frontend error: No valid execution plans built."}
    failing = {**ATTENTION, "default": "cudnn", "refused": refused}
    assert found("C23.attention", failing, subject="gpu:0").advice == ()
    told = found("C23.attention", {**failing, "default_error": refused["cudnn"]}, subject="gpu:0")
    assert (told.verdict, told.reason_code) == (WARN, "ATTENTION_FAILS")
    assert told.message.endswith(f"as torch chooses by itself it fails: {refused['cudnn']}")
