"""Plug-ins for tests, and an event store that keeps what it is given."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ares_celery.clock import to_datetime
from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import Version
from ares_celery.model.event import ANY, Event, ExpectedVersion, NewEvent
from ares_celery.model.failure import Failure
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.contract import EventBus, PluginContext, StepCall, StepResult
from tests.wait import wait_until


class Fake:
    """A plug-in that notes its calls in a shared list; what it does in them is up to the test."""

    def __init__(
        self, name: str, told: list[str] | None = None, capabilities: Sequence[str] = (), **does: Callable[..., object]
    ) -> None:
        self.name = name
        self.capabilities = tuple(capabilities)
        self.told = told if told is not None else []
        self.does: dict[str, Callable[..., object]] = does

    def _do(self, call: str, *args: object) -> Any:
        self.told.append(f"{call} {self.name}")
        return self.does[call](*args) if call in self.does else None

    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        self._do("start", ctx, bus)

    def stop(self) -> None:
        self._do("stop")


class FakeHook(Fake):
    """A plug-in that is a hook, too."""

    def before_step(self, step: StepCall) -> None:
        self._do("before", step)

    def after_step(self, step: StepCall, result: StepResult) -> None:
        self._do("after", step, result)


class FakeJudge(Fake):
    """A recovery plug-in with one answer, or with a function that finds it."""

    def __init__(self, name: str, answer: object = True) -> None:  # noqa: FBT002 - the answer is the point
        judge: Callable[..., object] = cast("Any", answer) if callable(answer) else lambda *_: answer
        super().__init__(name, None, ("recovery",), judge=judge)

    def should_recover(self, failure: Failure) -> bool:
        answer: bool = self._do("judge", failure)
        return answer


class Memory:
    """Events and counters in memory; ``away`` makes both fail as in an outage."""

    def __init__(self) -> None:
        self.streams: dict[str, list[NewEvent]] = {}
        self.counted: dict[str, int] = {}
        self.ops: list[str] = []
        self.trimmed: list[tuple[str, int]] = []
        self.away = False
        self.refuses: Exception | None = None

    def append(
        self, stream_id: str, events: Sequence[NewEvent], expected_version: ExpectedVersion = ANY
    ) -> tuple[Event, ...]:
        if self.away:
            raise StoreUnavailableError(url="memory", problem="away")
        if self.refuses is not None:
            raise self.refuses
        stored = self.streams.setdefault(stream_id, [])
        stored.extend(events)
        first = len(stored) - len(events) + 1
        return tuple(event(new.type, stream_id, version) for version, new in enumerate(events, first))

    def trim_before(self, stream_id: str, version: int) -> int:
        self.trimmed.append((stream_id, version))
        return 0

    def count(self, by: Mapping[str, int], *, op: str) -> None:
        if self.away:
            raise StoreUnavailableError(url="memory", problem="away")
        self.ops.append(op)
        for name, number in by.items():
            self.counted[name] = self.counted.get(name, 0) + number

    def told(self, name: str) -> list[tuple[str, dict[str, Any]]]:
        """Types and payloads of a plug-in's stream."""
        return [(str(event.type), dict(event.payload)) for event in self.streams.get(f"@plugin:{name}", ())]

    def until(self, name: str, *types: str) -> list[dict[str, Any]]:
        """Waits until exactly these were stored for a plug-in; returns their payloads."""
        wait_until(
            lambda: [kind for kind, _ in self.told(name)] == list(types), f"{types} of {name}: {self.told(name)}"
        )
        return [payload for _, payload in self.told(name)]


def make_bus(memory: Any = None, **options: Any) -> PluginBus:
    """A bus whose events and counters go into a memory."""
    context = PluginContext(namespace="test", worker="w@host", events=memory)
    return PluginBus(context, counters=memory, **options)


def event(kind: str, stream: str = "a", version: int = 1) -> Event:
    """An event as the store gives it."""
    return Event(f"{stream}-{version}", stream, Version(version), kind, {"n": version}, to_datetime(0))


class Gate:
    """Holds whoever comes until it is opened: a call that hangs and does no harm to the suite."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.entered = threading.Event()

    def __call__(self, *_: object) -> None:
        self.entered.set()
        self._open.wait(20)

    def open(self) -> None:
        self._open.set()
