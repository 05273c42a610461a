"""Change one value at a time in another program's document, for readers that must not fail with a traceback."""

import copy
import itertools
from collections.abc import Iterator
from typing import Any

VALUES: tuple[Any, ...] = (["a"], 7, 1.5, "x", {"a": ["b"]}, [["x"]], [None], {}, True, None, [], -1, 1e308, "\ud800")
_DEPTH = 5


def changed(tree: dict[str, Any], every: int = 1) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield copies of the tree in which one member is replaced by an odd value or removed, each with a description.

    Only one in `every` changes is made, because copying takes time.
    """
    for at, value in itertools.islice(itertools.product(_places(tree, ()), (*VALUES, KeyError)), 0, None, every):
        other = copy.deepcopy(tree)
        parent: Any = other
        for key in at[:-1]:
            parent = parent[key]
        if value is KeyError:
            del parent[at[-1]]
        else:
            parent[at[-1]] = value
        yield f"{'.'.join(map(str, at))} = {value!r}", other


def _places(tree: Any, at: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    members = tree.items() if isinstance(tree, dict) else list(enumerate(tree))[:1] if isinstance(tree, list) else ()
    for key, value in members if len(at) < _DEPTH else ():
        yield from _places(value, (*at, key))
