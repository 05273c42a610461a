"""The conda configuration: channels that stop builds, and priorities that cause wrong environments."""

from __future__ import annotations

from collections.abc import Iterator

from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity
from envkit.doctor.trees import items, mapping
from envkit.ground import strictyaml
from envkit.ground.errors import UsageError

_TERMS = ("pytorch/xla#9661", "mlrun/mlrun#8322", "ReproNim/neurodocker#676")


def section(view: View) -> Section:
    """Return the findings about every .condarc that conda reads here, and where conda is installed."""
    files = {name: text for name in condarc_paths(view) if (text := view.text(name))}
    prefix = view.environ.get("CONDA_PREFIX", "")
    installed = view.environ.get("CONDA_EXE") or next(
        (name for name in ("/opt/conda/bin/conda", f"{view.home()}/miniconda3/bin/conda") if view.exists(name)), ""
    )
    facts = (
        ("conda", installed or "none"),
        ("active environment", prefix or "none"),
        (".condarc", ", ".join(files) or "none"),
    )
    findings: list[Finding] = []
    for name, text in files.items():
        findings += of_condarc(name, text)
    if installed and not any("channels" in text for text in files.values()):
        findings.append(_defaults("no .condarc sets channels, so conda uses its defaults", Severity.INFO))
    return Section(id="conda", title="conda", facts=facts, findings=tuple(findings))


def condarc_paths(view: View) -> tuple[str, ...]:
    """Return the paths where conda looks for its configuration, in the order of its documentation."""
    prefixes = [view.environ.get(name, "") for name in ("CONDA_ROOT", "CONDA_PREFIX")]
    below = [f"{folder}/{name}" for folder in prefixes if folder for name in (".condarc", "condarc")]
    home = [f"{view.home()}/{name}" for name in (".config/conda/.condarc", ".conda/.condarc", ".condarc")]
    own = view.environ.get("CONDARC", "")
    system = ("/etc/conda/.condarc", "/etc/conda/condarc", "/opt/conda/.condarc")
    return tuple(dict.fromkeys((*system, *below, *(home if view.home() else ()), *((own,) if own else ()))))


def of_condarc(name: str, text: str) -> Iterator[Finding]:
    """Return the findings about one configuration file."""
    try:
        tree = mapping(strictyaml.read(text, name))
    except UsageError as error:
        yield Finding(
            id="condarc-unreadable", severity=Severity.WARN, title="a .condarc cannot be read",
            evidence=(Evidence(text=error.message),), fix=(f"Fix {name}.",),
        )  # fmt: skip
        return
    channels = [str(channel) for channel in items(tree.get("channels"))]
    if "defaults" in channels:
        yield _defaults(f"{name}: channels: {', '.join(map(shown, channels))}", Severity.WARN)
    if "pytorch" in channels:
        yield Finding(
            id="pytorch-channel", severity=Severity.INFO, title="the pytorch channel ended with torch 2.5.1",
            evidence=(Evidence(text=f"{name}: channels: {', '.join(map(shown, channels))}"),),
            fix=("Remove the channel; install newer torch from conda-forge or as a wheel.",),
            sources=("pytorch/pytorch#138506",),
        )  # fmt: skip
    if tree.get("channel_priority") == "disabled" and len(channels) > 1:
        yield Finding(
            id="channel-priority", severity=Severity.WARN, title="conda mixes channels",
            evidence=(Evidence(text=f"{name}: channel_priority: disabled"),),
            cause=(
                "Packages of one stack can come from several channels, and a CPU build may be chosen for its "
                "higher build number."
            ),
            fix=("conda config --set channel_priority strict",), sources=("conda/conda#14761",),
        )  # fmt: skip
    # strictyaml keeps `False` and `no` as text; conda takes them as false.
    if tree.get("ssl_verify") in (False, "false", "False", "no"):
        yield Finding(
            id="ssl-verify-off", severity=Severity.WARN, title="conda does not check certificates",
            evidence=(Evidence(text=f"{name}: ssl_verify: false"),),
            fix=("Use the PEM file of the proxy instead: conda config --set ssl_verify FILE",),
        )  # fmt: skip


def shown(channel: str) -> str:
    """Return a channel's URL without the token or password that it may contain."""
    scheme, sign, rest = channel.rpartition("://")
    rest = rest.rpartition("@")[2]
    # anaconda.org and its mirrors put a token into the path: /t/TOKEN/channel.
    words = [
        "***" if before == "t" else word for before, word in zip(["", *rest.split("/")], rest.split("/"), strict=False)
    ]
    return f"{scheme}{sign}{'/'.join(words)}"


def _defaults(evidence: str, severity: Severity) -> Finding:
    return Finding(
        id="anaconda-defaults", severity=severity, title="conda uses Anaconda's default channels",
        evidence=(Evidence(text=evidence),),
        cause="Their terms must be accepted, which stops builds without a terminal, and may require a license.",
        fix=("conda config --add channels conda-forge; conda config --remove channels defaults",),
        distinguish="Images built by envkit use only conda-forge, whatever this file says.", sources=_TERMS,
    )  # fmt: skip
