"""What a registry says of an error, as messages may show it."""

import json

import pytest

from envkit.registry.registry import _errors


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (json.dumps({"errors": [{"code": "DENIED", "message": "no"}, {"code": "X"}]}), "DENIED no; X"),
        (json.dumps({"errors": [{"code": "DENIED", "message": "no\x1b[2J\x1b[Hdone\n"}]}), "DENIED nodone"),
        (json.dumps({"errors": [{"code": "DENIED", "message": "a\u202eb"}]}), "DENIED a\\x202eb"),
        ("words", "words"),
        ('{"errors": 5}', '{"errors": 5}'),
    ],
)
def test_its_words_steer_no_terminal(text: str, shown: str) -> None:
    assert _errors(text) == shown
