"""Flower with our routes inside this process, on a loop of its own thread, and a client for it."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from types import SimpleNamespace
from typing import Any, Final, Self

from flower.app import Flower
from flower.options import options as flower_options
from flower.urls import settings
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop

from ares_celery.celery_app.factory import create_app
from ares_celery.config import ProcessSettings
from ares_celery.web.flower_extension import load
from ares_celery.web.flower_extension.desk import Desk

LOGIN: Final = "operator:of-the-test"
PREFIX: Final = "/api/ares"


class Answer:
    """Status, headers and JSON of an answer."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        """Of a refusal."""
        return str(self.json["error"]["code"])


class Client:
    """Asks a Flower, with its login unless told otherwise."""

    def __init__(self, port: int, prefix: str = "", host: str = "127.0.0.1") -> None:
        self.port, self.prefix, self.host = port, prefix, host

    def headers(self, login: str | None = LOGIN, **more: str) -> dict[str, str]:
        """The headers of a request."""
        own = {} if login is None else {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        return {**own, **{name.replace("_", "-"): value for name, value in more.items()}}

    def ask(self, method: str, path: str, body: Any = None, *, login: str | None = LOGIN, **headers: str) -> Answer:
        """One request; a body is sent as JSON, bytes as they are."""
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        with closing(HTTPConnection(self.host, self.port, timeout=20)) as connection:
            connection.request(method, f"{self.prefix}{PREFIX}{path}", raw, self.headers(login, **headers))
            with connection.getresponse() as response:
                return Answer(response)

    def get(self, path: str, **options: Any) -> Answer:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.ask("POST", path, body, **options)

    def stream(self, path: str, **headers: str) -> Stream:
        """Follows; close it."""
        connection = HTTPConnection(self.host, self.port, timeout=20)
        connection.request("GET", f"{self.prefix}{PREFIX}{path}", headers=self.headers(**headers))
        return Stream(connection, connection.getresponse())


class Stream:
    """Server-Sent Events, read frame by frame."""

    def __init__(self, connection: HTTPConnection, response: HTTPResponse) -> None:
        self.connection, self.response = connection, response

    def frame(self) -> dict[str, str]:
        """The next frame; a comment is under ``""``."""
        found: dict[str, str] = {}
        while line := self.response.readline().decode().rstrip("\n"):
            name, _, value = line.partition(":")
            found[name] = value.removeprefix(" ")
        return found

    def until(self, name: str) -> dict[str, Any]:
        """The data of the next event of a type, with its ``id``."""
        while True:
            frame = self.frame()
            assert frame, "the stream has ended"
            if frame.get("event") == name:
                return {**json.loads(frame["data"]), "id": frame["id"]}

    def close(self) -> None:
        self.response.close()
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class FlowerSite(Client):
    """Flower over one namespace; ``options`` are Flower's."""

    def __init__(self, redis_url: str, namespace: str, **options: Any) -> None:
        load()
        self.celery = create_app(ProcessSettings(redis_url=redis_url, namespace=namespace), set_as_current=False)
        self.options = SimpleNamespace(**{**flower_options.as_dict(), "basic_auth": [LOGIN], **options})
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="flower", daemon=True)
        self.thread.start()
        super().__init__(self.on_loop(self._begin), f"/{options['url_prefix']}" if "url_prefix" in options else "")

    async def _begin(self) -> int:
        self.flower = Flower(capp=self.celery, options=self.options, io_loop=IOLoop.current(), **settings)
        self.server = HTTPServer(self.flower)
        self.server.listen(0, "127.0.0.1")
        (socket,) = self.server._sockets.values()
        return int(socket.getsockname()[1])

    def on_loop(self, call: Any) -> Any:
        """What a coroutine gives on Flower's loop."""
        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(20)

    @property
    def desk(self) -> Desk:
        """What the routes share."""
        found: Desk = self.flower.settings["ares_desk"]
        return found

    def close(self) -> None:
        async def end() -> None:
            self.server.stop()
            await self.server.close_all_connections()
            if "ares_desk" in self.flower.settings:
                await self.desk.close()

        self.on_loop(end)
        self.flower.executor.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
        self.celery.close()
