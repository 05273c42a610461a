"""C30: the programs and files that the image's entry point and command name. None of them is run."""

# ruff: noqa: PTH101, PTH110, PTH112, PTH113, PTH114, PTH115, PTH116, PTH118, PTH119, PTH123
# os.path answers False about a folder that the user may not enter; pathlib raises.

import os
import re
import shlex
import struct
import sys
import tempfile
from importlib import machinery

from envkit.smoke import observation

ENTRY = "/usr/share/envkit/entry.sh"  # runs its arguments as the command, in the activated environment
ABSENT = "envkit-no-such-program"
HEAD_BYTES = 4096  # of a script, in which line ends are looked for
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STEPS_MAX = 20
# Programs that start the rest of their arguments, with the options that take a value of their own.
LAUNCHERS = {
    "tini": "pe",
    "tini-static": "pe",
    "dumb-init": "r",
    "catatonit": "",
    "env": "uCS",
    "nohup": "",
    "exec": "",
}
WITH_USER = ("gosu", "su-exec")
SHELLS = ("sh", "bash", "dash", "ash")
PYTHON = re.compile(r"python[0-9.]*")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# In a shell command: what decides nothing about the program that comes after it.
HARMLESS = (":", "[", "chmod", "chown", "date", "echo", "export", "false", "ls", "mkdir", "printf", "rm", "set")
HARMLESS += ("sleep", "test", "touch", "trap", "true", "ulimit", "umask", "unset")
OPEN = ("$", "`", "*", "?", "~", "{", "(")  # what only the shell can expand
SYNTAX = ("if", "for", "while", "until", "case", "function", "select", "eval", "time", "!", "[[", "cd", "source", ".")


def run(ctx):
    """Return C30.start: what the image starts, step by step, and what is wrong with each."""
    start = ctx.spec.get("start")
    if not start:
        raise observation.Skip("NOTHING_TO_START", "there is no image here that starts anything by itself")
    entry, command = [str(word) for word in start["entrypoint"]], [str(word) for word in start["command"]]
    path = os.environ.get("PATH") or DEFAULT_PATH
    steps = Walk(path, len(entry)).steps(entry + command, str(start["workdir"]))
    observed = {"entrypoint": entry, "command": command, "workdir": str(start["workdir"]), "steps": steps}
    return [observation.ran("C30.start", "image", observed, _controls(path))]


def _controls(path):
    absent = Walk(path, 0).steps([ABSENT], "/")
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "start.sh")
        with open(script, "wb") as file:
            file.write(b"#!/bin/sh\r\nexec true\r\n")
        os.chmod(script, 0o644)
        closed = Walk(path, 0).steps([script], folder)
        os.chmod(script, 0o755)
        windows = Walk(path, 0).steps([script], folder)
    return [
        observation.control(name, [step["problem"] for step in steps] == [problem], str(steps))
        for name, steps, problem in (
            ("absent_program_is_missed", absent, "missing"),
            ("closed_program_is_noticed", closed, "not executable"),
            ("windows_line_ends_are_noticed", windows, "line ends"),
        )
    ]


class Walk:
    """The steps from an image's words to the program that it starts: inits, shells, scripts."""

    def __init__(self, path, entry_words):
        self._path = path
        self._entry_words = entry_words
        self._found = []

    def steps(self, words, workdir):
        """Return a step for each program, script or module: ``{word, role, kind, path, problem, detail}``.

        ``problem`` is None for a sound one. The last step has the problem ``undecided`` if only a run could tell more.
        """
        self._words(list(enumerate(words)), workdir)
        return self._found[:STEPS_MAX]

    def _add(self, item, kind, path=None, fault=(None, "")):
        """Add a step for ``item`` (number, word) and return whether it is sound; ``fault`` is (problem, detail)."""
        number, word = item
        problem, detail = fault
        role = "entry point" if number < self._entry_words else "command"
        step = {"word": word, "role": role, "kind": kind, "path": path, "problem": problem, "detail": detail}
        self._found.append(step)
        return problem is None

    def _words(self, words, workdir):
        """Follow ``[(number, word), ...]``: the first word is a program."""
        while words and len(self._found) < STEPS_MAX:
            path, fault = self._program(words[0][1], workdir)
            if not self._add(words[0], "program", path, fault):
                return
            words = self._operands(words[0][1], words[1:], workdir)

    def _operands(self, word, rest, workdir):
        """Return the words that a program starts in turn, empty if its arguments name none."""
        name = os.path.basename(word)
        if name in LAUNCHERS:
            return _after_options(rest, LAUNCHERS[name], assignments=name == "env")
        if name in WITH_USER:
            return rest[1:]
        if name in SHELLS:
            return self._of_shell(rest, workdir)
        if PYTHON.fullmatch(name):
            self._of_python(word, rest, workdir)
        return []

    def _of_shell(self, rest, workdir):
        while rest and rest[0][1].startswith(("-", "+")) and rest[0][1] != "--":
            option = rest[0][1]
            if "c" in option and not option.startswith("--"):
                for number, line in rest[1:2]:
                    self._line(number, line, workdir)
                return []
            rest = rest[2:] if option in ("-o", "+o", "-O", "+O") else rest[1:]
        rest = rest[1:] if rest and rest[0][1] == "--" else rest
        sound = bool(rest) and self._script(rest[0], workdir)
        return rest[1:] if sound and os.path.join(workdir, rest[0][1]) == ENTRY else []

    def _script(self, item, workdir):
        """Add a script that a shell reads, and return whether it is sound. A shell also looks on the PATH."""
        path = os.path.join(workdir, item[1])
        if "/" not in item[1] and not os.path.exists(path):
            path = self._on_path(item[1]) or path
        fault = _file(path)
        if fault[0] is None and b"\r\n" in _head(path):
            fault = ("line ends", "its lines end with CR LF")
        return self._add(item, "script", path, fault)

    def _of_python(self, word, rest, workdir):
        while rest and rest[0][1].startswith("-") and rest[0][1] != "-":
            option = rest[0][1]
            if option.startswith("-m"):
                item = (rest[0][0], option[2:]) if option != "-m" else next(iter(rest[1:]), rest[0])
                self._module(item, word, workdir)
                return
            if option.startswith("-c"):
                return
            rest = rest[2:] if option in ("-W", "-X", "--check-hash-based-pycs") else rest[1:]
        if rest and rest[0][1] != "-":
            path = os.path.join(workdir, rest[0][1])
            # Python also runs a folder or an archive with a __main__.
            fault = (None, "") if os.path.isdir(path) else _file(path)
            self._add(rest[0], "script", path, fault)

    def _module(self, item, python, workdir):
        path, _ = self._program(python, workdir)
        if path is None or os.path.realpath(path) != os.path.realpath(sys.executable or ""):
            return  # of another Python
        top = item[1].partition(".")[0]
        folders = [workdir, *(folder for folder in sys.path if folder and not folder.endswith(".pyz"))]
        known = top in sys.builtin_module_names or machinery.PathFinder.find_spec(top, folders) is not None
        self._add(item, "module", None, (None, "") if known else ("missing", ""))

    def _line(self, number, line, workdir):
        """Follow the text of ``sh -c`` up to its first program that matters."""
        for words in _simple_commands(line):
            if words[0] == "cd" and _is_plain(words[1:2]):
                workdir = os.path.join(workdir, *words[1:2])
                if os.path.isdir(workdir):
                    continue
                if "mkdir" in line:
                    self._undecided(number, " ".join(words[:2]), "the line itself may make the folder")
                else:
                    self._add((number, words[-1]), "folder", workdir, ("missing", ""))
                return
            if words[0] in ("source", ".") and _is_plain(words[1:2]):
                if not self._script((number, words[-1]), workdir):
                    return
                self._undecided(number, " ".join(words[:2]), "a sourced script may change the PATH")
            elif words[0] in SYNTAX or _sets_path(words) or not _is_plain(words[:1]):
                self._undecided(number, words[0], "only the shell can expand it")
            else:
                # With a word that only the shell can expand, the words after it may have another meaning.
                self._words([(number, word) for word in (words if _is_plain(words) else words[:1])], workdir)
            return

    def _undecided(self, number, word, why):
        self._add((number, word), "program", None, ("undecided", why))

    def _program(self, word, workdir):
        """Return ``(path, (problem, detail))`` of a program as execve(2) takes it."""
        path = self._on_path(word) if word and "/" not in word else None
        if "/" in word:
            path = os.path.normpath(os.path.join(workdir, word))
        if path is None:
            here = bool(word) and os.path.isfile(os.path.join(workdir, word))
            return None, ("missing", f"it is in the working folder: write ./{word}" if here else "not on the PATH")
        fault = _file(path)
        if fault[0] is None and not os.stat(path).st_mode & 0o111:
            fault = ("not executable", "")
        elif fault[0] is None and not os.access(path, os.X_OK):
            fault = ("not executable", f"for the user {os.getuid()}")
        return path, (self._format(path) if fault[0] is None else fault)

    def _on_path(self, word):
        """Return the first executable with this name on the PATH, else the first file with it, else None."""
        paths = [os.path.join(folder or ".", word) for folder in self._path.split(":")]
        files = [path for path in paths if os.path.isfile(path)]
        return next((path for path in files if os.access(path, os.X_OK)), files[0] if files else None)

    def _format(self, path):
        """Return ``(problem, detail)`` of an executable file's first bytes."""
        head = _head(path)
        if head[:2] == b"#!":
            return self._interpreter(head[2:].split(b"\n", 1)[0])
        own = _head(sys.executable or "")[18:20]  # e_machine
        if head[:4] == b"\x7fELF" and own and head[18:20] != own:
            return "other architecture", "ELF machine {}".format(*struct.unpack("<H", head[18:20]))
        if head and head[:4] != b"\x7fELF":
            return "no interpreter", "it begins neither with #! nor as an ELF file"
        return None, ""  # without the right to read it, its form is unknown

    def _interpreter(self, line):
        """Return ``(problem, detail)`` of the first line of a script, without ``#!``."""
        text = line.decode("utf-8", "replace")
        words = text.split()
        if text.endswith("\r") or not words:
            return "line ends" if words else "no interpreter", f"its interpreter would be {text.strip(' ')!r}"
        names = words[:1]
        if os.path.basename(words[0]) == "env":
            names += [word for _, word in _after_options([(0, word) for word in words[1:]], "uC", assignments=True)][:1]
        for name in names:
            found = name if "/" in name else self._on_path(name)
            if found is None or not os.access(found, os.X_OK):
                return "interpreter missing", name
        return None, ""


def _after_options(words, valued, assignments):
    """Return the words after a program's options; ``valued`` are the letters of those that take a separate value."""
    while words:
        word = words[0][1]
        if word == "--":
            return words[1:]
        if word.startswith("-") and len(word) > 1:
            words = words[2:] if len(word) == 2 and word[1] in valued and word != "-S" else words[1:]
        elif assignments and ASSIGNMENT.match(word):
            words = words[1:]
        else:
            break
    return words


def _simple_commands(line):
    """Return the simple commands of a shell line that decide what runs: words, without assignments and redirections.

    A line that cannot be split, because of its quotes, is one word.
    """
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        tokens = list(lexer)
    except ValueError:
        tokens = ["||"]
    if "||" in tokens:  # what fails here may be meant to fail
        return [["(" + line]]
    commands, skip = [[]], False
    for token in tokens:
        operator = all(mark in "<>&|;()" for mark in token)
        if skip:
            skip = False
        elif operator and token[:1] in ("<", ">"):
            skip = True
        elif operator and token:
            commands.append([])
        else:
            commands[-1].append(token)
    commands = [_without_prefix(words) for words in commands]
    return [words for words in commands if words and (words[0] not in HARMLESS or _sets_path(words))]


def _sets_path(words):
    return any(word.startswith("PATH=") for word in words)


def _without_prefix(words):
    """Return a simple command without the assignments before it and the words that only start another one."""
    while (
        words and not words[0].startswith("PATH=") and (ASSIGNMENT.match(words[0]) or words[0] in ("exec", "command"))
    ):
        words = words[1:]
    return words


def _is_plain(words):
    """Whether these words mean themselves: a shell expands nothing in them."""
    return bool(words) and not any(mark in word for word in words for mark in OPEN)


def _file(path):
    """Return ``(problem, detail)`` of a path that has to be a file that can be read."""
    if os.path.isdir(path):
        return "folder", ""
    if not os.path.exists(path):
        if os.path.islink(path):
            return "missing", f"a link to {os.readlink(path)}, which does not exist"
        return "missing", ""
    return None, ""


def _head(path):
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, HEAD_BYTES)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
