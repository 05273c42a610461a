"""Hostile conda packages: each is installed by the embedded engine, offline, beside small sound ones."""

import bz2
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from envkit.image import zstd
from envkit.lock.model import LockedBase
from envkit.lock.store import write_lock
from tests.hostile.archives import archive
from tests.hostile.layers import END, header
from tests.support.conda_archives import PLACEHOLDER, Content, Made, Recipe, write_archive
from tests.support.file_images import entry, packed
from tests.support.locks import completed, lock_for
from tests.support.plans import HEAD, plan_from
from tests.support.wheels import Raw, raw_zip

BODY = "template: miniconda\nrequest: {cpu: true}\nconda: [demo]\n"
WRITES = ("home/.cache/envkit/*", "home/.local/state/envkit/*")
SECRET = "words of the builder"
refused = partial(archive, "conda", code=10, says=("conda package demo",), writes=WRITES, secret=(SECRET,))
accepted = partial(archive, "conda", gives=("oci:",))


def built(
    folder: Path, *contents: Content, ending: str = ".conda", change: Callable[[bytes], bytes] | None = None
) -> list[str]:
    """Write a definition, its lock and the archives, where a build before this one would have put them.

    The package `demo` has these contents; `change` makes other bytes of its archive, which the lock then names.
    """
    kept = folder.parent / "home" / ".cache" / "envkit" / "downloads"
    kept.mkdir(parents=True)
    plan = plan_from(BODY)
    rows = []
    for one in completed(plan)[0]:
        own = contents if one.name == "demo" else [Content(f"share/{one.name}", b"1\n")]
        made = write_archive(folder / "channel", Recipe(one.name, own, version=one.version), ending)
        if change is not None and one.name == "demo":
            made = _changed(made, change)
        shutil.copy(made.archive, kept / made.package.sha256)
        rows.append(made.package)
    lock = replace(lock_for(plan, conda=tuple(rows)), base=LockedBase(kind="none", reference="none"))
    write_lock(folder / "x.lock", lock)
    (folder / "d.yaml").write_text(HEAD + BODY)
    (folder / "secret").write_text(SECRET)
    settings = ["--engine", "embedded", "--base", "none", "--offline", "--no-verify", "--progress", "quiet"]
    return ["build", "./d.yaml", "--locked", "x.lock", *settings, "--output", "oci:out"]


def _changed(made: Made, change: Callable[[bytes], bytes]) -> Made:
    data = change(made.archive.read_bytes())
    made.archive.write_bytes(data)
    return replace(made, package=replace(made.package, sha256=hashlib.sha256(data).hexdigest(), size=len(data)))


def zipped(**parts: bytes) -> bytes:
    """A `.conda` of some tars, each packed by zstd."""
    return raw_zip([Raw(name=f"{name}-demo-1.0-0.tar.zst", data=data, deflated=False) for name, data in parts.items()])


@accepted()
def ok_sound(folder: Path) -> list[str]:
    return built(folder, Content("lib/a.txt", b"1\n"), Content("lib/b.txt", target="a.txt"))


@accepted()
def ok_the_older_format(folder: Path) -> list[str]:
    return built(folder, Content("lib/a.txt", b"1\n"), ending=".tar.bz2")


@accepted()
def ok_dots_in_a_name(folder: Path) -> list[str]:
    return built(folder, Content("lib/..a/b...txt", b"1\n"), Content("lib/up", target="../lib/..a"))


@accepted()
def ok_a_script_that_does_not_run(folder: Path) -> list[str]:
    ran = f"#!/bin/sh\ntouch {folder}/ran\n".encode()
    return built(folder, Content("bin/.demo-post-link.sh", ran, mode=0o755), Content("lib/a.txt", b"1\n"))


@refused()
def a_path_that_leads_up(folder: Path) -> list[str]:
    return built(folder, Content("../evil", b"1\n"))


@refused()
def an_absolute_path(folder: Path) -> list[str]:
    return built(folder, Content("/etc/evil", b"1\n"), ending=".tar.bz2")


@refused()
def a_path_that_leads_up_in_the_list_alone(folder: Path) -> list[str]:
    return built(folder, Content("lib/evil", b"1\n", listed="../evil"))


@refused()
def a_link_out_of_the_environment(folder: Path) -> list[str]:
    return built(folder, Content("lib/evil", target="/etc/passwd", kind="hardlink"))


@refused()
def a_file_below_a_link(folder: Path) -> list[str]:
    return built(folder, Content("evil", target=str(folder)), Content("evil/x", b"1\n"))


@refused()
def a_file_of_the_builder_below_an_unlisted_link(folder: Path) -> list[str]:
    return built(folder, Content("share/d", target=str(folder), row=None), Content("share/d/secret", b"", packed=False))


@refused()
def a_file_of_the_builder_as_text_with_a_prefix(folder: Path) -> list[str]:
    row = {"prefix_placeholder": PLACEHOLDER, "file_mode": "text"}
    return built(folder, Content("share/l", target=str(folder / "secret"), kind="hardlink", row=row))


@refused()
def a_name_twice(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n"), Content("lib/a", b"1\n", row=None))


@refused()
def another_hash_than_listed(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n", row={"sha256": "0" * 64}))


@refused()
def another_size_than_listed(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n", row={"size_in_bytes": 3}))


@refused()
def a_file_that_is_listed_and_not_there(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n", packed=False))


@refused()
def a_kind_that_nobody_knows(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n", kind="device"))


@refused()
def a_size_of_words_in_the_list(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n", row={"size_in_bytes": "many"}))


@refused()
def a_control_character_in_a_name(folder: Path) -> list[str]:
    return built(folder, Content("lib/\x1b[2J", b"1\n"))


@refused(says=("demo",))
def a_record_of_another_package(folder: Path) -> list[str]:
    return built(folder, Content("conda-meta/python-3.11.7-0.json", b"{}"))


@refused(code=8, says=("demo",))
def not_a_zip(folder: Path) -> list[str]:
    return built(folder, change=lambda _: b"<html>404</html>")


@refused(code=8, says=("demo",))
def cut_off(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n"), change=lambda data: data[:-40])


@refused(code=8, says=("demo",))
def older_format_cut_off(folder: Path) -> list[str]:
    return built(folder, Content("lib/a", b"1\n"), ending=".tar.bz2", change=lambda data: data[:-20])


@refused()
def a_zip_without_tars(folder: Path) -> list[str]:
    return built(folder, change=lambda _: raw_zip([Raw(name="metadata.json", data=b"{}")]))


@refused(says=("demo",))
def a_tar_that_is_none(folder: Path) -> list[str]:
    words = zstd.compress(b"<html>" * 500, 1)
    return built(folder, change=lambda _: zipped(info=words, pkg=words))


@refused(says=("demo",))
def an_older_archive_of_words(folder: Path) -> list[str]:
    return built(folder, ending=".tar.bz2", change=lambda _: bz2.compress(b"<html>" * 500))


@refused(code=8, says=("demo", "memory"))
def a_window_of_a_gigabyte(folder: Path) -> list[str]:
    frame = b"\x28\xb5\x2f\xfd\x00\xa8\x09\x00\x00x"
    return built(folder, change=lambda _: zipped(info=frame, pkg=frame))


@refused()
def a_list_of_100_000_brackets(folder: Path) -> list[str]:
    info = packed([(entry("info/paths.json"), b"[" * 100_000)], compress=False).data
    return built(folder, change=lambda _: zipped(info=zstd.compress(info, 1), pkg=zstd.compress(END, 1)))


@refused()
def a_list_that_is_a_number(folder: Path) -> list[str]:
    info = packed([(entry("info/paths.json"), b"7")], compress=False).data
    return built(folder, change=lambda _: zipped(info=zstd.compress(info, 1), pkg=zstd.compress(END, 1)))


@refused()
def no_list(folder: Path) -> list[str]:
    return built(folder, change=lambda _: zipped(info=zstd.compress(END, 1), pkg=zstd.compress(END, 1)))


@refused(says=("inflates to more than",))
def a_zstd_bomb(folder: Path) -> list[str]:
    bomb = zstd.compress(header(b"info/zeros", b"12000000000\0"), 1) + zstd.compress(bytes(64 << 20), 1) * 20
    return built(folder, change=lambda _: zipped(info=bomb, pkg=zstd.compress(END, 1)))
