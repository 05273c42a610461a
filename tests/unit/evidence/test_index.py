"""What a file list of an index says about releases."""

from datetime import date

import pytest

from envkit.evidence.index import FileList, WheelFile


def wheel(version: str, uploaded: str | None) -> WheelFile:
    return WheelFile(
        name=f"torch-{version}-cp312-cp312-linux_x86_64.whl", url="https://index.example.com/torch.whl",
        version=version, build=None, tag="linux_x86_64", pythons=("3.12",), sha256=None, size=None, uploaded=uploaded,
        requires_python=None, yanked=False,
    )  # fmt: skip


@pytest.mark.parametrize("days", [("2026-01-10", None, "2026-03-01"), ("2026-03-01", "2026-01-10", None)])
def test_the_day_of_a_release_is_that_of_its_first_upload(days: tuple[str | None, ...]) -> None:
    files = tuple(wheel("2.9.0", day) for day in days)
    listed = FileList(package="torch", url="https://index.example.com/torch/", files=files, today=date(2026, 11, 1))
    assert listed.first_days() == {"2.9.0": "2026-01-10"}
