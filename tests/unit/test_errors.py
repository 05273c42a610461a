import pytest

from envkit import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UsageError, 2),
        (errors.ConflictError, 3),
        (errors.LockError, 4),
        (errors.NotVerifiedError, 5),
        (errors.VerificationError, 6),
        (errors.EngineError, 8),
        (errors.SurroundingsError, 9),
        (errors.IntegrityError, 10),
        (errors.TimeLimitError, 124),
    ],
)
def test_exit_codes_are_the_documented_ones(kind: type[errors.EnvkitError], code: int) -> None:
    assert kind("x").exit_code == code


def test_signals_exit_with_128_plus_their_number() -> None:
    assert errors.InterruptedRun(2).exit_code == 130
    assert errors.InterruptedRun(15).exit_code == 143
    assert errors.InterruptedRun(15).message == "ended by SIGTERM"
