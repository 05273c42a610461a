"""The pages of docs/reference, made from the code: commands, settings, exit codes, checks and the keys of files."""

import html
import inspect
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from envkit.checks.catalog import catalog
from envkit.checks.thresholds import Threshold, shipped
from envkit.cli import declare
from envkit.cli.main import COMMANDS, envkit
from envkit.cli.schema import SCHEMAS
from envkit.ground import errors, settings
from envkit.verify.compare.result import REGRESSION_EXIT
from tests.support import gpu_families

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
_NOTE = "<!-- Made from the code by `python -m tests.golden --update`. -->"
# Exit codes that no error class has.
_CODES = {
    0: "Done.",
    1: "A bug in envkit: the message asks for a report.",
    REGRESSION_EXIT: "A performance regression: the image works but is slower than the baseline.",
    129: "Ended by SIGHUP.",
    130: "Interrupted: Ctrl-C, SIGINT.",
    143: "Terminated: SIGTERM.",
}
_GPUS = (
    "The limits of C10, C15 and C24 for each kind of GPU. A GPU that uses the host's memory (GB10, Jetson) has no link "
    "and no minimum. A test judges modeled readings of a healthy and a faulty GPU of each row."
)
# schema -> page, title, what its rows are, the page that explains them
_FILES = {
    "image": ("image-definition", "Image definition", "Every key of an image definition", "images.md"),
    "matrix": ("matrix-file", "Matrix file", "Every key of a matrix file", "fleet.md"),
    "lock": ("lock-file", "Lock file", "Every field of `envkit.lock`", "lock.md"),
    "record": ("record", "Record", "Every field of a verification record", "verify.md"),
}


def pages() -> dict[Path, bytes]:
    """Return every page with its path."""
    made = {
        "command-line": command_line(),
        "settings": settings_page(),
        "exit-codes": exit_codes(),
        "checks": checks(),
        **{name: file_page(schema, *more) for schema, (name, *more) in _FILES.items()},
    }
    return {FOLDER / f"{name}.md": text.encode() for name, text in made.items()}


def _page(title: str, *blocks: str) -> str:
    return "\n\n".join([f"# {title}", _NOTE, *(block for block in blocks if block)]) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _text(value: object) -> str:
    """Return plain text as Markdown that stands in a table."""
    plain = " ".join(str(value).split())
    return html.escape(plain, quote=False).replace("|", "&#124;").replace("*", "&#42;").replace("[", "&#91;")


def _code(value: object) -> str:
    """Return text in the type of code; a bar would end the cell, and a backslash before it stays visible there."""
    text = str(value)
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


# Commands.


def command_line() -> str:
    """Return the page of every command with every option, in the sections that its help has."""
    root = click.Context(envkit, info_name="envkit")
    blocks = [
        "Every command and option, as `envkit COMMAND --help` prints them. Overview: [commands.md](../commands.md)."
    ]
    for name in COMMANDS:
        blocks += _command(envkit.get_command(root, name), name, root, 2)
    return _page("Command line", *blocks)


def _command(command: click.Command | None, name: str, parent: click.Context, level: int) -> Iterator[str]:
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} {context.command_path}"
    yield from (_paragraph(text) for text in inspect.cleandoc(command.help or "").split("\n\n") if text)
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    for section, rows in _options(command, context).items():
        yield _table((section, ""), rows)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            yield from _command(command.get_command(context, inner), inner, context, level + 1)


def _paragraph(text: str) -> str:
    """Return a paragraph of a help text; click's mark for kept lines begins a block."""
    if text.startswith("\b"):
        return "\n".join(["```text", *text.splitlines()[1:], "```"])
    return html.escape(text, quote=False).replace("*", r"\*")


def _options(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return the visible options in the sections of the help."""
    found = {}
    for section, options in declare.sections(command, context).items():
        records = [record for option in options if (record := option.get_help_record(context)) is not None]
        found[section.value] = [(_code(names), _text(meaning)) for names, meaning in records]
    return found


# Settings and exit codes.


def settings_page() -> str:
    """Return the page of every setting, and of the presets with the sources of their addresses."""
    rows = [
        (
            _code(one.key),
            _text(one.meaning),
            _code(one.default) if one.default else "",
            _code(one.flag) if one.flag else "",
            f"{one.checkout.value}: {one.reason}",
        )
        for one in settings.SETTINGS
    ]
    first = (
        'A setting `KEY` is `KEY = "VALUE"` in `envkit.toml` or in the table `[tool.envkit]` of `pyproject.toml`, '
        "and the variable `ENVKIT_KEY`, in capitals. Precedence: flag, variable, the file of the folder, "
        "`~/.config/envkit/envkit.toml`, default. `envkit config` shows every value and its origin.\n\n"
        "A project's file may come from anyone, so it can set only what the last column allows. Anything else in it is "
        "ignored with a note. `envkit install` ignores its download sources, too."
    )
    head = ("setting", "meaning", "default", "flag", "in a project's file")
    return _page("Settings", first, _table(head, rows), "## Presets", *_presets())


def _presets() -> Iterator[str]:
    file = Path(settings.__file__).with_name("presets.yaml")
    sources = yaml.safe_load(file.read_text(encoding="utf-8"))["sources"]
    yield (
        '`preset = "NAME"` or `--preset NAME` sets all of the following values, except those that are set in the same '
        "place. What a mirror lacks comes from the public source. See also [Mirrors](../how-to/mirrors.md)."
    )
    for name, preset in settings.presets().items():
        yield f"### {name}"
        yield f"{preset['name']}."
        yield _table(
            ("setting", "value", "source"),
            [
                (_code(key), _code(row["value"]), _links(row["source"], sources))
                for key, row in preset["settings"].items()
            ],
        )


def _links(names: Sequence[str], sources: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(f"[{name}]({sources[name]['url']}) ({sources[name]['date']})" for name in names)


def exit_codes() -> str:
    """Return the page of exit codes: those of the error classes, and the few that no class has."""
    found = dict(_CODES)
    for kind in _classes(errors.EnvkitError):
        if "exit_code" in vars(kind) or kind is errors.UsageError:
            found[kind.exit_code] = inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]
    rows = [(str(code), _text(found[code])) for code in sorted(found)]
    about = "Every command exits with one of these codes; with several images, it is the most severe one."
    return _page("Exit codes", about, _table(("code", "meaning"), rows))


def _classes(kind: type[errors.EnvkitError]) -> Iterator[type[errors.EnvkitError]]:
    for inner in kind.__subclasses__():
        yield inner
        yield from _classes(inner)


# Checks.


def checks() -> str:
    """Return the page of every check with its thresholds and their sources."""
    rows = shipped().rows
    about = (
        "Every check of `envkit verify` with its limits; [verify.md](../verify.md) explains verdicts and tiers. Limits "
        "that gate can fail an image; the others are informational. A limit marked *judgment* lacks a reason, the "
        "value of a healthy machine or that of a planted fault. The others have all three, with the factors by which "
        "the limit is away from both; `python -m benchmarks.limits` prints them as one table, with an estimate of how "
        "often a healthy machine fails."
    )
    blocks = [about, _overview(), "Column counts: `yes` can fail the image, `informs` warns at most."]
    for entry in sorted(catalog(), key=lambda one: one.id):
        own = {name: row for name, row in rows.items() if name.partition(".")[0] == entry.id}
        if own:
            blocks += [f"## {entry.id} {entry.title}", *_limits(own)]
    others = {name: row for name, row in rows.items() if name.partition(".")[0] not in {one.id for one in catalog()}}
    blocks += ["## Limits that several checks share", *_limits(others)]
    return _page("Checks", *blocks, "## Limits by GPU", _GPUS, gpu_families.table().rstrip())


def _overview() -> str:
    """Return the table of every check by its ID."""
    head = ("check", "", "tier", "needs", "seconds", "verifies", "counts")
    return _table(
        head,
        [
            (one.id, _text(one.title), one.tier, one.needs, f"{one.budget_s:g}", _text(one.verifies), _text(one.counts))
            for one in sorted(catalog(), key=lambda one: one.id)
        ],
    )


def _limits(rows: Mapping[str, Threshold]) -> Iterator[str]:
    if rows:
        head = ("limit", "applies to", "type", "values", "unit", "gates")
        yield _table(head, [_limit(name, row) for name, row in rows.items()])
        yield "\n".join(line for name, row in rows.items() for line in _reasons(name, row))


def _reasons(name: str, row: Threshold) -> Iterator[str]:
    yield f"- {_code(name)}: {_text('; '.join(row.source))}"
    for margin in row.margins.values():
        above, below = (("" if math.isinf(room) else f", {room:.3g}x") for room in margin.room(row.number(margin.key)))
        healthy = ", ".join(f"{machine} {value:.3g}" for machine, value in margin.healthy.items())
        yield f"  - {_code(margin.key)}: {_text(margin.reason)}. Healthy: {_text(healthy)}{above}. " + _text(
            f"Fault: {margin.fault}, {margin.value:.3g}{below}."
        )


def _limit(name: str, row: Threshold) -> tuple[str, ...]:
    values = ", ".join(
        f"{key} {value:.10g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.values.items()
    )
    reference = f"; healthy: {row.reference:.10g}" if row.reference is not None else ""
    gates = "yes" if row.gates else "informs"
    judged = f"{gates}, *judgment*" if row.judgement else gates
    return (
        _code(name),
        _text(", ".join(row.applies_to)),
        _code(row.type),
        _text(values + reference),
        _text(row.unit),
        judged,
    )


# Files.


def file_page(schema: str, title: str, about: str, explained: str) -> str:
    """Return the page of a file's keys, from its JSON Schema."""
    tree = SCHEMAS[schema][1]()
    rows = list(_keys(tree, tree, "", ()))
    about = f"{about}; [{explained}](../{explained}) explains them."
    form = f"The schema is `{tree['$id']}`; `envkit schema {schema}` prints it."
    return _page(title, f"{about} {form}", _table(("key", "required", "value", "meaning"), rows))


def _keys(
    tree: Mapping[str, Any], root: Mapping[str, Any], path: str, above: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield a row for every key below a schema; what contains itself is described once."""
    tree, above = _resolved(tree, root, above)
    required = tree.get("required", ())
    for key, value in tree.get("properties", {}).items():
        own, _ = _resolved(value, root, ())
        yield (_code(path + key), "yes" if key in required else "", _value(own, root), _text(_about(value, own)))
        yield from _inner(value, root, path + key, above)
    if isinstance(tree.get("additionalProperties"), dict):
        own, _ = _resolved(tree["additionalProperties"], root, ())
        yield (_code(f"{path}NAME"), "", _value(own, root), _text(_about(tree["additionalProperties"], own)))
        yield from _inner(tree["additionalProperties"], root, f"{path}NAME", above)


def _inner(
    value: Mapping[str, Any], root: Mapping[str, Any], path: str, above: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    own, known = _resolved(value, root, above)
    if known is _SEEN:
        return
    if isinstance(own.get("items"), dict):
        yield from _keys(own["items"], root, f"{path}[].", known)
    for form in [own, *own.get("anyOf", ())]:
        if form.get("properties") or isinstance(form.get("additionalProperties"), dict):
            yield from _keys(form, root, f"{path}.", known)
        elif form is not own and isinstance(form.get("items"), dict):
            yield from _keys(form["items"], root, f"{path}[].", known)


_SEEN: tuple[str, ...] = ("seen",)


def _resolved(
    tree: Mapping[str, Any], root: Mapping[str, Any], above: tuple[str, ...]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Follow a reference within the document; the second value is what was followed so far, or `_SEEN`."""
    if "$ref" not in tree:
        return tree, above
    ref = str(tree["$ref"])
    if ref in above:
        return {}, _SEEN
    found: Any = root
    for part in ref.removeprefix("#").split("/")[1:]:
        found = found[part]
    return found, (*above, ref)


def _about(value: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    return str(value.get("description") or own.get("description") or "")


def _value(tree: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Return what a value may be: its type, its words or its form."""
    if "const" in tree:
        return _code(json.dumps(tree["const"]))
    if "enum" in tree:
        return ", ".join(_code(json.dumps(word)) for word in tree["enum"])
    if "anyOf" in tree:
        return " or ".join(dict.fromkeys(_value(_resolved(one, root, ())[0], root) for one in tree["anyOf"]))
    kinds = tree.get("type", "any")
    words = [kinds] if isinstance(kinds, str) else list(kinds)
    if "string" in words and "number" in words:  # plain scalars of YAML
        words.remove("number")
    if "array" in words and isinstance(tree.get("items"), dict):
        inner = _value(_resolved(tree["items"], root, ())[0], root)
        words[words.index("array")] = f"list of {inner}"
    return " or ".join("text" if word == "string" else "mapping" if word == "object" else word for word in words)
