"""What a job installs as envkit: a requirement that can mean one thing only.

It is one line of a requirements file of pip, so that pip checks its hash, or an image of envkit by digest. A name alone
is refused: the code of its owner on the index that the job uses would run there, with the secrets of the job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from envkit.ground.errors import UsageError
from envkit.ground.naming import DISTRIBUTION, FILE_STEM

_HASH = r"sha256:[0-9a-f]{64}"
_HASHES = f"( --hash={_HASH})+"
_FILE = rf"{FILE_STEM}-[A-Za-z0-9_.+!-]+\.(whl|tar\.gz)"
_HOST = r"[A-Za-z0-9.-]+(:[0-9]+)?"
_URL = rf"https://{_HOST}/([A-Za-z0-9._~%+@-]+/)*{_FILE}"
_PATH = rf"(\.{{1,2}}/|/)?([A-Za-z0-9_.+-]+/)*{_FILE}"
_GIT = rf"git\+(https|ssh)://(git@)?{_HOST}/[A-Za-z0-9._~%+/-]+@[0-9a-f]{{40}}"
_PIN = rf"{DISTRIBUTION}==[0-9][A-Za-z0-9.!+_]*"
LINE = rf"({_URL}|{_PATH}|{_PIN}){_HASHES}|{_GIT}"
"""What pip may be given, as a regular expression of POSIX and RE2: shell scripts and CI systems check with it, too."""
_IMAGE = re.compile(rf"image:([a-z0-9][A-Za-z0-9._/:-]*@{_HASH})")
# A user without a password: harmless for ssh (git@), but probably a token for everything else.
_LOGIN = re.compile(r"://[^/\s@:]*:[^/\s@]*@|(?<!ssh)://[^/\s@]+@")
_FRAGMENT = re.compile(r"#sha256[=:](?P<hash>[0-9a-f]{64})")
_NAMED = re.compile(r"(?P<name>[A-Za-z0-9._-]+) *(?P<extras>\[[^\]]*\])? *@ *(?P<rest>\S.*)")
_FILE_HASH = "--hash=sha256:HASH"
WAYS = (
    f"a file by its hash: --requirement 'https://HOST/{FILE_STEM}-VERSION-py3-none-any.whl {_FILE_HASH}', or its path",
    "a commit: --requirement git+https://HOST/PATH@COMMIT",
    f"a version of an index by its hashes: --requirement '{DISTRIBUTION}==VERSION {_FILE_HASH}'",
    "an image of envkit (make image) by digest: --requirement image:HOST/NAME@sha256:DIGEST",
)
"""The ways to write a requirement, each with an example."""


class Form(Enum):
    """The forms of a requirement."""

    URL = "a URL"
    PATH = "a path"
    GIT = "a commit"
    PIN = "a version of an index"
    IMAGE = "an image"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A checked requirement."""

    form: Form
    text: str  # a line of a requirements file; of an image, its reference


def parse(text: str, what: str = "--requirement") -> Requirement:
    """Return a requirement in its canonical form.

    Args:
        text: a line of a requirements file, `NAME @ LINE`, `URL#sha256=HASH`, or `image:REFERENCE`.
        what: its origin, for messages.

    Raises:
        UsageError: it can mean more than one file, or it contains a login.
    """
    if _LOGIN.search(text):
        raise UsageError(
            f"{what} contains a login, which everyone who reads the exported file would see",
            hint="remove it from the URL and use a netrc file on the machine that installs it",
        )
    image = _IMAGE.fullmatch(text)
    if image is not None:
        return Requirement(Form.IMAGE, image[1])
    line = _line(text, what)
    for form, pattern in ((Form.GIT, _GIT), (Form.URL, _URL), (Form.PIN, _PIN), (Form.PATH, _PATH)):
        if re.fullmatch(pattern + ("" if form is Form.GIT else _HASHES), line):
            return Requirement(form, line)
    raise UsageError(f"{what} {text!r:.200} {_why(line)}", details=WAYS[1:], hint=WAYS[0])


def _line(text: str, what: str) -> str:
    """Return the text without the name in front of an address, and with its hash as an option of pip."""
    line = " ".join(text.split(" "))
    named = _NAMED.fullmatch(line)
    if named is not None and "/" not in named["name"]:
        if _normal(named["name"]) != DISTRIBUTION:
            raise UsageError(
                f"{what} {text!r:.200} is for {named['name']}, but the distribution is {DISTRIBUTION}", hint=WAYS[0]
            )
        if named["extras"]:
            raise UsageError(
                f"{what} {text!r:.200} has extras, which no exported job needs", hint=f"leave out {named['extras']}"
            )
        line = named["rest"]
    fragment = _FRAGMENT.search(line)
    if fragment is not None:
        line = f"{line[: fragment.start()]}{line[fragment.end() :]} --hash=sha256:{fragment['hash']}"
    name, sign, rest = line.partition("==")
    return f"{_normal(name)}{sign}{rest}" if sign and _normal(name) == DISTRIBUTION else line


def _why(line: str) -> str:
    """Return what is wrong with a line that has none of the forms."""
    starts = {
        "image:": "is no image by digest",
        "git+": "names no commit: 40 hexadecimal digits, because a branch or a tag can move",
        "http://": "is not https",
    }
    why = next((why for start, why in starts.items() if line.startswith(start)), None)
    first = line.partition(" ")[0]
    is_name = "/" not in first and not first.endswith((".whl", ".gz"))
    return why or (_why_name(first) if is_name else _why_file(line, first))


def _why_name(first: str) -> str:
    name = _normal(re.split(r"[=<>!~\[;]", first)[0])
    if name == "envkit":
        return f"is another project's package; the distribution of envkit is {DISTRIBUTION}"
    if name != DISTRIBUTION:
        return "is not a requirement"
    return "has no hash" if "==" in first else "can be any version of anyone who owns the name on an index"


def _why_file(line: str, first: str) -> str:
    if not re.search(rf"(^|/){_FILE}$", first):
        return f"is no wheel or source distribution of {DISTRIBUTION}"
    return "has no hash" if "--hash=" not in line else "is not a URL or path with its SHA-256"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
