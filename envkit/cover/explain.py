"""Explain by the resolver's rules why a class of machines needs its image and cannot use others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envkit.cover.hosts import HostClass
from envkit.facts.model import Build
from envkit.ground.versions import key
from envkit.resolve.index import Index, unsure
from envkit.resolve.rules import VERSION_RULES, Sieve, code, cudnn_runs, driven, driver


def forces(own: Build, others: Sequence[Build], hosts: HostClass, sieve: Sieve) -> tuple[str, ...]:
    """Return why machines need the image `own`: the reasons against the other images and newer builds.

    Args:
        own: the build of their image.
        others: the builds of the other images, none of which runs on the machines.
        hosts: the machines.
        sieve: the rules for them.
    """
    here = [build for build in others if build.platform == hosts.platform]
    if not here:
        return (f"no other image is for {hosts.platform}",)
    known = [build for build in sieve.index.facts.builds if _matches_request(build, sieve)]
    newest = min(known, key=lambda build: sieve.index.rank[build.torch], default=own)
    newer = [
        build
        for build in known
        if build.source == own.source
        and (build.torch == newest.torch != own.torch or (build.torch == own.torch and _cuda(build) > _cuda(own)))
    ]
    reasons: dict[str, list[Build]] = {}
    for build in [*here, *(build for build in newer if build not in here)]:
        why = why_not(build, hosts, sieve)
        if why is not None:
            reasons.setdefault(why, []).append(build)
    return tuple(f"{_named(builds)}: {why}" for why, builds in reasons.items())


def why_not(build: Build, hosts: HostClass, sieve: Sieve) -> str | None:
    """Return why a build does not run on a class of machines; None if the machines are not the reason."""
    if not driver(build, sieve):
        need = sieve.index.needs[build.cuda or ""]
        return f"needs driver {need.minimum} or newer; {hosts.driver} is older"
    reasons = [why for card in hosts.cards if (why := _gpu(build, card.gpu.capability, hosts, sieve)) is not None]
    return "; ".join(reasons) or None


def _gpu(build: Build, capability: str, hosts: HostClass, sieve: Sieve) -> str | None:
    card = next(card for card in hosts.cards if card.gpu.capability == capability)
    if sieve.runs_on(build, card):
        return None
    kind = code(build, card.gpu)
    if kind is None and build.archs is None:
        return f"it is unknown which GPUs it has code for, so {card} may not work"
    if kind is None:
        return f"no code for {card}"
    if not cudnn_runs(build, card.gpu, sieve.index):
        return f"its cuDNN {build.cudnn or '(version unknown)'} no longer runs on {card}"
    return f"only PTX for {card}, which driver {hosts.driver} cannot compile"


def machine_fault(hosts: HostClass) -> str | None:
    """Return the error in a class itself: a driver that does not support its GPU. None if there is none."""
    for card in hosts.cards:
        if not driven(card.gpu, hosts.driver):
            first, last = card.gpu.min_driver_branch, card.gpu.last_driver_branch
            if last is not None and key(hosts.driver)[0] > last:
                return f"driver branch R{last} is the last that supports {card}; driver {hosts.driver} is newer"
            return f"{card} needs driver branch R{first} or newer; driver {hosts.driver} is older"
    return None


def thresholds(hosts: Iterable[HostClass], index: Index) -> tuple[str, ...]:
    """Return the driver versions that enable more builds and are newer than the oldest driver, ascending."""
    rows = list(hosts)
    known = {text for need in index.needs.values() for text in (need.native, need.minimum)}
    known |= {str(card.gpu.min_driver_branch) for row in rows for card in row.cards if card.gpu.min_driver_branch}
    oldest = min(key(row.driver) for row in rows)
    return tuple(sorted((version for version in known if key(version) > oldest), key=key))


def _matches_request(build: Build, sieve: Sieve) -> bool:
    scope = sieve.wanted.scope
    in_scope = scope is None or build.source in scope
    known = build.archs is not None and not unsure(build)
    return in_scope and known and all(rule(build, sieve) for rule in VERSION_RULES)


def _named(builds: Sequence[Build]) -> str:
    """Return `torch 2.15.0 for CUDA 13.0 and 13.2, torch 2.14.1 for CUDA 12.8`."""
    torches: dict[str, list[str]] = {}
    for build in sorted(builds, key=lambda item: (key(item.torch), _cuda(item)), reverse=True):
        cudas = torches.setdefault(build.torch, [])
        if build.cuda and build.cuda not in cudas:
            cudas.append(build.cuda)
    return ", ".join(f"torch {torch} for CUDA {_joined(sorted(cudas, key=key))}" for torch, cudas in torches.items())


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _cuda(build: Build) -> tuple[int, ...]:
    return key(build.cuda or "0")
