"""What envkit prints is resolved on an index of the recorded files; `benchmarks.printed_lines` asks for hundreds."""

from dataclasses import replace

import pytest

from benchmarks.printed_lines import FORMATS, files, missing, sample, swept
from envkit.facts.load import load

FACTS = load()


@pytest.mark.long
def test_lines_are_resolved_to_their_answers() -> None:
    asked, misses = swept(sample(FACTS, 10, 3), FACTS, {"pip": 1, "install": 0, "lock": 1}, ["pip"])
    assert [str(miss) for miss in misses] == []
    assert asked == {"uv (pip)": 10, "pip": 1, "envkit install": 0, "envkit lock": 1}


def test_a_pin_that_no_file_has_is_a_miss_in_every_format() -> None:
    (answer,) = sample(FACTS, 1, 3)
    wrong = replace(answer, files={**answer.files, "torchaudio": "2.11.0+cu999"})
    _, misses = swept([wrong], FACTS, {"pip": 1, "install": 0, "lock": 0})
    assert [miss.tool for miss in misses] == [*(f"uv ({form})" for form in FORMATS), "pip"]
    assert all("torchaudio==2.11.0+cu999" in miss.why for miss in misses), misses


def test_another_version_than_that_of_the_answer_is_a_miss() -> None:
    (answer,) = sample(FACTS, 1, 3)
    said = " ".join(f"{name}-{version}" for name, version in answer.files.items())
    assert missing("pip", answer, said) is None
    assert missing("pip", answer, said.replace(answer.files["torch"], answer.files["torch"] + "1")) is not None


def test_the_index_has_the_recorded_files_only() -> None:
    names = {file.path.rpartition("/")[2] for file in files(FACTS) if file.index == "cu132"}
    assert "torch-2.15.0+cu132-cp311-cp311-manylinux_2_28_x86_64.whl" in names
    assert not [name for name in names if name.startswith("torchaudio-2.11.0")]
