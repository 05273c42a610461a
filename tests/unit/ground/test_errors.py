import pytest

from envkit.ground import errors


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.UsageError, 2),
        (errors.ConflictError, 3),
        (errors.LockError, 4),
        (errors.NotVerifiedError, 5),
        (errors.VerificationError, 6),
        (errors.EngineError, 8),
        (errors.EnvironmentProblem, 9),
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


SECRET = "s3cret"


@pytest.mark.requirement("R35")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "conda_channel_alias: 'https://me:s3cret@host.example.com/c' is bad",
            "'https://***@host.example.com/c' is bad",
        ),
        ("https://s3cret@host.example.com/c", "https://***@host.example.com/c"),
        ("https://me:s3cret", "https://***"),
        (
            "https://host.example.com/t/s3cret/c and https://host.example.com:8443/a",
            "/t/***/c and https://host.example.com:8443/a",
        ),
        ("build base: 'me:s3cret@registry.example.com/x' is not", "'***@registry.example.com/x' is not"),
        ("'me:s3cret@localhost:5000/x'", "'***@localhost:5000/x'"),
    ],
)
def test_a_message_repeats_no_login(text: str, shown: str) -> None:
    error = errors.UsageError(text, hint=f"try {text}", details=(text,))
    for said in (error.message, str(error), error.hint or "", *error.details):
        assert SECRET not in said
        assert shown in said


@pytest.mark.parametrize(
    "text",
    [
        "registry.example.com/team/train:1@sha256:0123 is not there",
        "train:1@sha256:0123",
        "oci:DIR@DIGEST, docker-archive:FILE:TAG",
        "https://127.0.0.1:5000/v2/ and http://[::1]:5000/v2/ are away",
        "127.0.0.1:5000 was silent; mail me@example.com",
        "Dockerfile:3: warning D1: 12:30:15",
        "/t/file and numpy==2.0@x",
    ],
)
def test_a_message_keeps_what_is_no_login(text: str) -> None:
    assert errors.UsageError(text).message == text
