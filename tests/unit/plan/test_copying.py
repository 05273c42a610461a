"""Files that a definition copies: which, where to, and what a plan knows of them."""

import contextlib
import json
import os
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.facts.load import load
from envkit.ground.errors import UsageError
from envkit.lock.request import request_of
from envkit.plan import copying, ignoring
from envkit.plan.copying import check_files, files_of, is_secret, merged
from envkit.plan.definition import parse
from envkit.plan.model import BuildPlan
from envkit.plan.planner import plan_of
from envkit.plan.store import plan_from_json

HEAD = 'schema: envkit.image/1\ntitle: x\nrequest: {os: debian12, python: "3.11"}\n'


def plan(folder: Path, text: str) -> BuildPlan:
    return plan_of(parse(HEAD + text, where="image.yaml", folder=folder), {}, load())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("src/a.py", "src/deep/b.py", "src/__pycache__/a.pyc", "train.py", "data/big.bin"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "train.py").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("row", "targets"),
    [
        ("{from: src, to: code}", {"workspace/code/a.py", "workspace/code/deep/b.py"}),
        ("{from: src/, to: /srv/code/}", {"srv/code/a.py", "srv/code/deep/b.py"}),
        ("{from: train.py, to: /app/run.py}", {"app/run.py"}),
        ("{from: train.py, to: /app/}", {"app/train.py"}),
        ("{from: train.py, to: ./}", {"workspace/train.py"}),
        ("{from: src, to: .}", {"workspace/a.py", "workspace/deep/b.py"}),
    ],
)
def test_where_files_go(project: Path, row: str, targets: set[str]) -> None:
    assert set(merged(plan(project, f"copy: [{row}]"))) == targets


def test_the_last_pair_wins_and_the_executable_bit_is_kept(project: Path) -> None:
    found = merged(plan(project, "copy: [{from: src/a.py, to: /app/x.py}, {from: train.py, to: /app/x.py}]"))
    assert (found["app/x.py"].data, found["app/x.py"].executable) == (b"train.py", True)


def test_a_changed_file_is_another_image_with_the_same_lock(project: Path) -> None:
    text = "copy: [{from: src, to: .}]"
    before = plan(project, text)
    (project / "src" / "a.py").write_text("changed")
    after = plan(project, text)
    assert before.digest != after.digest
    assert request_of(before, glibc="2.36", base="none") == request_of(after, glibc="2.36", base="none")


def test_a_changed_requirements_file_makes_a_lock_stale(project: Path) -> None:
    asked = []
    for line in ("einops", "einops>=0.7"):
        (project / "r.txt").write_text(line)
        asked.append(request_of(plan(project, "requirements: [r.txt]"), glibc="2.36", base="none"))
    assert asked[0] != asked[1]


def test_the_folder_and_dates_do_not_matter(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "train.py").write_text("train.py")
    (other / "train.py").chmod(0o700)
    text = "copy: [{from: train.py, to: ./}]"
    assert plan(project, text).digest == plan(other, text).digest


def test_a_plan_without_copies_has_the_keys_of_before(project: Path) -> None:
    assert not {"copy", "ports", "volumes", "folder"} & plan(project, "").to_json().keys()


def test_a_plan_is_read_back_and_reads_the_current_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(project, "copy: [{from: src, to: .}]\nports: ['80']\nvolumes: [/data]")
    again = plan_from_json(json.loads(made.canonical()), "plan.json")
    assert (again, again.digest) == (made, made.digest)
    monkeypatch.chdir(project)
    assert files_of(again) == tuple(
        tuple(replace(one, source=Path(one.source.relative_to(project))) for one in files) for files in files_of(made)
    )


def test_files_that_changed_since_the_plan_stop_the_build(project: Path) -> None:
    made = plan(project, "copy: [{from: src, to: .}]")
    (project / "src" / "a.py").write_text("changed")
    with pytest.raises(UsageError, match=r"src does not have the contents that the plan of image was made from"):
        files_of(made)


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ("data\nsrc\n", {"train.py"}),
        ("**/*.py\n", {"data/big.bin"}),
        ("*\n!src\n", {"src/a.py", "src/deep/b.py"}),
        ("src/*\n!src/a.py\ndata/\n# x\n", {"src/a.py", "train.py"}),
        ("**/deep\n", {"src/a.py", "train.py", "data/big.bin"}),
        ("[a-d]*\n/src/?.py\n", {"src/deep/b.py", "train.py"}),
    ],
)
def test_an_ignore_file_decides_as_dockerignore_does(project: Path, patterns: str, left: set[str]) -> None:
    (project / ".dockerignore").write_text(patterns)
    assert {name.removeprefix("workspace/") for name in merged(plan(project, "copy: [{from: ., to: .}]"))} - {
        ".dockerignore"
    } == left


def test_its_own_ignore_file_comes_before_dockerignore(project: Path) -> None:
    (project / ".dockerignore").write_text("**\n")
    (project / ".envkitignore").write_text("data\nsrc\n")
    assert set(merged(plan(project, "copy: [{from: ., to: .}]"))) == {"workspace/train.py"}


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        (".env", True), (".env.local", True), (".env.example", False), ("a/.netrc", True), ("keys/id_ed25519", True),
        ("keys/id_ed25519.pub", False), ("tls/server.key", True), (".aws/config", True), ("secrets.yaml", True),
        ("secrets.py", False), ("credentials.json", True), ("conf/model.json", False), ("key.py", False),
    ],
)  # fmt: skip
def test_known_secrets(path: str, secret: bool) -> None:
    assert is_secret(Path(path)) is secret


@pytest.mark.parametrize(("name", "text"), [(".env", "A=1"), ("tls.pem", "-----BEGIN PRIVATE KEY-----")])
def test_a_secret_is_refused_until_it_is_ignored(project: Path, name: str, text: str) -> None:
    (project / "src" / name).write_text(text)
    with pytest.raises(UsageError, match=f"copy: src/{name} looks like a secret") as caught:
        plan(project, "copy: [{from: src, to: .}]")
    assert f"add `src/{name}` to .envkitignore" in (caught.value.hint or "")
    (project / ".envkitignore").write_text(f"**/{name}\n")
    assert set(merged(plan(project, "copy: [{from: src, to: .}]"))) == {"workspace/a.py", "workspace/deep/b.py"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("copy: [{from: ../x, to: .}]", r"copy\[0\]: from: '../x' is not a path inside"),
        ("copy: [{from: /etc, to: .}]", r"copy\[0\]: from: '/etc' is not a path inside"),
        ("copy: [{from: src, to: /etc/x}]", r"copy\[0\]: to: '/etc/x' is a system folder"),
        ("copy: [{from: src, to: /tmp/x}]", r"copy\[0\]: to: '/tmp/x' is below /tmp"),
        ("copy: [{from: src, to: ../x}]", r"copy\[0\]: to: '../x' is neither"),
        ("copy: [{from: src}]", r"copy\[0\]: to is missing"),
        ("copy: [{from: src, to: ., mode: 7}]", r"copy\[0\].mode: unknown key"),
        ("copy: {from: src}", "copy: a mapping is not a list"),
        ("copy: [{from: nosuch, to: .}]", "copy: .*/nosuch does not exist"),
        ("copy: [{from: train.py, to: /workspace}]", "train.py is a file, and /workspace is the working folder"),
        ("copy: [{from: train.py, to: /app}, {from: src, to: /app/sub}]", "/app is a file, but also the folder of"),
        ("ports: ['0']", r"ports\[0\]: '0' is not a port"),
        ("ports: [8080/sctp]", r"ports\[0\]: '8080/sctp' is not a port"),
        ("volumes: [data]", r"volumes\[0\]: 'data' is not a plain absolute path"),
        ("volumes: [/tmp/x]", r"volumes\[0\]: '/tmp/x' is below /tmp"),
        ("cmd: [b]", "cmd: unknown key"),
    ],
)
def test_what_cannot_be_copied_or_set_is_named(project: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        files_of(plan(project, text))


def test_a_link_out_of_the_folder_is_refused(project: Path) -> None:
    (project / "src" / "hosts").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="src/hosts is a link out of the folder"):
        plan(project, "copy: [{from: src, to: .}]")


def test_the_lock_is_not_copied(project: Path) -> None:
    (project / "src" / "envkit.lock").write_text("{}")
    assert "workspace/envkit.lock" not in merged(plan(project, "copy: [{from: src, to: .}]"))


def sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "LIMIT_BYTES", 32 << 20)


@contextlib.contextmanager
def memory_below(limit: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


@pytest.mark.requirement("R61")
@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("pairs", [2, 30, 1000])
def test_the_limit_of_bytes_is_one_for_all_pairs(project: Path, pairs: int) -> None:
    sparse(project / "big", 24 << 20)
    definition = "copy: [" + ", ".join(f"{{from: big, to: b{number}}}" for number in range(pairs)) + "]"
    plan(project, "")  # loads the facts
    with memory_below(12 << 20), pytest.raises(UsageError, match="big: more than 32 MiB of copied files"):
        plan(project, definition)


@pytest.mark.requirement("R61")
@pytest.mark.usefixtures("small_limit")
def test_a_plan_hashes_files_without_keeping_them(project: Path) -> None:
    sparse(project / "big", 24 << 20)
    plan(project, "")  # loads the facts
    with memory_below(12 << 20):
        made = plan(project, "copy: [{from: big, to: b}]")
        check_files(made)
    assert [len(file.data) for file in merged(made).values()] == [24 << 20]


@pytest.mark.requirement("R61")
def test_a_large_file_is_refused_before_it_is_read(project: Path) -> None:
    sparse(project / "huge", 1 << 40)
    with pytest.raises(UsageError, match="huge: more than 200 MiB"):
        plan(project, "copy: [{from: huge, to: h}]")


def test_the_limit_of_files_is_one_for_all_pairs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_LIMIT_FILES", 3)
    assert len(merged(plan(project, "copy: [{from: src, to: a}, {from: train.py, to: b}]"))) == 3
    with pytest.raises(UsageError, match="more than 3 copied files"):
        plan(project, "copy: [{from: src, to: a}, {from: src, to: b}]")


def test_what_is_only_looked_at_has_a_limit_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_LIMIT_SEEN", 20)
    rows = ", ".join(f"{{from: src, to: a{number}}}" for number in range(10))
    with pytest.raises(UsageError, match="more than 20 files and folders"):
        plan(project, f"copy: [{rows}]")


@pytest.mark.requirement("R61")
@pytest.mark.parametrize(
    "pattern",
    ["**/" * 12 + "zzz", "*a" * 40 + "b", "**/*a" * 20 + "b", "*" * 2000 + "x", "?*" * 500 + "x", "[a-z]*" * 100 + "9"],
)
def test_a_pattern_with_many_wildcards_is_decided_at_once(project: Path, pattern: str) -> None:
    deep = project / "data" / "/".join("a" * 28)
    deep.mkdir(parents=True)
    (deep / ("a" * 200)).touch()
    (project / ".dockerignore").write_text(pattern)
    before = time.process_time()
    plan(project, "copy: [{from: data, to: .}]")
    assert time.process_time() - before < 2


@pytest.mark.requirement("R61")
def test_many_patterns_and_many_files_have_one_limit(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignoring, "_MOST_STEPS", 10_000)
    (project / ".dockerignore").write_text("".join(f"x{number}\n" for number in range(4000)))
    with pytest.raises(UsageError, match=r"\.dockerignore: more patterns and files") as caught:
        plan(project, "copy: [{from: src, to: .}]")
    assert caught.value.hint


@pytest.mark.requirement("R4")
@pytest.mark.parametrize(
    "pattern", ["[z-a]", "a[", "[]", "[^]", "[]a]", "[a-]", "[-a]", "[a", "x\\", "[\\", "src/[b-a]/x", "![z-a]"]
)
def test_an_invalid_pattern_is_named_with_its_line(project: Path, pattern: str) -> None:
    (project / ".dockerignore").write_text(f"# first\n{pattern}\n")
    with pytest.raises(UsageError) as caught:
        plan(project, "copy: [{from: src, to: .}]")
    assert caught.value.message.startswith(f"{project / '.dockerignore'}:2: ")
    assert "is not a valid pattern" in caught.value.message


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("a[[]b", "a[b", True), ("a[[]b", "ab", False), ("[^a]", "b", True), ("[^a]", "a", False),
        ("x[^a]y", "x/y", False), ("*.py", "a/b.py", False),
        ("\\*", "*", True), ("\\*", "a", False), ("[\\]]", "]", True), ("[a-c]?", "b", False), ("a/**", "a", False),
        ("a/**", "a/b/c", True), ("a/**/c", "a/c", True), ("**", "a", True), ("a", "a/b", True),
    ],
)  # fmt: skip
def test_patterns_match_part_by_part(project: Path, pattern: str, path: str, ignored: bool) -> None:
    (project / ".dockerignore").write_text(pattern)
    assert ignoring.Ignore.of(project).matches(path) is ignored


@pytest.mark.requirement("R4")
@pytest.mark.parametrize("name", [".dockerignore", ".envkitignore"])
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "is a pipe"),
        (lambda path: path.symlink_to("/etc/passwd"), "is a link out of the folder"),
        (lambda path: path.symlink_to("gone"), "no such file"),
        (lambda path: sparse(path, 2 << 30), "larger than 1048576 bytes"),
        (lambda path: path.write_text("a" * 5000), "a pattern of 5000 characters"),
        (lambda path: path.write_bytes(b"a\xff"), "is not UTF-8"),
        (Path.mkdir, "is a directory"),
    ],
)
def test_an_ignore_file_of_someone_else_is_read_through_the_door(
    project: Path, name: str, make: Callable[[Path], None], what: str
) -> None:
    make(project / name)
    with pytest.raises(UsageError, match=what):
        plan(project, "copy: [{from: src, to: .}]")


@pytest.mark.requirement("R11")
@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("src/conf", "../.env"),
        ("src/conf", "../.ssh/config"),
        ("src/model.bin", "deep/server.key"),
        ("src/notes", "../tls.pem"),
        ("src/chain", "deep/hop"),
        ("aws/config", "../.aws/config"),
    ],
)
def test_a_secret_is_found_by_the_name_that_a_link_leads_to(project: Path, link: str, target: str) -> None:
    for name in (".env", ".ssh/config", ".aws/config", "src/deep/server.key", "tls.pem"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("-----BEGIN RSA PRIVATE KEY-----")
    (project / "src" / "deep" / "hop").symlink_to("../../.env")
    (project / link).parent.mkdir(exist_ok=True)
    (project / link).symlink_to(target)
    with pytest.raises(UsageError, match=f"copy: {link} looks like a secret"):
        plan(project, f"copy: [{{from: {link}, to: app/}}]")


def test_a_folder_that_is_a_link_to_secrets_is_refused(project: Path) -> None:
    (project / ".aws").mkdir()
    (project / ".aws" / "plain").touch()
    (project / "conf").symlink_to(".aws")
    with pytest.raises(UsageError, match="looks like a secret"):
        plan(project, "copy: [{from: conf, to: app}]")


@pytest.mark.requirement("R11")
@pytest.mark.parametrize("target", ["/", "..", "/proc", "src/out"])
def test_a_link_out_of_the_folder_is_refused_before_it_is_listed(
    project: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "src" / "out").symlink_to("../..")
    (project / "link").symlink_to(target)
    monkeypatch.setattr(os, "walk", lambda path: pytest.fail(f"{path} was listed"))
    with pytest.raises(UsageError, match="link is a link out of the folder"):
        plan(project, "copy: [{from: link, to: .}]")


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("loop"), lambda path: path.symlink_to("gone")]
)
def test_what_is_no_file_is_not_copied(project: Path, make: Callable[[Path], None]) -> None:
    make(project / "src" / "loop")
    with pytest.raises(UsageError, match=r"src/loop is a link out of the folder, or not a regular file"):
        plan(project, "copy: [{from: src, to: .}]")
