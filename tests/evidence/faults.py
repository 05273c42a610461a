"""The table of faults in contributing/facts.md, which the tests read their expectations from."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "contributing" / "facts.md"


def documented() -> dict[str, tuple[str, int, int]]:
    """Fault -> part of the message, exit code, most bytes read."""
    table = PAGE.read_text().partition("| fault |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {row[0]: (row[1].strip("`"), int(row[2]), int(row[3].replace(",", ""))) for row in rows}


def refused(fault: str, found: tuple[int, str, str], sent: int) -> None:
    """Hold an answer against the table: one line with a next step, nothing on stdout, no more bytes than it says."""
    (code, out, err), (line, expected, most) = found, documented()[fault]
    assert (code, out) == (expected, ""), err
    assert line in err
    assert err.count("error: ") == 1
    assert "hint:" in err
    assert "Traceback" not in err
    assert sent <= most, (sent, most)
