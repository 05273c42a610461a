"""The matrix file of a cover, read by the reader that builds from it."""

from pathlib import Path

from envkit.cover.cover import cover
from envkit.cover.hosts import Completion, Gpu, Host, Inventory, classes
from envkit.cover.matrix import matrix_text
from envkit.fleet.expand import expand
from envkit.fleet.matrix import parse
from envkit.plan.definition import Definition
from envkit.plan.definition import parse as parse_definition
from envkit.resolve.model import Request
from tests.support.plans import HEAD
from tests.unit.cover.fleets import covered, facts


def definition(name: str) -> Definition:
    return parse_definition(f"{HEAD}request:\n  python: '3.11'\n", where=f"{name}.yaml", folder=Path("/nonexistent"))


def test_it_expands_to_the_images_of_the_cover() -> None:
    found = covered(("V100", "580.65.06"), ("B200", "580.65.06"), ("GH200", "580.65.06", "aarch64"), torch="2.11")
    expanded = expand(parse(matrix_text(found), where="m.yaml"), {}, facts(), definition)
    assert not expanded.impossible
    built = [cell.plan.resolution for cell in expanded.cells]
    wanted = [image.resolution for image in found.images]
    fields = ("torch", "cuda", "python", "source", "platform", "os", "index", "gpus")
    assert [[getattr(one, field) for field in fields] for one in built] == [
        [getattr(one, field) for field in fields] for one in wanted
    ]


def test_versions_stay_text_and_machines_are_named_in_comments() -> None:
    text = matrix_text(covered(("A100", "550.54.14"), python="3.10"))
    assert '    python: "3.10"\n' in text
    assert text.startswith("# The fewest images for these machines (1 in total), written by `envkit cover`.\nschema: ")
    assert "  # h1: A100 (sm_80), driver 550.54.14\n  - torch: " in text


def test_a_name_cannot_leave_its_comment() -> None:
    host = Host(name="a\nimages: [evil]", where="host 1", gpus=(Gpu(name="A100"),), driver="550.54.14")
    found = cover(Request(), classes(Inventory(hosts=(host,), form="json"), facts(), Completion()), facts())
    assert "\nimages: [evil]" not in matrix_text(found)
    assert parse(matrix_text(found), where="m.yaml").images == ("default",)
