"""Reports of prepared records, as text and as Markdown."""

from envkit.report.formats import render
from envkit.report.text import render_text
from tests.support.records import cpu_record, gpu_record


def reports() -> dict[str, bytes]:
    """Return the kept reports by file name: a GPU run with every table, and a run that measured nothing."""
    found: dict[str, bytes] = {}
    for name, record in (("gpu", gpu_record()), ("cpu", cpu_record())):
        found[f"{name}.txt"] = render_text(record, width=100, path="record.json").encode()
        found[f"{name}.md"] = render("md", record)
    return found
