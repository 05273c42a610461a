"""Declarations of options: each is one field of the dataclass that its command gets, and is in a section of the help.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class PushFlags:
        reference: str = argument(metavar="REF")
        no_tag: bool = flag(Section.PUBLISH, "--no-tag", help="Push by digest only.")
        registry: RegistryFlags = group(RegistryFlags)

    @new_command("push", PushFlags)
    def command(flags: PushFlags) -> int: ...

The parser, the help of a command and its manual page are made from these declarations, in the order of the fields.
Every command has -q and -v; this module adds those that the command does not declare itself.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import click

Flags = TypeVar("Flags")

COMPLETE = "_ENVKIT_COMPLETE"  # the variable with which a shell's script requests completions
_QUIET = "Print only errors and the result."
_VERBOSE = "Print more details."
_NARROW, _NARROWEST = 60, 24  # columns
_SENTENCE = 200  # characters of a command's first sentence in a list; long enough for every command
_APART = 3  # columns between an example and its explanation


class Section(enum.Enum):
    """The sections of a help text, in their order."""

    REQUEST = "Request"
    INPUT = "Input"
    SELECTION = "Selection"
    MANY = "Several images"
    LOCK = "Lock"
    BUILD = "Build"
    PUBLISH = "Tags and registries"
    INSTALL = "Installation"
    CONTAINER = "Container"
    CHECKS = "Verification"
    RECORDS = "Records and baselines"
    SIGNATURES = "Signatures"
    JOBS = "Generated jobs"
    OUTPUT = "Output"
    GENERAL = "General"


class SectionOption(click.Option):
    """An option in a section of the help."""

    def __init__(self, *names: Any, section: Section, **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.section = section

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Leave out the range of a number: `[1<=x<=31622400.0]` is noise, and the error names the range."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Verbosity:
    """How much a run prints besides its result: with `-q` only errors, with `-v` more details. It is `Context.obj`."""

    __slots__ = ("quiet", "verbose")  # not a dataclass: importing dataclasses would slow down `envkit --help`

    def __init__(self) -> None:
        self.quiet = self.verbose = False


def verbosity() -> Verbosity:
    """Return the verbosity of the current command."""
    context = click.get_current_context(silent=True)
    return (context.find_object(Verbosity) if context else None) or Verbosity()


def option(section: Section, *names: str, **attributes: Any) -> Any:
    """Declare a field of a dataclass as an option in a section of the help.

    Args:
        section: the section.
        names: as in the help; the last one is followed by what a value is called there: `"-t", "--tag NAME"`.
        attributes: those of `click.Option`.
    """
    *others, last = names
    name, _, metavar = last.partition(" ")
    return _field(kind=SectionOption, names=(*others, name), metavar=metavar or None, section=section, **attributes)


def flag(section: Section, *names: str, **attributes: Any) -> bool:
    """Declare a field of a dataclass as an option without a value; as `option`."""
    declared: bool = option(section, *names, is_flag=True, **attributes)
    return declared


def argument(**attributes: Any) -> Any:
    """Declare a field of a dataclass as an argument; `attributes` are those of `click.Argument`."""
    return _field(kind=click.Argument, names=(), **attributes)


def quiet_option(text: str = _QUIET) -> Any:
    """Declare a field of a dataclass, which has to be called `quiet`, as `-q`."""
    return _field(**_switch("quiet", text))


def verbose_option(text: str = _VERBOSE) -> Any:
    """Declare a field of a dataclass, which has to be called `verbose`, as `-v`."""
    return _field(**_switch("verbose", text))


def group(kind: type[Flags], **changed: Mapping[str, Any]) -> Flags:
    """Declare a field of a dataclass as a value of another one, filled from the options that its fields declare.

    Args:
        kind: the other dataclass.
        changed: attributes of options that differ here, by the name of their field there.
    """
    declared: Flags = _field(group=kind, changed=changed)
    return declared


def _field(**declared: Any) -> Any:
    from dataclasses import field  # not above: importing dataclasses would slow down `envkit --help`

    return field(metadata=declared)


def _switch(name: str, text: str) -> dict[str, Any]:
    """Return the declaration of an option that sets a field of the verbosity."""

    def note(ctx: click.Context, parameter: click.Parameter, typed: bool) -> bool:
        del parameter
        shared = ctx.find_object(Verbosity)
        if shared is None:
            return typed
        setattr(shared, name, typed or getattr(shared, name))
        return bool(getattr(shared, name))  # `envkit -q build` is `envkit build -q`

    names = (f"-{name[0]}", f"--{name}")
    return {
        "kind": SectionOption, "names": names, "section": Section.GENERAL, "is_flag": True, "callback": note,
        "help": text,
    }  # fmt: skip


def _parameter(name: str, *, kind: type[click.Parameter], names: tuple[str, ...], **attributes: Any) -> click.Parameter:
    return kind([*names, name], **attributes)


def parameters(kind: type, changed: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[click.Parameter]:
    """Yield the options and arguments that the fields of a dataclass declare, in their order.

    Args:
        kind: the dataclass.
        changed: attributes that replace the declared ones, by the name of the field.
    """
    from dataclasses import fields

    for field in fields(kind):
        declared = field.metadata
        if "group" in declared:
            yield from parameters(declared["group"], declared["changed"])
        elif declared:  # else the command's own parser sets it
            yield _parameter(field.name, **{**declared, **(changed or {}).get(field.name, {})})


def gather(kind: type[Flags], typed: Mapping[str, Any]) -> Flags:
    """Return a dataclass with the values of its options from `typed`, the parameters that the parser returned."""
    from dataclasses import fields

    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # `kind` is a dataclass
        inner = field.metadata.get("group")
        values[field.name] = typed[field.name] if inner is None else gather(inner, typed)
    return kind(**values)


def sections(command: click.Command, ctx: click.Context) -> dict[Section, list[click.Parameter]]:
    """Return the visible options of a command by section, in the order of the help."""
    by_section: dict[Section, list[click.Parameter]] = {section: [] for section in Section}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            own = parameter.section if isinstance(parameter, SectionOption) else Section.GENERAL  # --help is click's
            by_section[own].append(parameter)
    return {section: options for section, options in by_section.items() if options}


Example = tuple[str, str]  # a command line and its explanation


def help_parts(command: click.Command) -> list[str | list[Example]]:
    r"""Return the paragraphs of a command's help; a paragraph after click's mark "\b" is a list of examples."""
    import inspect

    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    if paragraphs == [""]:
        return []
    return [
        [_example(line) for line in text.splitlines()[1:]] if text.startswith("\b") else text for text in paragraphs
    ]


def _example(line: str) -> Example:
    command, _, explanation = line.partition("  ")
    return command.strip(), explanation.strip()


def _example_lines(examples: list[Example], width: int) -> list[str]:
    """Return examples as lines, each with its explanation to the right, or below if both do not fit into the width."""

    def beside(across: int) -> list[Example]:
        return [
            example
            for example in examples
            if example[1] and len(example[0]) + _APART <= across <= width - len(example[1])
        ]

    # Choose the column for which most examples fit on one line with their explanation.
    across = max((len(command) + _APART for command, _ in examples), key=lambda at: len(beside(at)))
    lines = []
    for command, explanation in examples:
        if (command, explanation) in beside(across):
            lines.append(f"{command:<{across}}{explanation}")
        else:
            lines += [command, *([f"    {explanation}"] if explanation else [])]
    return lines


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""Settings of every command. A command needs its own copy: click caches the help option at a command's first use, so
settings that are only inherited from the group would depend on how the command was first used."""


class SectionCommand(click.Command):
    """A command with -q and -v, whose help lists the options by section."""

    def __init__(self, *names: Any, **attributes: Any) -> None:
        attributes["context_settings"] = CONTEXT | (attributes.get("context_settings") or {})
        super().__init__(*names, **attributes)
        own = {name for parameter in self.params for name in parameter.opts}
        for name, text in (("quiet", _QUIET), ("verbose", _VERBOSE)):
            if f"--{name}" not in own:
                self.params.append(_parameter(name, **_switch(name, text), expose_value=False))

    def get_help(self, ctx: click.Context) -> str:
        """Return the help for the width of the terminal; click itself assumes at least 50 columns."""
        import shutil

        columns = shutil.get_terminal_size().columns
        if columns < _NARROW:
            ctx.terminal_width = max(columns - 2, _NARROWEST)  # click keeps two columns free, too
        return super().get_help(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the paragraphs; examples keep their lines."""
        del ctx
        with formatter.indentation():
            for part in help_parts(self):
                formatter.write_paragraph()
                if isinstance(part, str):
                    formatter.write_text(part)
                    continue
                for line in _example_lines(part, formatter.width):
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with its options."""
        for section, options in sections(self, ctx).items():
            rows = [record for parameter in options if (record := parameter.get_help_record(ctx)) is not None]
            with formatter.section(section.value):
                formatter.write_dl(rows, col_max=30 if formatter.width >= _NARROW else formatter.width // 3)


class SectionGroup(SectionCommand, click.Group):
    """A group of commands whose help lists its own options by section."""

    command_class = SectionCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its complete first sentence."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(_SENTENCE)) for name, command in self.commands.items()]
            )

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or fail with the nearest name."""
        command = super().get_command(ctx, cmd_name)
        if command is None and not ctx.resilient_parsing and not cmd_name.startswith("-"):
            from envkit.cli.typos import unknown_command

            raise unknown_command(ctx, cmd_name, self.commands, {})
        return command

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def new_command(
    name: str,
    kind: type[Flags],
    *,
    cls: type[SectionCommand] = SectionCommand,
    parent: SectionGroup | None = None,
    **attributes: Any,
) -> Callable[[Callable[[Flags], object]], SectionCommand]:
    """Return the decorator that makes a command with the options of a dataclass from a function that takes one.

    Args:
        name: of the command.
        kind: the dataclass.
        cls: the class of the command.
        parent: the group to which the command is added.
        attributes: those of `click.Command`; the help is the docstring of the function if it is not among them.
    """

    def decorate(function: Callable[[Flags], object]) -> SectionCommand:
        @functools.wraps(function)
        def called(**typed: Any) -> object:
            return function(gather(kind, typed))

        named = {"help": function.__doc__, **attributes}
        command = cls(name, callback=called, params=list(parameters(kind)), **named)
        if parent is not None:
            parent.add_command(command)
        return command

    return decorate


def new_group(name: str, kind: type[Flags], **attributes: Any) -> Callable[[Callable[[Flags], object]], SectionGroup]:
    """Return the decorator that makes a group of commands; as `new_command`, with `attributes` of `click.Group`."""
    decorate = new_command(name, kind, cls=SectionGroup, **attributes)
    return lambda function: cast("SectionGroup", decorate(function))
