"""New interpreters that can be killed, for code that may hang in a driver, start processes or leave state behind."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from . import pressure

TEXT_CHARS = 2000  # kept from the end of its output


def code_of(module):
    """Return code for ``python -c`` that calls ``main(arguments)`` of a module of this payload."""
    package = __package__ or "smoke"
    root = pathlib.Path(__file__).resolve().parents[len(package.split("."))]
    return (
        f"import sys; sys.path.insert(0, {str(root)!r}); "
        f"from {package}.{module} import main; sys.exit(main(sys.argv[1:]))"
    )


def start(code, arguments, env=None):
    """Start ``code`` in a new interpreter and session, with ``env`` added to this environment."""
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

    ``outcome`` is ``answered`` (exit code 0; a JSON object on the last line is merged in), ``failed``, or ``timeout``,
    for which ``said`` has the output so far. The limit stretches on a busy machine.
    """
    begin, limit = time.monotonic(), pressure.Limit(limit_s)
    try:
        out, errors = _communicated(process, limit)
    except subprocess.TimeoutExpired as over:
        # A process that hangs in the driver may survive SIGKILL; it is left behind rather than waited for.
        kill(process)
        out = (over.output or b"").decode("utf-8", "replace")[-TEXT_CHARS:].strip()
        text = f"no answer in {limit.passed():.0f} s"
        return {"outcome": "timeout", "wall_s": time.monotonic() - begin, "text": text, "said": out}
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


def _communicated(process, limit):
    """Return the process's output; raises subprocess.TimeoutExpired at the limit, which has the output so far."""
    while True:
        try:
            return process.communicate(timeout=limit.pause())
        except subprocess.TimeoutExpired:
            if limit.left() <= 0:
                raise


def finish_all(processes, limit_s):
    """Wait at most ``limit_s`` for parallel processes and return the result of ``finish`` for each, in their order.

    All of them are killed in the end, also if something raises.
    """
    limit = pressure.Limit(limit_s)
    try:
        return [finish(item, max(1.0, limit.left())) for item in processes]
    finally:
        for process in processes:
            kill(process)


def kill(process):
    """Kill a process and those that it started, and close its pipes."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
    for stream in (process.stdout, process.stderr):
        stream.close()


def probe(code, arguments, limit_s, env=None):
    """Run ``code`` in a new interpreter and return the result of ``finish``."""
    return finish(start(code, arguments, env), limit_s)
