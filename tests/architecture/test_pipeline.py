"""One pipeline: only `envkit/pipeline` builds an image and verifies it; commands are short and take one dataclass.

Each measure is tested twice: over envkit, and over a small made-up package that breaks its rule.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import envkit

_LONGEST_COMMAND = 60  # lines of a function of the command line
_MANY = 8  # parameters
_MOST_WITH_MANY = 5  # functions of envkit
_BUILDER_ARGUMENTS = 3  # of `Builder.build(plan, lock, options, reporter)` at least; no other `build` takes so many
_VERIFIES = frozenset({"verify_image", "verify", "subject_of"})

Tree = dict[str, ast.Module]


def read(root: Path) -> Tree:
    """Return every module below a package's folder by its path in it."""
    return {
        path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(root.rglob("*.py"))
    }


def builders(tree: Tree) -> set[str]:
    """Return the modules that call a `Builder`'s build."""
    return {name for name, module in tree.items() if any(map(_builds, ast.walk(module)))}


def composers(tree: Tree) -> set[str]:
    """Return the modules that call a `Builder`'s build and also verify an image."""
    return {name for name in builders(tree) if any(map(_verifies, ast.walk(tree[name])))}


def long_functions(tree: Tree, most: int) -> dict[str, int]:
    """Return the functions of the command line with more lines than that."""
    return {
        f"{name}:{function.name}": lines
        for name, function in _functions(tree)
        if name.startswith("cli/") and (lines := (function.end_lineno or 0) - function.lineno + 1) > most
    }


def many_parameters(tree: Tree, least: int) -> dict[str, int]:
    """Return the functions with at least so many parameters; `self` and `cls` do not count."""
    return {
        f"{name}:{function.name}": count for name, function in _functions(tree) if (count := _count(function)) >= least
    }


def cycles(tree: Tree, folder: str, package: str) -> list[str]:
    """Return the modules of a folder that import themselves through others, imports inside functions included."""
    own = {name.rpartition("/")[2].removesuffix(".py"): name for name in tree if name.rpartition("/")[0] == folder}
    edges = {
        stem: {one for one in _imported(tree[name], f"{package}.{folder}") if one in own} for stem, name in own.items()
    }
    return sorted(stem for stem in own if stem in _reached(stem, edges))


def _builds(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "build":
        return False
    return len(node.args) + len(node.keywords) >= _BUILDER_ARGUMENTS


def _verifies(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return called in _VERIFIES


def _functions(tree: Tree) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for name, module in tree.items():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, node


def _count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _imported(module: ast.Module, package: str) -> Iterator[str]:
    """Yield what a module imports from a package; `inspect` of the standard library is none of `envkit.cli`."""
    start = f"{package}."
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (one.name.removeprefix(start) for one in node.names if one.name.startswith(start))
        elif isinstance(node, ast.ImportFrom) and node.module == package:
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(start):
            yield str(node.module).removeprefix(start)


def _reached(start: str, edges: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for one in edges[waiting.pop()] - found:
            found.add(one)
            waiting.append(one)
    return found


@pytest.fixture(scope="module")
def own() -> Tree:
    """The modules of envkit."""
    return read(Path(envkit.__file__).parent)


def test_one_module_builds_and_verifies(own: Tree) -> None:
    assert composers(own) == {"pipeline/building.py"}
    assert not [name for name in builders(own) if name.startswith(("cli/", "fleet/"))]


def test_functions_of_the_command_line_are_short(own: Tree) -> None:
    assert long_functions(own, _LONGEST_COMMAND) == {}


def test_few_functions_have_many_parameters(own: Tree) -> None:
    found = many_parameters(own, _MANY)
    assert not [name for name in found if name.startswith(("cli/", "fleet/", "pipeline/", "registry/"))]
    assert len(found) <= _MOST_WITH_MANY, found


def test_commands_do_not_import_each_other_in_a_circle(own: Tree) -> None:
    assert cycles(own, "cli", "envkit") == []


def package(folder: Path, **modules: str) -> Tree:
    """A made-up package; `cli__build` is cli/build.py."""
    for name, text in modules.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read(folder)


def test_a_second_pipeline_is_seen(tmp_path: Path) -> None:
    tree = package(
        tmp_path,
        pipeline__building="def f(b):\n    b.build(1, 2, 3, 4)\n    verify(subject_of(5))",
        fleet__work="def g(b):\n    built = b.build(1, None, options=2, reporter=3)\n    verification.verify(built)",
        cli__verify="def h():\n    verify(subject_of(1))",
        cli__build="def i(p):\n    p.build(1)\n    verify(2)",
    )
    assert builders(tree) == composers(tree) == {"pipeline/building.py", "fleet/work.py"}


def test_a_long_function_is_seen(tmp_path: Path) -> None:
    body = "\n".join("    x = 1" for _ in range(60))
    tree = package(
        tmp_path, cli__build=f"def f():\n{body}", cli__lock="def g():\n    pass", fleet__run=f"def h():\n{body}"
    )
    assert long_functions(tree, 60) == {"cli/build.py:f": 61}


def test_many_parameters_are_seen(tmp_path: Path) -> None:
    tree = package(
        tmp_path,
        a="def f(a, b, c, d, e, f, g, *, h):\n    pass\n\ndef g(a, b, c, d, e, f, g):\n    pass",
        b="class C:\n    def m(self, a, b, c, d, e, f, g): ...\n\n    def n(self, a, b, c, d, e, f, *, g, h): ...",
    )
    assert many_parameters(tree, 8) == {"a.py:f": 8, "b.py:n": 8}


def test_a_circle_is_seen(tmp_path: Path) -> None:
    tree = package(
        tmp_path,
        cli__lock="def f():\n    from made.cli import locking",
        cli__locking="from made.cli.lock import places",
        cli__build="from made.cli import lock\nimport made.cli.output",
        cli__output="from made.fleet import lock",
    )
    assert cycles(tree, "cli", "made") == ["lock", "locking"]
