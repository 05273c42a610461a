"""The kinds of fault that project files of users have shown, and how many inputs the tests have of each.

    python -m tests.project_kinds

prints the table. Each kind names the tests whose inputs are of it; `tests/unit/project/test_kinds.py` asks that each
has at least five.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Mapping

LEAST = 5
_PROJECT, _DOCTOR = "tests.unit.project.", "tests.unit.doctor."
KINDS: Mapping[str, tuple[str, ...]] = {
    "markers, Python and platform decided too early": (
        "test_cases:a flag decides", "test_cases:a template decides", "test_cases:each line has",
        "test_cases:only the line",
        "test_cases:backports", "test_cases:markers of the processor", "test_cases:without a platform",
        "test_cases.test_a_marker_that_never_holds_is_for_another_system",
    ),
    "patch releases of Python": (
        "test_cases:conda", "test_cases:cog", "test_cases:pixi", "test_cases:poetry", "test_cases:an exact Python",
        "test_cases:a range within",
    ),
    "companions and wheels that decide torch": (
        "test_cases:a triton", "test_cases:a CUDA library",
        "test_cases:a torchvision", "test_cases:torchaudio alone", "test_cases:a pair of two",
        "test_exports.test_a_wheel_of_torch_names_its_version_and_cuda",
    ),
    "exports of conda and pip freeze": (
        "test_exports.test_an_export_keeps_what_was_asked_for",
        "test_exports.test_what_is_of_windows_is_for_another_system",
        "test_exports.test_what_is_of_macos_is_for_another_system",
        "test_exports.test_what_pip_freeze_lists_of_conda_is_lost_with_the_next_command",
        "test_exports.test_wheels_and_packages_of_other_systems_are_not_for_this_one",
    ),
    "paths, URLs and options that cannot be locked": ("test_cases.test_what_cannot_be_locked_is_lost_by_name",),
    "words of comments and values of options": ("test_commands.test_values_of_options_are_no_packages",),
    "indexes that select the device": (
        "test_commands.test_every_form_of_an_index_selects_the_device",
    ),
    "variants: extras, groups, environments": (
        "test_cases:the extra", "test_cases:an extra", "test_cases:a group", "test_cases:the group",
        "test_cases:an environment of pixi", "test_older_files.test_an_extra_without_an_index_names_its_cuda",
    ),
    "bases and stages of Dockerfiles": (
        "test_cases.test_a_base_that_decides_torch_and_cannot_be_read_is_a_question",
        "test_cases.test_a_base_of_which_nothing_is_known_is_a_question",
        "test_cases.test_a_base_that_has_no_torch_is_not_a_question",
        "test_stages.test_the_base_of_a_builder_is_no_question",
        "test_stages.test_the_packages_of_a_copied_environment_are_taken",
        "test_stages.test_tools_of_a_builder_are_no_packages_of_the_image",
    ),
    "the project itself: pip install ., uv sync": (
        "test_own_project.test_the_requirements_of_the_project_are_taken",
        "test_own_project.test_a_project_that_is_not_in_the_context_is_lost",
    ),
    "files of older tools": (
        "test_older_files.test_a_pipfile", "test_older_files.test_a_setup_cfg", "test_older_files.test_a_setup_py",
        "test_older_files.test_a_setup_py_that_reads_a_file",
        "test_older_files.test_what_a_setup_py_computes_is_lost_by_name",
    ),
    "files by content, and files that are none": (
        "test_older_files.test_every_command_knows_a_file_by_its_content",
        "test_older_files.test_what_is_not_a_project_file_is_refused",
        "test_cases.test_a_projects_file_is_known_by_its_content",
    ),
    "the Python that a Dockerfile installs, or its base has": (
        "test_targets.test_the_python_that_a_dockerfile_installs_is_taken",
        "test_targets.test_a_python_that_is_not_the_images_is_not_taken",
    ),
    "a device or torch that envkit does not have": (
        "test_targets.test_a_torch_for_amd_is_a_question",
        "test_targets.test_a_nightly_build_becomes_a_release_after_it",
        "test_targets.test_a_cuda_that_no_torch_has_is_not_exchanged_for_the_newest",
        "test_targets.test_a_cpu_build_that_only_wheels_have_is_taken",
    ),
    "lines of which a part is lost": (
        "test_container_lines.test_a_part_that_is_lost_does_not_lose_the_line",
    ),
    "the build context": ("test_container_lines.test_the_context_has_the_files_that_are_copied",),
    "bad input": (
        "test_bad_input.test_a_number_of_5000_digits_is_one_error",
        "test_bad_input.test_a_version_of_5000_digits_is_lost_by_name",
        "test_bad_input.test_a_dockerfile_of_5000_lines", "test_bad_input.test_an_empty_file_is_one_error",
        "test_bad_input.test_extras_that_contradict_each_other_are_an_error",
        "test_cases.test_requirements_that_include_themselves_are_one_error",
    ),
    "doctor: what the reader of init sees": ("doctor.test_files.test_what_the_reader_of_init_sees_is_diagnosed",),
    "doctor: no false findings": ("doctor.test_files.test_no_false_findings",),
    "doctor: Compose files": ("doctor.test_files.test_a_compose_file",),
}  # fmt: skip


def inputs(name: str) -> int:
    """Return how many inputs a test has (`MODULE.TEST`), or how many cases begin with a text (`MODULE:TEXT`)."""
    if ":" in name:
        module, _, begin = name.partition(":")
        cases = importlib.import_module(_PROJECT + module).CASES
        return sum(title.startswith(begin) for title in cases)
    module, _, test = name.rpartition(".")
    base = _DOCTOR + module.removeprefix("doctor.") if module.startswith("doctor.") else _PROJECT + module
    function = getattr(importlib.import_module(base), test)
    marks = [mark for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
    assert inspect.isfunction(function), name
    return math.prod(len(mark.args[1]) for mark in marks)


def table() -> dict[str, int]:
    """Return the number of inputs of each kind."""
    return {kind: sum(map(inputs, tests)) for kind, tests in KINDS.items()}


if __name__ == "__main__":
    for kind, number in table().items():
        print(f"{number:4} {kind}")
