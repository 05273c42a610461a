"""One concept, one place: the measures over envkit itself. A failure names the second place; use the first instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import envkit
from envkit.ground import cache
from tests.architecture import concepts, doors, measures, table


@pytest.fixture(scope="module")
def package() -> list[measures.Module]:
    """Every module of envkit."""
    return measures.modules(Path(envkit.__file__).parent)


def test_one_module_calls_flock(package: list[measures.Module]) -> None:
    # The payload runs in images, without envkit.ground; its processes take turns on a file that ends with them.
    assert measures.lock_callers(package) == {"envkit.ground.store", "envkit.smoke.one_gpu"}


def test_one_module_finds_the_cache_folder(package: list[measures.Module]) -> None:
    assert measures.cache_finders(package) == {"envkit.ground.paths"}


def test_one_module_knows_the_folders_of_the_cache(package: list[measures.Module]) -> None:
    """Whoever keeps something there takes its folder from a kind; listing, pruning and archives ask the kinds."""
    kinds = {kind for kind in vars(cache).values() if isinstance(kind, cache.Kind)}
    # Notes are listed with their layers; names of opened images and the lock for Podman take no room.
    assert kinds - set(cache.KINDS) == {cache.NOTES, cache.REFERENCES, cache.PODMAN}
    folders = {kind.folder for kind in kinds}
    assert measures.cache_paths(package, folders) == {"envkit.ground.cache"} | doors.NAMESAKES
    assert measures.callers(package, "envkit.ground.cache", "Kind") == {"envkit.ground.cache"}


def test_one_module_names_the_architectures(package: list[measures.Module]) -> None:
    assert measures.architecture_tables(package) == {"envkit.ground.platforms"}


def test_one_module_interprets_whiteouts(package: list[measures.Module]) -> None:
    assert measures.whiteout_readers(package) == {"envkit.ground.imagepaths"}


def test_two_modules_parse_an_images_name(package: list[measures.Module]) -> None:
    """`envkit.image.name` for all of envkit; what a Dockerfile's FROM may be is decided below it."""
    assert measures.name_parsers(package) == {"envkit.image.name", "envkit.render.sources"}


def test_names_are_parsed_where_they_come_in(package: list[measures.Module]) -> None:
    """Everything else takes the value and matches it."""
    for parser, places in doors.NAMES.items():
        assert measures.takers(package, "envkit.image.name", parser) == set(places), parser


def test_images_are_read_in_image_alone(package: list[measures.Module]) -> None:
    """Whoever imports the inner parts of `run` runs something; few modules of envkit go through a tar's entries."""
    inner = measures.importers(package, "envkit.run.rootless")
    assert {one for one in inner if not one.startswith("envkit.run.")} == set()
    assert measures.takers(package, "envkit.image.tarstream", "entries") == {
        "envkit.assemble.conda_unpack",  # of conda packages, which are tars as well
        "envkit.image.archive",  # of `docker save`
        "envkit.image.tree",  # the scanner
        "envkit.run.rootless.unpack",  # writes what it finds
        "envkit.source.look",  # of sdists, which are tars as well
    }


def test_each_schema_is_defined_once(package: list[measures.Module]) -> None:
    homes = measures.schema_homes(package)
    # The payload is an island: what it writes and what reads it may not import each other.
    assert homes.pop("envkit.payload/1") == {"envkit.smoke", "envkit.verify.payload"}
    assert len(homes) > 20
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_a_module_is_a_concept_not_a_slice_of_one(package: list[measures.Module]) -> None:
    found = measures.slices(package, 60)
    assert {name for name in found if not name.startswith("envkit.checks.c")} == {
        "envkit.cover.matrix",  # a file format
    }


def test_no_module_imports_one_that_imports_it(package: list[measures.Module]) -> None:
    assert measures.cycles(package) == []


def test_one_module_reads_the_settings_of_a_checkout(package: list[measures.Module]) -> None:
    """Each setting declares there whether the file of a checkout may set it; nobody reads the file past it."""
    assert measures.literals(package, "envkit.toml") == {"envkit.ground.settings"}


def test_what_is_installed_on_this_machine_takes_no_sources_of_a_checkout(package: list[measures.Module]) -> None:
    assert measures.with_keyword(package, "load_settings", "host") == {"envkit.cli.install"}
    assert measures.takers(package, "envkit.pipeline", "installing") == {"envkit.cli.install"}


def test_one_module_shows_sizes(package: list[measures.Module]) -> None:
    """One size is one number in one run, whichever command or report shows it."""
    assert set(filter(measures.has_envkit, measures.size_formatters(package))) == {
        "envkit.ground.sizes",
        "envkit.report.environment",  # values of a record, with the digits and the unit that it has
        "envkit.resolve.suggest",  # a value of --max-size as a user types it
    }


def test_one_module_aligns_columns(package: list[measures.Module]) -> None:
    assert measures.column_padders(package) == {
        "envkit.ground.text",
        "envkit.cli.config", "envkit.cli.help",  # lists with more lines below each entry
        "envkit.cli.declare",  # explanations beside the examples that leave room for them
        "envkit.report.text",  # paragraphs beside their labels
        "envkit.verify.payload",  # code in the columns where it was
        "envkit.watch.text",  # bars
    }  # fmt: skip


def test_one_module_writes_tables_in_markdown(package: list[measures.Module]) -> None:
    assert measures.markdown_tables(package) == {"envkit.report.markdown"}


def test_an_option_is_declared_once_as_a_field(package: list[measures.Module]) -> None:
    """The parser, the help and the value that a command gets are made from that field."""
    assert measures.parser_options(package) == {"envkit.cli.main"}  # --version, which click answers itself
    assert measures.loose_options(package, "envkit.cli.declare") == set()
    assert {text for (text, _), count in measures.option_declarations(package).items() if count > 1} == set()
    users = {
        name
        for kind in ("option", "argument", "group")
        for name in measures.takers(package, "envkit.cli.declare", kind)
    }
    assert len(users) > 25


def test_one_module_says_whether_a_build_runs_on_a_gpu(package: list[measures.Module]) -> None:
    assert measures.gpu_rules(package) == {"envkit.facts.gpu_code"}


def test_one_module_knows_what_a_pcie_lane_carries(package: list[measures.Module]) -> None:
    assert measures.lane_tables(package) == {"envkit.checks.thresholds"}


def test_one_module_tags_verified_images(package: list[measures.Module]) -> None:
    """Builds, pushes and fleets call it; elsewhere, a tag would move before the verification or past a refusal."""
    assert measures.tag_setters(package) == set().union(*doors.TAG_SETTERS.values())
    assert measures.takers(package, "envkit.registry.tagging", "move_tag") == {"envkit.pipeline.publish"}


def test_five_files_show_how_a_wheel_becomes_a_layer() -> None:
    _, count, names = table.wheel_row()
    assert 0 < count <= 5, names


def test_one_class_collects_the_errors_of_a_document(package: list[measures.Module]) -> None:
    """A reader takes `Faults`, and describes the fields of its document as `envkit.ground.records` has them."""
    assert measures.fault_lists(package) == set().union(*doors.FAULT_LISTS.values())


def test_one_module_says_which_images_are_known(package: list[measures.Module]) -> None:
    """Asking for records instead would trust what an image says of itself."""
    assert measures.takers(package, "envkit.ground.state", "was_built") == {
        "envkit.pipeline.running", "envkit.run.runners",
    }  # fmt: skip
    assert measures.takers(package, "envkit.ground.state", "records_of") == {"envkit.verify.verified"}


@pytest.mark.parametrize(
    ("measure", "listed"),
    [(measures.openers, doors.OPENERS), (measures.parsers, doors.PARSERS), (measures.writers, doors.WRITERS)],
    ids=["open", "parse", "write"],
)
def test_files_of_others_pass_one_door(
    measure: Callable[[list[measures.Module]], set[str]], listed: dict[str, set[str]], package: list[measures.Module]
) -> None:
    """A module that goes around `envkit.ground.foreign` is listed with a reason, and every listed one still does."""
    measured = {name for name in measure(package) if not name.startswith(doors.APART)}
    assert measured == set().union(*listed.values())
    assert sum(map(len, listed.values())) == len(set().union(*listed.values()))


def test_names_in_projects_are_probed_through_the_door(package: list[measures.Module]) -> None:
    """pathlib raises for a name that is too long or has a NUL, and such a name is one line of a project's file."""
    assert {name for name in measures.probers(package) if name.startswith("envkit.project.")} == set()


def test_no_other_module_reads_toml(package: list[measures.Module]) -> None:
    assert measures.takers(package, "tomllib", "loads") == set()
    plain = {one.name for one in package if measures.imports(one, "tomllib")}
    assert plain == {"envkit.ground.trees"}


def test_each_concept_of_a_diagnosis_has_one_table(package: list[measures.Module]) -> None:
    """Variables, error codes, compile failures, messages of the NVIDIA hook, Xid numbers, states and tools."""
    tables = measures.concept_tables(package)
    # The payload lists what it records of a container, and judges none of it.
    assert tables.pop("variables") == {"envkit.smoke.hostfacts"}
    assert {name: modules for name, modules in tables.items() if modules} == {}


def test_each_table_is_read_wherever_its_concept_is_met(package: list[measures.Module]) -> None:
    for concept, wanted in concepts.EXPECTED.items():
        assert wanted <= set(concepts.readers(package)[concept]), concept
