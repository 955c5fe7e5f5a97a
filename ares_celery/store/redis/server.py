"""What kind of server answers, and whether it will do."""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from redis.exceptions import ResponseError

from ares_celery.errors import UnsupportedServerError
from ares_celery.store.redis.connections import Driver
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.scripts import Scripts

__all__ = ["scripts_for"]

_log: Final = logging.getLogger(__name__)

#: Exclusive ranges in streams, ZRANGE's new form, UNLINK, GETEX: everything that the scripts use is there.
OLDEST_REDIS: Final = (6, 2)
OLDEST_VALKEY: Final = (7, 2)
#: The first Redis whose scripts carry flags; every Valkey does.
FLAGS_SINCE: Final = (7, 0)


def scripts_for(driver: Driver, errors: DriverErrors) -> Scripts:
    """Asks the server for its version and gives the scripts in the form that it takes.

    Raises:
        StoreUnavailableError: It does not answer.
        UnsupportedServerError: It is too old.
    """
    info = _server_info(driver, errors)
    if info is None:
        return Scripts(flags=False)
    valkey = info.get("valkey_version")
    shown = str(valkey or info.get("redis_version", "0"))
    if _version(shown) < (OLDEST_VALKEY if valkey else OLDEST_REDIS):
        raise UnsupportedServerError(url=errors.url, version=shown)
    return Scripts(flags=bool(valkey) or _version(shown) >= FLAGS_SINCE)


def _server_info(driver: Driver, errors: DriverErrors) -> dict[str, Any] | None:
    """The server's own description; None when it gives none (fakeredis, or a user without that right)."""
    with errors:
        driver.execute_command("PING")
        try:
            info: dict[str, Any] = driver.execute_command("INFO", "server")
        except ResponseError as error:
            _log.debug("the server at %s does not tell its version (%s); taken as Redis 6.2", errors.url, error)
            return None
    return info


def _version(text: str) -> tuple[int, int]:
    numbers = [int(number) for number in re.findall(r"\d+", text)[:2]]
    return (numbers[0], numbers[1] if len(numbers) > 1 else 0) if numbers else (0, 0)
