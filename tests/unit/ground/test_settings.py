import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from envkit.assemble import builders
from envkit.cli.main import run
from envkit.ground import engine_names, settings
from envkit.ground.errors import UsageError
from envkit.render import lint
from envkit.render.render import render
from envkit.run import runners
from tests.support.plans import shipped_plan


def value(tmp_path: Path, key: str, *, flag: str | None = None, env: dict[str, str] | None = None) -> settings.Value:
    flags = {key: flag} if flag else {}
    return settings.load(flags, env or {}, tmp_path).values[key]


def test_precedence_is_flag_then_variable_then_file_then_default(tmp_path: Path) -> None:
    assert value(tmp_path, "engine") == settings.Value("auto", "default")
    file = tmp_path / "envkit.toml"
    file.write_text('engine = "podman"\n')
    assert value(tmp_path, "engine") == settings.Value("podman", str(file))
    env = {"ENVKIT_ENGINE": "buildkit"}
    assert value(tmp_path, "engine", env=env) == settings.Value("buildkit", "ENVKIT_ENGINE")
    assert value(tmp_path, "engine", flag="docker", env=env) == settings.Value("docker", "flag")


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    assert value(tmp_path, "engine", env={"ENVKIT_ENGINE": ""}).origin == "default"


def test_pyproject_table_is_read(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[tool.envkit]\nregistry = "mirror.example:5000"\n')
    assert value(tmp_path, "registry").text == "mirror.example:5000"


def test_envkit_toml_wins_over_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.envkit]\nregistry = "a.example"\n')
    (tmp_path / "envkit.toml").write_text('registry = "b.example"\n')
    assert value(tmp_path, "registry").text == "b.example"


FORBIDDEN = [
    "build_network", "ca_bundle", "cache_limit", "docker_cli", "facts", "log_dir", "requirement", "run_memory",
    "runner", "templates", "wheel_dir",
]  # fmt: skip
SOURCES = [
    "conda_channel_alias", "debian_mirror", "debian_security_mirror", "miniconda", "miniconda_image", "preset",
    "python_index", "pytorch_index", "registry", "rpm_mirror", "ubuntu_mirror",
]  # fmt: skip
HARMLESS = ["engine", "image_licenses", "image_revision", "image_source"]


def keys(door: settings.Checkout) -> list[str]:
    return sorted(item.key for item in settings.SETTINGS if item.checkout is door)


def test_what_the_file_of_a_checkout_may_set_is_one_list() -> None:
    assert keys(settings.Checkout.NO) == FORBIDDEN
    assert keys(settings.Checkout.BUILDS) == SOURCES
    assert keys(settings.Checkout.YES) == HARMLESS


def test_each_setting_says_why_a_checkout_may_set_it_or_not() -> None:
    assert [item.key for item in settings.SETTINGS if len(item.reason.split()) < 4] == []


def test_every_download_source_is_declared_as_one() -> None:
    names = {field.name for field in dataclasses.fields(settings.Mirrors)} | {"preset"}
    assert names - {"ca_bundle"} == set(SOURCES)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("runner", "host"), ("runner", "proot"), ("facts", "/etc/shadow"), ("facts", "./own.yaml"),
        ("build_network", "host"), ("run_memory", "999TB"), ("cache_limit", "0"), ("templates", "./t"),
        ("docker_cli", "./evil"), ("ca_bundle", "./ca.pem"), ("log_dir", "/root"), ("wheel_dir", "./wheels"),
        ("runner", "not a runner at all"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", settings.FILES)
def test_what_a_checkout_may_not_set_is_ignored_with_its_place(name: str, key: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text(f"{'[tool.envkit]' if name == 'pyproject.toml' else ''}\n{key} = {text!r}\n")
    found = settings.load({}, {}, tmp_path)
    assert found.values[key].origin == "default"
    assert found.ignored == {key: settings.Value(text, str(file))}
    (note,) = found.notes
    reason = next(item.reason for item in settings.SETTINGS if item.key == key)
    assert note.startswith(
        f"{file}: {key} is ignored, because {reason}; set ENVKIT_{key.upper()}, or {key} in your own"
    )


class TestOfTheHost:
    """Settings for an environment of this machine: a checkout does not say where its packages come from."""

    @pytest.mark.parametrize("key", SOURCES)
    def test_a_checkout_sets_no_source(self, key: str, tmp_path: Path) -> None:
        text = "tuna" if key == "preset" else "https://evil.example/simple"
        (tmp_path / "envkit.toml").write_text(f'{key} = "{text}"\n')
        found = settings.read({}, {}, tmp_path, use=settings.Use.HOST)
        assert {value.origin for value in found.values.values()} == {"default"}
        assert list(found.ignored) == [key]
        assert found.sources_note is None

    def test_flag_variable_and_the_users_own_file_do(self, tmp_path: Path) -> None:
        own = tmp_path / "home" / "envkit" / "envkit.toml"
        own.parent.mkdir(parents=True)
        own.write_text('python_index = "https://index.example/simple"\n')
        (tmp_path / "envkit.toml").write_text('python_index = "https://evil.example/simple"\n')
        env = {"XDG_CONFIG_HOME": str(tmp_path / "home"), "ENVKIT_PYTORCH_INDEX": "https://wheels.example/whl"}
        found = settings.load({"preset": "sjtu"}, env, tmp_path, use=settings.Use.HOST)
        assert found.get("python_index") != "https://evil.example/simple"
        without = settings.load({}, env, tmp_path, use=settings.Use.HOST)
        assert without.values["python_index"] == settings.Value("https://index.example/simple", str(own))
        assert without.get("pytorch_index") == "https://wheels.example/whl"


class TestSourcesOfACheckout:
    """One note says where a checkout's file lets builds download from."""

    def test_one_note_has_all(self, tmp_path: Path) -> None:
        file = tmp_path / "envkit.toml"
        file.write_text('registry = "r.example"\nminiconda_image = "evil.example/x:1"\nimage_licenses = "MIT"\n')
        found = settings.load({}, {}, tmp_path)
        assert found.sources_note == (
            f"{file} sets where images come from: registry = r.example, miniconda_image = evil.example/x:1"
        )

    def test_a_value_that_the_user_overrides_is_not_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "envkit.toml").write_text('registry = "r.example"\n')
        assert settings.load({}, {"ENVKIT_REGISTRY": "own.example"}, tmp_path).sources_note is None

    def test_a_login_and_control_characters_are_not_shown(self, tmp_path: Path) -> None:
        (tmp_path / "envkit.toml").write_text(
            'miniconda_image = "\\u001b[2J"\npython_index = "https://me:hunter2xyz@index.example/simple"\n'
        )
        note = settings.load({}, {}, tmp_path).sources_note
        assert note is not None
        assert "hunter2xyz" not in note
        assert note.isprintable()

    def test_the_users_own_file_needs_no_note(self, tmp_path: Path) -> None:
        own = tmp_path / "envkit" / "envkit.toml"
        own.parent.mkdir(parents=True)
        own.write_text('registry = "r.example"\nrunner = "proot"\n')
        found = settings.load({}, {"XDG_CONFIG_HOME": str(tmp_path)}, own.parent)
        assert (found.get("runner"), found.sources_note, found.notes) == ("proot", None, [])


def test_flags_variables_and_the_users_own_file_name_them(tmp_path: Path) -> None:
    (tmp_path / "envkit.toml").write_text('docker_cli = "./evil"\nregistry = "a.example"\n')
    own = tmp_path / "home" / "envkit" / "envkit.toml"
    own.parent.mkdir(parents=True)
    own.write_text('docker_cli = "podman"\nregistry = "b.example"\nlog_dir = "/logs"\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path / "home")}
    found = settings.load({}, env, tmp_path)
    assert found.values["docker_cli"] == settings.Value("podman", str(own))
    assert found.values["registry"] == settings.Value("a.example", str(tmp_path / "envkit.toml"))
    assert found.values["log_dir"] == settings.Value("/logs", str(own))
    assert settings.load({}, {**env, "ENVKIT_DOCKER_CLI": "d"}, tmp_path).get("docker_cli") == "d"
    assert settings.load({"docker_cli": "f"}, env, tmp_path).get("docker_cli") == "f"
    assert settings.load({}, env, own.parent).ignored == {}  # run from there, the file is still the user's own


def test_every_fault_of_a_file_comes_at_once(tmp_path: Path) -> None:
    (tmp_path / "envkit.toml").write_text('regstry = "x"\nengine = 3\n')
    with pytest.raises(UsageError) as caught:
        settings.load({}, {}, tmp_path)
    assert "unknown key 'regstry'; did you mean registry?" in caught.value.message
    assert caught.value.details == (f"{tmp_path / 'envkit.toml'}: engine must be a string, not int",)


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "envkit.toml").write_text("engine = \n")
    with pytest.raises(UsageError, match=r"envkit\.toml: "):
        settings.load({}, {}, tmp_path)


@pytest.mark.parametrize("name", ["envkit.toml", "pyproject.toml"])
def test_a_settings_file_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match=f"{name}: is a pipe, not a regular file"):
        settings.load({}, {}, tmp_path)


def test_a_misspelt_variable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown setting ENVKIT_ENGIN") as caught:
        settings.load({}, {"ENVKIT_ENGIN": "docker"}, tmp_path)
    assert caught.value.hint == "did you mean engine?"


def test_mirrors_are_the_settings_of_the_same_name(tmp_path: Path) -> None:
    loaded = settings.load({}, {"ENVKIT_CONDA_CHANNEL_ALIAS": "https://conda.example"}, tmp_path)
    assert loaded.mirrors() == settings.Mirrors(conda_channel_alias="https://conda.example")


class TestPresets:
    def test_every_preset_is_a_row_whose_values_have_sources(self) -> None:
        text = (Path(settings.__file__).parent / "presets.yaml").read_text(encoding="utf-8")
        sources = yaml.safe_load(text)["sources"]
        rows = settings.presets()
        assert tuple(rows) == settings.PRESETS
        named = [name for row in rows.values() for one in row["settings"].values() for name in one["source"]]
        assert set(named) == set(sources)
        assert all(one["url"].startswith("https://") and one["date"] for one in sources.values())

    @pytest.mark.parametrize("name", settings.PRESETS)
    def test_every_value_is_one_that_its_setting_can_have_and_a_build_takes(self, name: str, tmp_path: Path) -> None:
        found = settings.load({"preset": name}, {}, tmp_path)
        rows = settings.presets()[name]["settings"]
        taken = {key: value.text for key, value in found.values.items() if value.origin == f"preset {name}"}
        assert taken == {key: row["value"] for key, row in rows.items()}
        made = render(shipped_plan("jupyter", template="wheels"), mirrors=found.mirrors())
        assert [hit for hit in lint.check(made) if hit.severity == "error"] == []
        texts = "".join(data.decode() for data in made.files.values())
        used = ("python_index", "pytorch_index", "debian_mirror", "debian_security_mirror")
        assert all(str(taken[key]).removeprefix("flat+") in texts for key in used if key in taken)

    def test_a_setting_of_the_same_place_wins_and_a_place_that_counts_less_does_not(self, tmp_path: Path) -> None:
        file = tmp_path / "envkit.toml"
        file.write_text('preset = "tuna"\npython_index = "https://index.example.com/simple"\n')
        env = {"ENVKIT_DEBIAN_MIRROR": "https://debian.example.com/debian"}
        found = settings.load({}, env, tmp_path)
        assert found.values["python_index"] == settings.Value("https://index.example.com/simple", str(file))
        assert found.get("debian_mirror") == "https://debian.example.com/debian"
        assert found.values["conda_channel_alias"].origin == "preset tuna"
        typed = settings.load({"preset": "ustc"}, env, tmp_path)
        assert typed.values["python_index"].origin == "preset ustc"
        assert typed.values["debian_mirror"].origin == "preset ustc"
        assert typed.values["miniconda"].origin == "preset tuna"

    def test_an_unknown_name_is_an_error_with_the_nearest_one(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="--preset 'tsinghua' is not one of tuna, aliyun, sjtu, ustc"):
            settings.load({"preset": "tsinghua"}, {}, tmp_path)
        with pytest.raises(UsageError) as caught:
            settings.load({}, {"ENVKIT_PRESET": "alyun"}, tmp_path)
        assert caught.value.hint == "ENVKIT_PRESET=aliyun"

    def test_the_form_of_an_index_is_a_part_of_its_url(self, tmp_path: Path) -> None:
        flat = {"ENVKIT_PYTORCH_INDEX": "flat+https://mirror.example.com/wheels"}
        assert settings.load({}, flat, tmp_path).get("pytorch_index") == flat["ENVKIT_PYTORCH_INDEX"]
        for key, text in (
            ("PYTORCH_INDEX", "flat:https://mirror.example.com"),
            ("PYTHON_INDEX", "flat+https://a.example"),
        ):
            with pytest.raises(UsageError, match="is not a URL"):
                settings.load({}, {f"ENVKIT_{key}": text}, tmp_path)


@pytest.mark.parametrize("text", ['tool = "x"\n', '[tool]\nenvkit = "x"\n', "[tool]\nenvkit = [1]\n"])
def test_what_should_be_a_table_and_is_none_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"pyproject\.toml: (tool|envkit) is not a table"):
        settings.load({}, {}, tmp_path)


def test_the_file_of_authorities_has_to_be_there_and_none_means_none(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    assert settings.ca_file(str(tmp_path / "ca.pem")) == str(tmp_path / "ca.pem")
    assert settings.ca_file(None) is None
    assert settings.ca_file("none") is None
    for name, why in (("ca-2.pem", "No such file or directory"), ("", "Is a directory")):
        with pytest.raises(UsageError) as caught:
            settings.ca_file(str(tmp_path / name))
        assert caught.value.message == f"ca_bundle: {tmp_path / name}: {why}"


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ({"ENVKIT_ENGINE": "dokcer"}, "ENVKIT_ENGINE 'dokcer' is not one of auto, docker, ", "ENVKIT_ENGINE=docker"),
        ({"ENVKIT_RUNNER": "bwrap"}, "ENVKIT_RUNNER 'bwrap' is not one of auto, ", "ENVKIT_RUNNER="),
        ({"ENVKIT_BUILD_NETWORK": "bridge"}, "ENVKIT_BUILD_NETWORK 'bridge' is not one of ", "ENVKIT_BUILD_NETWORK="),
        ({"ENVKIT_PYTHON_INDEX": "pypi"}, "ENVKIT_PYTHON_INDEX 'pypi' is not a URL", "envkit config"),
        ({"ENVKIT_DEBIAN_MIRROR": "http://"}, "ENVKIT_DEBIAN_MIRROR 'http://' is not a URL", "envkit config"),
        ({"ENVKIT_REGISTRY": "https://r.example"}, "ENVKIT_REGISTRY 'https://r.example' is not HOST", "envkit config"),
        ({"ENVKIT_CACHE_LIMIT": "20"}, "ENVKIT_CACHE_LIMIT: '20' has no unit", "write a number"),
    ],
)
def test_a_value_that_its_setting_cannot_have_is_refused(
    env: dict[str, str], message: str, hint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        settings.load({}, env, tmp_path)
    assert caught.value.message.startswith(message)
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


def test_bad_values_of_a_file_name_the_file_and_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "envkit.toml"
    file.write_text('engine = "kaniko"\nregistry = "a/b"\n')
    with pytest.raises(UsageError) as caught:
        settings.load({}, {}, tmp_path)
    assert caught.value.message.startswith(f"{file}: engine 'kaniko' is not one of ")
    assert [line.partition(" is not")[0] for line in caught.value.details] == [f"{file}: registry 'a/b'"]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("registry", "127.0.0.1:5000"), ("registry", "mirror.example"), ("registry", "[::1]:5000"),
        ("miniconda", "file:///srv/miniconda"), ("debian_mirror", "http://deb.example/debian"), ("cache_limit", "0"),
    ],
)  # fmt: skip
def test_what_a_setting_can_be(key: str, text: str, tmp_path: Path) -> None:
    assert value(tmp_path, key, env={f"ENVKIT_{key.upper()}": text}).text == text


def test_every_name_of_an_engine_has_a_builder_and_every_runner_can_be_made() -> None:
    assert tuple(engine_names.ENGINES) == builders.NAMES
    assert [runners.make(name).name for name in engine_names.RUNNERS] == [*engine_names.RUNNERS]
    assert {engine.runner for engine in engine_names.ENGINES.values()} <= {*engine_names.RUNNERS}


def test_config_shows_an_invalid_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ENVKIT_ENGINE", "dokcer")
    assert run(["config"]) == 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["engine", "dokcer", "(ENVKIT_ENGINE)"]
    assert lines[1].strip().startswith("INVALID: ENVKIT_ENGINE 'dokcer' is not one of auto, docker")
    assert len(lines) == 2 * len(settings.SETTINGS) + 1
    assert run(["config", "--json"]) == 2
    tree = json.loads(capsys.readouterr().out)["settings"]
    assert tree["engine"]["invalid"].startswith("ENVKIT_ENGINE 'dokcer' is not one of")
    assert tree["runner"]["invalid"] is None


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2 << 30)


@pytest.mark.requirement("R4")
@pytest.mark.parametrize("name", ["envkit.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (sparse, "larger than 1048576 bytes"),
        (lambda path: path.symlink_to("/etc/passwd"), "is a link out of the folder"),
        (lambda path: path.symlink_to("../mine.toml"), "is a link out of the folder"),
        (lambda path: path.write_text("version = " + "9" * 5000), "an integer of more than 4300 digits"),
        (lambda path: path.write_text("x = 0x" + "f" * 5000), "an integer of 20000 bits"),
        (lambda path: path.write_text("x = nan"), "nan is not a finite number"),
        (lambda path: path.write_text("[" + "a." * 100_000 + "a]"), "a key has more than 64 parts"),
        (lambda path: path.write_text("x = " + "[" * 100_000), "nested deeper than 64 levels"),
        (lambda path: path.write_bytes(b"x\0=\0001\0\n\0"), "UTF-16 without a byte order mark"),
        (lambda path: path.write_text("\n" * 200_000), "more than 100000 lines"),
    ],
)
def test_settings_of_someone_else_are_read_through_the_door(
    name: str, make: Callable[[Path], None], what: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text('registry = "mine.example"')
    folder = tmp_path / "checkout"
    folder.mkdir()
    make(folder / name)
    with pytest.raises(UsageError, match=what) as caught:
        settings.load({}, {}, folder)
    assert str(folder / name) in caught.value.message
    assert caught.value.hint


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "real.toml").write_text('registry = "mirror.example"')
    (tmp_path / "envkit.toml").symlink_to("conf/real.toml")
    assert value(tmp_path, "registry").text == "mirror.example"


def test_the_users_own_settings_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "dotfiles.toml").write_text('registry = "mine.example"')
    (tmp_path / "home" / "envkit").mkdir(parents=True)
    (tmp_path / "home" / "envkit" / "envkit.toml").symlink_to(tmp_path / "dotfiles.toml")
    assert value(tmp_path, "registry", env={"XDG_CONFIG_HOME": str(tmp_path / "home")}).text == "mine.example"
