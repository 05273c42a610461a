"""How this envkit was installed, for hints: which command adds a missing library, or installs envkit again.

No hint may install envkit by its name from an index: nothing is published, so the code of a stranger would run.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from urllib.parse import unquote, urlsplit

from envkit import __version__
from envkit.ground.naming import DISTRIBUTION, FILE_STEM

_CHECKOUT = Path(__file__).parents[2]
_WHEEL = f"{FILE_STEM}-{__version__}-py3-none-any.whl"


def libraries(extra: str) -> str:
    """Return the command that installs the libraries of an extra, such as `attest`."""
    return f"pip install {shlex.join(_libraries(extra))}"


def again() -> str:
    """Return the command that installs this version of envkit again from where it came from."""
    source = _source()
    return f"pip install --force-reinstall --no-deps {shlex.quote(source or _WHEEL)}" + (
        "" if source else f"   # the file that envkit {__version__} was installed from"
    )


def elsewhere(extra: str) -> str:
    """Return the arguments of `pip install` for another machine: a wheel of this version, and the libraries."""
    source = _source()
    # A folder of this machine is not on the other one.
    file = source if source and "://" in source else _WHEEL
    return shlex.join([file, *_libraries(extra)])


def _libraries(extra: str) -> list[str]:
    from importlib.metadata import PackageNotFoundError, requires  # noqa: PLC0415 - only for an error

    from packaging.requirements import Requirement  # noqa: PLC0415 - as above

    try:
        needed = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    except PackageNotFoundError:  # run from a checkout without being installed
        return [f"{_CHECKOUT}[{extra}]"]
    return [
        f"{one.name}{one.specifier}"
        for one in needed
        if one.marker is not None and one.marker.evaluate({"extra": extra}) and not one.marker.evaluate({"extra": ""})
    ]


def _source() -> str | None:
    """Return the folder, URL or commit that pip recorded (PEP 610); None if envkit came from an index."""
    from importlib.metadata import PackageNotFoundError, distribution  # noqa: PLC0415 - only for an error

    try:
        recorded = distribution(DISTRIBUTION).read_text("direct_url.json")
        tree = json.loads(recorded) if recorded else {}
        url = tree.get("url", "")
        if commit := tree.get("vcs_info", {}).get("commit_id"):
            return f"{tree['vcs_info']['vcs']}+{url}@{commit}"
        if urlsplit(url).scheme == "file":
            return unquote(urlsplit(url).path)
        digest = tree.get("archive_info", {}).get("hashes", {}).get("sha256")
    except PackageNotFoundError:
        return str(_CHECKOUT)
    except (ValueError, AttributeError, KeyError):  # damaged, or written by something else than an installer
        return None
    return f"{url}#sha256={digest}" if url and digest else None
