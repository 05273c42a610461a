"""Machines of an inventory, grouped into classes with the same GPUs, driver and platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from envkit.facts.model import Facts
from envkit.ground.errors import Faults, UsageError
from envkit.ground.platforms import ARM, PLATFORMS, SPELLINGS
from envkit.ground.versions import is_version, key
from envkit.resolve.gpus import Card, arm_host, sm
from envkit.resolve.wanted import card

DEFAULT_PLATFORM = PLATFORMS[0]
_SHOWN_HOSTS = 4  # names in a list; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU of a machine."""

    name: str  # as in the inventory
    capability: str | None = None  # compute capability, '8.0', if the inventory has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One row of an inventory; None = not in the inventory."""

    name: str
    where: str  # 'line 3', for errors
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None  # NVIDIA driver version
    machine: str | None = None  # architecture: 'x86_64', 'arm64'
    os: str | None = None  # of the host; not used to choose an image, because an image has its own C library
    count: int = 1  # identical machines


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The machines of an inventory."""

    hosts: tuple[Host, ...]
    form: str  # 'csv' | 'json' | 'nvidia-smi' | 'kubectl' | 'slurm' | 'doctor'
    notes: tuple[str, ...] = ()  # about rows that were left out


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Values from flags for fields that the inventory lacks."""

    driver: str | None = None
    gpus: tuple[str, ...] = ()
    platform: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)  # a local GPU name -> a name in the facts


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClass:
    """Machines with the same GPUs, driver and platform; an image that runs on one of them runs on all."""

    cards: tuple[Card, ...]  # one per compute capability, lowest first; `typed` is its first name in the inventory
    driver: str
    platform: str
    hosts: tuple[str, ...]  # names in the order of the inventory
    count: int  # machines

    @property
    def title(self) -> str:
        """`V100 (sm_70), driver 535.104.05`, with the platform if it is not the default."""
        return f"{', '.join(map(str, self.cards))}, driver {self.driver}{self.suffix}"

    @property
    def suffix(self) -> str:
        """`, linux-aarch64` if the platform is not the default."""
        return "" if self.platform == DEFAULT_PLATFORM else f", {self.platform}"

    @property
    def named(self) -> str:
        """The hosts' names, shortened: `gpu01, gpu02, gpu03 and 5 more`."""
        return shortened(self.hosts)


def shortened(names: Sequence[str]) -> str:
    """Return the first names and the number of the others."""
    if len(names) <= _SHOWN_HOSTS:
        return ", ".join(names)
    return f"{', '.join(names[: _SHOWN_HOSTS - 1])} and {len(names) - _SHOWN_HOSTS + 1} more"


def classes(inventory: Inventory, facts: Facts, given: Completion) -> tuple[HostClass, ...]:
    """Return the classes of an inventory's machines, sorted by GPU, driver and platform.

    Raises:
        UsageError: a GPU is unknown, or a host lacks a GPU or driver that no flag sets; all errors are listed.
    """
    faults = Faults()
    groups: dict[tuple[object, ...], HostClass] = {}
    for host in inventory.hosts:
        host_class = faults.take(_class, host, facts, given)
        if host_class is None:
            continue
        identity = (
            tuple(card.gpu.capability for card in host_class.cards),
            key(host_class.driver),
            host_class.platform,
        )
        before = groups.get(identity)
        groups[identity] = (
            host_class
            if before is None
            else replace(before, hosts=(*before.hosts, *host_class.hosts), count=before.count + host_class.count)
        )
    faults.refuse()
    return tuple(sorted(groups.values(), key=_order))


def _class(host: Host, facts: Facts, given: Completion) -> HostClass:
    where = f"{host.where}: host {host.name!r:.100}"
    gpus = host.gpus or tuple(Gpu(name=name) for name in given.gpus)
    if not gpus:
        raise UsageError(f"{where} has no GPU", hint="--gpu NAME sets it for hosts without a GPU in the inventory")
    cards: dict[str, Card] = {}
    for gpu in gpus:
        gpu_card = _card(gpu, facts, given, where)
        cards.setdefault(gpu_card.gpu.capability, gpu_card)
    driver = host.driver or given.driver
    if driver is None:
        raise UsageError(
            f"{where} has no driver", hint="--driver VERSION sets it for hosts without a driver in the inventory"
        )
    if not is_version(driver):
        raise UsageError(f"{where}: {driver!r:.60} is not a driver version", hint="write a driver version as 550.54.15")
    arm = next((own for own in cards.values() if arm_host(own.typed, own.gpu)), None)
    machine = host.machine or given.platform or (ARM.name if arm else DEFAULT_PLATFORM)
    platform = SPELLINGS.get(machine.strip().lower())
    if platform is None:
        raise UsageError(
            f"{where}: unknown architecture {machine!r:.60}", hint=f"known: {', '.join(sorted(SPELLINGS))}"
        )
    if arm is not None and platform != ARM.name:
        raise UsageError(
            f"{where}: {arm} has an Arm CPU, but the architecture is {machine!r:.60}", hint=f"write {ARM.machine}"
        )
    return HostClass(
        cards=tuple(cards[name] for name in sorted(cards, key=key)),
        driver=driver,
        platform=platform,
        hosts=(host.name,),
        count=host.count,
    )


def _card(gpu: Gpu, facts: Facts, given: Completion, where: str) -> Card:
    """Return the GPU's row in the facts: by alias, by its compute capability, else by its name."""
    alias = given.aliases.get(gpu.name.lower())
    if alias is not None:
        return Card(alias, card(alias, facts, "--alias").gpu)
    if gpu.capability is not None:
        known = card(sm(gpu.capability), facts, where)
        return Card(gpu.name, known.gpu)
    try:
        return card(gpu.name, facts, where)
    except UsageError as fault:
        raise UsageError(fault.message, hint=f"{fault.hint}; --alias {_quoted(gpu.name)}=GPU maps the name") from fault


def _quoted(name: str) -> str:
    return f"'{name}'" if set(name) & set(" '\"$;&|") else name


def _order(host_class: HostClass) -> tuple[object, ...]:
    return tuple(key(card.gpu.capability) for card in host_class.cards), key(host_class.driver), host_class.platform
