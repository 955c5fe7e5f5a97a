"""The protocol's bytes, for the hot calls: the driver's own way takes longer than the server takes for the command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from redis.exceptions import NoScriptError, ResponseError

from ares_celery.store.redis.call import Word

__all__ = ["DONE", "Incomplete", "pack", "unpack"]

#: What most scripts answer that were asked to write something.
DONE: Final = b"*1\r\n$4\r\ndone\r\n"


class Incomplete(Exception):
    """The bytes end before the answer does."""


def pack(*commands: Sequence[Word]) -> bytes:
    """Commands as the server reads them, one behind the other."""
    parts: list[bytes] = []
    for words in commands:
        parts.append(b"*%d" % len(words))
        for word in words:
            data = word if isinstance(word, bytes) else word.encode() if isinstance(word, str) else b"%d" % word
            parts.append(b"$%d" % len(data))
            parts.append(data)
    parts.append(b"")
    return b"\r\n".join(parts)


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The answer that begins at a place, as the driver would give it, and where it ends.

    An error of the server is returned, not raised; it keeps its code, as a part of its text.

    Raises:
        Incomplete: It goes on behind what was read.
        ValueError: This is no answer.
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, head, behind = data[at : at + 1], data[at + 1 : end], end + 2
    if kind in (b"$", b"*"):
        if head == b"-1":
            return None, behind
        return _bytes(data, behind, int(head)) if kind == b"$" else _list(data, behind, int(head))
    if kind == b"-":
        text = head.decode(errors="replace")
        return NoScriptError(text) if text.startswith("NOSCRIPT") else ResponseError(text), behind
    if kind not in (b":", b"+"):
        raise ValueError(f"{data[at : at + 20]!r} is no answer of a server")
    return int(head) if kind == b":" else head, behind


def _bytes(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if len(data) < end + 2:
        raise Incomplete
    return data[at:end], end + 2


def _list(data: bytes, at: int, size: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    for _ in range(size):
        item, at = unpack(data, at)
        items.append(item)
    return items, at
