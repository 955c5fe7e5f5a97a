"""A store inside this process, for tests: fakeredis runs the very scripts of production, in the time of a clock."""

from __future__ import annotations

import logging
import threading
from hashlib import sha1
from types import TracebackType
from typing import Any, Final, Self

from ares_celery.config import RuntimeConfig
from ares_celery.errors import OperationNotSupportedError
from ares_celery.store.redis.store import RedisStore
from ares_celery.testing.clock import ManualClock

__all__ = ["open_memory_store"]

#: How scripts ask for the time, and what they get to ask instead: a key that holds the clock's.
_ASKED: Final = "redis.call('TIME')"
_ANSWERED: Final = "redis.call('LRANGE', '@time', 0, 1)"


def open_memory_store(clock: ManualClock, namespace: str, config: RuntimeConfig) -> RedisStore:
    """Opens a namespace of a server that is this store's own and goes with it; its time is the clock's.

    Raises:
        OperationNotSupportedError: fakeredis is not installed.
    """
    try:
        import fakeredis
        import lupa  # noqa: F401 # pyright: ignore[reportUnusedImport] - without it fakeredis runs no scripts
    except ImportError as error:
        raise OperationNotSupportedError(
            operation="the agent harness", reason="it needs fakeredis: pip install 'ares-celery[testing]'"
        ) from error
    driver = _TimedDriver(fakeredis.FakeRedis(server=fakeredis.FakeServer()), clock)
    logging.getLogger("fakeredis").setLevel(logging.WARNING)
    return RedisStore.from_client(driver, namespace, config, clock=clock, shown="the store of a test")


class _TimedDriver:
    """A :class:`~ares_celery.store.redis.connections.Driver` around one whose server shall have the clock's time."""

    def __init__(self, driver: Any, clock: ManualClock) -> None:  # noqa: ANN401 - fakeredis has no types
        self._driver = driver
        self._clock = clock
        self._told = -1
        self._lock = threading.Lock()
        self._shas: dict[str, str] = {}

    def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Sends a command; in scripts and elsewhere the server's time is the clock's."""
        name = args[0]
        if name == "EVALSHA":
            with self._lock:
                self._tell()
                return self._driver.execute_command(name, self._shas.get(args[1], args[1]), *args[2:])
        if name == "TIME":
            return divmod(self._clock.wall(), 1_000_000)
        if name == "SCRIPT":
            return self._load(args[2])
        return self._driver.execute_command(*args)

    def pipeline(self, transaction: bool = True) -> _Pipeline:  # noqa: ARG002, FBT001, FBT002 - the driver's signature
        """Collects commands."""
        return _Pipeline(self)

    def pubsub(self, **kwargs: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Listens to channels."""
        return self._driver.pubsub(**kwargs)

    def close(self) -> None:
        """Forgets the data."""
        self._driver.close()

    def _load(self, text: str) -> str:
        timed = text.replace(_ASKED, _ANSWERED)
        self._driver.execute_command("SCRIPT", "LOAD", timed)
        self._shas[_sha(text)] = _sha(timed)
        return _sha(text)

    def _tell(self) -> None:
        now = self._clock.wall()
        if now != self._told:
            self._told = now
            self._driver.execute_command("DEL", "@time")
            self._driver.execute_command("RPUSH", "@time", *divmod(now, 1_000_000))


class _Pipeline:
    """Commands that are sent together; inside one process there is no trip to save."""

    def __init__(self, driver: _TimedDriver) -> None:
        self._driver = driver
        self._commands: list[tuple[Any, ...]] = []

    def execute_command(self, *args: Any) -> None:  # noqa: ANN401 - the driver's own signature
        """Adds one."""
        self._commands.append(args)

    def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        """Sends all and gives their answers, errors among them."""
        answers: list[Any] = []
        for command in self._commands:
            try:
                answers.append(self._driver.execute_command(*command))
            except Exception as error:
                if raise_on_error:
                    raise
                answers.append(error)
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""


def _sha(text: str) -> str:
    return sha1(text.encode(), usedforsecurity=False).hexdigest()
