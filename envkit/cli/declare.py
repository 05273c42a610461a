"""How commands declare their options: each in the section of the help that it belongs to.

    @new_command("push")
    @option(Section.PUBLISH, "--no-tag", is_flag=True, help="Push by digest only.")

The sections of a command's help and of its manual page are made from these declarations alone.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


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


def option(section: Section, *names: str, **attributes: Any) -> Callable[[Command], Command]:
    """Return the decorator that adds an option in a section; the rest is as in `click.option`."""
    return click.option(*names, cls=SectionOption, section=section, **attributes)


def sections(command: click.Command, ctx: click.Context) -> dict[Section, list[click.Parameter]]:
    """Return the visible options of a command by section, in the order of the help."""
    found: dict[Section, list[click.Parameter]] = {section: [] for section in Section}
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and not parameter.hidden:
            own = parameter.section if isinstance(parameter, SectionOption) else Section.GENERAL  # --help is click's
            found[own].append(parameter)
    return {section: options for section, options in found.items() if options}


class SectionCommand(click.Command):
    """A command that lists its options by section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with its options."""
        for section, options in sections(self, ctx).items():
            rows = [record for one in options if (record := one.get_help_record(ctx)) is not None]
            with formatter.section(section.value):
                formatter.write_dl(rows)


class SectionGroup(SectionCommand, click.Group):
    """A group of commands whose own options are in sections."""

    command_class = SectionCommand

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
