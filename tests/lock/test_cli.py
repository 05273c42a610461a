"""`envkit lock` as a user types it."""

import json
import os
import re
import stat
from pathlib import Path

import pytest

from envkit.lock.store import read_lock
from tests.lock.commands import CPU, envkit, serve_images
from tests.lock.served import Pkg, Served, Site, put_channel

LOCK = ("lock", "cpu", "--base", "none")
MIXED = ("lock", "cu126", "--source", "pytorch", "--base", "none")


def test_a_lock_is_written_and_told_about(site: Site, tmp_path: Path) -> None:
    done = envkit(tmp_path, *LOCK, env=serve_images(site))
    assert done.returncode == 0, done.stderr
    lock = read_lock(tmp_path / "envkit.lock")
    assert lock.plan == CPU.digest
    assert lock.size == 1000 * len(lock.conda)
    assert f"conda   {len(lock.conda)}" in done.stdout
    assert "envkit.lock written" in done.stderr
    assert "\b" not in done.stdout


@pytest.mark.parametrize("arguments", [LOCK, MIXED])
def test_equal_requests_give_equal_bytes_whatever_surrounds_them(
    arguments: tuple[str, ...], site: Site, tmp_path: Path
) -> None:
    made = {}
    with Served() as other:
        settings = [serve_images(site), serve_images(other, order=7)]
        for number, (env, umask) in enumerate([
            ({"PYTHONHASHSEED": "0", "LC_ALL": "C", "TZ": "UTC"}, 0o022),
            ({"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo"}, 0o077),
            ({"PYTHONHASHSEED": "12345", "LANG": "tr_TR.UTF-8", "TZ": "America/St_Johns"}, 0o000),
            ({"PYTHONHASHSEED": "random", "PYTHONUTF8": "0", "COLUMNS": "40"}, 0o027),
            ({"PYTHONHASHSEED": "99", "XDG_CACHE_HOME": str(tmp_path / "elsewhere"), "NO_COLOR": "1"}, 0o002),
        ]):  # fmt: skip
            folder = tmp_path / f"run {number}"
            folder.mkdir()
            done = envkit(folder, *arguments, env=settings[number % 2] | env, umask=umask)
            assert done.returncode == 0, done.stderr
            path = folder / "envkit.lock"
            made[number] = path.read_bytes()
            assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert len(set(made.values())) == 1
    assert site.url not in made[0].decode()


def test_a_lock_that_fits_is_exit_0_and_one_that_does_not_is_exit_4(site: Site, tmp_path: Path) -> None:
    env = serve_images(site)
    assert envkit(tmp_path, *LOCK, env=env).returncode == 0
    asked = len(site.seen)
    assert envkit(tmp_path, *LOCK, "--check", env=env).returncode == 0
    stale = envkit(tmp_path, *LOCK, "--check", "--python", "3.12", env=env)
    assert stale.returncode == 4
    assert "envkit.lock is stale: python: 3.11 in the lock, 3.12 requested" in stale.stderr
    assert "hint: envkit lock writes a new one" in stale.stderr
    told = envkit(tmp_path, *LOCK, "--check", "--python", "3.12", "--json", env=env)
    assert told.returncode == 4
    document = json.loads(told.stdout)
    assert (document["schema"], document["stale"]) == ("envkit.lock-summary/1", True)
    assert document["differences"][0] == "python: 3.11 in the lock, 3.12 requested"
    missing = envkit(tmp_path, *LOCK, "--check", "-o", "other.lock", env=env)
    assert missing.returncode == 4
    assert "there is no lock at other.lock" in missing.stderr
    assert missing.stderr.endswith(f"hint: envkit {' '.join(LOCK)} -o other.lock\n")
    assert len(site.seen) == asked, "checking asks no source"


def test_a_failed_solve_leaves_the_old_lock(site: Site, tmp_path: Path) -> None:
    env = serve_images(site)
    assert envkit(tmp_path, *LOCK, env=env).returncode == 0
    before = (tmp_path / "envkit.lock").read_bytes()
    site.files.clear()
    failed = envkit(tmp_path, *LOCK, env=env | {"XDG_CACHE_HOME": str(tmp_path / "cold")})
    assert failed.returncode == 9
    error, hint = re.findall(r"^(?:error|hint): .*$", failed.stderr, re.MULTILINE)
    assert error.startswith(f"error: no answer from {site.url} (conda-forge): ")
    assert failed.stderr.endswith(f"{error}\n\n{hint}\n"), "one line of error, then what to do"
    put_channel(site, "conda-forge", [Pkg("python", "3.11.7")])
    refused = envkit(tmp_path, *LOCK, env=env | {"XDG_CACHE_HOME": str(tmp_path / "colder")})
    assert refused.returncode == 3
    assert (tmp_path / "envkit.lock").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".envkit")] == []
    assert "Traceback" not in failed.stderr + refused.stderr


def test_one_package_moves_and_the_change_is_named(site: Site, tmp_path: Path) -> None:
    env = serve_images(site)
    assert envkit(tmp_path, *LOCK, env=env).returncode == 0
    before = read_lock(tmp_path / "envkit.lock")
    with Served() as other:
        env = serve_images(other)
        rows = [Pkg(one.name, one.version, one.depends, one.build) for one in before.conda]
        put_channel(other, "conda-forge", [*rows, Pkg("numpy", "1000", ("python 3.11.*",)), Pkg("tini", "1000")])
        moved = envkit(tmp_path, *LOCK, "--update", "numpy", env=env)
        unknown = envkit(tmp_path, *LOCK, "--update", "nunpy", env=env)
    assert moved.returncode == 0, moved.stderr
    assert re.search(r"^moved +kind +from +to\nnumpy +conda +999 0 +1000 0$", moved.stdout, re.MULTILINE)
    assert "1 package moved\n" in moved.stderr
    after = {one.name: one.version for one in read_lock(tmp_path / "envkit.lock").conda}
    assert after == {one.name: one.version for one in before.conda} | {"numpy": "1000"}
    assert unknown.returncode == 2
    assert "hint: --update numpy" in unknown.stderr


def test_update_needs_a_lock(site: Site, tmp_path: Path) -> None:
    done = envkit(tmp_path, *LOCK, "--update", "numpy", env=serve_images(site))
    assert done.returncode == 4
    assert "there is no lock at envkit.lock" in done.stderr
    assert done.stderr.endswith(f"hint: envkit {' '.join(LOCK)} -o envkit.lock\n")


def test_a_lock_goes_to_stdout_and_into_other_formats(site: Site, tmp_path: Path) -> None:
    env = serve_images(site)
    shown = envkit(tmp_path, *MIXED, "-o", "-", env=env)
    assert json.loads(shown.stdout)["schema"] == "envkit.lock/2"
    assert not (tmp_path / "envkit.lock").exists()
    assert envkit(tmp_path, *MIXED, env=env).returncode == 0
    assert shown.stdout == (tmp_path / "envkit.lock").read_text()
    for name, text in (
        ("conda-explicit", "@EXPLICIT"),
        ("pylock.toml", 'lock-version = "1.0"'),
        ("requirements.txt", "--hash=sha256:"),
        ("environment.yml", "dependencies:"),
    ):
        done = envkit(tmp_path, "lock", "--export", name)
        assert done.returncode == 0, done.stderr
        assert text in done.stdout
        assert site.url not in done.stdout
    stale = envkit(tmp_path, *MIXED, "--python", "3.12", "--export", "pylock.toml")
    assert (stale.returncode, stale.stdout) == (4, "")


def test_json_lists_every_package_with_its_size(site: Site, tmp_path: Path) -> None:
    done = envkit(tmp_path, *MIXED, "--json", env=serve_images(site))
    document = json.loads(done.stdout)
    lock = read_lock(tmp_path / "envkit.lock")
    assert document["bytes"] == lock.size == sum(one["size"] for one in document["packages"])
    assert document["changed"] is True
    assert {one["kind"] for one in document["packages"]} == {"conda", "wheel"}


@pytest.mark.requirement("R35")
def test_no_secret_of_any_source_reaches_the_lock_or_the_talk(site: Site, tmp_path: Path) -> None:
    serve_images(site)
    site.login = "canary-user:canary-pw"
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login canary-user password canary-pw\n")
    netrc.chmod(0o600)
    channel = Served()
    with channel as open_site:
        env = serve_images(open_site) | {"ENVKIT_PYTORCH_INDEX": f"{site.url}/whl", "NETRC": str(netrc)}
        done = envkit(tmp_path, *MIXED, env=env | {"PIP_INDEX_URL": "https://canary-user:canary-pw@x.example.com/"})
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr + (tmp_path / "envkit.lock").read_text()
    assert "canary" not in told


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--as-of", "soon"), 2, "--as-of: 'soon' is not a date"),
        (("--base", "bootstrap:debian/buster"), 2, "cannot be bootstrapped"),
        (
            ("--base", "bootstrap:debian/bookworm", "--os", "ubuntu22.04"),
            2,
            "is not ubuntu22.04, the OS of the plan",
        ),
        (("--base", "-x y"), 2, "--base '-x y': '-x y' is not an image reference"),
        (("--engine", "kaniko"), 2, "--engine 'kaniko' is not one of auto, docker"),
        (("--export", "zip"), 2, "'zip' is not one of"),
        (("-o", "."), 2, ". is a folder"),
    ],
)
def test_what_a_user_types_wrong_is_a_message(
    arguments: tuple[str, ...], code: int, message: str, site: Site, tmp_path: Path
) -> None:
    done = envkit(tmp_path, "lock", "cpu", *arguments, env=serve_images(site))
    assert done.returncode == code
    assert message in done.stderr
    assert site.seen == []
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["rattler", "uv"])
def test_a_missing_solver_is_named_with_its_command(module: str, site: Site, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / f"{module}.py").write_text("raise ImportError('not here')\n")
    env = serve_images(site) | {"PYTHONPATH": os.pathsep.join([str(hidden), os.environ.get("PYTHONPATH", "")])}
    done = envkit(tmp_path, *MIXED, env=env)
    assert done.returncode == 9
    assert f"{ {'rattler': 'py-rattler', 'uv': 'uv'}[module] } is not installed" in done.stderr
    assert "hint: pip install" in done.stderr


def test_help_shows_its_examples_line_by_line(tmp_path: Path) -> None:
    done = envkit(tmp_path, "lock", "--help")
    assert any(line.strip().startswith("envkit lock train.yaml --check  ") for line in done.stdout.splitlines())
