import json
import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envkit.export import slurm
from envkit.ground.errors import UsageError
from envkit.image.name import image_name
from tests.support.command_lines import parsed
from tests.support.exports import REGISTRY, cell, exported, matrix_order, order
from tests.unit.export.test_quoting import allowed

SCRIPTS = ("verify.sbatch", "build.sbatch", "verdicts.sh")


def headers(text: str) -> dict[str, str]:
    """What sbatch reads: the lines before the first command."""
    found = {}
    for line in text.splitlines():
        if line.startswith("#SBATCH "):
            name, _, value = line.removeprefix("#SBATCH --").partition("=")
            found[name] = value
        elif line and not line.startswith("#"):
            break
    return found


def words(text: str, name: str) -> list[str]:
    """The words of an array, as a shell reads them."""
    found = re.search(rf"^{name}=\((.*?)^\)$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return shlex.split(found[1])


def test_there_is_a_task_for_each_image() -> None:
    files = slurm.export(matrix_order("slurm", jobs=3))
    for name in ("verify.sbatch", "build.sbatch"):
        assert headers(files[name])["array"] == "0-4%3"
        assert len(words(files[name], "names")) == len(words(files[name], "images")) == 5
    assert words(files["verdicts.sh"], "names") == words(files["verify.sbatch"], "names")


def test_both_arrays_mean_the_same_image_and_plan() -> None:
    files = exported("slurm")
    assert words(files["verify.sbatch"], "images") == words(files["build.sbatch"], "images")
    assert words(files["verify.sbatch"], "images") == [f"registry:{REGISTRY}:cpu", f"registry:{REGISTRY}:cu126"]
    for name in words(files["verify.sbatch"], "names"):
        assert json.loads(files[f"plans/{name}.json"])["name"] == name


def test_images_can_lie_in_a_shared_folder() -> None:
    files = exported("slurm", registry=None, given={"images": "/shared/images/"})
    assert words(files["verify.sbatch"], "images") == ["oci:/shared/images/cpu", "oci:/shared/images/cu126"]


def test_a_place_for_the_images_is_needed() -> None:
    with pytest.raises(UsageError, match="--registry is required") as caught:
        exported("slurm", registry=None)
    assert "--set images=/shared/images" in str(caught.value.hint)


def test_an_engine_that_keeps_its_images_is_refused() -> None:
    with pytest.raises(UsageError, match="--engine docker keeps images on its own node, where other nodes cannot"):
        exported("slurm", engine="docker")


@pytest.mark.parametrize(
    ("images", "given", "gres"),
    [
        (("cpu",), {}, None),
        (("cpu", "cu126"), {}, "gpu:2"),
        (("cu126",), {"gres": "gpu:h100:2"}, "gpu:h100:2"),
        (("cu126",), {"gres": "none"}, None),
    ],
)
def test_gpus_are_asked_for_where_an_image_needs_them(images: Any, given: Any, gres: str | None) -> None:
    files = exported("slurm", images, given=given, gpus=2)
    assert headers(files["verify.sbatch"]).get("gres") == gres
    assert "gres" not in headers(files["build.sbatch"])


def test_what_was_asked_for_reaches_slurm() -> None:
    given = {"nodes": "3", "cpus": "8", "memory": "32G", "partition": "gpu", "account": "team"}
    files = exported("slurm", given=given, minutes=30)
    expected = {"nodes": "3", "cpus-per-task": "8", "mem": "32G", "time": "30", "partition": "gpu", "account": "team"}
    assert expected.items() <= headers(files["verify.sbatch"]).items()
    assert headers(files["build.sbatch"])["nodes"] == "1"
    assert "nodes_each=3\n" in files["verdicts.sh"]
    assert {"partition": "gpu", "account": "team"}.items() <= headers(files["verdicts.sh"]).items()


def test_a_verification_is_not_started_again_elsewhere() -> None:
    assert "no-requeue" in headers(exported("slurm")["verify.sbatch"])


def test_how_to_verify_is_passed_on() -> None:
    text = exported("slurm", tier="deep", given={"only": "C01,C05"})["verify.sbatch"]
    assert '--plan "$plan" --tier deep --only C01,C05 -o' in text


def test_the_commands_are_taken_by_the_command_line() -> None:
    files = exported("slurm", tier="deep", given={"only": "C01,C05"})
    found = {}
    for name in ("verify.sbatch", "build.sbatch"):
        (line,) = re.findall(r'"\$envkit" (.*)', files[name].replace("\\\n", " "))
        verb, *rest = shlex.split(line.partition("||")[0])
        found[verb] = parsed([verb, *rest])
    assert set(found) == {"verify", "build"}
    assert (found["verify"]["images"], found["verify"]["tier"], found["verify"]["only"]) == (
        (image_name("$image"),),
        "deep",
        ("C01", "C05"),
    )
    assert (found["build"]["engine"], found["build"]["no_verify"]) == ("embedded", True)


def test_the_base_of_a_matrix_is_the_one_that_is_built_on() -> None:
    own = replace(cell("cu126"), axes=(("base", "registry.example.com/debian:12"),))
    files = slurm.export(order("slurm", (), cells=(cell(), own), definitions={}, matrix="m.yaml"))
    assert words(files["build.sbatch"], "bases") == ["auto", "registry.example.com/debian:12"]
    assert '--base "${bases[$SLURM_ARRAY_TASK_ID]}"' in files["build.sbatch"]
    assert "--base" not in exported("slurm")["build.sbatch"]


@pytest.mark.parametrize("given", [{"memory": "16G\n#SBATCH --uid=0"}, {"gres": "gpu 1"}, {"images": "/a b"}])
def test_a_value_that_would_be_another_line_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"--set {next(iter(given))}="):
        exported("slurm", given=given)


# Letters, and all that means something to a shell, to YAML or to a template.
WORD = st.text(alphabet="aZ0é木 '\"\\#:-{}[]()$`@%&*!|<>;~=,.?^", max_size=24) | st.sampled_from(
    ["no", "~", "1e3", "on"]
)


@settings(max_examples=20)
@given(name=WORD, base=WORD, command=WORD)
def test_every_text_is_one_word_of_the_shell(name: str, base: str, command: str) -> None:
    own = replace(cell(), name=name, axes=(("base", base),))
    plain = order("slurm", ("cpu",), definitions={}, matrix="m.yaml")
    before, files = slurm.export(plain), slurm.export(allowed(replace(plain, cells=(own,), command=command)))
    for script in SCRIPTS:
        assert words(files[script], "names") == [name]
        assert headers(files[script]) == headers(before[script])
    assert words(files["build.sbatch"], "images") == [f"registry:{REGISTRY}:{name}"]


@given(st.sampled_from(sorted(slurm.OPTIONS)), st.text(max_size=20))
def test_no_option_takes_what_sbatch_would_read_as_two_words(name: str, value: str) -> None:
    try:
        taken = slurm.OPTIONS[name].check(name, value)
    except UsageError:
        return
    assert not re.search(r"[\s'\"\\$`#;&|<>()]", taken)
