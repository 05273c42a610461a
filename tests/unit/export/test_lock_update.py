"""The jobs that update a lock: what they are exported for, and the words of the solve."""

import pytest

from envkit.export.kinds import kind
from envkit.ground.errors import UsageError
from tests.support.exports import exported, main_file, matrix_order, order, read_yaml

KINDS = pytest.mark.parametrize("name", ["github-lock", "gitlab-lock"])


@KINDS
def test_a_lock_has_one_definition(name: str) -> None:
    with pytest.raises(UsageError, match=r"a lock belongs to one definition, not to 2$") as caught:
        kind(name).exporter()(order(name, ("cpu", "cu126")))
    assert "--set lock=NAME.lock" in str(caught.value.hint)
    with pytest.raises(UsageError, match="not to a matrix"):
        kind(name).exporter()(matrix_order(name))


@KINDS
def test_only_the_named_packages_are_updated(name: str) -> None:
    text = main_file(exported(name, ("cpu",), options=order(name, ("cpu",), given={"packages": "numpy,tini"}).options))
    assert 'envkit lock "$DEFINITION" --engine embedded -o "$LOCK" --update numpy --update tini\n' in text
    assert 'envkit lock "$DEFINITION" --engine embedded -o "$LOCK" --upgrade\n' in main_file(exported(name, ("cpu",)))


@KINDS
@pytest.mark.parametrize(
    "given", [{"packages": "a b"}, {"packages": "-x"}, {"lock": "/x"}, {"branch": "-x"}, {"branch": "a..b"}]
)
def test_values_that_a_shell_or_git_would_take_for_more_are_refused(name: str, given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"--set {next(iter(given))}="):
        order(name, ("cpu",), given=given)


def test_the_schedule_of_github_is_its_own() -> None:
    made = order("github-lock", ("cpu",), given={"schedule": "5 1 * * MON"})
    tree = read_yaml(main_file(exported("github-lock", ("cpu",), options=made.options)))
    assert tree["on"]["schedule"] == [{"cron": "5 1 * * MON"}]
    with pytest.raises(UsageError, match="schedule"):
        order("github-lock", ("cpu",), given={"schedule": "daily"})
