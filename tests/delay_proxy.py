"""A network that is slow: a process between a client and its Redis that delays every byte, in both directions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from typing_extensions import override

ROOT = Path(__file__).parent.parent


class DelayProxy:
    """Listens on a free port and passes everything on to a server, later.

    A process of its own, so that it is as slow as it should be and no slower when the test works hard. What a client
    has sent before it dies still arrives, as on a real wire.

    Example:
        with DelayProxy(server.port, round_trip=0.02) as proxy:
            client = redis.Redis.from_url(proxy.url)
    """

    def __init__(self, port: int, *, round_trip: float) -> None:
        """Choose server and delay.

        Args:
            port: Of the server, on the loopback interface.
            round_trip: Seconds added to question and answer together.
        """
        self._command = [sys.executable, "-m", "tests.delay_proxy", str(port), str(round_trip / 2)]
        self._process: subprocess.Popen[str] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """The address for clients, database 0."""
        return f"redis://127.0.0.1:{self._port}/0"

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


class _End(asyncio.Protocol):
    """One end of a connection: hands what it gets to the other end, after the delay."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        self._later(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._later(None)

    def _later(self, data: bytes | None) -> None:
        if self.other is not None:
            asyncio.get_running_loop().call_later(self._delay, self.other.take, data)

    def take(self, data: bytes | None) -> None:
        """Sends what the other end got; None: it is gone."""
        if self.transport is None or self.transport.is_closing():
            return
        if data is None:
            self.transport.close()
        else:
            self.transport.write(data)


class _Accepted(_End):
    """The client's end: reads nothing until the server's end is there."""

    def __init__(self, port: int, delay: float) -> None:
        super().__init__(delay)
        self._port = port
        self._connecting: asyncio.Task[None] | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        assert self.transport is not None
        self.transport.pause_reading()
        end = _End(self._delay)
        end.other = self
        try:
            await asyncio.get_running_loop().create_connection(lambda: end, "127.0.0.1", self._port)
        except OSError:
            self.transport.abort()
            return
        self.other = end
        self.transport.resume_reading()


async def serve(port: int, delay: float) -> None:
    """Say the port on stdout, then pass on for ever."""
    server = await asyncio.get_running_loop().create_server(lambda: _Accepted(port, delay), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
