"""Names of images are parsed while the options are read: one that is not valid ends every command before all else."""

import pytest

from envkit.cli import main
from envkit.cli.image_names import IMAGE, PUBLISHED, PUBLISHED_OR_FILE
from envkit.image.name import InEngine, InRegistry, parse_reference

COMMANDS = (
    ["attest", "{}", "--record", "none.json", "--unsigned"], ["compare", "{}", "debian"], ["compare", "debian", "{}"],
    ["diff", "{}", "oci:none"], ["diff", "none.lock", "{}"], ["doctor", "--image", "{}"], ["inspect", "{}"],
    ["push", "registry.example.com/team/train:1", "--image", "{}"], ["run", "{}", "--", "true"], ["shell", "{}"],
    ["verify", "{}"], ["verify", "oci:none", "{}"], ["verify", "{}", "--scheduler", "tcp://127.0.0.1:1"],
    ["watch", "{}", "--", "true"],
)  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_name_that_is_not_valid_is_quoted_as_it_was_typed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([word.format("registry:Team") for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "error: 'registry:Team' is not a valid image name: 'Team' is not a valid repository",
        "",
        "hint: use HOST/NAME:TAG in lower case: registry.example.com/team/train:1.0",
    ]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_login_in_a_name_is_not_shown(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([word.format("registry:me:hunter2@registry.example.com/a") for word in words]) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: an image name cannot contain a login: ...@'registry.example.com/a'")
    assert "hunter2" not in out + err


def test_what_a_plain_name_with_a_host_means_is_the_commands_choice() -> None:
    text = "registry.example.com/team/train:1"
    assert IMAGE.convert(text, None, None) == InEngine(name=text)
    for kind in (PUBLISHED, PUBLISHED_OR_FILE):
        assert kind.convert(text, None, None) == InRegistry(reference=parse_reference(text))
    assert PUBLISHED_OR_FILE.convert(__file__, None, None) == InEngine(name=__file__)
    assert IMAGE.convert(InEngine(name="train:1"), None, None) == InEngine(name="train:1")  # a value of click's own
