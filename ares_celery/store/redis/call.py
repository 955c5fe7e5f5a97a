"""One call to Redis as a value: what is sent and how the answer is read, without any I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Call", "Word"]

T = TypeVar("T")
Word = str | bytes | int


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A script with its keys and arguments, or a plain command.

    Attributes:
        parse: Reads the answer; raises the errors that the answer stands for.
        args: Arguments of the script, or the words of the command.
        keys: Keys of the script.
        script: Name of the Lua file; empty = a plain command.
    """

    parse: Callable[[Any], T]
    args: tuple[Word, ...]
    keys: tuple[str, ...] = ()
    script: str = ""
