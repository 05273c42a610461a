"""Matrix files: `images`, `axes`, `include` and `exclude`, read strictly into a frozen `Matrix`.

The semantics are those of CI systems: every combination of the axes, minus those that match `exclude`; `include` adds
fields to combinations, or further combinations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from envkit.ground import records, schemas, strictyaml
from envkit.ground.errors import Faults, UsageError
from envkit.ground.platforms import PLATFORMS
from envkit.ground.records import Doc, Each, Location, choice, near, quoted, text, words
from envkit.ground.versions import parse_constraint
from envkit.plan.definition import FLAVORS, check_template
from envkit.resolve.model import SOURCES

SCHEMA = "envkit.matrix/1"
MOST = 1000
"""Combinations of one matrix; CI systems stop at 256."""
_HINT = "`envkit help fleet` lists every key and its meaning"

_IMAGE = "image"
Value = str | bool | tuple[str, ...] | None
"""None = the field is not set in this combination."""

Row = tuple[tuple[str, Value], ...]
"""One combination: field and value, in the order of the file."""


class Axes:
    """The fields that are allowed under `axes` and `include`; docs/fleet.md shows them."""

    torch: Annotated[Value, _TORCH, Doc("version, prefix or specifier")]
    cuda: Annotated[Value, _CUDA, Doc("CUDA runtime version")]
    cudnn: Annotated[Value, _CUDA, Doc("cuDNN version")]
    python: Annotated[Value, _CUDA, Doc("Python version")]
    driver: Annotated[Value, _TEXT, Doc("NVIDIA driver version of the machines that will run the image")]
    gpu: Annotated[Value, _TEXTS, Doc("a GPU, or a list of them")]
    os: Annotated[Value, _TEXT, Doc("operating system id, such as debian12")]
    platform: Annotated[Value, _one_of(*PLATFORMS), Doc(" or ".join(PLATFORMS))]
    source: Annotated[Value, _one_of(*SOURCES), Doc(", ".join(SOURCES))]
    cpu: Annotated[Value, _CPU, Doc("true for an image without CUDA")]
    template: Annotated[Value, _cell(_template), Doc("miniconda, wheels, or one of your own")]
    base: Annotated[Value, _TEXT, Doc("base image, or bootstrap:debian/bookworm")]
    flavor: Annotated[Value, _one_of(*FLAVORS), Doc(" or ".join(FLAVORS))]
    features: Annotated[Value, _TEXTS, Doc("a list of predefined additions")]
    companions: Annotated[Value, _TEXTS, Doc("a list of packages installed with torch")]
    conda: Annotated[Value, _TEXTS, Doc("a list of additional conda packages")]
    pip: Annotated[Value, _TEXTS, Doc("a list of additional packages from the Python index")]
    apt: Annotated[Value, _TEXTS, Doc("a list of additional system packages on Debian and Ubuntu")]
    rpm: Annotated[Value, _TEXTS, Doc("a list of additional system packages on Rocky Linux, UBI and CentOS")]


class Combination(Axes):
    """The fields of a combination."""

    image: Annotated[Value, _cell(schema=schemas.TEXT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The contents of a matrix file; values are checked and stay as written."""

    where: str  # the file's path, for errors
    schema: ClassVar[
        Annotated[str, choice(SCHEMA), Doc(f"always {SCHEMA}", missing=f"missing; write `schema: {SCHEMA}`")]
    ]
    image: ClassVar[
        Annotated[
            str,
            text(_image),
            Doc("the definition that all combinations start from: a shipped image, or a file relative to this one"),
        ]
    ]
    images: Annotated[  # names of shipped images, or paths
        tuple[str, ...],
        words(_image, least=1),
        Doc("several definitions; each is combined with every combination of the axes"),
    ]
    axes: Annotated[
        tuple[tuple[str, tuple[Value, ...]], ...],
        Each(_axes, _axes_schema()),
        Doc("fields, each with a list of values"),
    ] = ()
    include: Annotated[
        tuple[Row, ...],
        Each(_rows, _rows_schema()),
        Doc("further fields for matching combinations, or further combinations"),
    ] = ()
    exclude: Annotated[
        tuple[Row, ...], Each(_rows, _rows_schema()), Doc("combinations to leave out; omitted fields match any value")
    ] = ()


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
    faults = Faults()
    tree = strictyaml.read(text, where)
    at = Location(where, faults)
    top = records.opened(tree, records.fields(Matrix), at)
    if not isinstance(tree, dict):
        faults.refuse(_HINT)
    records.value(top, Matrix, at, "schema")
    if "image" in top and "images" in top:
        faults.add(where, "image and images: give one of them")
    image, several, axes, include = (
        records.value(top, Matrix, at, key) for key in ("image", "images", "axes", "include")
    )
    images: tuple[str, ...] = several if several is not None else (image or "default",)
    known: dict[str, Sequence[Value]] = {**dict(axes or ()), _IMAGE: images}
    exclude = _rows(top.get("exclude", []), at, at.at("exclude"), known)
    _refuse_useless(exclude, known, at)
    # Counted before the axes are multiplied out, which could exhaust the memory.
    count = len(images)
    for _, values in axes or ():
        count *= len(values)
    if count + len(include or ()) > MOST:
        faults.add(where, f"{count + len(include or ())} combinations; the limit is {MOST}")
    faults.refuse(_HINT)
    return Matrix(
        where=where,
        images=tuple(_placed(name, folder) for name in images),
        axes=axes or (),
        include=tuple(_with_place(row, folder) for row in include or ()),
        exclude=tuple(_with_place(row, folder) for row in exclude),
    )


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of matrix files."""
    both = {"not": {"required": ["image", "images"]}}
    return schemas.document(SCHEMA, "A matrix file of envkit", {**records.schema(Matrix, ("schema",)), **both})


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


def _axes(tree: Any, at: Location, path: str) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    if not isinstance(tree, Mapping):
        at.faults.add(path, "is not a mapping of fields to lists of values")
        return ()
    axes = []
    described = records.fields(Axes)
    under = at.under(path)
    for name, values in records.opened(tree, described, under).items():
        if name not in described:
            continue
        if not isinstance(values, list) or not values:
            example = values if isinstance(values, str) and values else "..."
            under.add(name, f"is not a list of values; write {name}: [{example}]")
            continue
        form = described[name].form
        read = tuple(form.read(value, under, f"{name}[{number}]") for number, value in enumerate(values))
        for number, value in enumerate(read):
            if value in read[:number]:
                under.add(f"{name}[{number}]", f"{_shown(value)} is listed twice")
        axes.append((name, read))
    return tuple(axes)


def _axes_schema() -> dict[str, Any]:
    lists = {
        name: schemas.described(schemas.listed(field.form.schema, unique=True) | {"minItems": 1}, field.doc.text)
        for name, field in records.fields(Axes).items()
    }
    return schemas.closed(lists)


def _rows(tree: Any, at: Location, path: str, known: Collection[str] | None = None) -> tuple[Row, ...]:
    """Read combinations of the known fields; without `known`, of all."""
    if not isinstance(tree, list):
        at.faults.add(path, "is not a list of combinations")
        return ()
    described = records.fields(Combination)
    allowed = described if known is None else known
    combinations = []
    for number, row in enumerate(tree):
        under = at.under(f"{path}[{number}]")
        opened = records.opened(row, allowed, under)
        if not isinstance(row, Mapping):
            continue
        if not row:
            at.faults.add(under.path, "the combination is empty")
        combinations.append(
            tuple(
                (name, described[name].form.read(value, under, name))
                for name, value in opened.items()
                if name in allowed
            )
        )
    return tuple(combinations)


def _rows_schema() -> dict[str, Any]:
    forms = {name: field.form.schema for name, field in records.fields(Combination).items()}
    return schemas.listed(schemas.closed(forms) | {"minProperties": 1})


# An editor reads an unquoted 2.7 as a number; strictyaml reads it as text. Null = the field is not set.
_FORM: Mapping[str, Any] = {"type": ["string", "number", "null"]}
_FORM_OF_LIST = {"anyOf": [_FORM, schemas.listed(schemas.TEXT) | {"minItems": 1}]}


def _cell(
    check: Callable[[str, str], str | None] = lambda value, path: None,  # noqa: ARG005
    schema: Mapping[str, Any] = _FORM,
    *,
    several: bool = False,
) -> Each:
    """Return the form of a value of a field.

    Args:
        check: returns the error of a text at a path, None if it is fine.
        schema: the JSON Schema of the value.
        several: the field has a list, for which one text may stand.
    """

    def reads(value: Any, at: Location, path: str) -> Value:
        if value is None:
            return None
        if several and isinstance(value, list) and value and all(isinstance(text, str) for text in value):
            return tuple(value)
        if not isinstance(value, str):
            at.faults.add(path, f"{quoted(value)} is not text{'; quote it' if isinstance(value, bool) else ''}")
            return None
        why = check(value, path) if value.strip() else f"{path}: the text is empty"
        if why:
            at.faults.say(why)
        return (value,) if several else value

    return Each(reads, schema)


def _version(bare: Callable[[str], str]) -> Each:
    def check(value: str, path: str) -> str | None:
        try:
            parse_constraint(bare(value), path)
        except UsageError as error:
            return error.message
        return None

    return _cell(check)


def _one_of(*allowed: str) -> Each:
    def check(value: str, path: str) -> str | None:
        why = f"{path}: {value!r:.80} is not one of {', '.join(allowed)}; {near(value, allowed, 0.4)}"
        return None if value in allowed else why

    return _cell(check, {"enum": [*allowed, None]})


def _template(value: str, path: str) -> str | None:
    why = check_template(value)
    return f"{path}: {value!r:.80} {why}" if why else None


def _cpu(value: Any, at: Location, path: str) -> Value:
    if value is not None and not isinstance(value, bool):
        at.faults.add(path, f"{_shown(value)} is not true or false")
        return None
    return value or None  # `cpu: false` is the default, so it is the same as no value


_TEXT, _TEXTS = _cell(), _cell(schema=_FORM_OF_LIST, several=True)
_CPU = Each(_cpu, {"type": ["boolean", "null"]})
# torch may have a local version (2.7.1+cu126), and CUDA may be written as in an index (cu126).
_TORCH, _CUDA = _version(lambda value: value.partition("+")[0]), _version(lambda value: value.removeprefix("cu"))


def _refuse_useless(exclude: Sequence[Row], known: Mapping[str, Sequence[Value]], at: Location) -> None:
    """Add an error for each entry of `exclude` that cannot match any combination."""
    for number, row in enumerate(exclude):
        for name, value in row:
            if value not in known.get(name, ()):
                listed = ", ".join(_shown(choice) for choice in known[name])
                at.add(f"exclude[{number}].{name}", f"{_shown(value)} is not a value of {name}, which lists {listed}")


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


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(value) + "]"
    return repr(value[:80]) if isinstance(value, str) else quoted(value)
