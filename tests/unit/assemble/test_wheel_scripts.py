import pytest

from envkit.assemble import wheel_files
from envkit.assemble.wheel_files import Launcher


def test_launchers_of_both_sections_sorted() -> None:
    text = (
        "[console_scripts]\nrun = pkg.cli:main\nA-b.c = pkg:Cls.start [extra]\n"
        "[gui_scripts]\ngui=pkg.gui : main\n[other]\nx = y\n"
    )
    assert wheel_files.launchers(text) == (
        Launcher("A-b.c", "pkg", "Cls.start"),
        Launcher("gui", "pkg.gui", "main"),
        Launcher("run", "pkg.cli", "main"),
    )


def test_percent_signs_and_comments_are_plain_text() -> None:
    assert wheel_files.launchers("# 100%\n[console_scripts]\na = b:c\n[x]\ny = %(z)s\n") == (Launcher("a", "b", "c"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[console_scripts]\n../../bin/sh = a:b\n", r"'../../bin/sh' is not a valid name of a script"),
        ("[console_scripts]\n.. = a:b\n", r"'\.\.' is not a valid name of a script"),
        ("[console_scripts]\n-x = a:b\n", "'-x' is not a valid name of a script"),
        ("[console_scripts]\n.wh.bin = a:b\n", r"'\.wh\.bin' is not a valid name of a script"),
        (f"[console_scripts]\n{'x' * 256} = a:b\n", "is not a valid name of a script"),
        ("[console_scripts]\n" + "".join(f"x{i} = a:b\n" for i in range(4097)), "it lists more than 4096 scripts"),
        ("[console_scripts]\nx = a\n", "x = 'a' is not module:function"),
        ("[console_scripts]\nx = a:b; import os\n", "is not module:function"),
        ("[console_scripts]\nx = a:b\n  import os\n", "is not module:function"),
        ("[console_scripts]\nx = a b:c\n", "is not module:function"),
        ("[console_scripts]\nx = a:b\nx = a:c\n", "already exists"),
        ("[console_scripts]\nx = a:b\n[gui_scripts]\nx = a:c\n", "it lists the script 'x' twice"),
        ("[console_scripts]\n" + "x\n" * 5000, "it has more than 5000 lines"),
        ("no section\n", "File contains no section headers"),
    ],
)
def test_what_is_no_entry_point_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wheel_files.launchers(text)


def test_a_launcher_calls_its_function(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = wheel_files.launcher_text(Launcher("x", "platform", "uname"), "/opt/env/bin/python").decode()
    assert text.startswith("#!/opt/env/bin/python\nimport sys\nfrom platform import uname\n")
    monkeypatch.setattr("sys.argv", ["/bin/x.exe"])
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "x", "exec"), {"__name__": "__main__"})
    assert ended.value.code is not None
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (b"#!python\nx\n", b"#!/e/python\nx\n"),
        (b"#!pythonw -u\r\nx\n", b"#!/e/python -u\r\nx\n"),
        (b"#!python", b"#!/e/python"),
        (b"#!python3\nx\n", None),
        (b"#!/usr/bin/python\n", None),
        (b"\x7fELF", None),
        (b"", None),
        (b"# !python\n#!python\n", None),
    ],
)
def test_first_lines(script: bytes, expected: bytes | None) -> None:
    assert wheel_files.needs_interpreter(script[: wheel_files.PEEK]) == (expected is not None)
    if expected is not None:
        assert wheel_files.with_interpreter(script, "/e/python") == expected
