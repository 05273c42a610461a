"""Side-by-side measurements: `python -m benchmarks.NAME` prints a table, then a JSON line with the figure.

`--help` prints what a module measures and its arguments.
"""

import ast
import sys
from pathlib import Path


def _help() -> None:
    """Print the docstring of the module that is started with --help, and end; those with options have their own."""
    words = sys.orig_argv
    if "-m" not in words or not {"-h", "--help"} & set(words):
        return
    file = Path(__file__).with_name(words[words.index("-m") + 1].partition(".")[2] + ".py")
    text = file.read_text() if file.is_file() else ""
    if text and "import argparse" not in text:
        print(ast.get_docstring(ast.parse(text)))
        sys.exit(0)


_help()
