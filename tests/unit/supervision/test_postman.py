"""Dead letters come to every handler at least once; a failing one holds up nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from ares_celery.agents.dead_letters import DeadLetterHandlers
from ares_celery.errors import WorkerHookError
from ares_celery.model.message import DeadLetter, DeadReason, MessageKind
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store
from ares_celery.supervision.postman import Postman

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def letter(number: int) -> DeadLetter:
    """One of several."""
    return DeadLetter(f"0:{number}-0", "a", f"m{number}", MessageKind.SEND, DeadReason.FAILED, "", number, NOW, NOW)


class Letters:
    """What the postman needs of a store."""

    def __init__(self, *letters: DeadLetter) -> None:
        self.letters = list(letters)
        self.elected = True
        self.counted = 0

    def elect_postman(self, identity: str, *, ttl_ms: int) -> bool:
        """As told."""
        return self.elected

    def dead_letters(self, agent_id: str | None = None, *, limit: int) -> list[DeadLetter]:
        """Newest first."""
        return list(reversed(self.letters))[:limit]

    def settle_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Removes them."""
        self.letters = [one for one in self.letters if one not in letters]

    def count(self, by: Mapping[str, int], *, op: str) -> None:
        """Counts failures."""
        self.counted += by["dead_letter_handler_failures"]


class TurnedClock:
    """Turned by hand."""

    now = 0.0

    def monotonic(self) -> float:
        """The time."""
        return self.now

    def wall(self) -> Any:
        """Not asked for."""
        raise NotImplementedError

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Not asked for."""
        raise NotImplementedError


def postman(store: Letters, clock: TurnedClock, *handlers: Any, limit: float = 5.0) -> Postman:
    """With these handlers."""
    known = DeadLetterHandlers()
    for handler in handlers:
        known.register(handler)
    return Postman(cast("Store", store), ProcessIdentity.current(), handlers=known, clock=clock, limit=limit)


def test_each_letter_comes_to_every_handler_and_is_removed() -> None:
    """Oldest first; without a handler, or while another process is elected, letters stay."""
    store, got = Letters(letter(1), letter(2)), list[tuple[str, int]]()

    def first(found: DeadLetter) -> None:
        got.append(("first", found.body))

    def second(found: DeadLetter) -> None:
        got.append(("second", found.body))

    assert postman(store, TurnedClock()).look() == 0
    store.elected = False
    assert postman(store, TurnedClock(), first).look() == 0
    store.elected = True
    assert postman(store, TurnedClock(), first, second).look() == 2
    assert got == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]
    assert store.letters == []


@pytest.mark.parametrize("how", ["raises", "exits", "hangs"])
def test_a_failing_handler_is_called_again_later_and_holds_up_no_other(how: str) -> None:
    """With a growing pause; those that have returned are not called again."""
    store, clock, good = Letters(letter(1), letter(2)), TurnedClock(), list[int]()
    calls: list[int] = []
    never = threading.Event()

    def bad(found: DeadLetter) -> None:
        if found.body == 1:
            calls.append(found.body)
            if how == "hangs" and len(calls) < 3:
                never.wait()
            if how == "raises" and len(calls) < 3:
                raise ValueError("no")
            if how == "exits" and len(calls) < 3:
                raise SystemExit

    def fine(found: DeadLetter) -> None:
        good.append(found.body)

    desk = postman(store, clock, bad, fine, limit=0.05)
    assert desk.look() == 1
    assert ([one.body for one in store.letters], good, store.counted) == ([1], [1, 2], 1)
    assert desk.look() == 0
    clock.now = 1.0
    assert desk.look() == 0
    clock.now = 2.9
    assert (desk.look(), len(calls)) == (0, 2)
    clock.now = 3.0
    assert (desk.look(), len(calls), good) == (1, 3, [1, 2])
    never.set()


def test_letters_that_fail_again_and_again_do_not_hide_older_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the newest, all of which fail; the older ones come at the next look."""
    monkeypatch.setattr("ares_celery.supervision.postman._PAGE", 2)
    store, clock, good = Letters(*(letter(number) for number in range(1, 6))), TurnedClock(), list[int]()

    def handler(found: DeadLetter) -> None:
        if found.body > 3:
            raise ValueError("for ever")
        good.append(found.body)

    desk = postman(store, clock, handler)
    assert [desk.look() for _ in range(4)] == [0, 2, 1, 0]
    assert good == [2, 3, 1]
    assert [one.body for one in store.letters] == [4, 5]


def test_a_handler_that_never_returns_leaves_the_others_all_letters() -> None:
    """Also when so many of its calls hang that no more of them are made."""
    store, good, never = Letters(*(letter(number) for number in range(12))), list[int](), threading.Event()

    def hangs(found: DeadLetter) -> None:
        never.wait()

    def fine(found: DeadLetter) -> None:
        good.append(found.body)

    assert postman(store, TurnedClock(), hangs, fine, limit=0.01).look() == 0
    never.set()
    assert good == list(range(12))


def test_a_handler_is_a_function() -> None:
    """Anything else is refused by name; the same one again is one."""
    known = DeadLetterHandlers()
    with pytest.raises(WorkerHookError, match="dead_letter_handler"):
        known.register(cast("Any", 3))
    for _ in range(2):
        known.register(print)
    assert len(known.items()) == 1
