"""Where an agent under test is: the line of its own code that waits, and the stack of code that does not."""

from __future__ import annotations

import asyncio
import gc
import inspect
import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

__all__ = ["stack_of", "waits_at"]

_PACKAGE: Final = str(Path(__file__).parents[1])
_STDLIB: Final = sysconfig.get_path("stdlib")


def waits_at(frame: FrameType | None, loop: asyncio.AbstractEventLoop | None) -> str:
    """The innermost line of user code, as ``file:line in function: text``; empty when none is found.

    Args:
        frame: Where the agent's thread is.
        loop: The agent's event loop, whose thread may not run it now.
    """
    places = [_place(found) for found in _own(_outwards(frame))][:1]
    if not places and loop is not None:
        for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
            places += [_place(found) for found in _own(reversed(list(_awaited(task.get_coro()))))][:1]
    return "; ".join(dict.fromkeys(places))


def stack_of(frame: FrameType | None) -> str:
    """The stack, outermost first, without what belongs to the thread itself."""
    if frame is None:
        return "(its thread has ended)"
    lines = [summary for summary in traceback.extract_stack(frame) if summary.filename != threading_file()]
    return "".join(traceback.format_list(lines))


def threading_file() -> str:
    """Where threads begin."""
    return f"{_STDLIB}/threading.py"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(coroutine: Any) -> Iterator[FrameType]:  # noqa: ANN401 - coroutines, generators, futures
    """Frames of a suspended coroutine and of what it awaits, outermost first."""
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
        if awaited is not None and not hasattr(awaited, "cr_await"):
            # The step of an async generator or of an object's coroutine does not tell whose it is; the collector knows.
            awaited = next(filter(_is_suspended, gc.get_referents(awaited)), None)
        coroutine = awaited


def _is_suspended(found: object) -> bool:
    return inspect.isasyncgen(found) or inspect.iscoroutine(found)


def _own(frames: Iterator[FrameType]) -> Iterator[FrameType]:
    """Those of neither this package nor Python itself."""
    for frame in frames:
        name = frame.f_code.co_filename
        if name.startswith((_PACKAGE, "<frozen")) or (name.startswith(_STDLIB) and "site-packages" not in name):
            continue
        yield frame


def _place(frame: FrameType) -> str:
    name, line = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, line).strip()
    return f"{Path(name).name}:{line} in {frame.f_code.co_name}{': ' if text else ''}{text}"
