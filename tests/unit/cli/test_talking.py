"""``ares agents ask --stream`` and ``ares dead ls``: what they hand on, and what they print."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

import pytest

from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.errors import AgentFailedError
from ares_celery.model.message import Chunk, DeadLetter, DeadReason, MessageKind
from tests.unit.cli.calling import RecordingManager, run

LETTER = DeadLetter(
    "0:1-0",
    "a",
    "m1",
    MessageKind.STREAM,
    DeadReason.CALLER_LEFT,
    "the caller had left",
    {"ask": "total"},
    datetime(2026, 1, 1, 11, tzinfo=UTC),
    datetime(2026, 1, 1, 12, tzinfo=UTC),
)


class Stream:
    """Stands in for a ChunkStream."""

    def __init__(self, *chunks: Chunk, error: AgentFailedError | None = None) -> None:
        self.chunks, self.error, self.is_left = list(chunks), error, False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if self.chunks:
            return self.chunks.pop(0)
        if self.error is not None:
            raise self.error
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_left = True


def stand_in(monkeypatch: pytest.MonkeyPatch, answer: Any) -> RecordingManager:
    """What the commands get for a Manager."""
    made = RecordingManager(answer)
    monkeypatch.setattr(Session, "manager", made)
    return made


def test_a_stream_is_printed_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """For people the values, for programs one object a line; the stream is left in every case."""
    chunks = Chunk(1, "hello", final=False), Chunk(2, {"n": 1}, final=False), Chunk(3, None, final=True)
    stream = Stream(*chunks)
    manager = stand_in(monkeypatch, stream)
    done = run("agents", "ask", "a", '{"x": 1}', "--stream", "--timeout", "5s", "--message-id", "m")
    assert (done.exit_code, done.stdout) == (0, 'hello\n{\n  "n": 1\n}\n')
    assert manager.calls == [
        ("process_stream", ("a", {"x": 1}), {"timeout": timedelta(seconds=5), "message_id": "m"}),
    ]
    assert stream.is_left
    stand_in(monkeypatch, Stream(*chunks))
    lines = run("agents", "ask", "a", "1", "--stream", "-o", "json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"seq": 1, "data": "hello", "final": False},
        {"seq": 2, "data": {"n": 1}, "final": False},
        {"seq": 3, "data": None, "final": True},
    ]


def test_a_stream_that_fails_prints_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """And exits as the error says."""
    error = AgentFailedError(agent_id="a", type="ValueError", error="boom")
    stand_in(monkeypatch, Stream(Chunk(1, "one", final=False), error=error))
    done = run("agents", "ask", "a", "1", "--stream")
    assert (done.exit_code, done.stdout) == (ExitCode.FAILED, "one\n")
    assert "ValueError: boom" in done.stderr


def test_dead_letters_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all or of one agent; with their bodies for programs."""
    manager = stand_in(monkeypatch, [LETTER])
    done = run("dead", "ls", "-o", "json")
    (found,) = json.loads(done.stdout)
    assert (found["agent_id"], found["reason"], found["body"]) == ("a", "caller_left", {"ask": "total"})
    assert (found["kind"], found["time"]) == ("stream", "2026-01-01T12:00:00+00:00")
    shown = run("dead", "ls", "--agent", "a", "--limit", "5").stdout
    for word in ("m1", "caller_left", "the caller had left"):
        assert word in shown
    assert manager.calls == [("dead_letters", (None,), {"limit": 100}), ("dead_letters", ("a",), {"limit": 5})]
    assert run("dead", "ls", "--limit", "0").exit_code == ExitCode.USAGE
