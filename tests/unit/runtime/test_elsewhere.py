"""Snapshots in somebody's own store: what is loaded is checked, what is saved shows the fence, what fails is said."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from typing_extensions import override

from ares_celery.errors import FencedError, UnserialisableError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, AgentSpec
from ares_celery.model.command import Finding
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.elsewhere import AsyncSavesElsewhere, SavesElsewhere, SnapshotsElsewhere
from ares_celery.runtime.wrapped_state import RESERVED, unwrap_state, wrap_state
from ares_celery.store.base import DamagedSnapshot

AGENT = AgentId("a")
FENCE = "200|t"


class Elsewhere:
    """Somebody's store."""

    def __init__(self, kept: Any = None) -> None:
        self.kept: Any = kept
        self.failure: BaseException | threading.Event | None = None
        self.saves = 0

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None:
        self.saves += 1
        self._fail()
        self.kept = state

    def load(self, agent_id: str) -> Mapping[str, Any] | None:
        self._fail()
        loaded: Mapping[str, Any] | None = self.kept
        return loaded

    def delete(self, agent_id: str) -> None:
        self.kept = None

    def _fail(self) -> None:
        if isinstance(self.failure, threading.Event):
            self.failure.wait(20)
        elif self.failure is not None:
            raise self.failure


class Namespace:
    """The store of the namespace, as far as saving needs it."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        self.saved: list[Mapping[str, Any]] = []
        self.said: list[Any] = []
        self.fenced = False

    def note_state(self, agent_id: AgentId, fence: str, *, origin: str, schema: int, saved: str = "") -> None:
        if self.fenced:
            raise FencedError(agent_id=agent_id, epoch=fence)
        self.noted.append(saved)

    def save_snapshot(self, agent_id: AgentId, fence: str, state: Mapping[str, Any], **_: Any) -> None:
        self.saved.append(state)

    def append(self, agent_id: str, events: list[Any]) -> None:
        self.said += events

    def inbox(self) -> str:
        return "the namespace's"


class AsyncNamespace:
    """The same, awaitable."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    async def note_state(self, *args: Any, **options: Any) -> None:
        self._namespace.note_state(*args, **options)

    async def save_snapshot(self, *args: Any, **options: Any) -> None:
        self._namespace.save_snapshot(*args, **options)


def about(version: int, epoch: int, schema: int = 1) -> Snapshot:
    """What is known of a state."""
    return Snapshot({}, Version(version), Epoch(epoch), schema, Instant(0), "origin")


def record(version: int = 9, saved: str = "") -> AgentRecord:
    """An agent with so many events."""
    return AgentRecord(AgentSpec(id="a", type="t"), version=Version(version), state_saved=saved)


def load(kept: Any, *, version: int = 9, saved: str = "", limit: float = 5.0) -> tuple[Any, list[Finding]]:
    """What recovery gets."""
    found: list[Finding] = []
    store = kept if isinstance(kept, Elsewhere) else Elsewhere(kept)
    events: Any = Namespace()
    return SnapshotsElsewhere(store, events, limit=limit).load(record(version, saved), found), found


# -- the wrapping -----------------------------------------------------------------------------------------------------


def test_a_state_comes_back_with_all_that_is_known_of_it() -> None:
    """A deep copy, with the user's own keys where they were and one key more."""
    state = {"total": 3, "nested": {"list": [1, None]}}
    wrapped = wrap_state("a", state, about(7, 200, 2))
    state["nested"]["list"].append("later")  # type: ignore[index]
    assert {name: value for name, value in wrapped.items() if name != RESERVED} == {
        "total": 3,
        "nested": {"list": [1, None]},
    }
    back = unwrap_state(wrapped)
    assert back == replace(about(7, 200, 2), state={"total": 3, "nested": {"list": [1, None]}})
    reordered = dict(reversed(list(wrapped.items())))
    assert unwrap_state(reordered) == back


@pytest.mark.parametrize("field", ["version", "epoch", "schema", "origin", "checksum", "state", "extra", "lost"])
def test_whatever_is_changed_is_noticed(field: str) -> None:
    """Damaged, with what was found."""
    wrapped = wrap_state("a", {"total": 3}, about(7, 200))
    match field:
        case "state":
            wrapped["total"] = 4
        case "extra":
            wrapped["more"] = None
        case "lost":
            wrapped[RESERVED] = {"version": 7}
        case _:
            wrapped[RESERVED][field] = "x" if field in ("origin", "checksum") else 6
    found = unwrap_state(wrapped)
    assert isinstance(found, DamagedSnapshot)
    assert b'"total":' in found.raw


@pytest.mark.parametrize("state", [{"a": {1}}, {"a": (1,)}, {1: "a"}, {RESERVED: {}}, [1]], ids=str)
def test_a_state_that_is_no_plain_json_is_refused(state: Any) -> None:
    """Before anybody's store is called."""
    with pytest.raises(UnserialisableError):
        wrap_state("a", state, about(1, 1))


# -- loading ----------------------------------------------------------------------------------------------------------


def test_a_state_that_this_runtime_saved_is_used() -> None:
    """Also one that is newer than what is known to be safe: its saver died before it could say so."""
    wrapped = wrap_state("a", {"total": 3}, about(7, 200))
    for saved in ("", "7|200", "6|200", "9|100"):
        loaded, found = load(wrapped, saved=saved)
        assert (loaded.state, loaded.version, found) == ({"total": 3}, 7, [])


@pytest.mark.parametrize("saved", ["8|200", "3|300"], ids=["an older state", "an older incarnation"])
def test_what_an_older_incarnation_saved_late_is_not_used(saved: str) -> None:
    """It has put its state over a newer one."""
    loaded, (finding,) = load(wrap_state("a", {"total": 3}, about(7, 200)), saved=saved)
    assert loaded is None
    assert "older incarnation" in finding.payload["problem"]
    assert (finding.kind, finding.counter) == ("recovery.degraded", "snapshot_store_failures")


def test_a_state_that_is_ahead_of_the_events_is_not_used() -> None:
    """The namespace came back older than that store."""
    loaded, (finding,) = load(wrap_state("a", {"total": 3}, about(7, 200)), version=6)
    assert loaded is None
    assert "version 7" in finding.payload["problem"]


def test_a_state_that_somebody_else_saved_counts_as_that_of_the_newest_event() -> None:
    """Nothing is applied on top of it, and that is said."""
    loaded, (finding,) = load({"total": 8})
    assert (loaded.state, loaded.version, loaded.schema) == ({"total": 8}, 9, 0)
    assert "foreign" in finding.payload["problem"]


@pytest.mark.parametrize("nothing", [None, {}])
def test_nothing_is_nothing(nothing: Any) -> None:
    """And no problem."""
    assert load(nothing) == (None, [])


def test_a_state_of_a_deleted_agent_of_the_same_id_is_not_used() -> None:
    """Its incarnation is older than the agent; what is noted as safe in the agent's own life is."""
    events: Any = Namespace()
    store = SnapshotsElsewhere(Elsewhere(wrap_state("a", {"total": 3}, about(7, 200))), events)
    found: list[Finding] = []
    assert store.load(replace(record(), created_at=Instant(201)), found) is None
    assert "deleted" in found[0].payload["problem"]
    loaded = store.load(replace(record(saved="7|200"), created_at=Instant(201)), found)
    assert isinstance(loaded, Snapshot)


class Lazy(Mapping[str, Any]):
    """A mapping that reads what it holds when it is asked."""

    def __init__(self, reading: BaseException | threading.Event) -> None:
        self.reading = reading

    @override
    def __getitem__(self, key: str) -> Any:
        if isinstance(self.reading, threading.Event):
            self.reading.wait(20)
            raise KeyError(key)
        raise self.reading

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(["total"])

    @override
    def __len__(self) -> int:
        self["total"]
        return 1


class Unspeakable(Exception):
    """An exception whose text cannot be had."""

    @override
    def __str__(self) -> str:
        raise SystemExit("no words")


def test_a_lazy_mapping_is_read_where_it_may_hang_and_raise(request: pytest.FixtureRequest) -> None:
    """As the store's own code is; and what it raises may have no text."""
    over = threading.Event()
    request.addfinalizer(over.set)
    for reading, problem in (
        (OSError("gone"), "OSError: gone"),
        (over, "it did not return within 0.05 s"),
        (Unspeakable(), "Unspeakable: (its text cannot be had: SystemExit)"),
    ):
        loaded, (finding,) = load(Lazy(reading), limit=0.05)
        assert (loaded, finding.payload["problem"]) == (None, problem)


def test_a_store_that_raises_hangs_or_gives_rubbish_is_named(request: pytest.FixtureRequest) -> None:
    """Each costs a finding and no state."""
    raising, hanging = Elsewhere(), Elsewhere()
    raising.failure, hanging.failure = SystemExit("gone"), threading.Event()
    request.addfinalizer(hanging.failure.set)
    for store, problem in (
        (raising, "SystemExit: gone"),
        (hanging, "it did not return within 0.05 s"),
        (Elsewhere([1]), "it returned a list, not a mapping"),
    ):
        loaded, (finding,) = load(store, limit=0.05)
        assert loaded is None
        assert finding.payload["problem"] == problem
        assert finding.payload["name"].endswith(".Elsewhere")


# -- saving -----------------------------------------------------------------------------------------------------------


def save(store: Any, state: Any, version: int) -> None:
    """As a context does."""
    store.save_snapshot(AGENT, FENCE, state, version=Version(version), schema=1, origin="o")


def test_a_state_is_saved_between_two_looks_at_the_fence() -> None:
    """The second one notes it as safe; the namespace keeps none itself."""
    namespace, elsewhere = Namespace(), Elsewhere()
    events: Any = namespace
    store: Any = SavesElsewhere(events, SnapshotsElsewhere(elsewhere, events))
    save(store, {"total": 3}, 7)
    assert (namespace.noted, namespace.saved, namespace.said) == (["", "7|200"], [], [])
    loaded, _ = load(elsewhere, saved="7|200")
    assert loaded.state == {"total": 3}
    assert store.inbox() == "the namespace's"


def test_whoever_is_fenced_does_not_reach_the_store() -> None:
    """It is told so before it saves."""
    namespace, elsewhere = Namespace(), Elsewhere()
    namespace.fenced = True
    events: Any = namespace
    with pytest.raises(FencedError):
        save(SavesElsewhere(events, SnapshotsElsewhere(elsewhere, events)), {"total": 3}, 7)
    assert elsewhere.saves == 0


def test_a_store_that_does_not_save_costs_no_state_and_is_left_alone_for_a_while() -> None:
    """The namespace keeps the state, one event says so, and the store is asked again after half a minute."""

    class Hands:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock: Any = Hands()
    namespace, elsewhere = Namespace(), Elsewhere()
    events: Any = namespace
    elsewhere.failure = OSError("no bucket")
    store = SavesElsewhere(events, SnapshotsElsewhere(elsewhere, events, clock=clock))
    for number in (1, 2, 3):
        save(store, {"total": number}, number)
    assert (elsewhere.saves, namespace.saved) == (1, [{"total": 1}, {"total": 2}, {"total": 3}])
    (said,) = namespace.said
    assert said.type == "snapshot.failed"
    assert said.payload["problem"].endswith("OSError: no bucket")
    assert namespace.noted == ["", "", ""]
    elsewhere.failure, clock.now = None, 31.0
    save(store, {"total": 4}, 4)
    assert (elsewhere.saves, namespace.noted[-1], len(namespace.saved)) == (2, "4|200", 3)
    elsewhere.failure = OSError("no bucket")
    save(store, {"total": 5}, 5)
    assert len(namespace.said) == 2, "the same problem is news again"


async def test_the_same_on_an_event_loop(request: pytest.FixtureRequest) -> None:
    """The loop turns while somebody's store hangs."""
    namespace, elsewhere = Namespace(), Elsewhere()
    events: Any = namespace
    behind: Any = AsyncNamespace(namespace)
    store = AsyncSavesElsewhere(behind, SnapshotsElsewhere(elsewhere, events, limit=0.05))
    await store.save_snapshot(AGENT, FENCE, {"total": 1}, version=Version(1), schema=1)
    assert namespace.noted == ["", "1|200"]
    elsewhere.failure = threading.Event()
    request.addfinalizer(elsewhere.failure.set)
    await store.save_snapshot(AGENT, FENCE, {"total": 2}, version=Version(2), schema=1)
    assert namespace.saved == [{"total": 2}]
    assert "did not return" in namespace.said[0].payload["problem"]
