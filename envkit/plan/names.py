"""Check texts that enter an image: package specs, names of variables and labels, paths, users.

Each check returns None if the value is fine, otherwise why it is refused. A value that would need quoting or escaping
in a Dockerfile or a script is refused here, and accepted values are passed on in files.
"""

from __future__ import annotations

import re
import unicodedata

from packaging.utils import canonicalize_name

from envkit.ground import addresses, imagepaths
from envkit.ground.errors import UsageError
from envkit.ground.naming import LABEL_PREFIX

MAX_TEXT = 4096  # characters of a value; longer texts belong in a file
MAX_NAME = 256  # characters of a name or a spec, checked before any pattern because some backtrack
_TOO_LONG = f"is longer than {MAX_NAME} characters"
_MOST_URL = 2048  # characters

_CONDA_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_CONDA = re.compile(rf"({_CONDA_NAME})(?: ?[=<>!~][0-9A-Za-z.*+!<>=~,|_ -]*| [0-9][0-9A-Za-z.*+!<>=~,|_ -]*)?")
_PIP = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[[A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*\])?"
    r"(?: ?(?:===?|!=|<=|>=|<|>|~=) ?[0-9A-Za-z.*+!_-]+(?:, ?(?:===?|!=|<=|>=|<|>|~=) ?[0-9A-Za-z.*+!_-]+)*)?"
)
# Debian Policy 5.6.1: a name has at least two characters.
_DEB = re.compile(r"[a-z0-9][a-z0-9+.-]+(?:=[0-9A-Za-z.+:~-]+)?")
_RPM = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*(?:/[a-z0-9]+(?:[._-][a-z0-9]+)*)*")
_PORT = re.compile(r"([0-9]{1,5})(?:/(?:tcp|udp))?")
MAX_PORT = 65535
# Nine digits are below the limit of a UID in Linux, 32 bits.
_USER = re.compile(r"[0-9]{1,9}(?::[0-9]{1,9})?")
# One character of the scheme is enough. Matching all of it would take quadratic time on a long run of such characters.
_URL_LOGIN = re.compile(r"[A-Za-z0-9+.-]://[^/\s]*@")

_RESOLVED = frozenset(
    [
        "python",
        "pytorch",
        "torch",
        "torchvision",
        "torchaudio",
        "pytorch-cuda",
        "pytorch-cpu",
        "pytorch-gpu",
        "cuda-version",
        "cudatoolkit",
    ]
)
_VARIABLES = {
    "LD_PRELOAD": "it loads code into every program of the image",
    "LD_AUDIT": "it loads code into every program of the image",
    "LD_LIBRARY_PATH": "it puts other CUDA libraries before torch's own",
    "BASH_ENV": "bash runs the file that it names",
    "ENV": "sh runs the file that it names",
    "PYTHONSTARTUP": "Python runs the file that it names",
    "PYTHONHOME": "it replaces the image's Python",
    "PATH": "the template sets it, with the environment first",
    "NVIDIA_DISABLE_REQUIRE": "it disables the driver check",
    "NVIDIA_REQUIRE_CUDA": "it is generated from the facts",
    "CUDA_VERSION": "the container toolkit would treat the image as a legacy image",
}
# Whole words between underscores: `HF_TOKEN` and `AWS_SECRET_ACCESS_KEY`, but not `TOKENIZERS_PARALLELISM`.
_SECRET = re.compile(r"(?i)(?:^|_)(?:passwo?r?d|passphrase|secret|token|api_?key|access_?key|credentials?|auth)(?:_|$)")
_OCI = "org.opencontainers.image."
_OCI_KEYS = frozenset(
    ["authors", "url", "documentation", "source", "version", "revision", "vendor", "licenses", "title", "description"]
)
# Docker's documentation reserves com.docker., io.docker. and org.dockerproject. for Docker.
_RESERVED_LABELS = (f"{LABEL_PREFIX}.", "com.docker.", "io.docker.", "org.dockerproject.", "org.opencontainers.")
_SYSTEM_FOLDERS = frozenset(
    ["bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "root", "run", "sbin", "sys", "usr", "var"]
)
# Unicode categories. Cf includes the marks that reverse the direction of text, such as U+202E.
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def repository(name: str) -> str:
    """Return a name as a component of a repository's name, which is also a valid DNS label: `My App` -> `my-app`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "image"


def text(value: str) -> str | None:
    """Check free text: one line, without control or format characters."""
    if len(value) > MAX_TEXT:
        return f"is longer than {MAX_TEXT} characters"
    if value.isprintable():  # the common case, in one fast call
        return None
    for char in value:
        if unicodedata.category(char) in _INVISIBLE:
            return f"contains the control or format character U+{ord(char):04X}"
    return None


def conda_spec(value: str) -> str | None:
    """Check a conda package with an optional version: `scipy`, `scipy >=1.11,<2`, `scipy=1.11.*=py311*`."""
    if len(value) > MAX_NAME:
        return _TOO_LONG
    match = _CONDA.fullmatch(value)
    if match is None:
        return "is not a conda spec; write a name and a version such as 'scipy >=1.11'"
    if match.group(1).lower() in _RESOLVED:
        return f"is chosen by the resolver; constrain {match.group(1)} under request"
    return None


def pip_spec(value: str) -> str | None:
    """Check a requirement by name: `einops`, `einops[extra]>=0.7,<1`; no URLs, paths, options or markers."""
    if len(value) > MAX_NAME:
        return _TOO_LONG
    match = _PIP.fullmatch(value)
    if match is None and "@" in value and "git+" in value:
        return "is a git URL; list it under allow_source, which is for packages to build from source"
    if match is None:
        return "is not a requirement; write a name and a version, such as 'einops>=0.7'"
    if match.group(1).lower() in _RESOLVED:
        return f"is chosen by the resolver; constrain {match.group(1)} under request"
    return _not_a_version(value)


def _not_a_version(value: str) -> str | None:
    """Return why pip would refuse the versions of a requirement, such as `numpy>=1.*`; None if it accepts them."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - most commands check none

    try:
        Requirement(value)
    except InvalidRequirement as error:
        return f"is not a requirement: {str(error).splitlines()[0]}"
    return None


def constraint(value: str) -> str | None:
    """Check a version of a package that is installed only if another package requires it: `numpy<2`."""
    if "[" in value:
        return "is a constraint with extras; write only the name and the version"
    why = pip_spec(value)
    if why is None and not re.search(r"[<>=!~]", value):
        return "is not a constraint; write a name and a version, such as 'numpy<2'"
    return why


def package_source(value: str) -> str | None:
    """Check the URL of a package index or of a page with wheels: https, or http on this machine, without a login."""
    if len(value) > _MOST_URL:
        return f"is longer than {_MOST_URL} characters"
    try:
        addresses.mirror(value, "the URL")
    except UsageError as error:
        return f"is refused: {error.message.removeprefix('the URL: ')}"
    return None


_DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def distribution(spec: str) -> str:
    """Return the normalized name of the package of a requirement; the text itself if it has no name."""
    match = _DISTRIBUTION.match(spec)
    return canonicalize_name(match.group()) if match else spec


def package_index(name: str, url: str) -> str | None:
    """Check a package and the URL of the only index that it may come from."""
    if pip_spec(name) or canonicalize_name(name) != name:
        return "is not the normalized name of a package; write it in lower case, with hyphens and without a version"
    return package_source(url)


def deb_package(value: str) -> str | None:
    """Check a Debian package name, with `=version` if it is pinned."""
    if len(value) > MAX_NAME:
        return _TOO_LONG
    return None if _DEB.fullmatch(value) else "is not a Debian package name"


def rpm_package(value: str) -> str | None:
    """Check an RPM package name, with `-version` if it is pinned."""
    if len(value) > MAX_NAME:
        return _TOO_LONG
    return None if _RPM.fullmatch(value) else "is not an RPM package name"


def variable(name: str, value: str) -> str | None:
    """Check a variable for ENV: its name is neither dangerous nor that of a secret, its value has no login."""
    if len(name) > MAX_NAME:
        return f"the name {_TOO_LONG}"
    if not _VARIABLE.fullmatch(name):
        return "is not a variable name"
    if name in _VARIABLES:
        return f"is not allowed: {_VARIABLES[name]}"
    if name.startswith(("CONDA_", "LD_")):
        return "is not allowed: it would change how conda or the dynamic loader works"
    # `text` refuses a value that is too long, before any pattern is matched against it.
    if len(value) <= MAX_TEXT and is_secret(name, value):
        what = "looks like a secret" if _SECRET.search(name) else "contains a URL with a login"
        return f"{what}; it would be visible in every layer and in the image history"
    return text(value)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable has the name of a secret, or a value with a login."""
    return bool(_SECRET.search(name) or _URL_LOGIN.search(value))


def label(name: str, value: str) -> str | None:
    """Check a label: it has the author's own prefix, or is an OCI annotation that only the author can fill in."""
    if len(name) > MAX_NAME:
        return f"the name {_TOO_LONG}"
    if not _LABEL.fullmatch(name):
        return "is not a label name; use a name such as com.example.team"
    own = name.startswith(_OCI) and name.removeprefix(_OCI) in _OCI_KEYS
    if not own and name.startswith(_RESERVED_LABELS):
        return "has a reserved prefix"
    return text(value)


def user(value: str) -> str | None:
    """Check a numeric `uid` or `uid:gid` that is not root. Kubernetes' runAsNonRoot cannot check user names."""
    if not _USER.fullmatch(value):
        return "is not a numeric uid:gid, such as 1000:1000"
    return "is root; use another uid" if int(value.partition(":")[0]) == 0 else None


def workdir(value: str) -> str | None:
    """Check an absolute, normalized path outside the folders of the system and of the environment."""
    parts = value.split("/")[1:]
    if not value.startswith("/") or not all(parts) or any(part in (".", "..") for part in parts):
        return "is not a plain absolute path, such as /workspace"
    if parts[0] in _SYSTEM_FOLDERS or parts[:2] == ["opt", "env"] or parts == ["opt"]:
        return "is a system folder; use a folder such as /workspace"
    if not re.fullmatch(r"[A-Za-z0-9._/-]+", value):
        return "contains characters other than letters, digits, dot, dash and underscore"
    if imagepaths.is_reserved(value):
        return f"has a part with {imagepaths.RESERVED}"
    return "is too long or too deep" if imagepaths.fault(value[1:]) else None


def port(value: str) -> str | None:
    """Check a port of a container: `8888`, `8888/tcp`, `53/udp`."""
    match = _PORT.fullmatch(value)
    if match is None or not 1 <= int(match.group(1)) <= MAX_PORT:
        return f"is not a port from 1 to {MAX_PORT}, such as 8888 or 8888/udp"
    return None


def command(value: tuple[str, ...]) -> str | None:
    """Check an ENTRYPOINT or CMD: a list of words. `conda run` is refused because it does not forward signals."""
    if value[:2] == ("conda", "run"):
        return "conda run does not forward signals; remove it, the environment is already active"
    return next((fault for word in value if (fault := text(word))), None)
