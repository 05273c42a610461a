"""What exported jobs may install: only what can mean one thing."""

import re

import pytest

from envkit.ground.errors import UsageError
from envkit.ground.requirement import LINE, WAYS, Form, parse

A, B = "a" * 64, "b" * 64
HASH = f" --hash=sha256:{A}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHEEL = "envkit_gpu-0.2.0-py3-none-any.whl"
URL = f"https://files.example/team/{WHEEL}"


@pytest.mark.parametrize(
    ("text", "form", "line"),
    [
        (URL + HASH, Form.URL, URL + HASH),
        (f"{URL}#sha256={A}", Form.URL, URL + HASH),
        (f"envkit-gpu @ {URL}#sha256={A}", Form.URL, URL + HASH),
        (f"Envkit_GPU @ {URL}{HASH}", Form.URL, URL + HASH),
        (f"https://files.example:8443/envkit_gpu-0.2.0.tar.gz{HASH}", Form.URL, None),
        (f"./dist/{WHEEL}{HASH}", Form.PATH, None),
        (f"/srv/{WHEEL}{HASH}", Form.PATH, None),
        (f"{WHEEL}{HASH}", Form.PATH, None),
        (f"git+https://git.example/team/envkit.git@{COMMIT}", Form.GIT, None),
        (f"envkit-gpu @ git+ssh://git@git.example/envkit@{COMMIT}", Form.GIT,
         f"git+ssh://git@git.example/envkit@{COMMIT}"),
        (f"envkit-gpu==0.2.0{HASH}", Form.PIN, None),
        (f"ENVKIT.gpu==0.2.0{HASH} --hash=sha256:{B}", Form.PIN, f"envkit-gpu==0.2.0{HASH} --hash=sha256:{B}"),
        (f"image:registry.example/team/envkit@sha256:{A}", Form.IMAGE, f"registry.example/team/envkit@sha256:{A}"),
    ],
)  # fmt: skip
def test_what_can_mean_one_thing_only(text: str, form: Form, line: str | None) -> None:
    found = parse(text)
    assert (found.form, found.text) == (form, line or text)
    assert form is Form.IMAGE or re.fullmatch(LINE, found.text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("envkit", "another project's package"),
        ("envkit==0.2.0", "another project's package"),
        (f"envkit==0.2.0{HASH}", "another project's package"),
        ("EnvKit>=0.2", "another project's package"),
        ("envkit[attest]==0.2.0", "another project's package"),
        ("envkit-gpu", "can be any version"),
        ("envkit-gpu>=0.2", "can be any version"),
        ("envkit_gpu==0.2.0", "has no hash"),
        (f"envkit-gpu==0.*{HASH}", "has no hash"),
        (f"envkit-gpu==0.2.0 --hash=md5:{'a' * 32}", "has no hash"),
        ("numpy", "is not a requirement"),
        ("", "is not a requirement"),
        ("-r other.txt", "is not a requirement"),
        (URL, "has no hash"),
        (f"{URL} --hash=sha256:abc", "not a URL or path with its SHA-256"),
        (URL.replace("https", "http") + HASH, "is not https"),
        (f"https://files.example/envkit-0.2.0-py3-none-any.whl{HASH}", "no wheel or source distribution of envkit-gpu"),
        (f"https://files.example/archive.zip{HASH}", "no wheel or source distribution of envkit-gpu"),
        (f"{URL}?token=x{HASH}", "no wheel or source distribution of envkit-gpu"),
        (f"file:///srv/{WHEEL}{HASH}", "not a URL or path with its SHA-256"),
        (f"./dist/{WHEEL}", "has no hash"),
        (f"./dist/{WHEEL}{HASH} --index-url=https://evil.example", "not a URL or path with its SHA-256"),
        ("/srv/envkit", "no wheel or source distribution of envkit-gpu"),
        ("git+https://git.example/team/envkit.git@main", "names no commit"),
        ("git+https://git.example/team/envkit.git@v0.2.0", "names no commit"),
        ("git+https://git.example/team/envkit.git", "names no commit"),
        (f"git+https://git.example/team/envkit.git@{COMMIT[:12]}", "names no commit"),
        (f"git+http://git.example/team/envkit.git@{COMMIT}", "names no commit"),
        ("image:registry.example/team/envkit:1", "no image by digest"),
        ("image:registry.example/team/envkit@sha256:abc", "no image by digest"),
        (f"numpy @ {URL}{HASH}", "is for numpy, but the distribution is envkit-gpu"),
        (f"envkit-gpu[attest] @ {URL}{HASH}", "has extras"),
        (f"{URL}{HASH}\n--index-url https://evil.example", "not a URL or path"),
        (f"${{HOME}}/{WHEEL}{HASH}", "not a URL or path"),
    ],
)
def test_what_could_be_someone_elses_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.exit_code == 2
    assert why in caught.value.message
    assert caught.value.hint is not None


def test_a_login_is_refused_and_not_shown() -> None:
    with pytest.raises(UsageError, match="--requirement contains a login") as caught:
        parse(f"https://me:hunter2xyz@files.example/{WHEEL}{HASH}")
    assert "hunter2xyz" not in str(caught.value.message)


def test_the_ways_are_written_as_they_are_read() -> None:
    texts = [re.sub(r".*--requirement '?([^']*)'?(, .*)?", r"\1", way) for way in WAYS]
    filled = [
        text.replace("VERSION", "0.2.0").replace("COMMIT", COMMIT).replace("HASH", A).replace("DIGEST", A)
        .replace("HOST", "host.example").replace("PATH", "path").replace("NAME", "name")
        for text in texts
    ]  # fmt: skip
    assert [parse(text).form for text in filled] == [Form.URL, Form.GIT, Form.PIN, Form.IMAGE]
