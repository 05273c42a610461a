"""What `allow_source` takes, and the reason for everything else."""

import pytest

from envkit.ground.errors import UsageError
from envkit.plan.source_spec import SourceSpec, fault, merged, parse
from envkit.plan.store import plan_from_json
from tests.support.plans import plan_from

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = "git+https://git.example.com/team/edge"


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("Fast_Sum", SourceSpec(name="fast-sum", requirement="Fast_Sum")),
        ("ropes>=1.4,<2", SourceSpec(name="ropes", requirement="ropes>=1.4,<2")),
        (
            f"edge @ {GIT}@{COMMIT}",
            SourceSpec(name="edge", requirement=None, url=GIT.removeprefix("git+"), commit=COMMIT),
        ),
        (
            f"edge@git+http://127.0.0.1:8080/edge.git@{COMMIT}",
            SourceSpec(name="edge", requirement=None, url="http://127.0.0.1:8080/edge.git", commit=COMMIT),
        ),
    ],
)
def test_a_name_or_a_commit(text: str, spec: SourceSpec) -> None:
    assert fault(text) is None
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            f"edge @ {GIT}",
            "has no commit; append @ and the full hash (40 hex digits): git ls-remote https://git.example.com/team/edge",
        ),
        (
            f"edge @ {GIT}@main",
            "ends with 'main', which is not a full commit hash (40 hex digits): git ls-remote https://",
        ),
        (f"edge @ {GIT}@{COMMIT[:12]}", f"ends with '{COMMIT[:12]}'"),
        (f"edge @ git+https://me:secret@git.example.com/edge@{COMMIT}", "contains a login"),
        (f"edge @ git+http://git.example.com/edge@{COMMIT}", "is plain http"),
        (f"edge @ git+https://169.254.169.254/edge@{COMMIT}", "is on 169.254.169.254, which is"),
        (f"edge @ git+ssh://git@git.example.com/edge@{COMMIT}", "is not an https URL"),
        (f"edge @ git+file:///srv/edge@{COMMIT}", "is not an https URL"),
        (f"edge @ {GIT}@{COMMIT}#subdirectory=x", "which is not a full commit"),
        ("edge @ https://files.example.com/edge-1.tar.gz", "is not a source; write NAME"),
        (f"torch @ {GIT}@{COMMIT}", "is chosen by the resolver"),
        ("torch", "is chosen by the resolver"),
        ("-r other.txt", "is not a requirement"),
        ("x" * 600, "longer than 512"),
    ],
)
def test_everything_else_is_refused_with_its_reason(text: str, why: str) -> None:
    assert why in (fault(text) or "")


def test_a_git_url_among_the_pip_packages_is_led_to_allow_source() -> None:
    with pytest.raises(UsageError, match="list it under allow_source"):
        plan_from(f'pip: ["edge @ {GIT}@{COMMIT}"]\n')


def test_a_git_url_without_a_commit_is_one_error_with_exit_code_2() -> None:
    with pytest.raises(
        UsageError, match=r"train.yaml: allow_source\[0\]: .* has no commit; .*: git ls-remote https://"
    ) as caught:
        plan_from(f'allow_source: ["edge @ {GIT}"]\n')
    assert (caught.value.exit_code, caught.value.details) == (2, ())


def test_a_plan_without_sources_keeps_its_form() -> None:
    assert "allow_source" not in plan_from("").to_json()


def test_a_plan_with_sources_is_read_back() -> None:
    plan = plan_from("allow_source: [fastsum]\n")
    assert plan_from_json(plan.to_json(), "plan") == plan


@pytest.mark.parametrize(
    ("listed", "typed", "both"),
    [
        ((), ("a",), ("a",)),
        (("a", "b>=1"), (), ("a", "b>=1")),
        (("a==1", "b"), ("A",), ("b", "A")),
        (("fast_sum",), ("fast-sum<2", "fast-sum<2"), ("fast-sum<2",)),
        ((f"edge @ {GIT}@{COMMIT}",), ("edge",), ("edge",)),
        (("edge",), (f"edge @ {GIT}@{COMMIT}",), (f"edge @ {GIT}@{COMMIT}",)),
    ],
)
def test_entries_of_the_command_line_replace_those_for_the_same_package(
    listed: tuple[str, ...], typed: tuple[str, ...], both: tuple[str, ...]
) -> None:
    assert merged(listed, typed) == both
