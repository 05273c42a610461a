"""The style and the script of every page, and the policy that allows these two and nothing else."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources


def asset(name: str) -> str:
    """Return a file shipped beside this module: no part of it comes from a record."""
    return (resources.files("envkit.report.html") / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """Return the content security policy of a page with this style and this script inside."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src {_hash(style)}",
            f"script-src {_hash(script)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
