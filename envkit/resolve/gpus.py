"""Find the row of a GPU by any name that people or drivers write, or by its compute capability."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from envkit.facts.model import Gpu
from envkit.ground.text import similar
from envkit.ground.versions import key

_CAPABILITY = re.compile(r"([0-9]{1,2})\.([0-9])")
_SM = re.compile(r"(?:sm|compute)_?([0-9]{1,2})([0-9])[af]?")  # NVIDIA's suffixes: a is for one GPU only, f its family
_NAME = re.compile(r"[A-Za-z0-9 ._()/+-]+")  # the characters of product names
# Words of marketing names that do not distinguish products.
_NOISE = {"NVIDIA", "TESLA", "GEFORCE", "QUADRO", "GPU"}
# Words before a product that name the machine or the virtual GPU it is in.
_BEFORE = {"HGX", "DGX", "GRID"}
# Words that may follow a product: variants of one chip family, the form factor, memory, MIG and virtual GPU profiles.
# With any other word after it, the name is that of another product ("RTX 4000 SFF Ada" is not an "RTX 4000").
_AFTER = re.compile(
    r"TI|SUPER|D|V2|LAPTOP|MOBILE|EMBEDDED|MAX|Q|WITH|DESIGN|OEM|GENERATION|WORKSTATION|SERVER|CEO|EDITION|ACTIVE"
    r"|PCIE|SXM[0-9]?|NVL[0-9]*|HBM[0-9]E?|3E|GDDR[0-9]X?|FHHL|DGXS|LS|AC|LC|MIG|[0-9]+(GB?|GIB|[ABCQ])"
)
# Words by which products of different compute capabilities differ that are called the same without them.
_ARCHITECTURES = {"ADA", "BLACKWELL", "PRO", "GENERATION"}
_AMD = re.compile(
    r"(AMD|RADEON|INSTINCT|RX|VEGA|FIREPRO)\b|(MI[0-9]{1,3}[A-Z]?|GFX[0-9]+[A-Z]?|W[5-9][0-9]00)$", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU of a request: the text that the user typed and its row."""

    typed: str
    gpu: Gpu

    @property
    def sm(self) -> str:
        """The compute capability as CUDA writes it: `sm_86`."""
        return sm(self.gpu.capability)

    def __str__(self) -> str:
        return self.sm if capability(self.typed) else f"{self.typed} ({self.sm})"


def sm(text: str) -> str:
    """Return a compute capability as CUDA writes it: `8.6` -> `sm_86`, `12.0` -> `sm_120`."""
    return "sm_" + text.replace(".", "")


def capability(typed: str) -> str | None:
    """Return the compute capability in `8.6`, `sm_86`, `compute_86` or `sm_90a`; None for a product name."""
    text = typed.strip().lower()
    match = _CAPABILITY.fullmatch(text) or _SM.fullmatch(text)
    return f"{int(match.group(1))}.{match.group(2)}" if match else None


def find(typed: str, gpus: tuple[Gpu, ...], *, short: bool = False) -> Gpu | None:
    """Return the row of a product or capability, None if no row has it.

    A product matches if the name begins with its words and only known variants follow, so the names that drivers print
    (`NVIDIA A100-SXM4-80GB`, `Tesla V100-PCIE-16GB`) match too. The longest product wins.

    Args:
        typed: the name.
        gpus: the rows.
        short: also accept short forms: `RTX2080`, `1080ti`, `4090`, `A6000`. Off where the text may not be a GPU.
    """
    wanted = capability(typed)
    if wanted is not None:
        return next((gpu for gpu in gpus if gpu.capability == wanted), None)
    if not _NAME.fullmatch(typed):
        return None
    # A Gpu has a dict, so it cannot be the key of a cache.
    known = _known(tuple((gpu.capability, gpu.products) for gpu in gpus))
    words = _words(typed)
    matched = _longest(words, known.full)
    if matched is None and words and words[0] in _BEFORE:
        matched = _longest(words[1:], known.full)
    if matched is None and short:
        matched = _longest(words, known.short) or known.joined.get("".join(_before_variants(words)))
    return next((gpu for gpu in gpus if gpu.capability == matched), None)


def product(typed: str, gpu: Gpu) -> str | None:
    """Return the row's product that a name stands for, None if it stands for none, such as a capability."""
    words = _words(typed)
    names = {name: full_name for full_name in gpu.products for name in _names(full_name)}
    matched = _longest(words, names)
    return _longest(words[1:], names) if matched is None and words[:1] and words[0] in _BEFORE else matched


def full_name(card: Card) -> str | None:
    """Return the product that a card was understood as: `4090` -> `RTX 4090`; None for a compute capability."""
    known = product(card.typed, card.gpu)
    if known is not None or capability(card.typed) is not None:
        return known
    squeezed = "".join(_words(card.typed))
    full = {"".join(_words(_plain(name))): name for name in card.gpu.products}
    return next((full[f"{before}{squeezed}"] for before in ("", "RTX", "GTX") if f"{before}{squeezed}" in full), None)


def named(card: Card) -> str:
    """Return the product that a card was understood as, with its capability: `4090` -> `RTX 4090 (sm_89)`.

    A longer name, as drivers print it, stays: `H100 80GB HBM3 (sm_90)`.
    """
    known = full_name(card)
    if known is None or _plain(known).lower() in card.typed.lower():
        return str(card)
    return f"{_plain(known)} ({card.sm})"


def arm_host(typed: str, gpu: Gpu) -> bool:
    """Return whether a name stands for a product with an Arm CPU of its own; False for a compute capability."""
    return product(typed, gpu) in gpu.arm_host


def others(card: Card, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Return the products of other compute capabilities that a name may mean too: `RTX 6000` also `RTX 6000 Ada`."""
    if capability(card.typed) is not None:
        return ()
    words = _words(_plain(full_name(card) or ""))
    found = []
    for row in gpus:
        for name in row.products if row is not card.gpu else ():
            full = _words(_plain(name))
            # The same words, with the name of an architecture in between or at the end.
            if full != words and tuple(word for word in full if word not in _ARCHITECTURES) == words:
                found.append(f"{_plain(name)} ({sm(row.capability)})")
    return tuple(found)


def in_one_word(product: str) -> str:
    """Return a product in a form that needs no quotes: `RTX 4090` -> `RTX4090`, `Quadro P400` -> `P400`."""
    return "".join(word for word in product.split() if word.upper() not in _NOISE)


def is_amd(typed: str) -> bool:
    """Return whether a name is that of an AMD GPU: `MI300X`, `RX 7900 XTX`, `gfx1100`."""
    return _AMD.match(typed.strip()) is not None


@dataclass(frozen=True, slots=True)
class _Known:
    """Capabilities by the words of a name: as nvidia-smi prints it, and in short forms."""

    full: dict[tuple[str, ...], str]
    short: dict[tuple[str, ...], str]  # without RTX and GTX
    joined: dict[str, str]  # RTX2080TI, 2080TI


@lru_cache(maxsize=8)
def _known(rows: tuple[tuple[str, tuple[str, ...]], ...]) -> _Known:
    full: dict[tuple[str, ...], str] = {}
    short: dict[tuple[str, ...], set[str]] = {}
    for row, products in rows:
        for product in products:
            for name in _names(product):
                full[name] = row
                if product.startswith(("RTX ", "GTX ")) and len(name) > 1:
                    short.setdefault(name[1:], set()).add(row)
    # A short form that products of two capabilities share is ambiguous.
    only = {name: next(iter(capabilities)) for name, capabilities in short.items() if len(capabilities) == 1}
    joined: dict[str, str] = {}
    for name, row in (*full.items(), *only.items()):
        for variant in ("", "TI", "SUPER", "TISUPER", "D"):
            joined.setdefault("".join(name) + variant, row)
    # A product's own name takes precedence over a name with a variant appended.
    joined |= {"".join(name): row for name, row in (*only.items(), *full.items())}
    return _Known(full, only, joined)


def _longest(words: tuple[str, ...], names: dict[tuple[str, ...], str]) -> str | None:
    for size in range(len(words), 0, -1):
        if words[:size] in names and all(_AFTER.fullmatch(word) for word in words[size:]):
            return names[words[:size]]
    return None


def _before_variants(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a name without the variants at its end."""
    while len(words) > 1 and _AFTER.fullmatch(words[-1]):
        words = words[:-1]
    return words


def nearest(typed: str, gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Return up to three known names similar to an unknown one, best first."""
    wanted = capability(typed)
    if wanted is not None:
        number = _scalar(wanted)
        ranked = sorted(gpus, key=lambda gpu: (abs(_scalar(gpu.capability) - number), key(gpu.capability)))
        return tuple(sm(gpu.capability) for gpu in ranked[:3])
    products = {" ".join(name): _plain(product) for gpu in gpus for product in gpu.products for name in _names(product)}
    close = similar(" ".join(_words(typed)), products, n=3, cutoff=0.5)
    return tuple(dict.fromkeys(products[name] for name in close))


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[^A-Z0-9]+", text.upper()) if word and word not in _NOISE)


def _plain(product: str) -> str:
    return re.sub(r"\s*\(.*\)", "", product)


def _names(product: str) -> tuple[tuple[str, ...], ...]:
    """Return the word sequences that name a product: `GB10 (DGX Spark)` is also `DGX Spark`."""
    names = [_words(_plain(product))]
    inside = re.search(r"\((.*)\)", product)
    if inside and inside.group(1)[:1].isupper():
        names.append(_words(inside.group(1)))
    if "PRO" in names[0]:  # every RTX PRO is a Blackwell, so the word may be left out
        names.append(tuple(word for word in names[0] if word != "BLACKWELL"))
    return tuple(names)


def _scalar(text: str) -> int:
    major, minor = text.split(".")
    return int(major) * 10 + int(minor)
