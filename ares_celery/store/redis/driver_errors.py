"""Where the driver's errors stop: each becomes one of ours."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Final

import redis.exceptions as driver

from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.store.redis.urls import MASK

__all__ = ["DriverErrors"]

#: What a server answers when it cannot serve now, and may later.
_NOT_NOW: Final = (
    "BUSY ",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "Protocol error: unauthenticated",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
    "WRONGPASS",
)
_UNREACHABLE: Final = (
    driver.ConnectionError,
    driver.TimeoutError,
    driver.BusyLoadingError,
    driver.ReadOnlyError,
    driver.OutOfMemoryError,
    OSError,
)


@dataclass(frozen=True, slots=True)
class DriverErrors:
    """A context that turns errors of the driver into ours; may be entered again and again, by many threads at once.

    Attributes:
        url: Of the server, without its password.
        secrets: What no error may show.
    """

    url: str
    secrets: tuple[str, ...] = ()

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raises our error for one of the driver's.

        Raises:
            StoreUnavailableError: The server did not answer, or cannot serve now; with ``out_of_memory`` when it has
                room for nothing new, which may stay so for long.
            AresError: It answered that the call is wrong: a bug, or a key that somebody else has written.
        """
        if error is None or isinstance(error, AresError):
            return
        text = self._clean(str(error))
        cause = error if text == str(error) else None  # a traceback must not show it either
        if isinstance(error, _UNREACHABLE) or (isinstance(error, driver.ResponseError) and text.startswith(_NOT_NOW)):
            is_full = isinstance(error, driver.OutOfMemoryError) or text.startswith("OOM")
            problem = text or type(error).__name__
            if is_full:
                full = (
                    f"the store at {self.url} has no room for anything new: {problem}; raise its maxmemory or free some"
                )
                raise StoreUnavailableError(url=self.url, problem=problem, message=full, out_of_memory=True) from cause
            raise StoreUnavailableError(url=self.url, problem=problem) from cause
        if isinstance(error, driver.RedisError):
            raise AresError(message=f"the store at {self.url} refused a call: {text}", url=self.url) from cause

    def _clean(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        return text
