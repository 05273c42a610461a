"""One concept, one place: the measures over envkit itself. A failure names the second place; use the first instead."""

from __future__ import annotations

from pathlib import Path

import pytest

import envkit
from tests.architecture import measures


@pytest.fixture(scope="module")
def package() -> list[measures.Module]:
    """Every module of envkit."""
    return measures.modules(Path(envkit.__file__).parent)


def test_one_module_calls_flock(package: list[measures.Module]) -> None:
    assert measures.lock_callers(package) == {"envkit.ground.store"}


def test_one_module_finds_the_cache_folder(package: list[measures.Module]) -> None:
    assert measures.cache_finders(package) == {"envkit.ground.paths"}


def test_one_module_names_the_architectures(package: list[measures.Module]) -> None:
    assert measures.architecture_tables(package) == {"envkit.ground.platforms"}
