import pytest

from envkit.plan.variables import plain_driver, read_requirement


@pytest.mark.parametrize(
    ("version", "plain"),
    [
        ("450.80.02", "450.80"),
        ("525.60.13", "525.60.13"),
        ("580", "580"),
        ("418.39", "418.39"),
        ("535.104.05", "535.104"),
    ],
)
def test_driver_versions_as_the_toolkit_reads_them(version: str, plain: str) -> None:
    assert plain_driver(version) == plain


def test_a_requirement_is_read_back() -> None:
    assert read_requirement("cuda>=12.6 driver>=525.60.13") == [
        [("cuda", ">=", "12.6")],
        [("driver", ">=", "525.60.13")],
    ]
    assert read_requirement("brand=tesla,driver>=470,driver<471") == [
        [("brand", "=", "tesla"), ("driver", ">=", "470"), ("driver", "<", "471")]
    ]


@pytest.mark.parametrize(
    "value",
    ["", "drvier>=535", "cuda", "driver>=450.80.02", "cuda>=12.6  driver>=5", "cuda=>12", "cuda>=12.6,", "cuda>="],
)
def test_what_the_toolkit_would_skip_or_refuse(value: str) -> None:
    assert read_requirement(value) is None
