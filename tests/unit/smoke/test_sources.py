from __future__ import annotations

import ast
from importlib import resources
from pathlib import Path

import pytest

import envkit.smoke

FOLDER = Path(str(resources.files(envkit.smoke)))
CHECKS = sorted((FOLDER.parent / "checks").glob("*/observe.py"))
SOURCES = [*sorted(FOLDER.rglob("*.py")), *CHECKS]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER.parent)))
def test_a_source_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER.parent)))
def test_a_source_imports_nothing_of_the_rest(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) and node.level == 0 else []
        names += [item.name for item in node.names] if isinstance(node, ast.Import) else []
        ours = [name for name in names if name.split(".")[0] == "envkit"]
        assert all(name.split(".")[1:2] == ["smoke"] for name in ours), ours


def imported(path: Path) -> tuple[set[Path], set[str]]:
    """What a source imports as soon as it is imported itself: files of the payload, and other modules."""
    near: set[Path] = set()
    far: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "envkit"):
            base = path.parents[node.level - 1] if node.level else FOLDER.parents[1]
            stem = base.joinpath(*(node.module or "").split(".")) if node.module else base
            candidates = [stem.with_suffix(".py"), *(stem / f"{item.name}.py" for item in node.names)]
            near |= {candidate for candidate in candidates if candidate.is_file()}
        elif isinstance(node, ast.ImportFrom):
            far.add(node.module or "")
        elif isinstance(node, ast.Import):
            far |= {item.name for item in node.names}
    return near, far


def test_the_payload_starts_where_torch_cannot_be_imported() -> None:
    waiting, seen = [FOLDER / "__main__.py", *CHECKS], set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        near, far = imported(path)
        assert not {name.split(".")[0] for name in far} & {"torch", "torchvision", "numpy"}, path
        waiting += near - seen
    assert FOLDER / "context.py" in seen
    assert FOLDER / "observation.py" in seen
