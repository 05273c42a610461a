"""Hostile wheels: each is installed by the embedded engine, offline, beside small sound ones."""

import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

from envkit.lock.model import LockedBase, Wheel
from envkit.lock.store import write_lock
from tests.hostile.archives import archive
from tests.support.locks import lock_for
from tests.support.plans import HEAD, plan_from
from tests.support.wheels import Raw, raw_zip, record_line, wheel_entries

BODY = "template: wheels\nrequest: {cpu: true}\npip: [demo]\n"
PLACE = "demo-1.0-py3-none-any.whl"
WRITES = ("home/.cache/envkit/*", "home/.local/state/envkit/*")
ENV = {"ENVKIT_WHEEL_DIR": "{folder}/wheels"}
refused = partial(archive, "wheels", code=10, says=(PLACE,), writes=WRITES, env=ENV)
accepted = partial(archive, "wheels", gives=("oci:",), env=ENV)


def built(folder: Path, demo: bytes) -> list[str]:
    """Write a definition, its lock and its wheels, one of them these bytes; gives the command that builds the image."""
    (folder / "wheels").mkdir()
    plan = plan_from(BODY)
    family = dict(name.partition("==")[::2] for name in plan.family)
    rows = []
    for name, version in {**family, "demo": "1.0"}.items():
        release = version if version and ">" not in name else "80.0.0"
        plain = name.partition(">")[0]
        data = (
            demo if plain == "demo" else raw_zip(wheel_entries({f"{plain}/a.py": b"1\n"}, name=plain, version=release))
        )
        file = f"{plain}-{release}-py3-none-any.whl"
        (folder / "wheels" / file).write_bytes(data)
        rows.append(
            Wheel(
                name=plain, version=release, file=file, url=f"https://wheels.example.com/{file.replace('+', '%2B')}",
                sha256=hashlib.sha256(data).hexdigest(), size=len(data), source="pypi",
            )
        )  # fmt: skip
    lock = replace(
        lock_for(plan, wheels=tuple(sorted(rows, key=lambda row: row.name))),
        base=LockedBase(kind="none", reference="none"),
    )
    write_lock(folder / "x.lock", lock)
    (folder / "d.yaml").write_text(HEAD + BODY)
    settings = ["--engine", "embedded", "--base", "none", "--offline", "--no-verify", "--progress", "quiet"]
    return ["build", "./d.yaml", "--locked", "x.lock", *settings, "--output", "oci:out"]


def demo(*more: Raw, record: str | None = None) -> bytes:
    """The sound wheel `demo` with further entries."""
    return raw_zip([*wheel_entries({"demo/a.py": b"1\n"}, record=record), *more])


@accepted()
def ok_sound(folder: Path) -> list[str]:
    return built(folder, demo())


@accepted()
def ok_dots_in_a_name(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/..data/a...py", data=b"1\n")))


@refused()
def a_path_that_leads_up(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="../../etc/evil", data=b"1\n")))


@refused()
def an_absolute_path(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="/etc/evil", data=b"1\n")))


@refused()
def a_backslash_path(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="..\\..\\evil", data=b"1\n")))


@refused()
def a_link(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/passwd", data=b"/etc/passwd", mode=0o120777)))


@refused()
def a_device(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/sda", mode=0o60666)))


@refused()
def a_name_twice(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/a.py", data=b"2\n")))


@refused()
def other_bytes_than_the_checksum(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/b.py", data=b"1\n", crc=1)))


@refused()
def a_size_that_lies(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/b.py", data=b"1\n", size=1 << 31)))


@refused()
def another_name_in_front_of_the_data(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/b.py", data=b"1\n", local_name=b"demo/c.py")))


@refused()
def entries_over_each_other(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/b.py", data=b"1\n", offset=0)))


@refused()
def an_encrypted_entry(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/b.py", data=b"1\n", flags=1)))


@refused()
def an_unknown_compression(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/b.py", data=b"1\n", method=99)))


@refused()
def data_that_is_not_deflate(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/b.py", data=b"1\n", packed=b"\xff" * 20)))


@refused()
def more_entries_than_it_says(folder: Path) -> list[str]:
    return built(folder, raw_zip(wheel_entries({"demo/a.py": b"1\n"}), count=2))


@refused()
def not_a_zip(folder: Path) -> list[str]:
    return built(folder, b"<html>404</html>")


@refused()
def one_byte(folder: Path) -> list[str]:
    return built(folder, b"P")


@refused()
def cut_off(folder: Path) -> list[str]:
    return built(folder, demo()[:-30])


@refused()
def a_control_character_in_a_name(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/\x1b[2J.py", data=b"1\n")))


@refused()
def no_record(folder: Path) -> list[str]:
    entries = [entry for entry in wheel_entries({"demo/a.py": b"1\n"}) if not str(entry.name).endswith("RECORD")]
    return built(folder, raw_zip(entries))


@refused()
def a_size_of_four_gigabytes(folder: Path) -> list[str]:
    return built(folder, demo(Raw(name="demo/zero", data=bytes(1 << 20), size=(1 << 32) - 2)))


@refused()
def an_offset_of_64_bits(folder: Path) -> list[str]:
    far = (1 << 64) - 1
    whole = raw_zip([*wheel_entries({"demo/a.py": b"1\n"}), Raw(name="demo/b.py", data=b"1\n", zip64=True, offset=far)])
    return built(folder, whole)


@refused()
def other_bytes_than_record_lists(folder: Path) -> list[str]:
    rows = record_line("demo/a.py", b"2\n") + "demo-1.0.dist-info/RECORD,,\n"
    return built(folder, demo(record=rows))


@refused()
def another_size_than_record_lists(folder: Path) -> list[str]:
    return built(folder, demo(record="demo/a.py,,3\ndemo-1.0.dist-info/RECORD,,\n"))


@refused()
def a_digest_that_is_none(folder: Path) -> list[str]:
    return built(folder, demo(record="demo/a.py,md5=0,2\ndemo-1.0.dist-info/RECORD,,\n"))


@refused()
def metadata_of_another_package(folder: Path) -> list[str]:
    entries = wheel_entries({"demo/a.py": b"1\n"}, record="demo-1.0.dist-info/RECORD,,\n")
    other = b"Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n"
    return built(folder, raw_zip([replace(x, data=other) if str(x.name).endswith("METADATA") else x for x in entries]))


@accepted()
def ok_record_without_digests(folder: Path) -> list[str]:
    return built(folder, demo(record="demo/a.py,,\ndemo-1.0.dist-info/RECORD,,\n"))
