"""Where envkit keeps its own data, and whose it has to be."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from envkit.ground import paths
from envkit.ground.errors import EnvironmentProblem

Finder = Callable[[Mapping[str, str]], Path]
OF = {
    "cache": (paths.cache_dir, "XDG_CACHE_HOME", ".cache"),
    "state": (paths.state_dir, "XDG_STATE_HOME", ".local/state"),
}


@pytest.fixture(params=list(OF))
def found(request: pytest.FixtureRequest) -> tuple[Finder, str, str]:
    """One of the two folders: its function, its variable, its place below HOME."""
    return OF[request.param]


def test_a_variable_counts_then_home_then_tmpdir(found: tuple[Finder, str, str], tmp_path: Path) -> None:
    find, variable, below_home = found
    home, tmp = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    tmp.mkdir()
    env = {variable: str(tmp_path / "own"), "HOME": str(home), "TMPDIR": str(tmp)}
    assert find(env) == tmp_path / "own/envkit"
    assert find(env | {variable: "relative"}) == home / below_home / "envkit"
    last = find({"HOME": str(tmp_path / "absent"), "TMPDIR": str(tmp)})
    assert last.parent == tmp
    assert last.name.startswith(f"envkit-{os.geteuid()}")
    assert last.stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "own").exists()  # looking for it makes nothing


@pytest.fixture
def as_another(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function that makes this process another user, to whom nothing here belongs."""
    return lambda: monkeypatch.setattr(os, "geteuid", lambda: 4321)


def test_the_folder_of_another_user_is_not_used(
    found: tuple[Finder, str, str], tmp_path: Path, as_another: Callable[[], None]
) -> None:
    find, variable, _ = found
    (tmp_path / "envkit").mkdir()
    owner = os.geteuid()
    as_another()
    with pytest.raises(EnvironmentProblem) as caught:
        find({variable: str(tmp_path)})
    assert caught.value.message == (
        f"{tmp_path}/envkit is owned by user {owner}; envkit uses only folders of its own user (4321)"
    )
    assert caught.value.hint == f"set {variable} to a folder of your own"


def test_a_link_counts_as_its_owner_and_what_it_leads_to(
    found: tuple[Finder, str, str], tmp_path: Path, as_another: Callable[[], None]
) -> None:
    find, variable, _ = found
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "envkit").symlink_to(elsewhere)
    assert find({variable: str(tmp_path)}) == tmp_path / "envkit"  # one's own link to one's own folder
    as_another()
    with pytest.raises(EnvironmentProblem, match="is a link owned by user "):
        find({variable: str(tmp_path)})


def test_what_everybody_may_make_is_looked_at_after_its_making(
    found: tuple[Finder, str, str], tmp_path: Path, as_another: Callable[[], None]
) -> None:
    find, _, _ = found
    as_another()
    for name in ("envkit-4321", "envkit-4321-state"):  # somebody was first
        (tmp_path / name).mkdir()
    with pytest.raises(EnvironmentProblem, match="is owned by user "):
        find({"TMPDIR": str(tmp_path)})


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777, 0o722])
def test_nobody_else_may_write_in_it(found: tuple[Finder, str, str], tmp_path: Path, mode: int) -> None:
    find, variable, _ = found
    folder = tmp_path / "envkit"
    folder.mkdir()
    folder.chmod(mode)
    assert find({variable: str(tmp_path)}) == folder
    assert folder.stat().st_mode & 0o7777 == mode & ~0o022


def test_a_scratch_folder_goes_with_its_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with paths.scratch() as folder:
        (folder / "file").touch()
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


@pytest.mark.requirement("R30")
def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "envkit-scratch-left"
    (left / "sub").mkdir(parents=True)
    (tmp_path / "envkit-other").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "envkit-scratch-link").symlink_to(tmp_path / "elsewhere")
    with paths.scratch() as held, paths.scratch() as second:
        assert held.exists()  # the second one swept beside it
        assert {one.name for one in tmp_path.iterdir()} == {
            "envkit-other", "elsewhere", "envkit-scratch-link", held.name, second.name
        }  # fmt: skip
    (tmp_path / "envkit-scratch-foreign").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with paths.scratch():
        assert (tmp_path / "envkit-scratch-foreign").exists()


def test_a_place_without_any_folder_to_write_to_is_told(
    found: tuple[Finder, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(EnvironmentProblem, match="no folder for temporary files") as caught:
        found[0]({})
    assert found[1] in (caught.value.hint or "")


def test_a_closed_home_with_an_open_folder_in_it_is_used(
    found: tuple[Finder, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers mount a volume at ~/.cache of a home that nobody can write."""
    find, _, below_home = found
    home = tmp_path / "home"
    (home / below_home).mkdir(parents=True)
    writable = {home / below_home}
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) in writable)
    env = {"HOME": str(home), "TMPDIR": str(tmp_path)}
    assert find(env) == home / below_home / "envkit"
    writable.clear()
    assert find(env).parent == tmp_path


def test_what_other_programs_may_use_is_found_by_the_same_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "named")}
    assert paths.caches_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache"
    assert paths.caches_folder(named) == tmp_path / "named"
    assert paths.caches_folder({"HOME": str(tmp_path / "absent")}) is None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert paths.caches_folder(named) is None


def test_an_installation_without_its_data_is_told() -> None:
    assert any(paths.data_folder("templates").iterdir())
    with pytest.raises(EnvironmentProblem, match="this installation has no nothing folder"):
        paths.data_folder("nothing")
