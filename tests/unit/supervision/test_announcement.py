"""An agents worker announces itself once for each time that its namespace was made."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import Instant
from ares_celery.model.agent import RuntimeState
from ares_celery.supervision.announcement import Announcement


class Namespace:
    """A namespace that can be lost, and made again."""

    namespace = "test"

    def __init__(self) -> None:
        self.made_at = 1
        self.types: list[object] = []
        self.states: list[tuple[RuntimeState, object]] = []
        self.away_at_set = False

    def reopen(self) -> Instant:
        return Instant(self.made_at)

    def report_types(self, types: object) -> None:
        self.types.append(types)

    def set_runtime(self, state: RuntimeState, *, only_from: object, **_: object) -> None:
        if self.away_at_set:
            raise StoreUnavailableError(url="test", problem="away")
        self.states.append((state, only_from))


ANNOUNCED = (RuntimeState.RUNNING, (RuntimeState.NEW,))


def announcement(namespace: Namespace) -> Announcement:
    """Of a worker that knows one type."""
    return Announcement(cast("Any", namespace), "w@host", lambda: {"ticker": {}})


def test_it_is_said_once_and_again_loudly_when_all_data_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    """A new namespace is no loss."""
    namespace = Namespace()
    worker = announcement(namespace)
    for _ in range(3):
        worker.look()
    assert (namespace.types, namespace.states) == ([{"ticker": {}}], [ANNOUNCED])
    assert caplog.records == []
    namespace.made_at = 2
    for _ in range(3):
        worker.look()
    assert (len(namespace.types), namespace.states) == (2, [ANNOUNCED, ANNOUNCED])
    told = [record.levelname for record in caplog.records if record.name == "ares_celery.supervision.announcement"]
    assert told == ["CRITICAL"]
    assert "lost all data of namespace 'test'" in caplog.text


def test_an_outage_in_the_middle_is_made_up_for() -> None:
    """The next look says all of it."""
    namespace = Namespace()
    namespace.away_at_set = True
    worker = announcement(namespace)
    with pytest.raises(StoreUnavailableError):
        worker.look()
    namespace.away_at_set = False
    worker.look()
    assert namespace.states == [ANNOUNCED]
