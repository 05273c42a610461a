import re

import pytest

from envkit.evidence import yamltext
from envkit.facts import edited
from envkit.ground import strictyaml

TEXT = """# A comment at the top.
schema: 1
rows:
  - torch: 1.0.0
    released: null
    # about the pins
    triton: {pin: ==3.1.0}
    pypi:
      arch: ['7.0',
        '8.0']
      files:
        linux-64:
          pythons: ['3.9']
    refs: [a]
  - torch: 2.0.0
    released: '2024-01-01'
    refs: [a]
other:
  - torch: 9.0.0
"""


def changed(row: dict[str, object]) -> list[str]:
    text = yamltext.set_fields(TEXT, "t.yaml", 0, row)
    old = TEXT.splitlines()
    return [line for line in text.splitlines() if line not in old]


@pytest.mark.parametrize(
    ("row", "lines"),
    [
        ({"released": "2020-01-01"}, ["    released: '2020-01-01'"]),
        ({"triton": {"pin": "==3.2.0"}}, ["    triton: {pin: ==3.2.0}"]),
        ({"pypi": {"arch": ["7.5"]}}, ["      arch: ['7.5']"]),
        ({"pypi": {"files": {"linux-64": {"pythons": ["3.9", "3.10"]}}}}, ["          pythons: ['3.9', '3.10']"]),
        ({"torch": "1.0.1"}, ["  - torch: 1.0.1"]),
        ({"pypi": {"cudnn": "9.1"}}, ["      cudnn: '9.1'"]),
        ({"released": None, "refs": ["a"], "pypi": {"arch": ["7.0", "8.0"]}}, []),
    ],
)
def test_only_the_field_that_differs_changes(row: dict[str, object], lines: list[str]) -> None:
    assert changed(row) == lines


def test_a_field_that_is_replaced_twice_reads_back() -> None:
    text = yamltext.set_fields(TEXT, "t.yaml", 0, {"pypi": {"arch": ["7.5"]}, "refs": ["b", "c"]})
    tree = strictyaml.read(text, "t.yaml")
    assert isinstance(tree, dict)
    assert (tree["rows"][0]["pypi"]["arch"], tree["rows"][0]["refs"]) == (["7.5"], ["b", "c"])


@pytest.mark.parametrize(
    ("torch", "after"), [("0.9.0", "rows:"), ("1.5.0", "    refs: [a]"), ("3.0.0", "    refs: [a]")]
)
def test_a_row_is_inserted_in_its_place(torch: str, after: str) -> None:
    text = yamltext.insert(TEXT, "t.yaml", {"torch": torch, "refs": ["x"]}, yamltext.release_before(torch))
    lines = text.splitlines()
    assert lines[lines.index(f"  - torch: {torch}") - 1] == after
    assert text.replace(f"  - torch: {torch}\n    refs: [x]\n", "") == TEXT


def test_every_default_wheel_goes_back_to_its_place() -> None:
    """Rows of wheels that were removed return to the line where they stood."""
    text = (edited.DATA / "torch_cuda_variants.yaml").read_text()
    order = re.findall(r"(?m)^  - torch: (\S+)\n    cuda: (\S+)\n    source: (\S+)", text)
    for row in [row for row in edited.rows("torch_cuda_variants") if row.get("pypi_default")]:
        rest = [one for one in edited.rows("torch_cuda_variants") if one is not row]
        before = yamltext.variant_before(row["torch"], row["cuda"])
        place = max((n for n, one in enumerate(rest) if before(one)), default=-1) + 1
        assert order[place][0] == row["torch"], row["torch"]
        assert order[place][1].strip("'") == row["cuda"], row["torch"]
