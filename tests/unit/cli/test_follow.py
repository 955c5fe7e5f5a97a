"""`ares agents events --follow`: what it shows, and how it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ares_celery.cli.apps import Session
from ares_celery.clock import to_datetime
from ares_celery.errors import EventGapError
from ares_celery.ids import Version
from ares_celery.model.event import Event, EventFilter, ReadOptions
from tests.unit.cli.calling import run


def tick(version: int, *, name: str = "") -> Event:
    """An event of agent a."""
    return Event(name or f"e{version}", "a", Version(version), "ticked", {"n": version}, to_datetime(version))


class Events:
    """Three events are there, one of them came while subscribing; then come others, and Ctrl-C."""

    def __init__(self, *, there: int = 3) -> None:
        self.there = tuple(tick(version) for version in range(there, 0, -1))
        self.asked: list[Any] = []
        self._steps = self._script()

    def subscribe(self, wanted: EventFilter) -> Any:
        self.asked.append(wanted)
        return nullcontext(self)

    def read(self, stream_id: str, options: ReadOptions) -> tuple[Event, ...]:
        self.asked.append((stream_id, options))
        return self.there[: options.limit or None]

    def poll(self, timeout: float) -> Event | None:
        return next(self._steps)

    def _script(self) -> Iterator[Event | None]:
        yield tick(3)
        yield None
        yield tick(4)
        yield tick(1, name="of-a-new-agent")
        signal.raise_signal(signal.SIGINT)
        yield None


def following(monkeypatch: pytest.MonkeyPatch, events: Events, *arguments: str) -> Any:
    """Run the command."""
    manager = SimpleNamespace(events=events, get_agent_info={}.get)
    monkeypatch.setattr(Session, "manager", manager)
    return run("agents", "events", "a", "--follow", *arguments)


def test_the_last_events_come_first_and_then_each_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """None twice, and those of an agent made anew as well; Ctrl-C is an end in order."""
    events = Events()
    result = following(monkeypatch, events, "-n", "2", "-o", "json")
    assert result.exit_code == 0
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one["version"] for one in shown] == [2, 3, 4, 1]
    assert events.asked == [EventFilter(streams=["a"]), ("a", ReadOptions(limit=2, direction="descending"))]


def test_people_get_a_line_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version, time, type, payload."""
    lines = following(monkeypatch, Events(), "-n", "0").stdout.splitlines()
    assert len(lines) == 5
    assert lines[3].split(maxsplit=3)[::2] == ["4", "ticked"]
    assert lines[3].endswith('{"n": 4}')


def test_a_gap_is_said_and_following_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr, so that programs get events only."""
    events = Events()
    polls = iter([EventGapError(stream_id="a", first=4, last=5, count=2)])
    poll = events.poll

    def failing_once(timeout: float) -> Event | None:
        for error in polls:
            raise error
        return poll(timeout)

    monkeypatch.setattr(events, "poll", failing_once)
    result = following(monkeypatch, events, "-o", "json")
    assert "2 events of stream 'a' (versions 4 to 5) were trimmed" in result.stderr
    assert len(result.stdout.splitlines()) == 5


def test_an_agent_that_is_not_there_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 3, as without --follow."""
    assert following(monkeypatch, Events(there=0)).exit_code == 3


@pytest.mark.parametrize("option", [("--from", "3"), ("--to", "3"), ("--newest",)])
def test_bounds_do_not_go_with_following(monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...]) -> None:
    """A usage error instead of a surprise."""
    result = following(monkeypatch, Events(), *option)
    assert result.exit_code == 2
    assert "--follow" in result.stderr
