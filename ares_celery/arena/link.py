"""A link to Redis that can be slow or cut: a process between workers and server, told what to do by actions.

``ares arena link --to redis://127.0.0.1:6379/0`` prints two addresses: one for workers, one for the actions
``redis_latency`` and ``redis_outage``. Each disturbance ends by itself after its duration, whoever is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from ares_celery.errors import ActivityFailedError, InvalidSettingError

__all__ = ["Link", "tell_link"]

#: Bytes of one read, and of one command.
_PIECE: Final = 64 << 10
#: Seconds that a disturbance may last at most, and that a command may take.
_LONGEST: Final = 24 * 3600.0
_LIMIT: Final = 5.0
_REDIS_PORT: Final = 6379


@dataclass(frozen=True, slots=True)
class _Disturbance:
    """What is done to the link until a moment of the loop's clock."""

    delay: float = 0.0
    cut: bool = False
    until: float = 0.0


class Link:
    """Passes bytes on between clients and a server, later or not at all while it is told so."""

    def __init__(self, to: str) -> None:
        """Names the server.

        Args:
            to: ``redis://host:port/…``; another scheme speaks a protocol that nobody between could pass on.

        Raises:
            InvalidSettingError: It is none.
        """
        parts = urlsplit(to)
        if parts.scheme != "redis" or not parts.hostname:
            raise InvalidSettingError(field="to", value=parts.scheme, problem="give redis://host:port/database")
        self._host, self._port = parts.hostname, parts.port or _REDIS_PORT
        self._path = parts.path
        self._disturbance = _Disturbance()
        self._writers: set[asyncio.StreamWriter] = set()
        #: For the workers, and for actions; known once it runs.
        self.url = ""
        self.control = ""

    async def run(self, *, port: int = 0, control_port: int = 0, ready: asyncio.Event | None = None) -> None:
        """Serves on the loopback interface until it is cancelled.

        Args:
            port: For clients; 0 = a free one.
            control_port: For actions; 0 = a free one.
            ready: Set once both are known.
        """
        clients = await asyncio.start_server(self._serve, "127.0.0.1", port)
        controls = await asyncio.start_server(self._obey, "127.0.0.1", control_port)
        async with clients, controls:
            self.url = f"redis://127.0.0.1:{clients.sockets[0].getsockname()[1]}{self._path}"
            self.control = f"127.0.0.1:{controls.sockets[0].getsockname()[1]}"
            if ready is not None:
                ready.set()
            await asyncio.Event().wait()

    @property
    def _now(self) -> _Disturbance:
        over = self._disturbance.until <= asyncio.get_running_loop().time()
        return _Disturbance() if over else self._disturbance

    # -- clients ------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._now.cut:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            ways = [asyncio.create_task(self._pass_on(*way)) for way in ((reader, back), (there, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._writers -= {writer, back}
            for one in (writer, back):
                one.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                # Half of it on each way: what a question and its answer take together.
                if self._now.delay:
                    await asyncio.sleep(self._now.delay / 2)
                writer.write(piece)
                await writer.drain()

    # -- actions ------------------------------------------------------------------------------------------------------

    async def _obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            said = json.loads(await asyncio.wait_for(reader.readline(), _LIMIT))
            answer = self._disturb(said)
        except (ValueError, TypeError, KeyError, TimeoutError, AttributeError) as error:
            answer = {"problem": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(answer).encode() + b"\n")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    def _disturb(self, said: Mapping[str, Any]) -> Mapping[str, Any]:
        duration, delay = float(said["duration"]), float(said.get("delay", 0.0))
        if not (duration >= 0 and 0 <= delay < _LONGEST):
            message = f"a duration of {duration:g} s and a delay of {delay:g} s cannot be"
            raise ValueError(message)
        duration = min(duration, _LONGEST)
        until = asyncio.get_running_loop().time() + duration
        self._disturbance = _Disturbance(delay, bool(said.get("cut")), until)
        if self._disturbance.cut and duration > 0:
            for writer in list(self._writers):
                writer.transport.abort()
        return {"delay": self._disturbance.delay, "cut": self._disturbance.cut, "duration": duration}


def tell_link(control: str, said: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Tells a link what to do.

    Args:
        control: Its address for actions, ``127.0.0.1:port``.
        said: ``duration`` in seconds, ``delay`` or ``cut``; a duration of 0 ends what is done.
        name: Of the action, for the error.

    Raises:
        ActivityFailedError: There is no link, or it refuses.
    """
    host, _, port = control.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_LIMIT) as connection:
            connection.sendall(json.dumps(said).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile("rb").readline(_PIECE))
    except (OSError, ValueError) as error:
        problem = f"no link answers at {control!r} ({error}); start one with `ares arena link`"
        raise ActivityFailedError(name=name, problem=problem) from error
    if "problem" in answer:
        raise ActivityFailedError(name=name, problem=str(answer["problem"]))
    return answer
