"""Import packages, each in a process of its own that may crash or hang without consequences for the others.

The processes are forks of one that has imported nothing, or torch alone: that takes longer than most packages, so it is
done once for all that need it. This is a program; its argument is the path of its job, its answer one line of JSON.
"""

import contextlib
import importlib
import json
import os
import pathlib
import resource
import select
import signal
import sys
import tempfile
import time
import warnings

TEXT_CHARS = 600  # of a message
LINE_CHARS = 300
TAIL_BYTES = 2000  # of what a package printed to stderr before it ended the process
POLL_S = 0.02
# Errors of the loader, which name a library, and not a consequence of one.
_LOADER = "cannot open shared object file"


def main(arguments):
    """Do the job in the file ``arguments[0]``: ``{preload, jobs, width, limit_s, deadline_s, memory_bytes}``."""
    job = json.loads(pathlib.Path(arguments[0]).read_text(encoding="utf-8"))
    _leave_payload()
    # A fork warns if a package has started threads; the children only import.
    warnings.simplefilter("ignore")
    begin = time.monotonic()
    error = None
    if job["preload"]:
        error = _attempt(job["preload"])
    answers = run_all(job, begin)
    print(json.dumps({"preload_error": error, "imports": answers}), flush=True)


def _leave_payload():
    """Make imports find what a user's program finds: not this payload, and nothing in the current folder."""
    own = __file__.rsplit("/envkit/smoke/", 1)[0]
    sys.path[:] = [path for path in sys.path if path not in ("", own)]
    for name in [name for name in sys.modules if name.split(".", 1)[0] == "envkit"]:
        del sys.modules[name]
    sys.argv[:] = [""]


def run_all(job, begin):
    """Return ``{name: answer}`` for ``job["jobs"]``, which is ``[[name, modules], ...]``.

    At most ``width`` run at a time, each for at most ``limit_s``. After ``deadline_s`` nothing new starts; what did not
    start has no answer.
    """
    waiting, running, answers = list(job["jobs"]), {}, {}
    try:
        while waiting or running:
            over = time.monotonic() - begin > job["deadline_s"]
            while waiting and len(running) < job["width"] and not over:
                name, modules = waiting.pop(0)
                started = _Started(modules, job["memory_bytes"])
                running[started.pid] = (name, started)
            _collect(running, answers, job["limit_s"], over)
            if over and waiting:
                waiting = []
    finally:
        for _, started in running.values():
            started.kill()
    return answers


def _collect(running, answers, limit_s, over):
    for pid, (name, started) in list(running.items()):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            answers[name] = started.answer(status)
            del running[pid]
        elif over or time.monotonic() - started.begin > limit_s:
            answers[name] = dict(started.answer(None), outcome="timeout")
            del running[pid]
    if running:
        select.select([item.reader for _, item in running.values()], [], [], POLL_S)
        time.sleep(POLL_S / 10)


class _Started:
    """One process that imports the modules of one package."""

    def __init__(self, modules, memory_bytes):
        self.begin = time.monotonic()
        self.reader, writer = os.pipe()
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.close(self.reader)
                self._be_child(modules, writer, memory_bytes)
                code = 0
            finally:
                os._exit(code)
        os.close(writer)

    def _be_child(self, modules, writer, memory_bytes):
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        # What a package prints at import must reach neither the document nor the terminal.
        os.dup2(self.printed.fileno(), 1)
        os.dup2(self.printed.fileno(), 2)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if memory_bytes:
                resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
        failed = []
        for module in modules:
            error = _attempt(module)
            if error is not None:
                failed.append(dict(error, module=module))
        os.write(writer, json.dumps({"failed": failed}).encode("ascii"))

    def answer(self, status):
        """Return ``{outcome, seconds, failed, ...}`` of an ended process; ``status`` None: it is still running."""
        seconds = round(time.monotonic() - self.begin, 3)
        os.set_blocking(self.reader, False)
        try:
            told = os.read(self.reader, 1 << 16)
        except BlockingIOError:
            told = b""
        tail = self._tail()
        self.kill(reap=status is None)
        if status is not None and os.WIFSIGNALED(status):
            return {"outcome": "crashed", "seconds": seconds, "signal": os.WTERMSIG(status), "printed": tail}
        try:
            return dict(json.loads(told.decode("ascii")), outcome="ended", seconds=seconds, printed=tail)
        except ValueError:
            code = None if status is None else os.WEXITSTATUS(status)
            return {"outcome": "exited", "seconds": seconds, "code": code, "printed": tail}

    def _tail(self):
        size = self.printed.seek(0, os.SEEK_END)
        self.printed.seek(max(0, size - TAIL_BYTES))
        lines = self.printed.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:LINE_CHARS] if lines else ""

    def kill(self, reap=True):
        """End the process and those that it started."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        if reap:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
        with contextlib.suppress(OSError):
            os.close(self.reader)
        self.printed.close()


def _attempt(module):
    """Import a module; return None, or ``{type, line, text}`` of what it raised, SystemExit included."""
    try:
        importlib.import_module(module)
    except BaseException as error:
        return described(error)
    return None


def described(error):
    """Return ``{type, line, text}``: the first meaningful line of an exception, and the messages of its causes.

    A cause that names a library which the loader does not find is more exact than what was made of it, and so is the
    cause of a SystemExit.
    """
    chain = _chain(error)
    first = next((item for item in reversed(chain) if _LOADER in str(item)), error)
    if isinstance(first, SystemExit) and len(chain) > 1:
        first = chain[1]  # why the package ended the process
    text = " | ".join(meaningful(str(item)) for item in chain)
    return {"type": type(first).__name__, "line": meaningful(str(first))[:LINE_CHARS], "text": text[:TEXT_CHARS]}


def _chain(error):
    """Return an exception and its causes."""
    chain = []
    while error is not None and error not in chain and len(chain) < 10:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def meaningful(text):
    """Return the first line of a message that is a sentence and not a banner; the line with a loader's error if any."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    loader = [line for line in lines if _LOADER in line]
    sentences = [line for line in lines if any(character.islower() for character in line)]
    return (loader or sentences or lines or [""])[0]
