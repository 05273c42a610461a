from dataclasses import replace
from typing import Any

import pytest
import yaml

from envkit.export import gitlab
from envkit.export.model import install_script
from envkit.ground.errors import UsageError
from tests.support.exports import cell, exported, main_file, matrix_order, order


def pipeline(*images: str, **fields: Any) -> Any:
    return yaml.safe_load(main_file(exported("gitlab", images or ("cpu", "cu126"), **fields)))


def script(job: Any) -> str:
    return "\n".join(job["script"])


def test_every_image_is_a_job() -> None:
    tree = pipeline()
    assert tree["stages"] == ["build", "verify"]
    assert tree["build"]["parallel"]["matrix"] == [
        {"CELL": "cpu", "DEFINITION": "cpu", "TAG": "cpu"},
        {"CELL": "cu126", "DEFINITION": "cu126", "TAG": "cu126-candidate"},
    ]
    assert 'envkit build "$DEFINITION" --engine embedded "$@"' in script(tree["build"])


def test_a_matrix_is_built_from_its_plans() -> None:
    files = gitlab.export(matrix_order("gitlab"))
    tree = yaml.safe_load(main_file(files))
    name = "cpu-python3.11-torch2.6"
    assert tree["build"]["parallel"]["matrix"][0] == {"CELL": name, "TAG": name}
    assert 'envkit build --plan ".gitlab/envkit/$CELL.json" --engine' in script(tree["build"])
    assert f".gitlab/envkit/{name}.json" in files


def test_gpu_images_are_tagged_once_a_gpu_saw_them() -> None:
    verify = pipeline(tier="standard", given={"gpu_tags": "gpu,h100"})["verify"]
    assert verify["tags"] == ["gpu", "h100"]
    assert verify["parallel"]["matrix"] == [{"CELL": "cu126"}]
    lines = verify["script"]
    assert "--require-gpu --tier standard" in lines[2]
    assert '.venv/bin/envkit push "$REGISTRY:$CELL" --image "registry:$image"' in lines[3]


def test_reports_of_an_earlier_pipeline_are_gone_before_those_of_this_one_come() -> None:
    # A shell executor's folder stays, and a build that broke off leaves no report to replace the old one.
    assert pipeline()["verify"]["variables"] == {"GIT_STRATEGY": "fetch", "GIT_CLEAN_FLAGS": "-ffdx"}


def test_only_the_default_branch_publishes() -> None:
    tree = pipeline()
    assert '[ "$CI_COMMIT_BRANCH" = "$CI_DEFAULT_BRANCH" ]' in script(tree["build"])
    assert tree["verify"]["rules"] == [{"if": "$CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH", "when": "always"}]


def test_the_login_is_readable_by_nobody_else() -> None:
    text = script(pipeline()["build"])
    assert text.index("umask 077") < text.index(".docker/config.json") < text.index("umask 022")


@pytest.mark.parametrize(
    ("images", "fields"),
    [(("cpu",), {}), (("cu126",), {"registry": None}), (("cu126",), {"given": {"gpu_tags": "none"}})],
)
def test_no_gpu_job_where_there_is_nothing_for_it(images: tuple[str, ...], fields: dict[str, Any]) -> None:
    tree = pipeline(*images, **fields)
    assert tree["stages"] == ["build"]
    assert "verify" not in tree


def test_a_runner_without_user_namespaces_builds_without_verification() -> None:
    build = pipeline(given={"proof": "none"})["build"]
    assert build["before_script"] == ["\n".join(install_script()) + "\n"]
    assert "--no-verify" in script(build)
    assert "--report" not in script(build)
    assert "--allow-cpu" in script(pipeline()["build"])


def test_runners_image_cache_and_time_are_chosen() -> None:
    build = pipeline(minutes=30, given={"tags": "big", "image": "registry.example.com/py:3", "cache": "9GB"})["build"]
    assert build["tags"] == ["big"]
    assert build["image"] == "registry.example.com/py:3"
    assert build["timeout"] == "30m"
    assert build["variables"] == {"ENVKIT_CACHE_LIMIT": "9GB"}
    assert "cache" not in pipeline(given={"cache": "none"})["build"]


def test_dollars_are_not_expanded() -> None:
    tree = pipeline("cpu", definitions={"cpu": "./$X.yaml"})
    assert tree["build"]["parallel"]["matrix"][0]["DEFINITION"] == "./$$X.yaml"


def test_an_engine_with_a_daemon_is_refused() -> None:
    with pytest.raises(UsageError, match="--engine docker needs a daemon, which the exported pipeline") as caught:
        exported("gitlab", engine="docker")
    assert caught.value.hint == "--engine embedded"


def test_more_jobs_than_gitlab_runs_are_refused() -> None:
    cells = tuple(replace(cell(), name=f"cpu-{at}") for at in range(201))
    made = order("gitlab", (), cells=cells, definitions={one.name: "cpu" for one in cells})
    with pytest.raises(UsageError, match="201 images exceed the 200 jobs that GitLab allows"):
        gitlab.export(made)
