import pytest

from envkit.evidence import yamltext
from envkit.facts import edited
from envkit.ground import strictyaml


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("3.10", "'3.10'"), ("3.14t", "3.14t"), ("1.8.0", "1.8.0"), ("2026-10-28", "'2026-10-28'"), ("12", "'12'"),
        (">=3.11", "'>=3.11'"), ("~=3.9.0", "~=3.9.0"), ("a: b", "'a: b'"), ("it's#1", "it's#1"), ("no", "'no'"),
        ("", "''"), (None, "null"), (True, "true"), ("x #y", "'x #y'"),
    ],
)  # fmt: skip
def test_a_scalar_is_quoted_where_yaml_would_read_another_type(value: object, text: str) -> None:
    assert yamltext.scalar(value) == text


@pytest.mark.parametrize("name", ["torch_releases", "torch_cuda_variants", "cudnn_cuda"])
def test_rows_read_back_as_they_are(name: str) -> None:
    rows = edited.rows(name)
    lines = ["rows:"] + [line for row in rows for line in yamltext.item(row, 2, frozenset({"confidence", "triton"}))]
    assert strictyaml.read("\n".join(lines) + "\n", name) == {"rows": rows}


def test_what_nobody_knows_is_asked() -> None:
    assert yamltext.fields({"a": yamltext.Ask("which one?")}, 2) == ["  a: null  # ask: which one?"]
