"""Jinja in its sandbox. Users' templates are rendered in a process with limits (`envkit.render.confined`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import BaseLoader, ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined, TemplateError
from jinja2.exceptions import TemplateNotFound, TemplateSyntaxError, UndefinedError
from jinja2.loaders import split_template_path
from jinja2.sandbox import ImmutableSandboxedEnvironment

from envkit.ground import paths, plugins
from envkit.ground.errors import UsageError
from envkit.render import quoting

MAX_OUTPUT = 1 << 20  # the longest Dockerfile of the goldens has 28,000 bytes
EXPORTS = "export/"  # folder of the templates of `envkit export`
# Jinja leaves empty lines and blanks where a block or a condition has no text.
_BLANKS = re.compile(r"\n{3,}")
_TRAILING = re.compile(r"[ \t]+\n")


# The exceptions that an expression in a template can raise.
_FAULTS = (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class _Folder(FileSystemLoader):
    """A user's template folder. Links out of it are refused, so a template cannot read other files."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        folder = Path(self.searchpath[0])
        try:
            path = folder.joinpath(*split_template_path(template)).resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, NUL, a name that is too long
            raise TemplateNotFound(template) from error
        if is_file and not path.is_relative_to(folder.resolve()):
            raise UsageError(
                f"template {template:.200} is a link to a file outside {folder}",
                hint=f"copy the file into {folder}; templates cannot read files outside their folder",
            )
        if is_file and path.stat().st_size > MAX_OUTPUT:
            raise UsageError(f"template {template:.200} is larger than {MAX_OUTPUT} bytes", hint=_HINT)
        if not is_file:
            raise TemplateNotFound(template)
        try:
            return super().get_source(environment, template)
        except UnicodeDecodeError as error:
            raise UsageError(f"template {template:.200}: byte {error.start} is not UTF-8", hint=_HINT) from error


def environment(folders: Sequence[Path]) -> ImmutableSandboxedEnvironment:
    """Return an environment with the user's folders first, then the built-in templates, also as `builtin/NAME`.

    Raises:
        UsageError: a folder does not exist; ignoring it would silently use built-in templates.
    """
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"templates: {folder} is not a folder", hint="envkit config shows where it is set")
    built_in = FileSystemLoader(paths.data_folder("templates"))
    loaders: list[BaseLoader] = [_Folder(folder) for folder in folders]
    templates = ImmutableSandboxedEnvironment(
        loader=ChoiceLoader([PrefixLoader({"builtin": built_in}), *loaders, built_in]),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "gitlab": quoting.gitlab,
        "hcl": quoting.hcl,
        "json": quoting.json_text,
        "quoted": quoting.quoted,
        "shell": quoting.shell,
        "words": quoting.words,
        "yaml": quoting.yaml,
    }
    templates.filters |= filters
    return templates


def with_plugins(name: str, folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the user's template folders, and that of a plug-in if only a plug-in has the template.

    A plug-in can add templates, but not replace a user's or a built-in one.

    Raises:
        EnvironmentProblem: a plug-in cannot be loaded.
        UsageError: two plug-ins have the template.
    """
    own = tuple(folders)
    if any((folder / name).is_file() for folder in (*own, paths.data_folder("templates"))):
        return own
    providers = [
        (plugin, path)
        for plugin in plugins.of(plugins.TEMPLATES)
        if ((path := plugin.path(folder=True)) / name).is_file()
    ]
    if len(providers) > 1:
        both = " and ".join(plugin.distribution for plugin, _ in providers)
        raise UsageError(f"template {name:.200} is in two plug-ins: {both}", hint="pip uninstall one of them")
    return (*own, *(path for _, path in providers))


def _environment_for(name: str, folders: Sequence[Path]) -> Environment:
    """Return an environment; exports use `@{ }` for values, because their files contain `{{ }}` of other programs."""
    templates = environment(folders)
    if name.startswith(EXPORTS):
        return templates.overlay(
            variable_start_string="@{", variable_end_string="}", comment_start_string="@#", comment_end_string="#@"
        )
    return templates


def render_template(name: str, values: dict[str, Any], folders: Sequence[Path]) -> str:
    """Render a template; trailing blanks and repeated empty lines are removed, and the text ends in one newline.

    Raises:
        UsageError: the template does not exist or has an error, or its text is too long.
    """
    try:
        text = _environment_for(name, folders).get_template(name).render(values)
    except TemplateNotFound as error:
        raise _missing(error.name) from error
    except TemplateSyntaxError as error:
        raise UsageError(f"{error.filename or error.name}:{error.lineno}: {error.message}", hint=_HINT) from error
    except UndefinedError as error:
        raise UsageError(f"template {name}: {error.message}", hint=_HINT) from error
    except _FAULTS as error:
        raise UsageError(f"template {name}: {type(error).__name__}: {error}"[:500], hint=_HINT) from error
    if len(text) > MAX_OUTPUT:
        raise UsageError(f"template {name} produces more than {MAX_OUTPUT} characters", hint=_HINT)
    return _BLANKS.sub("\n\n", _TRAILING.sub("\n", text)).strip("\n") + "\n"


_HINT = "`envkit help templates` lists the blocks and values of a template"


def source_of(name: str, folders: Sequence[Path]) -> str:
    """Return the source of a template.

    Raises:
        UsageError: the template or folder does not exist, or a link leads out of the folder.
    """
    templates = environment(folders)
    try:
        return str(templates.loader.get_source(templates, name)[0])  # type: ignore[union-attr]
    except TemplateNotFound as error:
        raise _missing(error.name) from error


def _missing(name: object) -> UsageError:
    return UsageError(
        f"unknown template {name!r}",
        hint="use --template miniconda or wheels, or set the folder of your templates (setting templates)",
    )


def blocks(name: str, folders: Sequence[Path]) -> tuple[str, ...]:
    """Return the names of a template's blocks in order, inherited ones included.

    Raises:
        UsageError: the template does not exist.
    """
    names: list[str] = []
    seen: set[str] = set()
    folders = with_plugins(name, folders)
    # The set ends a loop of templates that extend one another.
    while name not in seen:
        seen.add(name)
        source = source_of(name, folders)
        own = re.findall(r"{%-?\s*block\s+(\w+)", source)
        # The outermost template decides the order.
        names = [*own, *(block for block in names if block not in own)]
        parent = re.search(r"{%-?\s*extends\s+[\"']([^\"']+)[\"']", source)
        if parent is None:
            break
        name = parent.group(1)
    return tuple(names)
