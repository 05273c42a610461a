"""Check that a record can be judged again from its own bytes with the same result."""

from __future__ import annotations

import json

from envkit.verify.again import judge_again
from envkit.verify.record import Record, seal


def assert_same_again(record: Record) -> None:
    """Judge the record's bytes again and check that every finding and the summary are the same."""
    tree = json.loads(record.to_bytes())
    assert seal(tree) == tree["sha256"]
    again = judge_again(tree)
    assert again.changed == ()
    assert again.same_rules
    assert json.loads(again.record.to_bytes()) == tree
