"""Sources as trees, for the tests that look at code."""

from __future__ import annotations

import ast

__all__ = ["parse_source"]

#: Tries: one that fails at random is hardly ever followed by another.
_TRIES = 5


def parse_source(text: str) -> ast.Module:
    """What `ast.parse` gives.

    Python 3.11.7 was seen to fail with `SystemError: AST constructor recursion depth mismatch`, for good
    sources, in the middle of a long run of tests.
    """
    for _ in range(_TRIES - 1):
        try:
            return ast.parse(text)
        except SystemError:
            continue
    return ast.parse(text)
