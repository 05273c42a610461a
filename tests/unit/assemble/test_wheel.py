import base64
import csv
import hashlib
import io
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.assemble.layer import LayerWriter, write_trees
from envkit.assemble.wheel import Scheme, open_wheel
from envkit.ground.errors import EnvironmentProblem, IntegrityError
from tests.support.wheels import Raw, raw_zip, record_line, wheel_entries, write_wheel

SCHEME = Scheme(python="3.11")
SITE = "opt/env/lib/python3.11/site-packages"
INFO = f"{SITE}/demo-1.0.dist-info"
Contents = dict[str, tuple[int, bytes]]


def _layer(path: Path, scheme: Scheme = SCHEME) -> tuple[Contents, set[str]]:
    """The files of the layer with mode and contents, and its folders."""
    sink = io.BytesIO()
    with open_wheel(path, scheme) as tree, LayerWriter(sink) as writer:
        write_trees([tree], writer)
        writer.close()
    sink.seek(0)
    files: Contents = {}
    folders = set()
    with tarfile.open(fileobj=sink) as archive:
        for entry in archive:
            if entry.isdir():
                folders.add(entry.name)
            else:
                stream = archive.extractfile(entry)
                assert stream is not None
                files[entry.name] = (entry.mode, stream.read())
    return files, folders


def _rows(files: Contents) -> dict[str, tuple[str, str]]:
    text = files[f"{INFO}/RECORD"][1].decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert len({row[0] for row in rows}) == len(rows)
    return {path: (digest, size) for path, digest, size in rows}


def _wheel(folder: Path, files: dict[str, bytes], *, executable: Sequence[str] = ()) -> Path:
    return write_wheel(folder, wheel_entries(files, executable=frozenset(executable)))


def _refused(path: Path) -> str:
    with pytest.raises(IntegrityError) as caught, open_wheel(path, SCHEME):
        pass
    return caught.value.message


def test_modules_metadata_and_installer(tmp_path: Path) -> None:
    files, folders = _layer(
        _wheel(tmp_path, {"demo/__init__.py": b"x = 1\n", "demo/tool": b"#!/bin/sh\n"}, executable=["demo/tool"])
    )
    assert files[f"{SITE}/demo/__init__.py"] == (0o644, b"x = 1\n")
    assert files[f"{SITE}/demo/tool"] == (0o755, b"#!/bin/sh\n")
    assert files[f"{INFO}/INSTALLER"] == (0o644, b"envkit\n")
    assert set(files) == {
        f"{SITE}/demo/__init__.py", f"{SITE}/demo/tool",
        *(f"{INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "INSTALLER")),
    }  # fmt: skip
    assert folders == {"opt", "opt/env", "opt/env/lib", "opt/env/lib/python3.11", SITE, f"{SITE}/demo", INFO}


def test_every_row_of_record_is_true(tmp_path: Path) -> None:
    path = _wheel(
        tmp_path,
        {
            "demo/a.py": b"a\n",
            "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ndemo = demo.a:main\n",
            "demo-1.0.data/scripts/old": b"#!python\nprint(1)\n",
            "demo-1.0.data/data/share/demo.txt": b"text\n",
        },
    )
    files, _ = _layer(path)
    rows = _rows(files)
    assert rows.pop("demo-1.0.dist-info/RECORD") == ("", "")
    for relative, (digest, size) in rows.items():
        parts: list[str] = SITE.split("/")
        rest = relative
        while rest.startswith("../"):
            parts, rest = parts[:-1], rest.removeprefix("../")
        data = files["/".join((*parts, rest))][1]
        assert record_line(relative, data) == f"{relative},{digest},{size}\n"
    assert len(rows) == len(files) - 1
    assert "../../../bin/old" in rows
    assert "../../../share/demo.txt" in rows


def test_a_record_that_nothing_changes_stays_and_is_continued(tmp_path: Path) -> None:
    entries = wheel_entries({"demo/a.py": b"a\n"})
    files, _ = _layer(write_wheel(tmp_path, entries))
    assert (
        files[f"{INFO}/RECORD"][1]
        == entries[-1].data + record_line("demo-1.0.dist-info/INSTALLER", b"envkit\n").encode()
    )


def test_a_record_without_its_last_line_end_is_mended(tmp_path: Path) -> None:
    entries = wheel_entries({"demo/a.py": b"a\n"})
    entries[-1] = replace(entries[-1], data=entries[-1].data.rstrip(b"\n"))
    files, _ = _layer(write_wheel(tmp_path, entries))
    names = ("METADATA", "WHEEL", "RECORD", "INSTALLER")
    assert set(_rows(files)) == {"demo/a.py", *(f"demo-1.0.dist-info/{name}" for name in names)}


def test_a_file_that_record_does_not_list_is_added_without_a_hash(tmp_path: Path) -> None:
    entries = [*wheel_entries({"demo/a.py": b"a\n"}), Raw(name="demo/extra.py", data=b"e\n")]
    files, _ = _layer(write_wheel(tmp_path, entries))
    assert _rows(files)["demo/extra.py"] == ("", "")
    assert files[f"{SITE}/demo/extra.py"] == (0o644, b"e\n")


def test_data_goes_where_the_scheme_says(tmp_path: Path) -> None:
    kinds = {
        "purelib/p.py": f"{SITE}/p.py",
        "platlib/q.so": f"{SITE}/q.so",
        "data/etc/c.json": "opt/env/etc/c.json",
        "headers/d/h.h": "opt/env/include/site/python3.11/demo/d/h.h",
        "scripts/s": "opt/env/bin/s",
    }
    path = _wheel(tmp_path, {f"demo-1.0.data/{key}": key.encode() for key in kinds})
    files, folders = _layer(path)
    for key, place in kinds.items():
        assert files[place] == (0o755 if key == "scripts/s" else 0o644, key.encode())
    assert not any(".data" in name for name in (*files, *folders))
    conda, _ = _layer(path, Scheme(python="3.11", prefix="/srv/x", headers="include/python3.11"))
    assert "srv/x/include/python3.11/demo/d/h.h" in conda
    assert "srv/x/lib/python3.11/site-packages/p.py" in conda


@pytest.mark.parametrize(
    ("headers", "folder"),
    [(None, "opt/env/include/site/python3.11/demo-pkg"), ("include/python3.11", "opt/env/include/python3.11/demo-pkg")],
)
def test_headers_lie_where_uv_puts_them(tmp_path: Path, headers: str | None, folder: str) -> None:
    """Seen with uv 0.13 in a virtual environment and in a Python that is none; pip says Demo-Pkg."""
    entries = wheel_entries({"Demo_Pkg/a.py": b"", "Demo_Pkg-1.0.data/headers/x.h": b"int x;"}, name="Demo_Pkg")
    path = write_wheel(tmp_path, entries, name="Demo_Pkg")
    files, _ = _layer(path, Scheme(python="3.11", headers=headers))
    assert f"{folder}/x.h" in files


def test_scripts_get_the_interpreter_and_launchers_are_made(tmp_path: Path) -> None:
    path = _wheel(
        tmp_path,
        {
            "demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\nrun = demo.cli:main\n",
            "demo-1.0.data/scripts/old": b"#!python -E\nprint(1)\n",
            "demo-1.0.data/scripts/binary": b"\x7fELF" + bytes(100),
        },
    )
    files, _ = _layer(path)
    assert files["opt/env/bin/old"] == (0o755, b"#!/opt/env/bin/python -E\nprint(1)\n")
    assert files["opt/env/bin/binary"] == (0o755, b"\x7fELF" + bytes(100))
    mode, text = files["opt/env/bin/run"]
    assert mode == 0o755
    assert text.startswith(b"#!/opt/env/bin/python\n")
    assert b"from demo.cli import main\n" in text


def test_pip_gets_its_launcher_for_the_python_at_hand(tmp_path: Path) -> None:
    entries = wheel_entries(
        {"pip-9.dist-info/entry_points.txt": b"[console_scripts]\npip = p:m\n"}, name="pip", version="9"
    )
    files, _ = _layer(write_wheel(tmp_path, entries, name="pip", version="9"))
    assert files["opt/env/bin/pip"] == files["opt/env/bin/pip3.11"]


def test_what_tells_of_another_installation_is_left_out(tmp_path: Path) -> None:
    names = ("INSTALLER", "REQUESTED", "direct_url.json")
    path = _wheel(tmp_path, {f"demo-1.0.dist-info/{name}": b"from elsewhere" for name in names})
    files, _ = _layer(path)
    assert files[f"{INFO}/INSTALLER"][1] == b"envkit\n"
    assert f"{INFO}/REQUESTED" not in files
    assert f"{INFO}/direct_url.json" not in files
    assert set(_rows(files)) == {f"demo-1.0.dist-info/{name}" for name in ("INSTALLER", "METADATA", "WHEEL", "RECORD")}


def test_empty_folders_of_the_wheel_are_kept(tmp_path: Path) -> None:
    entries = [Raw(name="demo/empty/", deflated=False), *wheel_entries({"demo/a.py": b""})]
    _, folders = _layer(write_wheel(tmp_path, entries))
    assert f"{SITE}/demo/empty" in folders


@pytest.mark.parametrize("deflated", [True, False])
def test_a_damaged_entry_is_found_while_it_is_written(tmp_path: Path, *, deflated: bool) -> None:
    entries = wheel_entries({"demo/a.py": b"a = 1\n" * 50})
    entries[0] = replace(entries[0], crc=1, deflated=deflated)
    with pytest.raises(IntegrityError, match=r"demo-1.0-py3-none-any.whl: demo/a.py is damaged: its CRC-32 is"):
        _layer(write_wheel(tmp_path, entries))


@pytest.mark.parametrize(("size", "message"), [(299, "it is longer than stated"), (301, "it is cut short")])
def test_a_wrong_length_is_found_while_it_is_written(tmp_path: Path, size: int, message: str) -> None:
    entries = wheel_entries({"demo/a.py": b"a = 1\n" * 50}, record="demo-1.0.dist-info/RECORD,,\n")
    entries[0] = replace(entries[0], size=size)
    with pytest.raises(IntegrityError, match=f"demo/a.py is damaged: {message}"):
        _layer(write_wheel(tmp_path, entries))


@pytest.mark.requirement("R15")
@pytest.mark.parametrize("deflated", [True, False])
@pytest.mark.parametrize("name", ["demo/a.py", "demo-1.0.data/scripts/run"])
def test_other_bytes_than_record_lists_are_found(tmp_path: Path, name: str, *, deflated: bool) -> None:
    body = b"#!python\nprint(1)\n"
    info = "demo-1.0.dist-info/RECORD,,\n"
    entries = wheel_entries({name: body}, record=record_line(name, body.replace(b"1", b"2")) + info, deflated=deflated)
    with pytest.raises(
        IntegrityError, match=rf"{name} is damaged: its sha256 is [0-9a-f]+, not [0-9a-f]+ as the package"
    ):
        _layer(write_wheel(tmp_path, entries))


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_every_digest_that_the_specification_allows_is_compared(tmp_path: Path, algorithm: str) -> None:
    def wheel(data: bytes) -> Path:
        text = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).decode().rstrip("=")
        return write_wheel(tmp_path, wheel_entries({"demo/a.py": b"1\n"}, record=f"demo/a.py,{algorithm}={text},2\n"))

    assert f"{SITE}/demo/a.py" in _layer(wheel(b"1\n"))[0]
    with pytest.raises(IntegrityError, match=f"its {algorithm} is"):
        _layer(wheel(b"2\n"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("demo/a.py,,3", "'demo/a.py' has 2 bytes, and 3 in RECORD"),
        ("demo/a.py,md5=xxx,2", "RECORD: 'md5=xxx' is not a digest of sha256, sha384, sha512"),
        ("demo/a.py,sha256=xxx,2", "RECORD: 'sha256=xxx' is not a sha256"),
        ("demo/a.py,sha256=ä,2", "RECORD: 'sha256=ä' is not a sha256"),
    ],
)
def test_rows_that_contradict_their_files_are_refused(tmp_path: Path, row: str, message: str) -> None:
    wheel = write_wheel(tmp_path, wheel_entries({"demo/a.py": b"1\n"}, record=f"{row}\n"))
    assert _refused(wheel) == f"demo-1.0-py3-none-any.whl is refused: {message}"


@pytest.mark.parametrize("text", ["Name: other\nVersion: 1.0\n", "Name: demo\nVersion: 1.1\n", "Name: demo\n", ""])
def test_metadata_of_another_package_is_refused(tmp_path: Path, text: str) -> None:
    info = "demo-1.0.dist-info"
    entries = [
        replace(e, data=text.encode()) if str(e.name).endswith("METADATA") else e
        for e in wheel_entries({}, record=f"{info}/RECORD,,\n")
    ]
    assert "its METADATA is that of" in _refused(write_wheel(tmp_path, entries))


def test_a_wheel_cut_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = _wheel(tmp_path, {"demo/a.py": hashlib.shake_256(b"").digest(9000)})
    with open_wheel(path, SCHEME) as tree, LayerWriter(io.BytesIO()) as writer:
        path.write_bytes(path.read_bytes()[:3000])
        with pytest.raises(IntegrityError, match="the file was truncated while it was read"):
            write_trees([tree], writer)


def test_a_bomb_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    big = Raw(name="demo/zeros", packed=bytes(2 << 20), size=2000 << 20)
    message = _refused(write_wheel(tmp_path, [big, *wheel_entries({})]))
    assert "it unpacks to 20971" in message
    assert message.endswith("more than 100 times its size")


_WHITEOUT = "'{}' has a name that begins with .wh., which deletes other files in a layer"
REFUSED = {
    "two metadata folders": ({"other-1.0.dist-info/METADATA": b""}, "it has 2 .dist-info folders instead of one"),
    "unknown data": ({"demo-1.0.data/lib/x": b""}, "'demo-1.0.data/lib/x' is in an unknown folder of demo-1.0.data/"),
    "data without a kind": ({"demo-1.0.data/x": b""}, "'demo-1.0.data/x' is in an unknown folder of demo-1.0.data/"),
    "twice": ({"a.py": b"", "demo-1.0.data/purelib/a.py": b""}, f"it would install /{SITE}/a.py twice"),
    "entry points": (
        {"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\n../sh = a:b\n"},
        "entry_points.txt: '../sh' is not a valid name of a script",
    ),
    "deletes a package": ({"victim/.wh.secure.py": b""}, _WHITEOUT.format("victim/.wh.secure.py")),
    "deletes all packages": ({".wh..wh..opq": b""}, _WHITEOUT.format(".wh..wh..opq")),
    "deletes below data": ({"demo-1.0.data/data/.wh.lib": b""}, _WHITEOUT.format("demo-1.0.data/data/.wh.lib")),
    "deletes programs": (
        {"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\n.wh..wh..opq = a:b\n"},
        "entry_points.txt: '.wh..wh..opq' is not a valid name of a script",
    ),
    "a large script": (
        {"demo-1.0.data/scripts/s": b"#!python\n" + bytes(16 << 20)},
        "the script 'demo-1.0.data/scripts/s' has 16777225 bytes, more than 16777216",
    ),
    "large entry points": (
        {"demo-1.0.dist-info/entry_points.txt": b"#" * ((1 << 20) + 1)},
        "demo-1.0.dist-info/entry_points.txt has 1048577 bytes, more than 1048576",
    ),
    "launcher and script": (
        {"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\ns = a:b\n", "demo-1.0.data/scripts/s": b""},
        "it would install /opt/env/bin/s twice",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wheel_that_breaks_the_rules_is_refused(name: str, tmp_path: Path) -> None:
    files, message = REFUSED[name]
    assert _refused(_wheel(tmp_path, files)) == f"demo-1.0-py3-none-any.whl is refused: {message}"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("../../etc/passwd,,\n", "RECORD: '../../etc/passwd' points out of site-packages"),
        ("/etc/passwd,,\n", "RECORD: '/etc/passwd' points out of site-packages"),
        ("a,,\n" * 1004, "RECORD has more than 1003 rows for 3 files"),
        ("#" * ((16 << 20) + 1), "demo-1.0.dist-info/RECORD has 16777217 bytes, more than 16777216"),
    ],
)
def test_a_record_is_bounded_and_stays_inside(tmp_path: Path, record: str, message: str) -> None:
    wheel = write_wheel(tmp_path, wheel_entries({}, record=record))
    assert _refused(wheel) == f"demo-1.0-py3-none-any.whl is refused: {message}"


def test_names_have_to_agree(tmp_path: Path) -> None:
    entries = wheel_entries({})
    assert "it contains 'demo-1.0'" in _refused(write_wheel(tmp_path, entries, name="other"))
    assert "it contains 'demo-1.0'" in _refused(write_wheel(tmp_path, entries, version="1.1"))
    path = tmp_path / "demo.whl"
    path.write_bytes(raw_zip(entries))
    assert "it is not a valid wheel name" in _refused(path)


def test_spellings_of_one_name_agree(tmp_path: Path) -> None:
    entries = wheel_entries({}, name="My.Demo_x", version="1.0.0")
    with open_wheel(write_wheel(tmp_path, entries, name="my_demo_x", version="1.0"), SCHEME) as tree:
        assert (tree.name, tree.version) == ("my-demo-x", "1.0")


def test_missing_and_foreign_metadata(tmp_path: Path) -> None:
    whole = wheel_entries({})
    for name in ("WHEEL", "RECORD"):
        rest = [entry for entry in whole if entry.name != f"demo-1.0.dist-info/{name}"]
        assert f"it has no demo-1.0.dist-info/{name}" in _refused(write_wheel(tmp_path, rest))
    newer = [replace(e, data=b"Wheel-Version: 2.0\n") if str(e.name).endswith("/WHEEL") else e for e in whole]
    assert "its format version is '2.0', not 1.x" in _refused(write_wheel(tmp_path, newer))
    broken = wheel_entries({}, record="a,b\n")
    assert "RECORD: row 1 has 2 columns, not 3" in _refused(write_wheel(tmp_path, broken))
    assert "it has 0 .dist-info folders" in _refused(write_wheel(tmp_path, [Raw(name="a")]))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"demo-1.0-py3-none-any.whl cannot be read: No such file"):
        _layer(tmp_path / "demo-1.0-py3-none-any.whl")
