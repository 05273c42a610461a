"""The day that outputs depend on."""

import re

import pytest

from envkit.ground.clock import source_date, today
from envkit.ground.errors import UsageError


def test_the_day_is_that_of_the_source_date() -> None:
    assert today({"SOURCE_DATE_EPOCH": "1735689600"}) == "2025-01-01"
    assert today({"SOURCE_DATE_EPOCH": "1735689599"}) == "2024-12-31"


def test_without_a_source_date_the_clock_counts() -> None:
    assert source_date({}) is None
    assert source_date({"SOURCE_DATE_EPOCH": ""}) is None
    assert re.fullmatch(r"20[0-9]{2}-[0-9]{2}-[0-9]{2}", today({}))


@pytest.mark.parametrize("epoch", ["today", "1.5", "9" * 30, "253402300800"])
def test_a_source_date_that_is_no_time_is_refused(epoch: str) -> None:
    with pytest.raises(UsageError, match="not a number of seconds"):
        today({"SOURCE_DATE_EPOCH": epoch})
