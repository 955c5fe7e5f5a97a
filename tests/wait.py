"""Waiting for a condition: the only place of the suite that sleeps.

A test that sleeps is slow on a fast machine and wrong on a slow one. A test that waits for what it wants to see is
neither, and its failure says what did not come.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from ares_celery.testing.waiting import DEFAULT_INTERVAL, DEFAULT_TIMEOUT, wait_until

__all__ = ["DEFAULT_INTERVAL", "DEFAULT_TIMEOUT", "assert_stays", "wait_until", "wait_until_async"]

T = TypeVar("T")


@overload
async def wait_until_async(
    condition: Callable[[], Awaitable[T]], what: str = ..., *, timeout: float = ..., interval: float = ...
) -> T: ...


@overload
async def wait_until_async(
    condition: Callable[[], T], what: str = ..., *, timeout: float = ..., interval: float = ...
) -> T: ...


async def wait_until_async(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    timeout: float = DEFAULT_TIMEOUT,
    interval: float = DEFAULT_INTERVAL,
) -> object:
    """Return the first truthy value of `condition`, plain or awaitable, while the loop keeps turning.

    Raises:
        AssertionError: Nothing truthy came in time; the last value is in the message.
    """
    deadline = time.monotonic() + timeout
    while True:
        is_last_look = time.monotonic() >= deadline
        outcome = condition()
        value: object = await outcome if inspect.isawaitable(outcome) else outcome
        if value:
            return value
        if is_last_look:
            raise AssertionError(_did_not_come(what, timeout, value))
        await asyncio.sleep(interval)


def assert_stays(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    seconds: float,
    interval: float = DEFAULT_INTERVAL,
) -> None:
    """Fail as soon as `condition` is not truthy within `seconds`: for what must not happen ("it is not restarted").

    Raises:
        AssertionError: It did not hold; says after how long.
    """
    began = time.monotonic()
    while True:
        passed = time.monotonic() - began
        value = condition()
        if not value:
            message = f"{what} held for {passed:.2f} s of {seconds:g} s, then was {value!r}"
            raise AssertionError(message)
        if passed >= seconds:
            return
        time.sleep(interval)


def _did_not_come(what: str, timeout: float, value: object) -> str:
    return f"waited {timeout:g} s for {what}; last seen: {value!r}"
