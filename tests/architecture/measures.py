"""Measures over a package's source: each names the modules that do something only one module may do.

They read syntax trees, so they cost nothing at run time and see what no import shows: a second `flock`, a second table
of architectures. A measure that finds nothing at all is as wrong as one that finds two places; the tests ask for both.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

_SCHEMA = re.compile(r"envkit\.[a-z][a-z-]*/[0-9]+")
_X86, _ARM = {"x86_64", "amd64", "linux/amd64"}, {"aarch64", "arm64", "linux/arm64"}
_LOCKS = {"flock", "lockf"}
_MODE = re.compile(r"[rwxa][bt+]{0,2}")
_WORDS = {"encoding", "errors", "buffering", "newline"}  # of open(), besides the mode
_PROBES = {"is_file", "is_dir", "exists"}
_ARCHIVES = {"tarfile", "gzip", "bz2", "lzma", "zipfile"}  # `tarfile.open(path, "r")` reads what was opened elsewhere
_DECLARE = {"option", "flag", "argument", "group", "quiet_option", "verbose_option"}  # functions that declare a field
_CACHES = {"cache", "_cache"}
_JOINS = {"joinpath", "iterdir", "glob", "rglob", "walk"}  # of a path
_WALKS = {"walk", "fwalk", "scandir", "listdir"}  # of os
_TAG_SETTERS = {"move_tag", "put_manifest"}
_STORE_WRITERS = ("write_atomic", "write_new", "replacing")
# What names of images begin with, and what all but an engine's bear as their kind.
_NAME_PREFIX = re.compile(r"(oci|docker-archive|docker-daemon|sif|registry):")
_NAME_KINDS = {"oci", "docker-archive", "docker-daemon", "sif"}
_NAME_CONSTANTS = {"LAYOUT", "ARCHIVE", "SIF", "DAEMON", "REGISTRY", "PREFIX"}
_UNIT = re.compile(r" ?[kKMGT]i?B\b")
_SHRINKING = (ast.Div, ast.FloorDiv, ast.RShift)
_TAKING_APART = {"startswith", "removeprefix", "partition", "rpartition", "split", "rsplit", "index", "find"}


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the measured package."""

    name: str  # `envkit.ground.store`; of a package without `.__init__`
    tree: ast.Module
    is_package: bool


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return a tree and everything in it; each tree is walked once, because dozens of measures read all of them."""
    return tuple(ast.walk(tree))


def modules(root: Path) -> list[Module]:
    """Return every module below the folder of a package."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = (root.name, *path.relative_to(root).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append(Module(name=name, tree=ast.parse(path.read_text(encoding="utf-8")), is_package=is_package))
    return found


def lock_callers(found: list[Module]) -> set[str]:
    """Return the modules that call flock(2) or lockf(3)."""
    return {one.name for one in found if any(_called(node) in _LOCKS for node in nodes(one.tree))}


def openers(found: list[Module]) -> set[str]:
    """Return the modules that open or read files by themselves."""
    return {one.name for one in found if any(map(_opens, nodes(one.tree)))}


def probers(found: list[Module]) -> set[str]:
    """Return the modules that ask pathlib whether there is a file: it raises for a name that no file can have."""
    return {
        one.name for one in found if any(_called(node) in _PROBES for node in nodes(one.tree) if not _is_door(node))
    }


def _is_door(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and _receiver(node) == "foreign"


def parsers(found: list[Module]) -> set[str]:
    """Return the modules that parse JSON, TOML or YAML with the parser itself."""
    return {one.name for one in found if any(map(_parses, nodes(one.tree)))}


def writers(found: list[Module]) -> set[str]:
    """Return the modules that write, rename or replace files by themselves or with `write_atomic` and its kin."""
    return {one.name for one in found if any(map(_writes, nodes(one.tree)))}


def imports(module: Module, name: str) -> bool:
    """Return whether a module imports another one by its whole name, in a function too."""
    return any(
        isinstance(node, ast.Import) and name in {alias.name for alias in node.names} for node in nodes(module.tree)
    )


def takers(found: list[Module], source: str, name: str) -> set[str]:
    """Return the modules that import a name of a module."""
    return {
        one.name
        for one in found
        for node in nodes(one.tree)
        if isinstance(node, ast.ImportFrom) and node.module == source and name in {alias.name for alias in node.names}
    }


def literals(found: list[Module], text: str) -> set[str]:
    """Return the modules that have this text as a whole string."""
    return {
        one.name for one in found for node in nodes(one.tree) if isinstance(node, ast.Constant) and node.value == text
    }


def with_keyword(found: list[Module], function: str, keyword: str) -> set[str]:
    """Return the modules that call a function with this keyword."""
    return {
        one.name
        for one in found
        for node in nodes(one.tree)
        if isinstance(node, ast.Call) and _called(node) == function and keyword in {one.arg for one in node.keywords}
    }


def cache_finders(found: list[Module]) -> set[str]:
    """Return the modules that read XDG_CACHE_HOME or build the path of `~/.cache` on this machine."""
    return {one.name for one in found if any(map(_finds_cache, nodes(one.tree)))}


def cache_paths(found: list[Module], folders: Collection[str]) -> set[str]:
    """Return the modules that build a path below the cache, from the cache or by the name of a folder, or list it.

    Args:
        found: the modules.
        folders: the names of the cache's folders; of `a/b` also `a`.
    """
    names = {*folders, *(folder.partition("/")[0] for folder in folders)}
    return {one.name for one in found if any(_below_cache(node, names, _constants(one)) for node in nodes(one.tree))}


def _below_cache(node: ast.AST, names: set[str], constants: dict[str, str]) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_cache(node.left) or _text_of(node.right, constants) in names
    if isinstance(node, ast.JoinedStr):  # `f"downloads/{sha256}"`, the name of a file below the cache
        first = node.values[0] if node.values else None
        text = _text_of(first, constants) if first is not None else ""
        return text.endswith("/") and text.rstrip("/") in names
    if not isinstance(node, ast.Call):
        return False
    arguments = [_text_of(argument, constants) for argument in node.args]
    if isinstance(node.func, ast.Attribute) and node.func.attr in _JOINS:
        return _is_cache(node.func.value) or (node.func.attr == "joinpath" and not names.isdisjoint(arguments))
    return _called(node) in _WALKS and any(map(_is_cache, node.args))


def _is_cache(node: ast.AST) -> bool:
    """Return whether an expression is called as the cache's folder is: `cache`, `self._cache`, `site.cache.root`."""
    if isinstance(node, ast.Call):
        return _called(node) == "cache_dir"
    if isinstance(node, ast.Attribute):
        return node.attr in _CACHES or (node.attr == "root" and _is_cache(node.value))
    return isinstance(node, ast.Name) and node.id in _CACHES


def _constants(module: Module) -> dict[str, str]:
    """Return the module's names for texts."""
    return {
        target.id: node.value.value
        for node in module.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _text_of(node: ast.AST, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return constants.get(node.id, "")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def callers(found: list[Module], source: str, name: str) -> set[str]:
    """Return the modules that define a name or import it from `source`, and call it."""
    calling = {one.name for one in found if any(_called(node) == name for node in nodes(one.tree))}
    return calling & (takers(found, source, name) | {source})


def tag_setters(found: list[Module]) -> set[str]:
    """Return the modules that set a tag: they store a manifest, move a tag in a registry, or name an engine's image."""
    return {one.name for one in found if any(map(_sets_tag, nodes(one.tree)))}


def whiteout_readers(found: list[Module]) -> set[str]:
    """Return the modules that know how a layer names what it removes, or that take those names from another one."""
    return {one.name for one in found if any(map(_knows_whiteouts, _code(one.tree)))}


def architecture_tables(found: list[Module]) -> set[str]:
    """Return the modules that spell out what both processor architectures are called."""
    return {one.name for one in found if (texts := _texts(one.tree)) & _X86 and texts & _ARM}


def name_parsers(found: list[Module]) -> set[str]:
    """Return the modules that take the text of an image's name apart: by its prefix, its kind or a pattern of its own.

    Text that is put together, such as a hint, is not taken apart, and neither is a name that was parsed and is matched.
    """
    parsing = set()
    for one in found:
        constants = _name_constants(one)
        if any(_parses_name(node, constants) for node in nodes(one.tree)):
            parsing.add(one.name)
    return parsing


CONCEPTS = {
    # Texts of each table of `envkit.knowledge`; a module that spells out several of one concept has a table of its own.
    "variables": re.compile(
        r"CUDA_LAUNCH_BLOCKING|NVIDIA_TF32_OVERRIDE|TORCHDYNAMO_DISABLE|TORCH_COMPILE_DISABLE|CUDA_CACHE_DISABLE"
        r"|PYTORCH_NO_CUDA_MEMORY_CACHING|NCCL_P2P_(?:DISABLE|LEVEL)|NCCL_(?:ALGO|PROTO|MAX_NCHANNELS)|NVIDIA_DISABLE_REQUIRE"
    ),
    "CUDA": re.compile(r"cudaError[A-Z]\w+|CUDA_ERROR_[A-Z_]+|(?i:no kernel image|device-side assert"
                       r"|illegal memory access|busy or unavailable|invalid device ordinal)"),
    "NVML": re.compile(r"NVML_ERROR_[A-Z_]+|(?i:driver/library version mismatch|insufficient permissions|gpu is lost)"),
    "cuDNN": re.compile(r"CUDNN_STATUS_[A-Z_]+"),
    "NCCL": re.compile(r"ncclSystemError|ncclRemoteError|(?i:unhandled (?:cuda|system) error)"),
    "Xid": re.compile(r"(?i:xid \(?pci|xids? \d|fallen off the bus|gsp rpc)"),
    "compile": re.compile(r"(?i:no working c\+\+ compiler|failed to find c compiler|python\.h|libcuda\.so cannot found"
                          r"|getpwuid|working triton)"),
    "hook": re.compile(r"(?i:nvidia-container-cli: |unknown device|ldcache error|bpf_prog_query|load library failed)"),
    "states": re.compile(r"CrashLoopBackOff|OOMKilled|ImagePullBackOff|OUT_OF_MEMORY|NODE_FAIL|DUE TO TIME LIMIT"),
    "tools": re.compile(r"slurmstepd|enroot-nsenter|collect2|mksquashfs"),
}  # fmt: skip
_SEVERAL = 2


def concept_tables(found: list[Module]) -> dict[str, set[str]]:
    """Return for each concept of a diagnosis the modules that spell out several of its entries."""
    tables: dict[str, set[str]] = {name: set() for name in CONCEPTS}
    for one in found:
        texts = _texts(one.tree)
        for name, pattern in CONCEPTS.items():
            entries = {match[0].lower() for text in texts for match in pattern.finditer(text)}
            if len(entries) >= _SEVERAL:
                tables[name].add(one.name)
    return tables


def schema_homes(found: list[Module]) -> dict[str, set[str]]:
    """Return for each schema id the modules that spell it out."""
    homes: dict[str, set[str]] = defaultdict(set)
    for one in found:
        for node in _code(one.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SCHEMA.fullmatch(node.value):
                homes[node.value].add(one.name)
    return dict(homes)


def has_envkit(name: str) -> bool:
    """Return whether a module may import envkit: the payload runs in images that have none."""
    return not (name.startswith("envkit.smoke") or (name.startswith("envkit.checks.") and name.endswith(".observe")))


def size_formatters(found: list[Module]) -> set[str]:
    """Return the modules that write bytes with their unit: `f"{size / 1e9:.2f} GB"`, `f"{most >> 20} MiB"`."""
    return {one.name for one in found if any(map(_formats_size, nodes(one.tree)))}


def column_padders(found: list[Module]) -> set[str]:
    """Return the modules that pad text to a width that they compute, as for the columns of a table."""
    return {one.name for one in found if any(map(_pads, nodes(one.tree)))}


def markdown_tables(found: list[Module]) -> set[str]:
    """Return the modules that write the line below the head of a Markdown table."""
    return {one.name for one in found if any("---|" in text for text in _texts(one.tree))}


def parser_options(found: list[Module]) -> set[str]:
    """Return the modules that add an option or an argument to a command of click by themselves."""
    return {one.name for one in found if any(map(_adds_option, nodes(one.tree)))}


def loose_options(found: list[Module], source: str) -> set[str]:
    """Return the modules that call a function of `source` that declares an option, but declare no field with it.

    A declaration is the value of a typed field of a class. It may be in a function that returns it to several classes.
    """
    loose = set()
    for one in found:
        taken = {
            alias.asname or alias.name
            for node in nodes(one.tree)
            if isinstance(node, ast.ImportFrom) and node.module == source
            for alias in node.names
            if alias.name in _DECLARE
        }
        if one.name == source:
            continue
        calls = {id(node) for node in nodes(one.tree) if isinstance(node, ast.Call) and _called(node) in taken}
        if calls - {id(value) for node in nodes(one.tree) for value in _declared(node)}:
            loose.add(one.name)
    return loose


def option_declarations(found: list[Module]) -> Counter[tuple[str, str]]:
    """Return how often each option is declared word for word, by its help and its whole declaration."""
    seen: Counter[tuple[str, str]] = Counter()
    for one in found:
        for node in nodes(one.tree):
            text = next((word.value for word in getattr(node, "keywords", []) if word.arg == "help"), None)
            if _called(node) in _DECLARE and isinstance(text, ast.Constant):
                seen[str(text.value), ast.dump(node)] += 1
    return seen


def gpu_rules(found: list[Module]) -> set[str]:
    """Return the modules that decide whether code runs on a GPU: the same major version, and at most its minor one."""
    return {one.name for one in found if any(map(_compares_capabilities, nodes(one.tree)))}


def lane_tables(found: list[Module]) -> set[str]:
    """Return the modules that know what a PCIe lane carries: its rates by generation, or the column that has them."""
    return literals(found, "gt_per_s") | {one.name for one in found if any(map(_has_lane_rates, nodes(one.tree)))}


def fault_lists(found: list[Module]) -> set[str]:
    """Return the modules that raise a list of errors of their own: the first as its message, the others as details."""
    return {one.name for one in found if any(map(_raises_list, nodes(one.tree)))}


def importers(found: list[Module], below: str) -> set[str]:
    """Return the modules outside of a package that import anything of it, at run time or for types."""
    edges = _edges(found, typed=True)
    return {name for name, targets in edges.items() if not _is_below(name, below) if _any_below(targets, below)}


def slices(found: list[Module], lines: int) -> dict[str, str]:
    """Return the modules shorter than `lines` that one other module imports, each with that one."""
    users: dict[str, set[str]] = defaultdict(set)
    for name, targets in _edges(found, typed=True).items():
        for target in targets:
            users[target].add(name)
    short = {one.name for one in found if not one.is_package and (one.tree.body[-1].end_lineno or 0) < lines}
    return {name: min(users[name]) for name in sorted(short) if len(users[name]) == 1}


def cycles(found: list[Module]) -> list[list[str]]:
    """Return the groups of modules that import each other, imports inside functions included, those for types not."""
    edges = _edges(found, typed=False)
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(edges):
        _finish(start, edges, seen, order)
    backward: dict[str, set[str]] = defaultdict(set)
    for name, targets in edges.items():
        for target in targets:
            backward[target].add(name)
    groups, seen = [], set()
    for start in reversed(order):
        group: list[str] = []
        _finish(start, backward, seen, group)
        if len(group) > 1:
            groups.append(sorted(group))
    return sorted(groups)


def _finish(start: str, edges: dict[str, set[str]], seen: set[str], order: list[str]) -> None:
    """Append what can be reached from a module and was not seen before, deepest first."""
    waiting = [(start, False)]
    while waiting:
        name, is_done = waiting.pop()
        if is_done:
            order.append(name)
        elif name not in seen:
            seen.add(name)
            waiting.append((name, True))
            waiting += [(target, False) for target in sorted(edges.get(name, ())) if target not in seen]


def _edges(found: list[Module], *, typed: bool) -> dict[str, set[str]]:
    names = {one.name for one in found}
    edges: dict[str, set[str]] = {}
    for one in found:
        targets = {target for target in _imported(one, names, typed=typed) if target != one.name}
        edges[one.name] = targets
    return edges


def _imported(module: Module, names: set[str], *, typed: bool) -> Iterator[str]:
    for whole, source in _stated(module, typed=typed):
        yield from [whole] if whole in names else [source] if source in names else []


@cache
def _stated(module: Module, *, typed: bool) -> tuple[tuple[str, str], ...]:
    """Return what a module imports: the name that would be a module, and the one that it is taken from."""
    stated = []
    for node in nodes(module.tree) if typed else _run_time(module.tree):
        if isinstance(node, ast.Import):
            stated += [(alias.name, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
            base = ".".join(above[: len(above) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            stated += [(f"{source}.{alias.name}", source) for alias in node.names]
    return tuple(stated)


def _run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that are executed, not those below `if TYPE_CHECKING`."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _code(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield every node that is no text standing alone, such as a docstring."""
    texts = {id(node.value) for node in nodes(tree) if isinstance(node, ast.Expr)}
    yield from (node for node in nodes(tree) if not (isinstance(node, ast.Constant) and id(node) in texts))


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _receiver(node: ast.Call) -> str:
    is_plain = isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    return node.func.value.id if is_plain else ""  # type: ignore[attr-defined]


def _mode(node: ast.Call) -> str | None:
    """Return the mode of a call that opens a file (`path.open("rb")`, `open(path)`); None if it is another call."""
    if _called(node) != "open" or _receiver(node) == "os":
        return None
    is_builtin = isinstance(node.func, ast.Name)
    words = {word.arg: word.value for word in node.keywords}
    given = node.args[1:] if is_builtin else node.args
    first = words.get("mode", given[0] if given else None)
    if first is None:
        return "r" if is_builtin or not words.keys() - _WORDS else None
    text = first.value if isinstance(first, ast.Constant) else None
    return text if isinstance(text, str) and _MODE.fullmatch(text) and _receiver(node) not in _ARCHIVES else None


def _opens(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = _called(node)
    if called == "open":
        return _receiver(node) == "os" or _mode(node) is not None
    return isinstance(node.func, ast.Attribute) and called in ("read_text", "read_bytes")


def _parses(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _receiver(node) in ("json", "tomllib", "yaml") and _called(node) in (
            "load",
            "loads",
            "parse",
            "safe_load",
        )
    names = {alias.name for alias in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else set()
    if isinstance(node, ast.Import):
        return bool(names & {"tomllib", "yaml"})
    return (
        isinstance(node, ast.ImportFrom)
        and node.module in ("json", "tomllib", "yaml")
        and bool(names & {"load", "loads"})
    )


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (
            node.module is not None
            and node.module.endswith("store")
            and any(alias.name in _STORE_WRITERS for alias in node.names)
        )
    if not isinstance(node, ast.Call):
        return False
    called, mode = _called(node), _mode(node)
    if mode is not None:
        return not set(mode) <= set("rbt")
    if not isinstance(node.func, ast.Attribute):
        return False
    if called in ("replace", "rename"):  # of a path: `text.replace(old, new)` and `dataclasses.replace` have more
        return _receiver(node) == "os" or (len(node.args) == 1 and not node.keywords)
    return called in ("write_text", "write_bytes", *_STORE_WRITERS)


def _adds_option(node: ast.AST) -> bool:
    made = ("option", "argument", "version_option", "help_option", "confirmation_option", "password_option")
    if isinstance(node, ast.ImportFrom):
        return node.module == "click" and any(alias.name in (*made, "Option", "Argument") for alias in node.names)
    return isinstance(node, ast.Call) and _receiver(node) == "click" and _called(node) in (*made, "Option", "Argument")


def _compares_capabilities(node: ast.AST) -> bool:
    if not isinstance(node, ast.BoolOp) or not isinstance(node.op, ast.And):
        return False
    compared = [(ast.unparse(one), one.ops[0]) for one in node.values if isinstance(one, ast.Compare)]
    return any("[0]" in text and isinstance(how, ast.Eq) for text, how in compared) and any(
        "[1]" in text and isinstance(how, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for text, how in compared
    )


def _has_lane_rates(node: ast.AST) -> bool:
    """Return whether a mapping has numbers by generation that nearly double each time, as GT/s and GB/s do."""
    if not isinstance(node, ast.Dict):
        return False
    pairs = [(key.value, one.value) for key, one in zip(node.keys, node.values, strict=True)
             if isinstance(key, ast.Constant) and isinstance(one, ast.Constant)]  # fmt: skip
    rates = {key: one for key, one in pairs if isinstance(key, int) and isinstance(one, float)}
    return all(generation in rates for generation in (3, 4, 5)) and all(
        1.9 < rates[generation + 1] / rates[generation] < 2.1 for generation in (3, 4)
    )


def _declared(node: ast.AST) -> list[ast.expr]:
    """Return the values of the typed fields of a class, or the value that a function returns."""
    if isinstance(node, ast.ClassDef):
        return [field.value for field in node.body if isinstance(field, ast.AnnAssign) and field.value is not None]
    return [node.value] if isinstance(node, ast.Return) and node.value is not None else []


def _name_constants(module: Module) -> set[str]:
    """Return the module's names for prefixes and kinds: its own constants, and those of the module of names."""
    taken = {
        alias.asname or alias.name
        for node in nodes(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.endswith(".name")
        for alias in node.names
        if alias.name in _NAME_CONSTANTS
    }
    own = {
        name.id
        for node in nodes(module.tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name, value in _assigned(target, node.value)
        if isinstance(name, ast.Name) and isinstance(value, ast.Constant) and _names_a_kind(value.value)
    }
    return taken | own


def _assigned(target: ast.AST, value: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each target of an assignment with its value: `A, B = 1, 2` has two."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def _names_a_kind(value: object) -> bool:
    return isinstance(value, str) and (value in _NAME_KINDS or _NAME_PREFIX.match(value) is not None)


def _parses_name(node: ast.AST, constants: set[str]) -> bool:
    if isinstance(node, ast.Compare):
        return any(_is_kind(one, constants) for one in (node.left, *node.comparators))
    if isinstance(node, ast.MatchValue):
        return _is_kind(node.value, constants)
    called = _called(node)
    if not isinstance(node, ast.Call):
        return False
    if called in _TAKING_APART:
        return any(_is_kind(one, constants) for one in node.args)
    patterns = (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))
    return _receiver(node) == "re" and any("@" in text and "sha256:[" in text for text in patterns)


def _is_kind(node: ast.AST, constants: set[str]) -> bool:
    """Return whether an expression is a prefix or a kind of names, or a text or a tuple that begins with one."""
    match node:
        case ast.Constant(value=value):
            return _names_a_kind(value)
        case ast.Name(id=name):
            return name in constants
        case ast.JoinedStr(values=[ast.FormattedValue(value=first), *_]) | ast.JoinedStr(values=[first, *_]):
            return _is_kind(first, constants)
        case ast.Tuple(elts=elements):
            return any(_is_kind(one, constants) for one in elements)
        case _:
            pass
    return isinstance(node, ast.BinOp) and _is_kind(node.left, constants)


def _raises_list(node: ast.AST) -> bool:
    """Return whether an error of this name is made of `faults[0]` and `faults[1:]`, or of `first, *others`."""
    if isinstance(node, ast.FunctionDef):
        unpacked = {
            item.value.id
            for assigned in nodes(node)
            if isinstance(assigned, ast.Tuple)
            for item in assigned.elts
            if isinstance(item, ast.Starred) and isinstance(item.value, ast.Name) and isinstance(item.ctx, ast.Store)
        }
        return any(_has_details(call, unpacked) for call in nodes(node))
    return _has_details(node, set())


def _has_details(node: ast.AST, unpacked: set[str]) -> bool:
    if not isinstance(node, ast.Call) or _called(node) not in ("UsageError", "IntegrityError"):
        return False
    parts = [part for word in node.keywords if word.arg == "details" for part in nodes(word.value)]
    return any(
        (isinstance(part, ast.Slice) and isinstance(part.lower, ast.Constant) and part.lower.value == 1)
        or (isinstance(part, ast.Name) and part.id in unpacked)
        for part in parts
    )


def _formats_size(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and re.search(rf"\{{[^{{}}]*\}}{_UNIT.pattern}", node.value) is not None
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    for index, (number, after) in enumerate(pairwise(parts)):
        if isinstance(number, ast.FormattedValue) and isinstance(after, ast.Constant):
            text = str(after.value)
            is_computed = any(isinstance(getattr(part, "op", None), _SHRINKING) for part in nodes(number.value))
            unit = _UNIT.match(text)
            # A rate, such as `{rate:.1f} GB/s`, counts if it is made of bytes here.
            if unit and (is_computed or (number.format_spec is not None and text[unit.end() :][:1] != "/")):
                return True
            if is_computed and text == " " and isinstance(parts[index + 2], ast.FormattedValue):
                return True
    return False


def _pads(node: ast.AST) -> bool:
    if isinstance(node, ast.FormattedValue) and isinstance(node.format_spec, ast.JoinedStr):
        spec = node.format_spec.values
        sides = {str(part.value)[-1:] for part in spec if isinstance(part, ast.Constant)}
        return bool(sides & set("<>^")) and any(
            isinstance(part, ast.FormattedValue) and _varies(part.value) for part in spec
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        blank, width = node.left, node.right
        is_blank = isinstance(blank, ast.Constant) and blank.value == " "
        return (
            is_blank and any(isinstance(getattr(part, "op", None), ast.Sub) for part in nodes(width)) and _varies(width)
        )
    is_method = isinstance(node, ast.Call) and _called(node) in ("ljust", "rjust", "center")
    return is_method and len(node.args) == 1 and _varies(node.args[0])  # type: ignore[attr-defined]


def _varies(width: ast.AST) -> bool:
    """Return whether a width has a part that is not constant: `_INDENT - 2` has none."""
    return any(isinstance(part, ast.Name) and not part.id.isupper() for part in nodes(width))


def _finds_cache(node: ast.AST) -> bool:
    used: list[ast.AST] = []
    if isinstance(node, ast.Call):
        used = [*node.args, *(word.value for word in node.keywords)]
    elif isinstance(node, ast.Subscript):
        used = [node.slice]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        used = [node.right]
    texts = [one.value for one in used if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return any(text == "XDG_CACHE_HOME" or re.match(r"(~/)?\.cache(/|$)", text) for text in texts)


def _sets_tag(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in _TAG_SETTERS for alias in node.names)
    if not isinstance(node, ast.Call):
        return False
    # `engine.tag(image, name)`; others of this name take one argument at most.
    names_image = isinstance(node.func, ast.Attribute) and node.func.attr == "tag" and len(node.args) > 1
    return names_image or _called(node) in _TAG_SETTERS


def _knows_whiteouts(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value.startswith(".wh.")
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in ("WHITEOUT", "OPAQUE") for alias in node.names)
    return isinstance(node, ast.Attribute) and node.attr in ("WHITEOUT", "OPAQUE")


def _texts(tree: ast.Module) -> set[str]:
    return {node.value for node in _code(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _is_below(name: str, above: str) -> bool:
    return name == above or name.startswith(f"{above}.")


def _any_below(names: set[str], above: str) -> bool:
    return any(_is_below(name, above) for name in names)
