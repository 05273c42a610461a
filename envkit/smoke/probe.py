"""Fresh interpreters that can be killed: for what may hang in a driver, start processes or leave state behind."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

TEXT_CHARS = 2000  # of its last words


def code_of(module):
    """Return code for ``python -c`` that calls ``main(arguments)`` of a module of this payload."""
    package = __package__ or "smoke"
    root = pathlib.Path(__file__).resolve().parents[len(package.split("."))]
    return (
        f"import sys; sys.path.insert(0, {str(root)!r}); "
        f"from {package}.{module} import main; sys.exit(main(sys.argv[1:]))"
    )


def start(code, arguments, env=None):
    """Start ``code`` in a fresh interpreter, in a session of its own, with ``env`` added to this environment."""
    return subprocess.Popen(
        [sys.executable or "python3", "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ, **(env or {})),
        start_new_session=True,
    )


def finish(process, limit_s):
    """Wait for a process and return ``{outcome, wall_s, text, ...}``.

    ``outcome`` is ``answered`` (exit 0; a JSON object on the last line is merged in), ``failed`` or ``timeout``, where
    ``said`` is what it printed until then.
    """
    begin = time.monotonic()
    try:
        out, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as over:
        # One that hangs inside the driver does not even die; it is left behind rather than waited for.
        kill(process)
        said = (over.output or b"").decode("utf-8", "replace")[-TEXT_CHARS:].strip()
        text = f"no answer in {limit_s:g} s"
        return {"outcome": "timeout", "wall_s": time.monotonic() - begin, "text": text, "said": said}
    except BaseException:
        kill(process)
        raise
    lines = out.decode("utf-8", "replace").strip().splitlines()
    observed = {"outcome": "answered", "wall_s": time.monotonic() - begin, "text": lines[-1] if lines else ""}
    if process.returncode != 0:
        text = errors.decode("utf-8", "replace")[-TEXT_CHARS:]
        observed.update(outcome="failed", text=text, returncode=process.returncode)
    elif observed["text"].startswith("{"):
        observed.update(json.loads(observed["text"]))
    return observed


def finish_all(processes, limit_s):
    """Wait for processes that run side by side, ``limit_s`` for all; return what ``finish`` does, in their order.

    None of them is left, whatever is raised meanwhile.
    """
    begin = time.monotonic()
    try:
        return [finish(item, max(1.0, limit_s - (time.monotonic() - begin))) for item in processes]
    finally:
        for process in processes:
            kill(process)


def kill(process):
    """End a process and what it started, and let go of its pipes."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    for stream in (process.stdout, process.stderr):
        stream.close()


def probe(code, arguments, limit_s, env=None):
    """Run ``code`` in a fresh interpreter and return what ``finish`` does."""
    return finish(start(code, arguments, env), limit_s)
