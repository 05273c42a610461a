"""The NVIDIA driver, the GPUs and their links."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envkit.doctor.host.view import NO_ANSWER, View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.facts.model import Facts
from envkit.ground.nvidia import parse_module
from envkit.ground.process import Answer
from envkit.ground.versions import is_version, key, minor
from envkit.knowledge import codes, matching

_FIELDS = (
    "index", "name", "driver_version", "pci.bus_id", "memory.total", "pcie.link.gen.current", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max", "pstate", "persistence_mode", "compute_mode",
    "ecc.errors.uncorrected.volatile.total",
)  # fmt: skip
# Fields that every driver has. A driver that does not know one of the fields above rejects the whole query.
_FEW = ("index", "name", "driver_version", "memory.total")
_UNKNOWN = "[N/A]"
_NVIDIA = "0x10de"
_DISPLAY = "0x03"  # PCI class of display controllers
# GT/s in sysfs ("8.0 GT/s PCIe") -> generation
_SPEEDS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}
_HERE = "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.width.current --format=csv -l 1   # while a copy runs"


def section(view: View, facts: Facts) -> Section:
    """Describe the GPUs with nvidia-smi's output, or with sysfs if there is none."""
    module = parse_module(view.text("/proc/driver/nvidia/version"))
    cards = _cards(view)
    answer, fields = _query(view)
    rows = _rows(answer.out, fields) if answer is not None and answer.code == 0 else []
    driver = next((row["driver_version"] for row in rows if is_version(row["driver_version"])), module)
    known: list[tuple[str, str]] = [("driver", driver or "none")]
    if driver:
        known.append(("runs CUDA", runs(driver, facts)))
    known += [(f"GPU {row['index']}", _described(row)) for row in rows]
    if not rows:
        for name, folder in cards:
            parts = (f"NVIDIA device {view.text(f'{folder}/device').strip()}", sysfs_link(view, folder))
            known.append((f"PCI {name}", ", ".join(filter(None, parts))))
    if not cards and not rows:
        known.append(("GPUs", "none"))
    findings: list[Finding] = []
    if answer is not None and answer.code != 0:
        findings.append(_smi_failed(answer.code, f"{answer.err} {answer.out}".strip()))
    elif cards and driver is None:
        findings.append(_no_driver(view, cards))
    elif rows or module:
        findings += _devices(view)
    elif not cards:
        findings.append(_nothing(view))
    for row in rows:
        findings += _row_findings(row)
    return Section(id="gpu", title="GPU and driver", facts=tuple(known), findings=tuple(findings))


def driver(view: View) -> str | None:
    """Return the driver's version from the kernel module, else from nvidia-smi; None without a driver."""
    module = parse_module(view.text("/proc/driver/nvidia/version"))
    if module is not None:
        return module
    answer = view.ask(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader,nounits"])
    text = answer.out.partition("\n")[0].strip() if answer is not None and answer.code == 0 else ""
    return text if is_version(text) else None


def runs(driver: str, facts: Facts) -> str:
    """Return the CUDA runtimes that a driver runs: `up to 12.2 natively; all of 12.x, 11.x by minor-version ...`."""
    known = [(row.toolkit, row.linux_min) for row in facts.toolkits if row.linux_min and is_version(row.linux_min)]
    native = [toolkit for toolkit, lowest in known if key(lowest) <= key(driver)]
    compatible = [row.cuda_major for row in facts.compat if row.linux_min and key(row.linux_min) <= key(driver)]
    newest = minor(max(native, key=key)) if native else None
    first = f"up to {newest} natively" if newest else "no known CUDA version natively"
    majors = ", ".join(f"{major}.x" for major in sorted(compatible, reverse=True))
    return f"{first}; all of {majors} by minor-version compatibility" if majors else first


def _query(view: View) -> tuple[Answer | None, Sequence[str]]:
    """Return nvidia-smi's answer and the fields that it has."""
    answer: Answer | None = None
    for fields in (_FIELDS, _FEW):
        answer = view.ask(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
        # Field "pstate" is not a valid field to query.
        if answer is None or "not a valid field" not in answer.out + answer.err:
            return answer, fields
    return answer, _FEW


def _rows(text: str, fields: Sequence[str]) -> list[dict[str, str]]:
    rows = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        # Other lines are messages, such as "No devices were found".
        if len(cells) == len(fields):
            rows.append(dict.fromkeys(_FIELDS, _UNKNOWN) | dict(zip(fields, cells, strict=True)))
    return rows


def _described(row: dict[str, str]) -> str:
    link = f"PCIe {row['pcie.link.gen.current']}x{row['pcie.link.width.current']}"
    most = f"{row['pcie.link.gen.max']}x{row['pcie.link.width.max']}"
    return f"{row['name']}, {row['memory.total']} MiB, {link} now, {most} at most, {row['pstate']}"


def _cards(view: View) -> list[tuple[str, str]]:
    """Return the PCI addresses of NVIDIA display controllers with their sysfs folders."""
    cards = []
    for name in view.names("/sys/bus/pci/devices"):
        folder = f"/sys/bus/pci/devices/{name}"
        if view.text(f"{folder}/vendor").strip() == _NVIDIA and view.text(f"{folder}/class").startswith(_DISPLAY):
            cards.append((name, folder))
    return cards


def _smi_failed(code: int, output: str) -> Finding:
    text = " ".join(output.split())[:300]
    known = next(iter(matching.shown(output)), None)
    if known is not None:
        meaning = " ".join(dict.fromkeys(code.said for line in output.splitlines() for code in codes.read(line)))
        return Finding(
            id=known.id, severity=Severity.ERROR, title=known.title, evidence=(Evidence(text=text),),
            cause=f"{known.cause} {meaning}".strip(), check=known.check, fix=known.fix, distinguish=known.distinguish,
            sources=known.sources,
        )  # fmt: skip
    outcome = f"was killed by signal {-code}" if code < 0 else f"fails with code {code}"
    if code == NO_ANSWER:
        outcome = "did not respond in time; the GPU or the driver hangs"
    return Finding(
        id="nvidia-smi-fails", severity=Severity.ERROR, title=f"nvidia-smi {outcome}",
        evidence=(Evidence(text=text or "no output"),),
        check=('dmesg | grep -i -E "nvrm|xid"',),
        fix=("Restart the machine; if the error remains, look for Xid numbers in the kernel log.",),
    )  # fmt: skip


def _no_driver(view: View, cards: list[tuple[str, str]]) -> Finding:
    nouveau = any(name == "nouveau" for name in view.names("/sys/module"))
    bound = "the kernel uses nouveau for it, which CUDA cannot use" if nouveau else "no NVIDIA kernel module is loaded"
    return Finding(
        id="no-driver", severity=Severity.ERROR, title="this machine has an NVIDIA GPU, but its driver is not loaded",
        evidence=tuple(Evidence(text=f"{name}: {bound}") for name, _ in cards[:4]),
        check=("lsmod | grep -E 'nvidia|nouveau'; dkms status",),
        fix=("Install the NVIDIA driver of your distribution, blacklist nouveau, and restart.",),
        sources=("https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",),
    )  # fmt: skip


def _nothing(view: View) -> Finding:
    inside = view.exists("/.dockerenv") or view.exists("/run/.containerenv")
    here = (
        "this container was started without a GPU, or its host has none"
        if inside
        else "no NVIDIA GPU was found on the bus"
    )
    container = "This is a container: start it with GPUs (docker run --gpus all), on a host that has the driver."
    machine = "If there is a GPU in this machine: install the driver of your distribution, and restart."
    without = "Without a GPU, no change is needed: GPU images can be built here and verified on another machine."
    return Finding(
        id="no-nvidia-driver", severity=Severity.WARN, title="no NVIDIA driver was found on this machine",
        evidence=(Evidence(text=f"neither nvidia-smi nor the kernel module was found; {here}"),),
        cause="CUDA cannot start: torch.cuda.is_available() is False, and torch computes on the CPU.",
        check=("lspci | grep -i nvidia; nvidia-smi",),
        fix=(container if inside else machine, without),
        sources=("https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/",),
    )  # fmt: skip


def _devices(view: View) -> Iterator[Finding]:
    if view.exists("/dev/dxg"):  # WSL has this device instead of /dev/nvidia*
        return
    names = view.names("/dev")
    missing = [name for name in ("nvidiactl", "nvidia-uvm") if name not in names]
    # Any number, because a container may have only nvidia3.
    if not any(re.fullmatch(r"nvidia\d+", name) for name in names):
        missing.insert(0, "nvidia0")
    if missing:
        yield Finding(
            id="device-files-missing", severity=Severity.ERROR, title="device files of the driver are missing",
            evidence=tuple(Evidence(text=f"/dev/{name} does not exist") for name in missing),
            cause=(
                "The unified memory module was not loaded yet (root loads it on first use), or this is a "
                "container without GPUs."
            ),
            fix=("As root: nvidia-modprobe -c 0 -u", "In a container: start it with --gpus all."),
            sources=("NVIDIA/DIGITS#799",),
        )  # fmt: skip


def _row_findings(row: dict[str, str]) -> Iterator[Finding]:
    name = f"GPU {row['index']} ({row['name']})"
    width, most = row["pcie.link.width.current"], row["pcie.link.width.max"]
    if width.isdigit() and most.isdigit() and int(width) < int(most):
        yield Finding(
            id="link-narrow", severity=Severity.WARN, title=f"{name} has {width} of its {most} PCIe lanes",
            evidence=(Evidence(text=_described(row)),),
            cause=(
                "A slot with fewer lanes, bifurcation, a riser, or dirty contacts. The number of lanes does "
                "not depend on load."
            ),
            check=(_HERE,), fix=("Reseat the card or move it to a slot with all lanes.",),
            sources=("local-inference-lab/rtx6kpro#88",),
        )  # fmt: skip
    generation, newest = row["pcie.link.gen.current"], row["pcie.link.gen.max"]
    if row["pstate"] == "P0" and generation.isdigit() and newest.isdigit() and int(generation) < int(newest):
        yield Finding(
            id="link-slow", severity=Severity.WARN,
            title=f"the PCIe link of {name} runs at generation {generation} of {newest}",
            evidence=(Evidence(text=_described(row)),),
            cause="In P0 the link should run at full speed; idle GPUs lower it to save power and are not checked.",
            check=(_HERE,), fix=("Look for a BIOS limit, ASPM, or a riser; compare under load first.",),
            sources=("local-inference-lab/rtx6kpro#88",),
        )  # fmt: skip
    if row["compute_mode"] in ("Exclusive_Process", "Prohibited"):
        yield Finding(
            id="compute-mode", severity=Severity.WARN, title=f"{name} is in compute mode {row['compute_mode']}",
            cause="A second process gets the error that devices are busy or unavailable.",
            fix=("nvidia-smi -c DEFAULT   # as root",),
            sources=("NVIDIA/DIGITS#2005",),
        )  # fmt: skip
    errors = row["ecc.errors.uncorrected.volatile.total"]
    if errors.isdigit() and int(errors) > 0:
        yield Finding(
            id="gpu-memory-error", severity=Severity.ERROR, title=f"{name} has {errors} uncorrected memory errors",
            check=("nvidia-smi -q -d ECC,ROW_REMAPPER",),
            fix=("Reset the GPU; replace the card if the errors return.",),
            sources=("https://docs.nvidia.com/deploy/xid-errors/",),
        )  # fmt: skip


def sysfs_link(view: View, folder: str) -> str:
    """Return a device's link from sysfs: `PCIe 3x8 now, 4x16 at most`; empty if the kernel does not report it."""

    def read(which: str) -> str | None:
        speed, _, _ = view.text(f"{folder}/{which}_link_speed").partition(" ")
        width = view.text(f"{folder}/{which}_link_width").strip()
        return f"{_SPEEDS[speed]}x{width}" if speed in _SPEEDS and width.isdigit() else None

    now, most = read("current"), read("max")
    return f"PCIe {now} now, {most} at most" if now and most else ""
