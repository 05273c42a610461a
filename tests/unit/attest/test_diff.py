"""What differs between two contents, and the same difference in words and JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envkit.attest.content import Content, Layer, Package, of_lock
from envkit.attest.diff import Change, PackageChange, difference, stack
from envkit.attest.reading import of_plan
from envkit.cli import main
from tests.unit.attest.carriers import SITE, base, files, layout, lock, own, plan

KINDS = st.sampled_from(("conda", "wheel", "deb"))
TEXT = st.sampled_from(("a", "b", "c"))
rows = st.lists(st.builds(Package, kind=KINDS, name=TEXT, version=TEXT, sha256=st.none() | TEXT), max_size=6)
texts = st.dictionaries(TEXT, TEXT)
layers = st.lists(st.builds(Layer, diff_id=TEXT, digest=TEXT, size=st.integers(0, 9), made_by=st.just("")), max_size=3)
contents = st.builds(
    Content, name=TEXT, kind=st.just("oci"), labels=texts, env=texts, user=TEXT,
    packages=rows.map(tuple), layers=layers.map(tuple),
)  # fmt: skip


def image(*packages: Package, **more: object) -> Content:
    return Content(name="x", kind="oci", packages=packages, **more)  # type: ignore[arg-type]


def wheel(name: str, version: str, sha256: str | None = None) -> Package:
    return Package(kind="wheel", name=name, version=version, sha256=sha256)


@given(contents)
def test_nothing_differs_from_itself(one: Content) -> None:
    found = difference(one, one)
    assert found.same
    assert (found.packages, found.stack, found.env, found.start, found.labels) == ((), (), (), (), ())


@given(contents, contents)
def test_turned_round_it_is_the_same_difference(one: Content, other: Content) -> None:
    found, back = difference(one, other), difference(other, one)
    assert found.same == back.same
    assert found.env is not None
    assert back.env is not None
    assert [(row.name, row.after, row.before) for row in found.env] == [
        (row.name, row.before, row.after) for row in back.env
    ]
    assert found.packages is not None
    assert back.packages is not None
    assert [(row.name, row.after, row.before) for row in found.packages] == [
        (row.name, row.before, row.after) for row in back.packages
    ]
    assert json.dumps(found.to_json())


def test_packages_are_added_removed_changed_or_rebuilt() -> None:
    before = image(wheel("a", "1"), wheel("b", "1"), wheel("c", "1", "x"), wheel("d", "1", "x"))
    after = image(wheel("b", "2"), wheel("c", "1", "y"), wheel("d", "1"), wheel("e", "1"))
    assert difference(before, after).packages == (
        PackageChange(kind="wheel", name="a", before="1", after=None),
        PackageChange(kind="wheel", name="b", before="1", after="2"),
        PackageChange(kind="wheel", name="c", before="1", after="1", rebuilt=True),
        PackageChange(kind="wheel", name="e", before=None, after="1"),
    )


def test_a_package_that_is_there_twice_is_compared_with_both_versions() -> None:
    found = difference(image(wheel("a", "1"), wheel("a", "2")), image(wheel("a", "2")))
    assert found.packages == (PackageChange(kind="wheel", name="a", before="1, 2", after="2"),)


def test_packages_that_one_side_does_not_tell_are_not_compared() -> None:
    assert difference(image(), replace(image(), packages=None)).packages is None


def test_the_stack_of_a_plan_is_that_of_its_image() -> None:
    found = stack(of_plan(plan(), "plan.json"))
    assert found["torch"] == plan().resolution.torch
    assert found["cuda"] == "12.6"
    assert found["driver.minimum"]
    assert "9.0" in found["gpu.archs"].split()


@pytest.mark.parametrize(
    ("version", "cuda"), [("2.7.1+cu126", "12.6"), ("2.0.0+cu118", "11.8"), ("2.7.1+cpu", "none"), ("2.7.1", None)]
)
def test_torchs_own_version_tells_the_cuda(version: str, cuda: str | None) -> None:
    found = stack(image(wheel("torch", version), wheel("nvidia-cudnn-cu12", "9.5.1.17")))
    assert (found["torch"], found.get("cuda"), found["cudnn"]) == (version[:5], cuda, "9.5.1.17")


def test_what_only_one_side_says_of_the_driver_is_no_difference() -> None:
    one = image(wheel("torch", "2.7.1+cu126"), labels={"envkit.driver.minimum": "525.60.13"})
    found = difference(one, image(wheel("torch", "2.8.0+cu128")))
    assert found.stack == (Change(name="torch", before="2.7.1", after="2.8.0"),
                           Change(name="cuda", before="12.6", after="12.8"))  # fmt: skip


def test_a_lock_has_no_settings_to_compare() -> None:
    found = difference(Content(name="l", kind="lock", packages=of_lock(lock()), lock=lock()), image(env={"A": "b"}))
    assert (found.env, found.start, found.labels, found.layers) == (None, None, None, None)


def test_layers_are_the_same_when_they_unpack_to_the_same() -> None:
    one = (Layer(diff_id="a", digest="gzip", size=10, made_by=""), Layer(diff_id="b", digest="b", size=5, made_by=""))
    other = (Layer(diff_id="a", digest="zstd", size=8, made_by=""),)
    found = difference(image(layers=one), image(layers=other)).layers
    assert found is not None
    assert (found.shared, found.shared_bytes, found.only_before, found.only_before_bytes) == (1, 8, 1, 5)
    assert (found.only_after, found.only_after_bytes) == (0, 0)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """An image as envkit makes it, and one that somebody installed into."""
    monkeypatch.chdir(tmp_path)
    more = files({f"{SITE}/einops-1.0.dist-info/METADATA": b"", f"{SITE}/.wh.einops-0.9.0.dist-info": b""})
    return layout(tmp_path / "one", base(), own()), layout(tmp_path / "two", base(), own(), more, env=("STAGE=two",))


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(["diff", "--progress", "quiet", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_difference_in_words(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(list(pair), capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(f"A  {pair[0]}  (oci, sha256:")
    assert lines[0].endswith("2 layers, 6 packages by its lock)")
    assert "packages: 1 changed, 0 added, 0 removed" in lines
    assert "    einops  0.9.0 -> 1.0  wheel" in lines
    assert "  STAGE  none -> two" in lines
    assert lines[-1].startswith("layers: 2 shared (")


def test_equal_images_and_the_exit_code(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([pair[0], pair[0], "--exit-code"], capsys)
    assert (code, out.splitlines()[-1]) == (0, "identical")
    assert run([*pair, "--exit-code"], capsys)[0] == 6


def test_markdown_has_tables_without_foreign_markup(
    tmp_path: Path, pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run([*pair, "--markdown"], capsys)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("- A: oci:")
    assert "**Packages: 1 changed, 0 added, 0 removed**" in lines
    assert "| einops | wheel | 0.9.0 | 1.0 |" in lines
    assert "| STAGE | none | two |" in lines
    assert lines[-1].startswith("layers: 2 shared (")
    hostile = layout(tmp_path / "three", base(), own(), env=("STAGE=@you | <img src=x> [a](b)",))
    assert (
        "| STAGE | none | @\u200byou \\| &lt;img src=x&gt; \\[a\\](b) |"
        in run([pair[0], hostile, "--markdown"], capsys)[1]
    )
    assert run([pair[0], pair[0], "--markdown"], capsys)[1].endswith("\n\nNo differences found.\n")
    assert run([*pair, "--markdown", "--json"], capsys)[0] == 2


def test_json_has_a_schema(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run([*pair, "--json"], capsys)
    tree = json.loads(out)
    assert (code, tree["schema"], tree["same"]) == (0, "envkit.diff/1", False)
    assert tree["packages"] == [
        {"kind": "wheel", "name": "einops", "before": "0.9.0", "after": "1.0", "rebuilt": False}
    ]
    assert tree["layers"]["shared"] == 2
    assert tree["after"]["packages_from"] == "lock and layers"


def test_an_image_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run([f"oci:{tmp_path}/a", f"oci:{tmp_path}/b"], capsys)
    assert code == 8
    assert err.startswith("error: there is no image 'oci:")


def test_a_variable_that_no_process_can_have_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = layout(tmp_path / "one", base(), own()), layout(tmp_path / "two", base(), own(), env=("A=\ud800",))
    code, out, err = run([*pair, "--json"], capsys)
    assert (code, out) == (10, "")
    assert "config.Env is not a list of valid strings: ['A=\\ud800']" in err


def test_a_file_of_authorities_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENVKIT_CA_BUNDLE", "/nowhere.pem")
    code, _, err = run(["registry.example.com/a:1", "registry.example.com/a:2"], capsys)
    assert code == 2
    assert "ca_bundle: /nowhere.pem: No such file or directory" in err
