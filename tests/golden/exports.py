"""What `envkit export` writes for two orders: definitions by name, and a matrix file."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from envkit.export.kinds import KINDS, kind
from envkit.export.model import Order
from tests.support.exports import REGISTRY, matrix_order, order

_MATRIX = "images/matrix.yaml"
_ONE_BY_ONE = ("devcontainer",)  # a matrix would only give more of the same files
_RENDERED = ("contexts", "plans", "envkit")  # folders of what other goldens hold already


def orders(name: str) -> dict[str, Order]:
    """The kept orders of a kind."""
    command = f"envkit export {name} {{}} --registry {REGISTRY}"
    found = {f"export-{name}": order(name, command=command.format("cpu cu126"))}
    if name not in _ONE_BY_ONE:
        matrix = command.format(f"--matrix {_MATRIX}")
        found[f"export-{name}-matrix"] = matrix_order(name, command=matrix)
    return found


def exports() -> Iterator[tuple[str, str, bytes]]:
    """Folder, path below it and bytes of every kept file."""
    for name in KINDS:
        for folder, made in orders(name).items():
            for path, text in kind(name).exporter()(made).items():
                if not set(PurePosixPath(path).parts[:-1]) & set(_RENDERED):
                    yield folder, path, text.encode()
