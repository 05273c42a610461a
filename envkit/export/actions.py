"""The actions that a workflow uses, each pinned to the commit of a release: a tag can move, a commit cannot.

Source: the tags of each action's repository, read on 2026-11-20. In the file that is written, Dependabot and Renovate
read the version beside the commit and keep both up to date.
"""

from __future__ import annotations

from collections.abc import Mapping

from envkit.export.model import Option

# name of the option -> (action, commit, released as)
_ACTIONS = {
    "checkout": ("actions/checkout", "3d3c42e5aac5ba805825da76410c181273ba90b1", "v7.0.1"),
    "setup_python": ("actions/setup-python", "5fda3b95a4ea91299a34e894583c3862153e4b97", "v7.0.0"),
    "cache_action": ("actions/cache", "27d5ce7f107fe9357f9df03efb73ab90386fccae", "v5.0.5"),
    "upload": ("actions/upload-artifact", "bbbca2ddaa5d8feaa63e36b76fdaad77386f024f", "v7.0.0"),
    "download": ("actions/download-artifact", "3e5f45b2cfb9172054b4087a40e8e0b5a5461e7c", "v8.0.1"),
}
_VERSIONS = {f"{action}@{commit}": version for action, commit, version in _ACTIONS.values()}

OPTIONS: Mapping[str, Option] = {
    name: Option(
        default=f"{action}@{commit}",
        about=f"{action} by commit ({version}), or another",
        pattern=r"[A-Za-z0-9_.-]+/[A-Za-z0-9_./-]+@[A-Za-z0-9_./-]+",
    )
    for name, (action, commit, version) in _ACTIONS.items()
}


def uses(action: str) -> str:
    """What stands after `uses:`; a known commit with the release that it is."""
    version = _VERSIONS.get(action)
    return f"{action} # {version}" if version else action
