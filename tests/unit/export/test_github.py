import json
import re
from dataclasses import replace
from typing import Any

import pytest

from envkit.export import github
from envkit.export.github import OPTIONS
from envkit.ground.errors import UsageError
from envkit.plan.store import plan_from_json
from tests.support.exports import cell, exported, main_file, matrix_order, order, read_yaml


def workflow(*images: str, **fields: Any) -> Any:
    return read_yaml(main_file(exported("github", images or ("cpu", "cu126"), **fields)))


def step(job: Any, name: str) -> Any:
    (found,) = (one for one in job["steps"] if one.get("name") == name)
    return found


def test_every_image_is_a_job() -> None:
    build = workflow()["jobs"]["build"]
    assert build["strategy"]["matrix"]["include"] == [
        {"cell": "cpu", "definition": "cpu", "tag": "cpu"},
        {"cell": "cu126", "definition": "cu126", "tag": "cu126-candidate"},
    ]
    assert build["strategy"]["fail-fast"] is False
    assert 'envkit build "$DEFINITION" --engine embedded "${push[@]}"' in step(build, "Build and verify")["run"]


def test_a_matrix_is_built_from_its_plans() -> None:
    made = matrix_order("github")
    files = github.export(made)
    build = read_yaml(main_file(files))["jobs"]["build"]
    name = "cpu-python3.11-torch2.6"
    assert build["strategy"]["matrix"]["include"][0] == {"cell": name, "tag": name}
    assert 'envkit build --plan ".github/envkit/$CELL.json" --engine' in step(build, "Build and verify")["run"]
    plan = plan_from_json(json.loads(files[f".github/envkit/{name}.json"]), "plan.json")
    assert plan == made.cells[0].plan


def test_a_base_of_the_matrix_goes_along() -> None:
    based = (replace(cell(), axes=(("base", "registry.example.com/debian:12"),)), replace(cell(), name="other"))
    tree = read_yaml(main_file(github.export(order("github", (), cells=based, definitions={}, matrix="m.yaml"))))
    build = tree["jobs"]["build"]
    assert [row["base"] for row in build["strategy"]["matrix"]["include"]] == ["registry.example.com/debian:12", "auto"]
    assert build["env"]["BASE"] == "${{ matrix.base }}"
    assert '--base "$BASE"' in step(build, "Build and verify")["run"]


def test_no_job_may_more_than_it_needs() -> None:
    tree = workflow()
    assert tree["permissions"] == {}
    assert tree["jobs"]["build"]["permissions"] == {"contents": "read"}
    assert tree["jobs"]["verify"]["permissions"] == {}
    checkout = tree["jobs"]["build"]["steps"][1]
    assert checkout["uses"].startswith("actions/checkout@")
    assert checkout["with"] == {"persist-credentials": False}


def test_githubs_own_registry_needs_no_secret() -> None:
    tree = workflow(registry="ghcr.io/example/train")
    assert tree["jobs"]["build"]["permissions"] == {"contents": "read", "packages": "write"}
    login = step(tree["jobs"]["build"], "Log in")["env"]
    assert login == {"REGISTRY_USER": "${{ github.actor }}", "REGISTRY_PASSWORD": "${{ secrets.GITHUB_TOKEN }}"}
    other = step(workflow()["jobs"]["build"], "Log in")["env"]
    assert other["REGISTRY_PASSWORD"] == "${{ secrets.REGISTRY_PASSWORD }}"


def test_the_machine_of_the_user_keeps_its_tools_and_no_login() -> None:
    build = workflow()["jobs"]["build"]
    assert step(build, "Free disk space")["if"] == "runner.environment == 'github-hosted' && !job.container.id"
    for job in workflow()["jobs"].values():
        names = [one.get("name") for one in job["steps"]]
        assert names.index("Log in") < names.index("Log out")
        assert step(job, "Log out")["if"].startswith("always()")


def test_only_the_branch_publishes() -> None:
    tree = workflow(given={"branch": "release/1.x"})
    assert tree["on"]["push"] == {"branches": ["release/1.x"]}
    condition = "github.ref == 'refs/heads/release/1.x'"
    assert step(tree["jobs"]["build"], "Log in")["if"] == condition
    assert tree["jobs"]["verify"]["if"] == f"${{{{ !cancelled() && {condition} }}}}"
    assert "[ \"$GITHUB_REF\" = 'refs/heads/release/1.x' ]" in step(tree["jobs"]["build"], "Build and verify")["run"]


def test_gpu_images_are_tagged_once_a_gpu_saw_them() -> None:
    verify = workflow(tier="deep")["jobs"]["verify"]
    assert verify["strategy"]["matrix"] == {"cell": ["cu126"]}
    assert verify["runs-on"] == ["self-hosted", "linux", "gpu"]
    assert "--require-gpu --tier deep" in step(verify, "Verify on the GPU")["run"]
    names = [one.get("name") for one in verify["steps"]]
    assert names.index("Verify on the GPU") < names.index("Tag verified images")
    assert 'push "$REGISTRY:$CELL"' in step(verify, "Tag verified images")["run"]


@pytest.mark.parametrize(
    ("images", "fields"),
    [(("cpu",), {}), (("cu126",), {"registry": None}), (("cu126",), {"given": {"gpu_runner": "none"}})],
)
def test_no_gpu_job_where_there_is_nothing_for_it(images: tuple[str, ...], fields: dict[str, Any]) -> None:
    tree = workflow(*images, **fields)
    assert set(tree["jobs"]) == {"build"}
    assert all(
        row.get("tag", row["cell"]) == row["cell"] for row in tree["jobs"]["build"]["strategy"]["matrix"]["include"]
    )


def test_without_a_registry_nothing_is_pushed() -> None:
    text = main_file(exported("github", registry=None))
    assert "Log in" not in text
    assert "--push" not in text
    assert "Nothing is pushed" in text


@pytest.mark.parametrize("engine", ["docker", "buildkit", "podman"])
def test_engines_with_a_daemon_need_no_bubblewrap(engine: str) -> None:
    build = workflow(engine=engine)["jobs"]["build"]
    assert "Let bubblewrap prove images" not in [one.get("name") for one in build["steps"]]
    assert f'--engine {engine} "${{push[@]}}"' in step(build, "Build and verify")["run"]


def test_actions_are_held_to_commits() -> None:
    text = main_file(exported("github"))
    lines = [line for line in text.splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert re.search(r"uses: actions/[a-z-]+@[0-9a-f]{40} # v[0-9.]+$", line), line


def test_an_action_can_be_another() -> None:
    text = main_file(exported("github", given={"checkout": "example/checkout@v1"}))
    assert "- uses: example/checkout@v1\n" in text
    with pytest.raises(UsageError, match=r"--set checkout='x' is not a valid value \(actions/checkout at a commit"):
        exported("github", given={"checkout": "x"})


def test_a_job_that_is_run_again_can_keep_its_reports() -> None:
    for job in workflow()["jobs"].values():
        assert step(job, "Keep the reports")["with"]["overwrite"] is True


def test_no_step_runs_without_end() -> None:
    assert {job["timeout-minutes"] for job in workflow(minutes=77)["jobs"].values()} == {77}
    assert workflow(jobs=3)["jobs"]["build"]["strategy"]["max-parallel"] == 3


def test_the_cache_can_be_left_out() -> None:
    assert OPTIONS["cache_action"].default not in main_file(exported("github", given={"cache": "none"}))
    build = workflow(given={"cache": "9GB"})["jobs"]["build"]
    assert step(build, "Build and verify")["env"]["ENVKIT_CACHE_LIMIT"] == "9GB"


def test_no_expression_stands_in_a_script() -> None:
    for job in workflow()["jobs"].values():
        for one in job["steps"]:
            assert "${{" not in one.get("run", "")


def test_more_jobs_than_github_runs_are_refused() -> None:
    cells = tuple(replace(cell(), name=f"cpu-{at}") for at in range(257))
    made = order("github", (), cells=cells, definitions={one.name: "cpu" for one in cells})
    with pytest.raises(UsageError, match="257 images exceed the 256 jobs that GitHub allows"):
        github.export(made)


def test_a_name_too_long_for_a_candidate_is_refused() -> None:
    long = replace(cell("cu126"), name="a" * 120)
    made = order("github", (), cells=(long,), definitions={long.name: "cu126"})
    with pytest.raises(UsageError, match="is too long for a tag with the suffix -candidate"):
        github.export(made)
