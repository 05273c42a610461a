"""Matrix files: `images`, `axes`, `include` and `exclude`, read strictly into a frozen `Matrix`.

The semantics are those of CI systems: every combination of the axes, minus those that match `exclude`; `include` adds
fields to combinations, or further combinations.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.ground import schemas, strictyaml
from envkit.ground.errors import UsageError, shown
from envkit.ground.platforms import PLATFORMS
from envkit.ground.text import similar
from envkit.ground.versions import parse_constraint
from envkit.plan.definition import FLAVORS, check_template
from envkit.plan.fields import Fields
from envkit.resolve.model import SOURCES

SCHEMA = "envkit.matrix/1"
MOST = 1000
"""Combinations of one matrix; CI systems stop at 256."""

KEYS = {
    "schema": f"always {SCHEMA}",
    "image": "the definition that all combinations start from: a shipped image, or a file relative to this one",
    "images": "several definitions; each is combined with every combination of the axes",
    "axes": "fields, each with a list of values",
    "include": "further fields for matching combinations, or further combinations",
    "exclude": "combinations to leave out; omitted fields match any value",
}
# Fields allowed under `axes` and `include`, with their meaning; docs/fleet.md shows this table.
VERSIONS = ("torch", "cuda", "cudnn", "python")
LISTS = ("gpu", "features", "companions", "conda", "pip", "apt", "rpm")
AXES = {
    "torch": "version, prefix or specifier",
    "cuda": "CUDA runtime version",
    "cudnn": "cuDNN version",
    "python": "Python version",
    "driver": "NVIDIA driver version of the machines that will run the image",
    "gpu": "a GPU, or a list of them",
    "os": "operating system id, such as debian12",
    "platform": " or ".join(PLATFORMS),
    "source": ", ".join(SOURCES),
    "cpu": "true for an image without CUDA",
    "template": "miniconda, wheels, or one of your own",
    "base": "base image, or bootstrap:debian/bookworm",
    "flavor": " or ".join(FLAVORS),
    "features": "a list of predefined additions",
    "companions": "a list of packages installed with torch",
    "conda": "a list of additional conda packages",
    "pip": "a list of additional packages from the Python index",
    "apt": "a list of additional system packages on Debian and Ubuntu",
    "rpm": "a list of additional system packages on Rocky Linux, UBI and CentOS",
}
_CHOICES: Mapping[str, tuple[str, ...]] = {"platform": PLATFORMS, "source": SOURCES, "flavor": FLAVORS}
_IMAGE = "image"
Value = str | bool | tuple[str, ...] | None
"""None = the field is not set in this combination."""

Row = tuple[tuple[str, Value], ...]
"""One combination: field and value, in the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The contents of a matrix file; values are checked and stay as written."""

    where: str  # the file's path, for errors
    images: tuple[str, ...]  # names of shipped images, or paths
    axes: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    include: tuple[Row, ...] = ()
    exclude: tuple[Row, ...] = ()


def read_matrix(path: Path) -> Matrix:
    """Read a matrix file.

    Raises:
        UsageError: the file cannot be read or has errors; all of them are listed.
    """
    return parse(strictyaml.text_of(path), where=str(path), folder=path.parent)


def parse(text: str, *, where: str, folder: Path = Path()) -> Matrix:
    """Parse a matrix; `where` names it in errors, and paths of images are relative to `folder`.

    Raises:
        UsageError: as `read_matrix`.
    """
    faults: list[str] = []
    tree = strictyaml.read(text, where)
    top = Fields(tree, where, KEYS, faults)
    if not isinstance(tree, dict):
        raise _refused(faults)
    if top.choice("schema", (SCHEMA,)) is None and "schema" not in top:
        faults.append(f"{where}: schema: missing; write `schema: {SCHEMA}`")
    if "image" in top and "images" in top:
        faults.append(f"{where}: image and images: give one of them")
    image, several = top.text("image", _image), top.words("images", _image)
    images = several if several is not None else (image or "default",)
    if not images:
        faults.append(f"{where}: images: the list is empty")
    axes = _axes(top, tree.get("axes", {}), faults)
    known: dict[str, Sequence[Value]] = {**dict(axes), _IMAGE: images}
    include = _rows(top, tree, "include", (*AXES, _IMAGE), faults)
    exclude = _rows(top, tree, "exclude", (*known,), faults)
    faults += _useless(top, exclude, known)
    # Counted before the axes are multiplied out, which could exhaust the memory.
    count = len(images)
    for _, values in axes:
        count *= len(values)
    if count + len(include) > MOST:
        faults.append(f"{where}: {count + len(include)} combinations; the limit is {MOST}")
    if faults:
        raise _refused(faults)
    return Matrix(
        where=where,
        images=tuple(_placed(name, folder) for name in images),
        axes=axes,
        include=tuple(_with_place(row, folder) for row in include),
        exclude=tuple(_with_place(row, folder) for row in exclude),
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of matrix files."""
    values = {name: _value_schema(name) for name in AXES}
    texts = schemas.listed(schemas.TEXT, unique=True)
    row = schemas.closed({**values, _IMAGE: schemas.TEXT}) | {"minProperties": 1}
    lists = {
        name: schemas.described(schemas.listed(value, unique=True) | {"minItems": 1}, AXES[name])
        for name, value in values.items()
    }
    forms: dict[str, Any] = {
        "schema": {"const": SCHEMA},
        "image": schemas.TEXT,
        "images": texts | {"minItems": 1},
        "axes": schemas.closed(lists),
        "include": schemas.listed(row),
        "exclude": schemas.listed(row),
    }
    body = schemas.closed({key: schemas.described(forms[key], KEYS[key]) for key in KEYS}, ("schema",))
    both = {"not": {"required": ["image", "images"]}}
    return schemas.document(SCHEMA, "A matrix file of envkit", {**body, **both})


def _value_schema(name: str) -> dict[str, Any]:
    """Return the schema of one value of a field; null = the field is not set."""
    if name == "cpu":
        return {"type": ["boolean", "null"]}
    if name in _CHOICES:
        return {"enum": [*_CHOICES[name], None]}
    # An editor reads an unquoted 2.7 as a number; strictyaml reads it as text.
    text = {"type": ["string", "number", "null"]}
    return {"anyOf": [text, schemas.listed(schemas.TEXT) | {"minItems": 1}]} if name in LISTS else text


def rows_of(matrix: Matrix) -> tuple[Row, ...]:
    """Return the combinations, each with its `image`; the last axis varies fastest.

    As in CI systems, `exclude` is applied first. An entry of `include` is then added to every combination of the axes
    whose values it does not change; it may override what earlier entries added. An entry that matches none becomes a
    combination of its own.
    """
    names: tuple[str, ...] = (_IMAGE, *(name for name, _ in matrix.axes))
    values: tuple[tuple[Value, ...], ...] = (matrix.images, *(values for _, values in matrix.axes))
    product: list[dict[str, Value]] = [
        dict(zip(names, combination, strict=True)) for combination in itertools.product(*values)
    ]
    kept = [
        combination for combination in product if not any(_matches(combination, dict(row)) for row in matrix.exclude)
    ]
    extended = [dict(combination) for combination in kept]
    further: list[dict[str, Value]] = []
    bare = not matrix.axes and len(matrix.images) == 1  # without axes, the entries of `include` are the combinations
    for row in matrix.include:
        added = dict(row)
        matching = [
            at
            for at, combination in enumerate(kept)
            if all(combination.get(key, value) == value for key, value in added.items())
        ]
        for at in () if bare else matching:
            extended[at] |= added
        if bare or not matching:
            further.append({_IMAGE: matrix.images[0], **added})
    return tuple(tuple(combination.items()) for combination in (*([] if bare and further else extended), *further))


def _matches(combination: Mapping[str, Value], row: Mapping[str, Value]) -> bool:
    return all(key in combination and combination[key] == value for key, value in row.items())


def _axes(top: Fields, tree: Any, faults: list[str]) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    where = top.at("axes")
    if not isinstance(tree, Mapping):
        faults.append(f"{where}: is not a mapping of fields to lists of values")
        return ()
    axes = []
    under = Fields(tree, where, AXES, faults, joint=".")
    for name, values in tree.items():
        if name not in AXES:
            continue
        location = under.at(name)
        if not isinstance(values, list) or not values:
            faults.append(f"{location}: is not a list of values; write {name}: [{_example(values)}]")
            continue
        read = tuple(_value(name, value, f"{location}[{at}]", faults) for at, value in enumerate(values))
        faults += [
            f"{location}[{at}]: {_shown(value)} is listed twice" for at, value in enumerate(read) if value in read[:at]
        ]
        axes.append((name, read))
    return tuple(axes)


def _rows(top: Fields, tree: Mapping[str, Any], key: str, known: Collection[str], faults: list[str]) -> tuple[Row, ...]:
    rows = tree.get(key, [])
    if not isinstance(rows, list):
        faults.append(f"{top.at(key)}: is not a list of combinations")
        return ()
    combinations = []
    for at, row in enumerate(rows):
        location = f"{top.at(key)}[{at}]"
        under = Fields(row, location, known, faults, joint=".")
        if not isinstance(row, Mapping):
            continue
        if not row:
            faults.append(f"{location}: the combination is empty")
        combinations.append(
            tuple((name, _value(name, value, under.at(name), faults)) for name, value in row.items() if name in known)
        )
    return tuple(combinations)


def _value(name: str, value: Any, location: str, faults: list[str]) -> Value:
    """Return a value in normalized form; errors are appended to `faults`."""
    if value is None or (name == "cpu" and isinstance(value, bool)):
        return value or None  # `cpu: false` is the default, so it is the same as no value
    if name == "cpu":
        faults.append(f"{location}: {_shown(value)} is not true or false")
        return None
    if name in LISTS and isinstance(value, list) and value and all(isinstance(text, str) for text in value):
        return tuple(value)
    if not isinstance(value, str):
        faults.append(f"{location}: {_shown(value)} is not text" + ("; quote it" if isinstance(value, bool) else ""))
        return None
    why = _why_not(name, value, location)
    if why:
        faults.append(why)
    return (value,) if name in LISTS else value


def _why_not(name: str, value: str, location: str) -> str | None:
    if not value.strip():
        return f"{location}: the text is empty"
    if name in VERSIONS:
        try:
            # torch may have a local version (2.7.1+cu126), and CUDA may be written as in an index (cu126).
            parse_constraint(value.partition("+")[0] if name == "torch" else value.removeprefix("cu"), location)
        except UsageError as error:
            return error.message
    choices = _CHOICES.get(name)
    if choices is not None and value not in choices:
        return f"{location}: {value!r:.80} is not one of {', '.join(choices)}; {_near(value, choices)}"
    why = check_template(value) if name == "template" else None
    return f"{location}: {value!r:.80} {why}" if why else None


def _useless(top: Fields, exclude: Sequence[Row], known: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return an error for each entry of `exclude` that cannot match any combination."""
    return [
        f"{top.at('exclude')}[{at}].{name}: {_shown(value)} is not a value of {name}, "
        f"which lists {', '.join(_shown(choice) for choice in known[name])}"
        for at, row in enumerate(exclude)
        for name, value in row
        if value not in known.get(name, ())
    ]


def _image(value: str) -> str | None:
    return None if value.strip() and value.isprintable() else "is not an image name or a path"


def _placed(name: str, folder: Path) -> str:
    """Return a path of an image relative to the current folder; a shipped image's name is returned as it is."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    path = str(folder / name) if is_path else name
    return path if not is_path or "/" in path else f"./{path}"


def _with_place(row: Row, folder: Path) -> Row:
    return tuple(
        (key, _placed(value, folder) if key == _IMAGE and isinstance(value, str) else value) for key, value in row
    )


def _near(value: str, known: Collection[str]) -> str:
    close = similar(value, known, cutoff=0.4)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"


def _example(value: Any) -> str:
    return value if isinstance(value, str) and value else "..."


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value[:80]) if isinstance(value, str) else f"a {'mapping' if isinstance(value, Mapping) else 'list'}"


def _refused(faults: Sequence[str]) -> UsageError:
    return UsageError(faults[0], details=shown(faults[1:]), hint="`envkit help fleet` lists every key and its meaning")
