"""What user code raises must end in its own agent, also where asyncio would end the whole loop."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from ares_celery.errors.wording import message_of

__all__ = ["ContainedExit", "contained"]


class ContainedExit(Exception):
    """Carries a SystemExit or KeyboardInterrupt of user code past asyncio, which would end the whole loop."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(message_of(error))
        self.error = error


async def contained(awaitable: Awaitable[Any]) -> Any:  # noqa: ANN401 - whatever user code returns
    """Awaits user code; its SystemExit or KeyboardInterrupt comes as :class:`ContainedExit`."""
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        raise ContainedExit(error) from error
