"""Check exported documents with Kubernetes' own schemas, and expand a container's command like the kubelet."""

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


_SUPPORTED = [version for version in utils.all_versions() if _numbers(version) >= (1, 29)]
# The oldest installed schema that has every field of the exports, and the newest.
VERSIONS = (min(_SUPPORTED, key=_numbers), max(_SUPPORTED, key=_numbers))


def documents(text: str) -> list[dict[str, Any]]:
    """Return the documents of a file."""
    return [tree for tree in yaml.safe_load_all(text) if tree is not None]


def require_valid(tree: Mapping[str, Any]) -> None:
    """Raise if the API server of one of the versions would refuse a document or drop one of its fields."""
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
    """Expand a container's command like the kubelet: `$(NAME)` of a known variable is replaced, `$$` becomes `$`."""
    return [_expanded(word, env) for word in words]


def _expanded(word: str, env: Mapping[str, str]) -> str:
    pieces, at = [], 0
    while at < len(word):
        if word[at] != "$" or at + 1 == len(word):
            pieces.append(word[at])
            at += 1
        elif word[at + 1] == "$":
            pieces.append("$")
            at += 2
        elif word[at + 1] == "(" and (end := word.find(")", at)) > 0:
            name = word[at + 2 : end]
            pieces.append(env.get(name, word[at : end + 1]))
            at = end + 1
        else:
            pieces.append(word[at : at + 2])
            at += 2
    return "".join(pieces)
