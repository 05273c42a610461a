"""Slurm: the table of `sinfo -N -o "%n %G %f"`.

Slurm has the type of a GPU only if the site configured one (`gpu:a100:4`), and never the driver. Both are also looked
for among a node's features (`v100`, `driver-535.104.05`); flags add what is still missing.
Source: Slurm's manual pages sinfo and gres.conf.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from envkit.cover.hosts import Gpu, Host, Inventory
from envkit.facts.model import Facts
from envkit.ground.errors import UsageError
from envkit.resolve.gpus import find

_GRES = re.compile(r"gres/gpu|gpu", re.IGNORECASE)
_HEADS = {"HOSTNAMES": "name", "NODELIST": "name", "NODES": "count", "GRES": "gres", "AVAIL_FEATURES": "features",
          "ACTIVE_FEATURES": "features", "FEATURES": "features"}  # fmt: skip
_DRIVER = re.compile(r"(?:nvidia|driver|drv|nv)[-_=]?v?([0-9]{3}(?:\.[0-9]{1,3}){1,2})", re.IGNORECASE)
_RANGE = re.compile(r"\[([0-9,-]+)\]")
_NONE = ("(null)", "N/A", "")
_MOST_NODES = 100_000  # more than any cluster has; a mistyped range must not fill the memory
_MOST_DIGITS = 18  # of one number of a range
COMMAND = 'sinfo -N -h -o "%n %G %f"'
_COLUMNS = ("name", "gres", "features")


def is_json(tree: object) -> bool:
    """Return whether a document is what Slurm's commands print with `--json`; each version has other fields."""
    meta = tree.get("meta") if isinstance(tree, dict) else None
    return isinstance(meta, dict) and not meta.keys().isdisjoint({"slurm", "Slurm"})


def is_table(text: str) -> bool:
    """Return whether a text is a table of sinfo: it has its header, or a generic resource in the second column."""
    words = next((line.split() for line in text.splitlines() if line.strip()), [])
    if "GRES" in words or "NODELIST" in words or "HOSTNAMES" in words:
        return True
    # A comma in the first word is that of a CSV file.
    return len(words) > 1 and "," not in words[0] and (bool(re.match(r"gpu:", words[1])) or words[1] == "(null)")


def parse_text(text: str, facts: Facts, where: str) -> Inventory:
    """Return the machines of a table of sinfo; without a header, the columns are `%n %G %f`.

    Raises:
        UsageError: there is no column with node names or none with resources.
    """
    columns: Sequence[str | None] = _COLUMNS
    rows: list[tuple[str, str, str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words:
            continue
        if set(words) & {"GRES", "NODELIST", "HOSTNAMES"}:
            columns = [_HEADS.get(word) for word in words]
            if "name" not in columns or "gres" not in columns:
                raise UsageError(f"{where} lacks node names or GPUs ({line.strip()[:80]})", hint=COMMAND)
            continue
        row = {name: word for name, word in zip(columns, words, strict=False) if name}
        label = f"line {number}"
        rows += [(label, name, row.get("gres", ""), row.get("features", "")) for name in expand(row["name"])]
    return _inventory(rows, facts)


def expand(text: str) -> tuple[str, ...]:
    """Expand Slurm's hostlist notation: `gpu[01-03,7],login1`.

    Raises:
        UsageError: it expands to more nodes than any cluster has, or a range is invalid.
    """
    nodes: list[str] = []
    # A comma inside brackets separates numbers, not nodes.
    for part in re.findall(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*", text):
        names = [part] if part else []
        while names and (match := _RANGE.search(names[0])):
            numbers = list(_numbers(match.group(1)))
            if len(numbers) * len(names) + len(nodes) > _MOST_NODES:
                raise UsageError(f"{text!r:.100} expands to more than {_MOST_NODES} nodes", hint=COMMAND)
            names = [_RANGE.sub(number, name, count=1) for name in names for number in numbers]
        nodes += names
    return tuple(nodes)


def _numbers(text: str) -> Iterable[str]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash or not first or not last:
            yield first or last
        elif not last.isdigit() or max(len(first), len(last)) > _MOST_DIGITS or int(last) < int(first):
            raise UsageError(f"[{text[:100]}] is not a range of nodes", hint=COMMAND)
        elif int(last) - int(first) > _MOST_NODES:
            raise UsageError(f"[{text[:100]}] expands to more than {_MOST_NODES} nodes", hint=COMMAND)
        else:
            # `gpu[08-10]` is gpu08, gpu09, gpu10.
            yield from (str(number).zfill(len(first)) for number in range(int(first), int(last) + 1))


def _inventory(rows: Sequence[tuple[str, str, str, str]], facts: Facts) -> Inventory:
    hosts: dict[str, Host] = {}  # a node is listed once for each partition
    without: set[str] = set()
    for label, name, gres, features in rows:
        types = _types(gres)
        if types is None:
            without.add(name)
            continue
        gpus = tuple(Gpu(name=gpu_type) for gpu_type in types) or _among(features, facts)
        driver = _DRIVER.search(features)
        host = Host(name=name, where=label, gpus=gpus, driver=driver.group(1) if driver else None)
        hosts.setdefault(name, host)
    count = len(without - hosts.keys())
    notes = (f"nodes without a GPU: {count}",) if count else ()
    return Inventory(hosts=tuple(hosts.values()), form="slurm", notes=notes)


def _types(gres: str) -> tuple[str, ...] | None:
    """Return the types of a node's GPUs; () if no types are configured, None if it has no GPU.

    Examples: `gpu:a100:4(S:0-1)`, `gpu:4`, `gpu:v100:2,gpu:t4:1,nvme:1`.
    """
    if gres in _NONE:
        return None
    parts = [part.split(":") for part in re.sub(r"\([^)]*\)", "", gres).split(",")]
    gpus = [part for part in parts if _GRES.fullmatch(part[0])]
    if not gpus or all(part[-1] == "0" for part in gpus):
        return None
    return tuple(dict.fromkeys(part[1] for part in gpus if len(part) > 1 and not part[1].isdigit()))


def _among(features: str, facts: Facts) -> tuple[Gpu, ...]:
    """Return the first GPU named by a feature."""
    names = [word for word in re.split(r"[,&|]", features) if word and find(word, facts.gpus) is not None]
    return tuple(Gpu(name=name) for name in names[:1])
