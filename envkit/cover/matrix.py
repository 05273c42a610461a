"""Write a cover as a matrix file for `envkit build --matrix` (schema envkit.matrix/1), one combination per image."""

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


def matrix_text(cover: Cover, image: str = "default") -> str:
    """Return the text of the matrix file.

    Args:
        cover: with at least one image.
        image: the definition that every combination starts from: a shipped image, or a path relative to the file.
    """
    served = sum(row.hosts.count for entry in cover.images for row in entry.serves)
    head = _HEAD.format(machines=served, image=json.dumps(image))
    return head + "".join(line for entry in cover.images for line in _row(entry))


def _row(image: Image) -> Iterator[str]:
    resolution = image.resolution
    for row in image.serves:
        comment = f"{row.hosts.named}: {row.hosts.title}"
        # A line break in a name from the inventory must not end the comment.
        yield f"  # {''.join(char if char.isprintable() else '?' for char in comment)}\n"
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
        # JSON is valid YAML, and its quotes keep versions from becoming numbers.
        yield f"  {'- ' if number == 0 else '  '}{name}: {json.dumps(value)}\n"
