"""GPU names as people and drivers write them -> the compute capability row that knows them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from envkit.facts.model import Gpu
from envkit.versions import key

_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9])")
_SM = re.compile(r"(?:sm|compute)_?([0-9]{1,2})([0-9])[af]?")
_NAME = re.compile(r"[A-Za-z0-9 ._()/+-]+")  # signs that names of products are written in
# Words of marketing names that do not tell one product from another.
_NOISE = {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GPU"}


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of a request: the text that was typed and the row it means."""

    typed: str
    gpu: Gpu

    @property
    def sm(self) -> str:
        """`sm_86`."""
        return sm(self.gpu.capability)

    def __str__(self) -> str:
        return self.sm if capability(self.typed) else f"{self.typed} ({self.sm})"


def sm(text: str) -> str:
    """`8.6` -> `sm_86`, `12.0` -> `sm_120`."""
    return "sm_" + text.replace(".", "")


def capability(typed: str) -> str | None:
    """The compute capability a text spells out (`8.6`, `sm_86`, `compute_86`, `sm_90a`), None for a product name."""
    text = typed.strip().lower()
    found = _CAPABILITY.fullmatch(text) or _SM.fullmatch(text)
    return f"{int(found.group(1))}.{found.group(2)}" if found else None


def find(typed: str, gpus: tuple[Gpu, ...]) -> Gpu | None:
    """The row of a product or capability, None when the facts do not know it.

    A product matches when its words begin the typed name, so what a driver prints (`NVIDIA A100-SXM4-80GB`,
    `Tesla V100-PCIE-16GB`) is found too; the longest product wins.
    """
    wanted = capability(typed)
    if wanted is not None:
        return next((gpu for gpu in gpus if gpu.capability == wanted), None)
    if not _NAME.fullmatch(typed):
        return None
    words = _words(typed)
    best: tuple[int, Gpu] | None = None
    for gpu in gpus:
        for product in gpu.products:
            for name in _names(product):
                size = len(name)
                if size and words[:size] == name and (best is None or size > best[0]):
                    best = (size, gpu)
    return best[1] if best else None


def nearest(typed: str, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Up to three known names close to an unknown one, best first."""
    wanted = capability(typed)
    if wanted is not None:
        number = _scalar(wanted)
        ranked = sorted(gpus, key=lambda gpu: (abs(_scalar(gpu.capability) - number), key(gpu.capability)))
        return tuple(sm(gpu.capability) for gpu in ranked[:3])
    products = {" ".join(name): _plain(product) for gpu in gpus for product in gpu.products for name in _names(product)}
    close = difflib.get_close_matches(" ".join(_words(typed)), products, n=3, cutoff=0.5)
    return tuple(dict.fromkeys(products[name] for name in close))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[^A-Z0-9]+", text.upper()) if word and word not in _NOISE)


def _plain(product: str) -> str:
    return re.sub(r"\s*\(.*\)", "", product)


def _names(product: str) -> tuple[tuple[str, ...], ...]:
    """The word sequences a product goes by: `GB10 (DGX Spark)` is also `DGX Spark`."""
    names = [_words(_plain(product))]
    inside = re.search(r"\((.*)\)", product)
    if inside and inside.group(1)[:1].isupper():
        names.append(_words(inside.group(1)))
    if names[0][-1:] == ("BLACKWELL",):  # there is no RTX PRO of another family
        names.append(names[0][:-1])
    return tuple(names)


def _scalar(text: str) -> int:
    major, minor = text.split(".")
    return int(major) * 10 + int(minor)
