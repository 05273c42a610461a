import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.ground.errors import UsageError
from envkit.ground.versions import build_key, is_version, key, major, minor, parse_constraint


@pytest.mark.parametrize(
    ("text", "allowed", "refused"),
    [
        ("11.8", ["11.8", "11.8.0"], ["11.7", "12.8"]),
        ("2.7", ["2.7.0", "2.7.1"], ["2.70.0", "2.6.1"]),
        ("2.7.1", ["2.7.1"], ["2.7.0", "2.7.10"]),
        ("2.7.0", ["2.7.0", "2.7"], ["2.7.1"]),
        ("2.7.*", ["2.7.0", "2.7.1"], ["2.8.0"]),
        ("3.1", ["3.1"], ["3.10"]),
        ("==3.10", ["3.10"], ["3.1", "3.10.1"]),
        ("==3.10.*", ["3.10", "3.10.4"], ["3.11"]),
        ("!=2.7.*", ["2.6.0", "2.8.0"], ["2.7.0", "2.7.1"]),
        ("!=2.7.1", ["2.7.0"], ["2.7.1"]),
        (">=12.1,<13", ["12.1", "12.8"], ["12.0", "13.0"]),
        (" >= 12.1 , < 13 ", ["12.4"], ["13.0"]),
        ("<=12", ["12.0", "11.8"], ["12.1"]),
        (">2.7", ["2.7.1", "2.8.0"], ["2.7.0"]),
        ("~=2.7.0", ["2.7.0", "2.7.1"], ["2.8.0"]),
        ("~=2.7", ["2.7.0", "2.15.0"], ["2.6.9", "3.0"]),
        ("2.7.1+cu126", ["2.7.1"], ["2.7.0"]),
        ("1.1.1k", ["1.1.1"], ["1.1.2"]),
    ],
)
def test_a_constraint_allows(text: str, allowed: list[str], refused: list[str]) -> None:
    constraint = parse_constraint(text, "--x")
    assert [version for version in allowed if not constraint.allows(version)] == []
    assert [version for version in refused if constraint.allows(version)] == []
    assert str(constraint) == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "latest",
        "12,8",
        "12.",
        ".8",
        ">=",
        ">=2.*",
        "~=2",
        "2.7 .1",
        "\u0663.\u0661",
        "9" * 5000,
        "1.0.0.0rc1",
        "v2.7",
    ],
)
def test_what_is_no_version_is_refused_with_the_three_forms(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_constraint(text, "--torch")
    assert caught.value.message == f"--torch: {text!r} is not a version"
    assert caught.value.hint == "write an exact version (11.8), a prefix (2.7.*) or a specifier ('>=12.1,<13')"


def test_keys_compare_as_numbers() -> None:
    assert key("3.10") > key("3.9")
    assert key("2.7.0") == key("2.7") == key("2.7.0+cu126")
    assert key("570.124.06") > key("570.26")
    assert key("0") == (0,)
    with pytest.raises(UsageError, match="'x' is not a version"):
        key("x")


def test_parts() -> None:
    assert (minor("12.6.3"), minor("9"), minor("2.7.1+cu126")) == ("12.6", "9.0", "2.7")
    assert (major("12.6"), major("570.26")) == (12, 570)
    assert is_version("2.7.1+cu118")
    assert not is_version("2.7.*")


@given(st.text(max_size=20))
def test_any_text_is_a_constraint_or_a_usage_error(text: str) -> None:
    try:
        constraint = parse_constraint(text, "--x")
    except UsageError:
        return
    assert constraint.allows("2.7.1") in (True, False)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_a_version_allows_itself_and_what_it_begins(parts: list[int]) -> None:
    text = ".".join(map(str, parts))
    constraint = parse_constraint(text, "--x")
    assert constraint.allows(text)
    assert constraint.allows(f"{text}.7")
    assert not constraint.allows(".".join(map(str, [*parts[:-1], parts[-1] + 1])))


def test_a_build_number_is_compared_after_the_version() -> None:
    versions = ["26.5.3-10", "26.10.0-0", "26.5.3", "26.5.3-2"]
    assert sorted(versions, key=build_key) == ["26.5.3", "26.5.3-2", "26.5.3-10", "26.10.0-0"]
