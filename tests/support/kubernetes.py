"""Kubernetes' own view of exported documents: its schema of every kind, and what a container is started with."""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from kubernetes_validate import utils
from referencing import Registry, Resource


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


_ENOUGH = [version for version in utils.all_versions() if _numbers(version) >= (1, 29)]
# The oldest installed schema that knows every field of the exports, and the newest.
VERSIONS = (min(_ENOUGH, key=_numbers), max(_ENOUGH, key=_numbers))


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a file."""
    return [tree for tree in yaml.safe_load_all(text) if tree is not None]


def require_valid(tree: Mapping[str, Any]) -> None:
    """Raise where the API server of one of the versions would refuse a document or drop a field of it."""
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", tree["apiVersion"])
    for version in VERSIONS:
        _validator(version, f"{tree['kind'].lower()}-{group}").validate(tree)


@cache
def _validator(version: str, name: str) -> Draft202012Validator:
    return Draft202012Validator(_schema(version, name), registry=_definitions(version))


@cache
def _definitions(version: str) -> "Registry[Any]":
    # The files are large, so each is read once.
    return Resource.from_contents(_schema(version, "_definitions")) @ Registry()


def _schema(version: str, name: str) -> Any:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}-local-strict"
    return json.loads((folder / f"{name}.json").read_bytes())


def started_with(words: list[str], env: Mapping[str, str]) -> list[str]:
    """What the kubelet makes of a container's command: `$(NAME)` of a known variable is replaced, `$$` is one `$`."""
    return [_expanded(word, env) for word in words]


def _expanded(word: str, env: Mapping[str, str]) -> str:
    found, place = [], 0
    while place < len(word):
        if word[place] != "$" or place + 1 == len(word):
            found.append(word[place])
            place += 1
        elif word[place + 1] == "$":
            found.append("$")
            place += 2
        elif word[place + 1] == "(" and (end := word.find(")", place)) > 0:
            name = word[place + 2 : end]
            found.append(env.get(name, word[place : end + 1]))
            place = end + 1
        else:
            found.append(word[place : place + 2])
            place += 2
    return "".join(found)
