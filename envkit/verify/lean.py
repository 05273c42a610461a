"""Strip comments and docstrings from the payload's sources, but keep line numbers."""

from __future__ import annotations

import ast
import io
import tokenize

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lean(source: str) -> str:
    """Return Python source without comments and docstrings; tracebacks keep their line numbers.

    Raises:
        SyntaxError: it is not Python.
    """
    lines = [line.encode() for line in source.splitlines()]  # positions in a syntax tree count bytes
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            _empty(lines, node.body[0])
    text = [line.decode() for line in lines]
    for token in tokenize.generate_tokens(io.StringIO("\n".join(text) + "\n").readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            text[row - 1] = text[row - 1][:column]
    return "".join(f"{line.rstrip()}\n" for line in text)


def _empty(lines: list[bytes], docstring: ast.stmt) -> None:
    """Put an empty string in the place of a docstring: a body may hold nothing else."""
    first, last = docstring.lineno - 1, (docstring.end_lineno or docstring.lineno) - 1
    rest = lines[last][docstring.end_col_offset :]
    lines[first] = lines[first][: docstring.col_offset] + b'""' + rest
    for row in range(first + 1, last + 1):
        lines[row] = b""
