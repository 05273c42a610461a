"""Run the checks and print one JSON document, then one line with the nonce.

Exit code 0 means that the payload ran, with any result. If the process that runs the checks crashes, the exit
code is that of the crash, and the document is still printed.
"""

import argparse
import json
import os
import pathlib
import sys

from . import END_MARK, hostfacts, suite, supervisor, timing
from .context import Ctx


def main(argv=None):
    """Run the payload. Output of torch and of checks goes to stderr: stdout carries the document alone."""
    sys.stdout.flush()
    document_fd = os.dup(1)
    os.dup2(2, 1)
    options = _options(argv)
    try:
        checks = suite.select(suite.load(suite.packed()), options.tier, options.only)
        spec = _read_spec(options.spec)
        timing.prepare_launch(spec.get("launch") or {})
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.list:
        lines = [f"{c.id}\t{c.tier}\t{c.budget(options.tier)}\t{c.needs}\t{c.title}\n" for c in checks]
        _write(document_fd, "".join(lines))
        return 0
    ctx = Ctx(spec, seed=options.seed, tier=options.tier, data=options.data)
    if spec.get("data"):
        # The folder of the user's own module, if one was sent.
        sys.path.insert(0, str(pathlib.Path(options.spec).parent / "code"))
    # All processes of this run share the kernels that the driver compiles. The default folder is below HOME, which may
    # not be writable.
    os.environ.setdefault("CUDA_CACHE_PATH", hostfacts.cuda_cache())
    return supervisor.supervise(
        supervisor.Run(ctx, options.tier, checks),
        lambda send: suite.run_suite(ctx, checks, send, with_trace=options.trace),
        lambda document: _emit(document_fd, document),
        close=[document_fd],
    )


def _options(argv):
    parser = argparse.ArgumentParser(prog="envkit-payload", description=__doc__)
    parser.add_argument("--spec", help="JSON file with what the image promises; '-' reads standard input")
    parser.add_argument("--only", type=lambda text: tuple(text.split(",")), default=(), help="check ids: C05,C06")
    parser.add_argument("--tier", choices=suite.TIERS, default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="add a profile of the small training job")
    parser.add_argument("--data", help="the user's folder of files")
    parser.add_argument("--list", action="store_true", help="print the checks and stop")
    return parser.parse_args(argv)


def _read_spec(path):
    if path is None:
        return {}
    if path == "-":
        text = sys.stdin.read()
    else:
        with open(path, encoding="utf-8") as stream:  # noqa: PTH123 - one form for files and fds
            text = stream.read()
    spec = json.loads(text)
    if not isinstance(spec, dict):
        raise ValueError(f"{path}: the spec is not a JSON object")  # noqa: TRY004 - main reports it
    return spec


def _emit(fd, document):
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    _write(fd, f"{text}\n{END_MARK} {document['nonce']}\n")


def _write(fd, text):
    data = text.encode("ascii", "backslashreplace")
    while data:
        data = data[os.write(fd, data) :]


if __name__ == "__main__":
    sys.exit(main())
