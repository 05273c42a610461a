"""The schemas of files, checked with jsonschema: as strict as the readers in keys and types, and never stricter."""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from envkit.cli.main import run
from envkit.cli.schema import SCHEMAS
from envkit.fleet import matrix
from envkit.ground import records, settings
from envkit.ground.errors import Ending, UsageError
from envkit.lock.reading import lock_from_json
from envkit.plan import definition
from envkit.plan.model import Smoke
from envkit.project.definition import SCHEMA_FILE
from tests.unit.lock import samples

ROOT = Path(__file__).parents[3]
OWN = re.compile(r"^schema: envkit\.(image|matrix)/1$", re.MULTILINE)
IMAGE = "schema: envkit.image/1\ntitle: one\n"
MATRIX = "schema: envkit.matrix/1\n"


@cache
def schema(name: str) -> Mapping[str, Any]:
    return SCHEMAS[name][1]()


def faults(name: str, tree: Any) -> list[str]:
    return [error.message for error in Draft202012Validator(schema(name)).iter_errors(tree)]


def editor(text: str) -> Any:
    """The tree that an editor sees: YAML 1.2, with numbers."""
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one_and_has_its_own_id(name: str) -> None:
    Draft202012Validator.check_schema(schema(name))
    ids = [schema(one)["$id"] for one in SCHEMAS]
    assert ids.count(schema(name)["$id"]) == 1
    assert schema(name)["$id"].startswith("urn:envkit:")


def test_ids_never_change() -> None:
    names = ("image:1", "matrix:1", "lock:2", "settings:1", "verify:1", "doctor:1")
    assert [schema(one)["$id"] for one in SCHEMAS] == [f"urn:envkit:{name}" for name in names]


def meanings(kind: type) -> dict[str, str | None]:
    """The keys of a row with their meaning."""
    return {key: field.doc.text for key, field in records.fields(kind).items()}


@pytest.mark.parametrize(
    ("name", "place", "keys"),
    [
        ("image", (), meanings(definition.Definition)),
        ("image", ("request",), meanings(definition.Constraints)),
        ("image", ("smoke",), meanings(Smoke)),
        ("matrix", (), meanings(matrix.Matrix)),
        ("matrix", ("axes",), meanings(matrix.Axes)),
        ("settings", (), {setting.key: setting.meaning for setting in settings.SETTINGS}),
    ],
)
def test_a_schema_has_the_keys_of_the_reader(name: str, place: tuple[str, ...], keys: Mapping[str, str]) -> None:
    under = schema(name)
    for key in place:
        under = under["properties"][key]
    assert {key: form["description"] for key, form in under["properties"].items()} == dict(keys)
    assert under["additionalProperties"] is False


def snippets() -> Iterator[tuple[str, str]]:
    """Every definition and matrix file of the repository: files, blocks of the documentation, texts in tests."""
    for path in sorted((*ROOT.glob("images/*.yaml"), *ROOT.glob("tests/golden/files/init/*.yaml"))):
        yield path.name, path.read_text()
    for path in sorted(ROOT.glob("docs/*.md")):
        for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            yield path.name, block
    for path in sorted((*ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/*.py"))):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "schema: envkit." in source else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value


def readable(kind: str, text: str, folder: Path) -> bool:
    """Whether envkit reads a text; what it cannot have here, such as other files, is no error of its form."""
    try:
        read = definition.parse if kind == "image" else matrix.parse
        read(text, where="x.yaml", folder=folder)
    except UsageError as error:
        faults = (error.message, *error.details)
        return all("no such file" in fault or "is not there" in fault for fault in faults)
    return True


def test_every_example_that_envkit_reads_fits_its_schema(tmp_path: Path) -> None:
    found = {(origin, text): match.group(1) for origin, text in snippets() if (match := OWN.search(text))}
    read = {key: kind for key, kind in found.items() if readable(kind, key[1], tmp_path)}
    assert len(read) > 40
    assert {"images.md", "fleet.md", "default.yaml", "dockerfile.yaml"} <= {origin for origin, _ in read}
    assert {origin: text for (origin, text), kind in read.items() if faults(kind, editor(text))} == {}


WRONG = [
    ("image", "schema: envkit.image/1\n"),
    ("image", "title: x\n"),
    ("image", "schema: envkit.image/2\ntitle: x\n"),
    ("image", f"{IMAGE}reqest: {{cuda: 12.6}}\n"),
    ("image", f"{IMAGE}request: {{cuda: [12.6]}}\n"),
    ("image", f"{IMAGE}request: {{cdua: 12.6}}\n"),
    ("image", f"{IMAGE}request: {{gpus: A100}}\n"),
    ("image", f"{IMAGE}request: {{cpu: maybe}}\n"),
    ("image", f"{IMAGE}request: {{platform: win-64}}\n"),
    ("image", f"{IMAGE}request:\n"),
    ("image", f"{IMAGE}flavor: huge\n"),
    ("image", f"{IMAGE}features: [jupiter]\n"),
    ("image", f"{IMAGE}companions: [numpy, numpy]\n"),
    ("image", f"{IMAGE}pip: einops\n"),
    ("image", f"{IMAGE}env: {{A: true}}\n"),
    ("image", f"{IMAGE}copy: [{{from: a}}]\n"),
    ("image", f"{IMAGE}copy: [{{from: a, to: b, mode: c}}]\n"),
    ("image", f"{IMAGE}entrypoint: bash\n"),
    ("image", f"{IMAGE}smoke: {{num_workers: 65}}\n"),
    ("image", f"{IMAGE}smoke: {{tier: fast}}\n"),
    ("image", f"{IMAGE}smoke: {{shm_mb: big}}\n"),
    ("matrix", "image: cpu\n"),
    ("matrix", f"{MATRIX}image: cpu\nimages: [cpu]\n"),
    ("matrix", f"{MATRIX}images: []\n"),
    ("matrix", f"{MATRIX}axis: {{}}\n"),
    ("matrix", f"{MATRIX}axes: {{pyton: [3.11]}}\n"),
    ("matrix", f"{MATRIX}axes: {{python: 3.11}}\n"),
    ("matrix", f"{MATRIX}axes: {{python: []}}\n"),
    ("matrix", f"{MATRIX}axes: {{source: [nowhere]}}\n"),
    ("matrix", f"{MATRIX}axes: {{cpu: [sometimes]}}\n"),
    ("matrix", f"{MATRIX}include: [{{}}]\n"),
    ("matrix", f"{MATRIX}exclude: {{python: 3.11}}\n"),
]


@pytest.mark.parametrize(("kind", "text"), WRONG, ids=lambda value: value.replace("\n", " ")[-40:])
def test_what_is_wrong_is_refused_by_the_schema_and_by_the_reader(kind: str, text: str, tmp_path: Path) -> None:
    assert faults(kind, editor(text))
    assert not readable(kind, text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        f"{IMAGE}request: {{python: 3.11, torch: 2.7.1, driver: 560}}\n",
        f"{IMAGE}smoke: {{num_workers: 8, shm_mb: '1024', pin_memory: true}}\n",
        f"{IMAGE}ports: [8888, 53/udp]\nenv: {{OMP_NUM_THREADS: 8}}\n",
        "schema: envkit.image/1\nextends: cu126\n",
    ],
)
def test_what_looks_like_a_number_may_stay_one(text: str) -> None:
    assert faults("image", editor(text)) == []


LOCKS = {"wheels": samples.lock(), "source": samples.from_source(), "bootstrap": samples.bootstrapped()}


def places(tree: Any, before: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every field of a lock, but those of `request`, whose names are free."""
    rows = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in rows:
        if isinstance(tree, dict):
            yield (*before, key)
        if key != "request":
            yield from places(item, (*before, key))


def under(tree: Any, place: tuple[str | int, ...]) -> Any:
    for key in place:
        tree = tree[key]
    return tree


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_fits_its_schema(name: str) -> None:
    assert faults("lock", LOCKS[name].to_json()) == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_without_a_field_or_with_another_one_is_refused(name: str) -> None:
    whole = LOCKS[name].to_json()
    count = 0
    for place in places(whole):
        for changed in (without(whole, place), with_one_more(whole, place)):
            count += 1
            with pytest.raises(Ending):
                lock_from_json(changed, "x.lock")
            # Built wheels need their sources, which only the reader knows.
            if changed.keys() >= {"sources", "builders"} or name != "source":
                assert faults("lock", changed), place
    assert count > 40


def without(tree: Any, place: tuple[str | int, ...]) -> Any:
    changed = copy.deepcopy(tree)
    del under(changed, place[:-1])[place[-1]]
    return changed


def with_one_more(tree: Any, place: tuple[str | int, ...]) -> Any:
    changed = copy.deepcopy(tree)
    under(changed, place[:-1])["another"] = "1"
    return changed


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("plan",), "sha256:1"),
        (("platform",), "win-64"),
        (("as_of",), "today"),
        (("base", "kind"), "file"),
        (("wheels", 0, "sha256"), "0" * 32),
        (("wheels", 0, "url"), "https://files.example.com/a.whl?token=1"),
        (("wheels", 0, "size"), 0),
        (("wheels", 0, "source"), "elsewhere"),
    ],
)
def test_a_value_that_the_reader_refuses_is_refused(place: tuple[str | int, ...], value: object) -> None:
    tree = samples.lock().to_json()
    under(tree, place[:-1])[place[-1]] = value
    assert faults("lock", tree)
    with pytest.raises(Ending):
        lock_from_json(tree, "x.lock")


SETTINGS = {
    "engine": ("podman", "rocket"),
    "run_memory": ("16GB", 16),
    "registry": ("mirror.example.com:5000", "https://mirror.example.com"),
    "python_index": ("https://pypi.example.com/simple", "pypi.example.com"),
    "debian_mirror": ("file:///mnt/debian", "/mnt/debian"),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_setting_is_as_the_reader_wants_it(key: str, tmp_path: Path) -> None:
    good, bad = SETTINGS[key]
    file = tmp_path / "envkit.toml"
    for value, is_wrong in ((good, False), (bad, True)):
        file.write_text(f"{key} = {json.dumps(value)}\n")
        assert bool(faults("settings", {key: value})) is is_wrong
        assert run(["validate", str(file)]) == (2 if is_wrong else 0)


def test_init_names_the_schema_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("torch==2.7.1\n")
    assert run(["init"]) == 0
    assert f"wrote image.yaml, and {SCHEMA_FILE} for editors\n" in capsys.readouterr().out
    first = (tmp_path / "image.yaml").read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema={SCHEMA_FILE}"
    assert json.loads((tmp_path / SCHEMA_FILE).read_text()) == schema("image")


def test_the_documentation_lists_every_schema() -> None:
    page = (ROOT / "docs" / "schemas.md").read_text()
    assert re.findall(r"^\| `([a-z]+)` \| `(urn:[^`]+)` \|", page, re.MULTILINE) == [
        (name, schema(name)["$id"]) for name in SCHEMAS
    ]


def test_schemas_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    assert "image     urn:envkit:image:1     image definitions" in capsys.readouterr().out
    assert run(["schema", "lock"]) == 0
    assert json.loads(capsys.readouterr().out) == schema("lock")
    assert run(["schema", "lok"]) == 2
    assert "hint: use one of image, matrix, lock" in capsys.readouterr().err
