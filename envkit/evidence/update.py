"""Turn the evidence of torch releases into YAML rows and new texts of the tables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from envkit.evidence import proposals, yamltext
from envkit.evidence.derive import any_python, has_numpy2, largest, platform_of, pythons_of, triton_requirement
from envkit.evidence.read import PARTNERS
from envkit.facts import evidence
from envkit.facts.companions import cuda_of
from envkit.facts.evidence import same_days
from envkit.ground import strictyaml
from envkit.ground.versions import key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from packaging.requirements import Requirement

    from envkit.evidence.contents import Metadata
    from envkit.evidence.derive import Release, Row
    from envkit.evidence.prove import Proved
    from envkit.evidence.read import Proofs

RELEASES, VARIANTS, COMPANIONS = "torch_releases", "torch_cuda_variants", "companions"
TOOLKITS, CUDNNS = "cuda_drivers", "cudnn_cuda"
_REFS = ("pypi_simple", "pypi_partners", "pypi_wheel")
_X86, _ARM = "linux-64", "linux-aarch64"


def changed_tables(releases: Iterable[Proved], texts: Mapping[str, str], index_root: str) -> dict[str, str]:
    """Return the new texts of the tables of torch and its companions with the proved values, if they change.

    A new release also gets a row, with questions, for each other CUDA version in its architecture table.

    Args:
        releases: the evidence, release by release.
        texts: the current tables by name.
        index_root: URL above the folders `cu126` and `cpu` of the PyTorch wheel index.
    """
    updated = {name: texts[name] for name in (RELEASES, VARIANTS, COMPANIONS)}
    for proved in releases:
        release = proved.release
        if _X86 not in release.wheels:
            continue
        row, variant = release_row(release), variant_row(release, index_root)
        is_new = all(other["torch"] != release.torch for other in _rows(updated[RELEASES], RELEASES))
        updated[RELEASES] = _put(updated[RELEASES], RELEASES, row, ("torch",), yamltext.release_before(release.torch))
        updated[VARIANTS] = _put(
            updated[VARIANTS], VARIANTS, variant, ("torch", "cuda", "source"),
            yamltext.variant_before(release.torch, variant["cuda"]),
        )  # fmt: skip
        updated[VARIANTS] = _with_architectures(updated[VARIANTS], release, variant["cuda"])
        updated[COMPANIONS] = _with_companions(updated[COMPANIONS], release)
        if is_new:
            updated[VARIANTS] = _with_variants(updated[VARIANTS], release, index_root)
    return {name: text for name, text in updated.items() if text != texts[name]}


def _rows(text: str, name: str) -> list[dict[str, Any]]:
    tree = strictyaml.read(text, name)
    assert isinstance(tree, dict)
    rows: list[dict[str, Any]] = tree["rows"]
    return rows


def _with_architectures(text: str, release: Release, default: str) -> str:
    """Set the architectures of the variants for other CUDA versions from the release's architecture table."""
    for cuda, archs in proposals.architectures(release).items():
        for position, row in enumerate(_rows(text, VARIANTS)):
            if (row["torch"], row["cuda"], row["source"]) != (release.torch, cuda, "pytorch") or cuda == default:
                continue
            platforms = {platform_of(tag) for tag in row["files"] or {}}  # null = a question of a proposed row
            for field, value in archs.items():
                has_wheel = (_X86 if field == "arch" else _ARM) in platforms
                if has_wheel and row.get(field) != value:
                    refs = list(dict.fromkeys([*row.get(f"{field}_refs", ()), "pypi_wheel"]))
                    text = yamltext.set_fields(text, VARIANTS, position, {field: value, f"{field}_refs": refs})
    return text


def _with_variants(text: str, release: Release, index_root: str) -> str:
    """Add proposed rows for the CUDA versions that the variants do not have."""
    known = {
        row["cuda"] for row in _rows(text, VARIANTS) if (row["torch"], row["source"]) == (release.torch, "pytorch")
    }
    for row in proposals.variant_rows(release, known, index_root):
        before = yamltext.variant_before(release.torch, row["cuda"], advertised=False)
        text = yamltext.insert(text, VARIANTS, row, before)
    return text


def _with_companions(text: str, release: Release) -> str:
    """Set what the wheels of torch's partners on the Python index prove, and add a row for a new release of one."""
    for name in PARTNERS:
        wheels = release.partners.get(name)
        if not wheels:
            continue
        row = companion_row(release, name)
        known = [
            position for position, other in enumerate(_rows(text, COMPANIONS))
            if (other["package"], other["version"]) == (name, row["version"])
        ]  # fmt: skip
        if known:
            values = {key: value for key, value in row.items() if key not in ("package", "version", "refs")}
            if any_python(release.partner_files[name].of(row["version"])):
                # The Pythons of torch are a guess for a new row, and no evidence against those of a known one.
                values = {
                    key: {field: own for field, own in value.items() if field != "pythons"}
                    if isinstance(value, dict) else value
                    for key, value in values.items()
                }  # fmt: skip
            text = yamltext.set_fields(text, COMPANIONS, known[0], values)
        else:
            text = yamltext.insert(text, COMPANIONS, row, _companion_before(name, row["version"]))
    return text


def companion_row(release: Release, name: str) -> dict[str, Any]:
    """Return the row of companions for a partner of a torch release, from its wheels on the Python index.

    Which files the PyTorch index has is not in these wheels, so a new row has none of its pages.
    """
    wheels = release.partners[name]
    first = next(iter(wheels.values())).metadata
    required = first.requirement("torch")
    row: dict[str, Any] = {"package": name, "version": first.version}
    # A partner that requires no torch was built beside this one or an earlier one.
    row["torch"] = str(required.specifier) if required is not None and str(required.specifier) else None
    own = release.partner_files[name].of(first.version)
    for platform, proofs in wheels.items():
        pythons = list(pythons_of(own, platform)) or [
            python for python in _pythons(release, platform) if not python.endswith("t")
        ]
        local = (proofs.text("local_version") or "").partition("+")[2]
        part: dict[str, Any] = {"pythons": pythons}
        if local:
            part["pypi"] = cuda_of(local) or "cpu"
        row[platform] = part
    return row | {"refs": ["pypi_partners"]}


def _companion_before(name: str, version: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a row comes before a new release: rows are by package, oldest first."""
    order = {package: place for place, package in enumerate((*PARTNERS, "torchtext", "torchcodec"))}
    return lambda other: (order.get(other["package"], len(order)), key(other["version"])) <= (order[name], key(version))


def with_toolkits(text: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Add toolkits to the text of cuda_drivers, which is sorted newest first."""
    for row in rows:
        text = yamltext.insert(text, TOOLKITS, row, _newer_than(row["toolkit"]), rows="toolkits")
    return text


def _newer_than(toolkit: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda other: key(other["toolkit"]) > key(toolkit)


def with_cudnns(text: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Add releases to the text of cudnn_cuda, which is sorted oldest first."""
    for row in rows:
        text = yamltext.insert(text, CUDNNS, row, _not_above(row["cudnn"]))
    return text


def _not_above(cudnn: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda other: key(other["cudnn"]) <= key(cudnn)


def _put(text: str, name: str, row: dict[str, Any], names: tuple[str, ...], before: Any) -> str:
    tree = strictyaml.read(text, name)
    assert isinstance(tree, dict)
    same = [n for n, other in enumerate(tree["rows"]) if all(other.get(field) == row[field] for field in names)]
    if not same:
        return yamltext.insert(text, name, row, before)
    # Keep what people decided: confidence, references, notes, and the announced day.
    keep = {"refs", "confidence", "note", "advertised", "index", "local_version", "arch_refs", "cudnn_refs", "files",
            "arch_aarch64_refs", "matrix_live", "numpy2_ok", "pypi_default"}  # fmt: skip
    old = tree["rows"][same[0]]
    announced = old.get("released") or old.get("matrix_live")
    if announced and row.get("released") and same_days(announced, row["released"]):
        keep.add("released")
    return yamltext.set_fields(text, name, same[0], {field: value for field, value in row.items() if field not in keep})


def release_row(release: Release) -> dict[str, Any]:
    """Return the row of torch_releases, from the wheels of the Python index."""
    x86 = release.wheels[_X86]
    meta = x86.metadata
    days = [file.uploaded for file in release.files.of(release.torch) if file.uploaded] if release.files else []
    cudnn, nccl = (_pinned(meta, f"nvidia-{part}-cu[0-9]+") for part in ("cudnn", "nccl"))
    row: dict[str, Any] = {
        "torch": release.torch,
        "released": min(days, default=None),
        "matrix_live": None,
        "requires_python": x86.text("requires_python"),
    }
    for partner in PARTNERS:
        wheels = release.partners.get(partner)
        row[partner] = (
            next(iter(wheels.values())).metadata.version
            if wheels
            else yamltext.Ask(f"which {partner} goes with torch {release.torch}?")
        )
    row |= {"triton": _pin(triton_requirement(meta.requires)), "setuptools": _pin(meta.requirement("setuptools"))}
    row["numpy2_ok"] = has_numpy2(release.torch)
    row["pypi"] = {
        "cuda": x86.text("cuda") or "cpu", "arch": _value(x86, "archs"), "cudnn": cudnn, "nccl": nccl,
        "cuda_runtime": _runtime(meta), "glibc_symbols": x86.text("glibc_symbols"),
        "glibcxx_symbols": x86.text("glibcxx_symbols"),
        "files": {platform: _file(release, platform, proofs) for platform, proofs in release.wheels.items()},
    }  # fmt: skip
    builds = {file.build for file in release.files.of(release.torch) if file.build} if release.files else set()
    if builds:
        row["pypi"]["build_tags"] = sorted(builds)
    row["refs"] = list(_REFS)
    return row


def variant_row(release: Release, index_root: str) -> dict[str, Any]:
    """Return the row of torch_cuda_variants for the wheel on the Python index for linux-64."""
    x86, arm = release.wheels[_X86], release.wheels.get(_ARM)
    cuda = x86.text("cuda")
    tag = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
    meta = x86.metadata
    row: dict[str, Any] = {
        "torch": release.torch, "cuda": cuda or "cpu", "source": "pytorch", "index": f"{index_root}/{tag}",
        "local_version": f"+{tag}", "advertised": True, "pypi_default": True,
        "files": {
            proofs.name.removesuffix(".whl").rpartition("-")[2]: _pythons(release, platform)
            for platform, proofs in release.wheels.items() if proofs.text("cuda") == cuda
        },
    }  # fmt: skip
    if cuda:
        row["arch"] = _value(x86, "archs")
        if arm is not None and arm.text("cuda"):
            row["arch_aarch64"] = _value(arm, "archs")
        if ptx := _value(x86, "ptx"):
            row["ptx"] = ptx
        row["cudnn"] = _pinned(meta, "nvidia-cudnn-cu[0-9]+")
        row["nccl"] = _pinned(meta, "nvidia-nccl-cu[0-9]+")
        row |= {"refs": ["pypi_wheel"], "arch_refs": ["pypi_wheel"]}
        row |= {"arch_aarch64_refs": ["pypi_wheel"]} if "arch_aarch64" in row else {}
        row["cudnn_refs"] = ["pypi_wheel"]
    else:
        row["refs"] = ["pypi_wheel"]
    return row


def evidence_texts(
    releases: Iterable[Proved], existing: Mapping[str, tuple[evidence.Evidence, ...]], more: Iterable[Row] = ()
) -> dict[str, str]:
    """Return the evidence files by table: `existing` with the lines of `releases` and `more` added or replaced.

    Machine code from an earlier `--deep` run stays if it was not read this time.
    """
    new: dict[str, list[evidence.Evidence]] = {}
    for table, entry in (*(row for proved in releases for row in proved.rows), *more):
        new.setdefault(table, []).append(entry)
    texts = {}
    for table, rows in new.items():
        replaced = {(item.row, item.field, item.kind) for item in rows}
        older = [item for item in existing.get(table, ()) if (item.row, item.field, item.kind) not in replaced]
        texts[table] = evidence.text_of([*older, *rows])
    return texts


def _file(release: Release, platform: str, proofs: Proofs) -> dict[str, Any]:
    pythons = _pythons(release, platform)
    row: dict[str, Any] = {
        "tag": proofs.name.removesuffix(".whl").rpartition("-")[2],
        "cuda": proofs.text("cuda") or "cpu",
        "pythons": pythons,
    }
    if platform == _X86 and (version := proofs.text("local_version")):
        row["version"] = version
    return row | _sizes(release, platform)


def _sizes(release: Release, platform: str) -> dict[str, str]:
    """Return sizes in bytes, as text like all numbers of the tables; unknown sizes are left out."""
    file = largest(release.files.of(release.torch) if release.files else (), platform)
    pulled = release.pulled.get(platform)
    return {
        **({"wheel_size": str(file.size)} if file is not None else {}),
        **({"pulled_size": str(pulled.size)} if pulled is not None else {}),
    }


def _pythons(release: Release, platform: str) -> list[str]:
    """Return all Pythons with a wheel; a free-threaded one follows its version."""
    assert release.files is not None
    files = release.files.of(release.torch)
    pythons = {python for file in files if platform_of(file.tag) == platform for python in file.pythons}
    return sorted(pythons, key=lambda python: (key(python.rstrip("t")), python))


def _value(proofs: Proofs, field: str) -> list[str] | None:
    item = proofs.first(field)
    return list(item.value) if item is not None else None


def _pin(requirement: Requirement | None) -> dict[str, str | None] | None:
    if requirement is None:
        return None
    row = {"pin": str(requirement.specifier) or None}
    return row | ({"marker": str(requirement.marker)} if requirement.marker else {})


def _pinned(meta: Metadata, pattern: str) -> str | None:
    for requirement in meta.matching(pattern):
        versions = [spec.version for spec in requirement.specifier if spec.operator == "=="]
        if versions:
            return versions[0]
    return None


def _runtime(meta: Metadata) -> str | None:
    # Newer wheels require the metapackage; older ones require each library of CUDA.
    toolkit = meta.requirement("cuda-toolkit")
    return f"cuda-toolkit{toolkit.specifier}" if toolkit else _pinned(meta, "nvidia-cuda-runtime(-cu[0-9]+)?")


def questions(text: str, before: str = "") -> list[str]:
    """Return the questions (`# ask: ...`) in a text that were not in it before."""
    old = set(before.splitlines())
    return [line.partition("# ask: ")[2] for line in text.splitlines() if "# ask: " in line and line not in old]
