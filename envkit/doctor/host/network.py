"""Proxies and certificates in the environment variables; opens no connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from envkit.doctor.host.view import View
from envkit.doctor.model import Evidence, Finding, Section, Severity

_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_BUNDLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS")
_DOCS = ("https://docs.docker.com/engine/cli/proxy/",)


def section(view: View) -> Section:
    """Describe the proxy and certificate variables, without credentials."""
    env = view.environ
    proxies = {name: value for name in _PROXIES for name, value in _both(env, name)}
    facts = [(name, without_password(value)) for name, value in proxies.items()]
    facts.append(("no_proxy", env.get("no_proxy") or env.get("NO_PROXY") or "not set"))
    facts += [(name, env[name]) for name in _BUNDLES if env.get(name)]
    findings = (*_of_proxies(env, proxies), *_of_bundles(view))
    return Section(id="network", title="Proxies and certificates", facts=tuple(facts), findings=findings)


def without_password(value: str) -> str:
    """Return a proxy's address without user and password; other text is not shown, because it may be a password."""
    try:
        # Proxies are also written without a scheme: proxy.example.com:3128.
        parts = urlsplit(value if "//" in value else f"//{value}")
        host = f"{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return "not an address"
    hidden = "***@" if parts.username or parts.password else ""
    return f"{parts.scheme}://{hidden}{host}" if parts.scheme else f"{hidden}{host}"


def _both(env: Mapping[str, str], name: str) -> Iterator[tuple[str, str]]:
    for variable in (name, name.upper()):
        if env.get(variable):
            yield variable, env[variable]


def _of_proxies(env: Mapping[str, str], proxies: Mapping[str, str]) -> Iterator[Finding]:
    for name in _PROXIES:
        lower, upper = env.get(name), env.get(name.upper())
        if lower and upper and lower != upper:
            yield Finding(
                id="proxy-contradiction", severity=Severity.WARN, title=f"{name} and {name.upper()} differ",
                evidence=tuple(
                    Evidence(text=f"{variable}={without_password(env[variable])}")
                    for variable in (name, name.upper())
                ),
                cause="Some programs read the lowercase name (curl), many others the uppercase name.",
                fix=("Set both to the same value.",), sources=_DOCS,
            )  # fmt: skip
    local = (env.get("no_proxy") or env.get("NO_PROXY") or "").split(",")
    # `*` turns the proxy off for every host.
    if proxies and not {"localhost", "127.0.0.1", "*"} & {host.strip() for host in local}:
        yield Finding(
            id="no-proxy", severity=Severity.WARN, title="the proxy is also used for localhost",
            evidence=(Evidence(text="no_proxy does not contain localhost or 127.0.0.1"),),
            cause="Requests to a registry or mirror on loopback go to the proxy, which cannot reach it.",
            fix=("set no_proxy=localhost,127.0.0.1, and NO_PROXY to the same value",), sources=_DOCS,
        )  # fmt: skip
    for name, value in proxies.items():
        if "@" in value:
            yield Finding(
                id="proxy-password", severity=Severity.INFO, title=f"{name} contains a password",
                evidence=(Evidence(text=f"{name}={without_password(value)}"),),
                cause=(
                    "It is visible in build arguments and in logs of other programs. envkit never writes "
                    "it into an image."
                ),
                fix=("Use a proxy without a password, or a local relay that adds the password.",),
            )  # fmt: skip


def _of_bundles(view: View) -> Iterator[Finding]:
    for name in _BUNDLES:
        path = view.environ.get(name)
        if path and not view.exists(path):
            yield Finding(
                id="ca-bundle-missing", severity=Severity.WARN, title=f"{name} names a file that does not exist",
                evidence=(Evidence(text=f"{name}={path}"),),
                cause="Downloads by pip, conda and envkit fail at the first certificate.",
                fix=(f"Correct or unset {name}.",),
            )  # fmt: skip
