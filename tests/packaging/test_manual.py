"""The manual pages have no fault for mandoc; test_wheel.py shows that `man` finds them."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.golden.manual import FOLDER
from tests.support.programs import program

PAGES = sorted(FOLDER.glob("*.1"))
_FIRST, _LAST = ["NAME", "SYNOPSIS", "DESCRIPTION"], ["EXIT STATUS", "SEE ALSO"]


def test_mandoc_finds_no_fault(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    mandoc = program(pytestconfig, "mandoc", "mandoc")
    done = subprocess.run([mandoc, "-Tlint", "-Wwarning", *PAGES], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)
    broken = tmp_path / "broken.1"
    broken.write_text(PAGES[0].read_text().replace(".SH NAME", ".SH NAME\n.nonsense"))
    assert subprocess.run([mandoc, "-Tlint", "-Wwarning", broken], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_its_sections(page: Path) -> None:
    titles = re.findall(r"^\.SH (.*)$", page.read_text(), re.MULTILINE)
    rest = titles[len(_FIRST) : -len(_LAST)]
    assert (titles[: len(_FIRST)], titles[-len(_LAST) :]) == (_FIRST, _LAST)
    assert rest == [one for one in ("COMMANDS", "OPTIONS", "EXAMPLES", "ENVIRONMENT", "FILES") if one in rest]
    assert "OPTIONS" in rest
