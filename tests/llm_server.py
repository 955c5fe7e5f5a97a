"""A provider of language models for tests: real HTTP on loopback, the shapes of OpenAI and Anthropic, and a log."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast

from typing_extensions import override

__all__ = ["Call", "LLMServer", "Refusal"]

WORDS = ("The ", "sky ", "is ", "blue.")


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        at: When it came (monotonic).
        path: Where to.
        headers: With names in lower case.
        body: Its JSON.
        status: What it was answered.
    """

    at: float
    path: str
    headers: Mapping[str, str]
    body: Any
    status: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a request is to be answered instead."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class LLMServer(ThreadingHTTPServer):
    """Answers each request as its API does, or with the next refusal; remembers all of them."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *, takes: float = 0.0) -> None:
        """Begins to listen on a port of its own.

        Args:
            takes: Seconds until an answer begins.
        """
        super().__init__(("127.0.0.1", 0), _Handler)
        self.takes = takes
        self.calls: list[Call] = []
        self.refusals: deque[Refusal] = deque()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it is, without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def refuse(self, status: int, times: int = 1, **headers: str) -> None:
        """The next requests are answered so; underscores in names of headers are dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.refusals.extend([Refusal(status, named)] * times)

    def take(self, path: str, headers: Mapping[str, str], body: Any) -> Refusal | None:
        """Notes a request; what it is to be answered, if that is no answer."""
        with self._lock:
            refusal = self.refusals.popleft() if self.refusals else None
            status = refusal.status if refusal is not None else 200
            self.calls.append(Call(time.monotonic(), path, headers, body, status))
            return refusal

    @property
    def statuses(self) -> list[int]:
        """What the requests were answered, in order."""
        return [call.status for call in self.calls]

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is what some tests are about."""

    def close(self) -> None:
        """Ends it."""
        self.shutdown()
        self._thread.join(5)
        self.server_close()

    @override
    def __enter__(self) -> Self:
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body leave in two writes: without this the second waits for the client's word on the first.
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """One call of a model."""
        server = cast("LLMServer", self.server)
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        refusal = server.take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        if server.takes:
            threading.Event().wait(server.takes)
        is_anthropic = self.path == "/v1/messages"
        if refusal is not None:
            error = {"type": "refused", "message": "as the test wants it"}
            self._send(refusal.status, {"error": error}, refusal.headers)
        elif not body.get("stream"):
            self._send(200, _message("".join(WORDS)) if is_anthropic else _completion("".join(WORDS)))
        else:
            self._stream(_message_events() if is_anthropic else _completion_events())

    def _send(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def _message(text: str) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 4},
    }


def _message_events() -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    yield event("message_start", message={**_message(""), "content": [], "stop_reason": None})
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for word in WORDS:
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield event("content_block_stop", index=0)
    yield event("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 4})
    yield event("message_stop")


def _completion(text: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9},
    }


def _completion_events() -> Iterator[bytes]:
    for word in WORDS:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"
