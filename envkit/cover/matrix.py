"""A cover as the matrix file that `envkit build --matrix` reads (schema envkit.matrix/1): one combination per image."""

from __future__ import annotations

import json
from collections.abc import Iterator

from envkit.cover.model import Cover, Image
from envkit.resolve.gpus import sm

_HEAD = """\
# The fewest images for these machines ({machines} in total), written by `envkit cover`.
schema: envkit.matrix/1
image: {image}
include:
"""


def matrix_text(found: Cover, image: str = "default") -> str:
    """The file's text.

    Args:
        found: at least one image.
        image: the definition that every combination starts from: a shipped image, or a path relative to the file.
    """
    served = sum(row.hosts.count for entry in found.images for row in entry.serves)
    head = _HEAD.format(machines=served, image=json.dumps(image))
    return head + "".join(line for entry in found.images for line in _row(entry))


def _row(image: Image) -> Iterator[str]:
    resolution = image.resolution
    for row in image.serves:
        said = f"{row.hosts.named}: {row.hosts.title}"
        # A name from an inventory must not end the comment.
        yield f"  # {''.join(char if char.isprintable() else '?' for char in said)}\n"
    fields = {
        "torch": resolution.torch,
        "cuda": resolution.cuda,
        "python": resolution.python,
        "source": resolution.source,
        "platform": resolution.platform,
        "os": resolution.os,
        "gpu": [sm(capability) for capability in resolution.gpus],
    }
    for number, (name, value) in enumerate(fields.items()):
        # JSON's quoted text and lists are YAML's too, and no version becomes a number.
        yield f"  {'- ' if number == 0 else '  '}{name}: {json.dumps(value)}\n"
