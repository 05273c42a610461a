"""How commands declare their options: each in the section of the help that it belongs to.

    @new_command("push")
    @option(Section.PUBLISH, "--no-tag", is_flag=True, help="Push by digest only.")

The sections of a command's help and of its manual page are made from these declarations alone. Every command has -q and
-v: those that it does not declare are added here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_QUIET = "Print only errors and the answer."
_VERBOSE = "Print more details."
_NARROW, _NARROWEST = 60, 24  # columns
_SENTENCE = 200  # characters at most
_APART = 3  # columns between an example and what it is about


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
        """Leave out the range of a number: `[1<=x<=31622400.0]` helps nobody, and an error names it."""
        extra = super().get_help_extra(ctx)
        extra.pop("range", None)
        return extra


class Verbosity:
    """How much a run tells beside its answer: `-q` only errors, `-v` more details. It is the object of the context."""

    __slots__ = ("quiet", "verbose")  # no dataclass: their module takes longer to import than `envkit --help` should

    def __init__(self) -> None:
        self.quiet = self.verbose = False


def verbosity() -> Verbosity:
    """Return the verbosity of the command that runs."""
    context = click.get_current_context(silent=True)
    return (context.find_object(Verbosity) if context else None) or Verbosity()


def _flag(name: str, text: str) -> dict[str, Any]:
    """Return the attributes of an option that is noted as a field of the verbosity."""

    def note(ctx: click.Context, parameter: click.Parameter, typed: bool) -> bool:
        del parameter
        shared = ctx.find_object(Verbosity)
        if shared is None:
            return typed
        setattr(shared, name, typed or getattr(shared, name))
        return bool(getattr(shared, name))  # `envkit -q build` is `envkit build -q`

    return {"section": Section.GENERAL, "is_flag": True, "callback": note, "help": text}


def quiet_option(text: str = _QUIET) -> Callable[[Command], Command]:
    """Return the decorator that adds `-q` for a command that takes it as the keyword `quiet`."""
    return click.option("-q", "--quiet", cls=SectionOption, **_flag("quiet", text))


def verbose_option(text: str = _VERBOSE) -> Callable[[Command], Command]:
    """Return the decorator that adds `-v` for a command that takes it as the keyword `verbose`."""
    return click.option("-v", "--verbose", cls=SectionOption, **_flag("verbose", text))


def option(section: Section, *names: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the decorator that adds an option in a section; the rest is as in `click.option`."""
    return click.option(*names, cls=SectionOption, section=section, **attributes)


def sections(command: click.Command, ctx: click.Context) -> dict[Section, list[click.Parameter]]:
    """Return the visible options of a command by section, in the order of the help."""
    by_section: dict[Section, list[click.Parameter]] = {section: [] for section in Section}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            own = parameter.section if isinstance(parameter, SectionOption) else Section.GENERAL  # --help is click's
            by_section[own].append(parameter)
    return {section: options for section, options in by_section.items() if options}


Example = tuple[str, str]  # a command line, and what it is about


def help_parts(command: click.Command) -> list[str | list[Example]]:
    """Return the paragraphs of a command's help; one that begins with click's mark for kept lines has examples."""
    import inspect

    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    if paragraphs == [""]:
        return []
    return [
        [_example(line) for line in text.splitlines()[1:]] if text.startswith("\b") else text for text in paragraphs
    ]


def _example(line: str) -> Example:
    command, _, about = line.partition("  ")
    return command.strip(), about.strip()


def _example_lines(examples: list[Example], width: int) -> list[str]:
    """Return examples as lines: what one is about stands beside it, or, where that is too wide, below it."""

    def beside(across: int) -> list[Example]:
        return [
            example
            for example in examples
            if example[1] and len(example[0]) + _APART <= across <= width - len(example[1])
        ]

    # The column that leaves the most of them in one line.
    across = max((len(command) + _APART for command, _ in examples), key=lambda at: len(beside(at)))
    lines = []
    for command, about in examples:
        if (command, about) in beside(across):
            lines.append(f"{command:<{across}}{about}")
        else:
            lines += [command, *([f"    {about}"] if about else [])]
    return lines


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
"""The settings of every command, whatever it is started from: click keeps the help option of the first start."""


class SectionCommand(click.Command):
    """A command that lists its options by section, and has -q and -v."""

    def __init__(self, *names: Any, **attributes: Any) -> None:
        attributes["context_settings"] = CONTEXT | (attributes.get("context_settings") or {})
        super().__init__(*names, **attributes)
        own = {name for parameter in self.params for name in parameter.opts}
        for name, text in (("quiet", _QUIET), ("verbose", _VERBOSE)):
            if f"--{name}" not in own:
                added = SectionOption([f"-{name[0]}", f"--{name}"], expose_value=False, **_flag(name, text))
                self.params.append(added)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help for the width of the terminal; click takes at least 50 columns."""
        import shutil

        columns = shutil.get_terminal_size().columns
        if columns < _NARROW:
            ctx.terminal_width = max(columns - 2, _NARROWEST)
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
    """A group of commands whose own options are in sections."""

    command_class = SectionCommand

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, each with its whole first sentence."""
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


def new_command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator that makes a command with sections; the rest is as in `click.command`."""
    return click.command(name, **{"cls": SectionCommand, **attributes})


def new_group(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], SectionGroup]:
    """Return the decorator that makes a group of commands; the rest is as in `click.group`."""
    return click.group(name, cls=SectionGroup, **attributes)
