"""Recovery: the newest good snapshot, then every event after it, and no gap papered over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from typing_extensions import override

from ares_celery.agents.upcasting import Upcasters
from ares_celery.errors import EventIntegrityError, NewerStateError, SnapshotStoreError, StateUpcastError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, AgentSpec
from ares_celery.model.command import Finding
from ares_celery.model.event import Event, NewEvent, ReadOptions
from ares_celery.model.snapshot import Snapshot, state_origin
from ares_celery.runtime.elsewhere import SnapshotsElsewhere
from ares_celery.runtime.recovery import Recovery, StateCode, recover_agent_state, recover_snapshot_or_events
from ares_celery.runtime.replay import PAGE, ReplayPolicy
from ares_celery.runtime.wrapped_state import wrap_state
from ares_celery.store.base import Claimed, DamagedSnapshot


def event(version: int, *, runtime: bool = False) -> Event:
    """One stored event; its payload is its version."""
    metadata = {"module": "runtime"} if runtime else {}
    return Event(
        f"e{version}", "a", Version(version), "t", {"v": version}, datetime(2026, 1, 1, tzinfo=UTC), 1, metadata
    )


class Source:
    """A stream in memory, as the ports give it."""

    def __init__(self, events: Sequence[Event], snapshots: Sequence[Snapshot | DamagedSnapshot] = ()) -> None:
        self.stored = list(events)
        self.kept = list(snapshots)
        self.pages = 0
        self.events = self
        self.aside: list[DamagedSnapshot] = []
        self.found: list[Finding] = []

    def said(self) -> list[tuple[str, Any]]:
        """What people are told."""
        return [(finding.kind.value, dict(finding.payload)) for finding in self.found]

    def stored_snapshots(self, agent_id: AgentId) -> list[Snapshot | DamagedSnapshot]:
        return self.kept

    def set_aside(
        self, agent_id: AgentId, fence: str, damaged: Sequence[DamagedSnapshot], *, copies: bool = False
    ) -> int:
        self.aside += damaged
        self.kept = [one for one in self.kept if one not in damaged]
        return len(damaged)

    def read(self, stream_id: str, options: ReadOptions | None = None) -> tuple[Event, ...]:
        assert options is not None
        self.pages += 1
        found = [e for e in self.stored if options.from_version <= e.version <= options.to_version]
        ordered = found if options.direction == "ascending" else found[::-1]
        return tuple(ordered[: options.limit])

    def append(self, stream_id: str, events: Sequence[NewEvent], expected_version: Any = 0) -> tuple[Event, ...]:
        raise NotImplementedError

    def read_all(self, options: ReadOptions | None = None) -> tuple[Event, ...]:
        raise NotImplementedError

    def stream_version(self, stream_id: str) -> Version:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def claimed(self, *, first_page: int = PAGE) -> Claimed:
        """What the claim brings along."""
        newest = self.kept[0] if self.kept else None
        after = newest.version if isinstance(newest, Snapshot) else 0
        rest = [e for e in self.stored if e.version > after]
        last = max((e.version for e in self.stored), default=0)
        record = AgentRecord(AgentSpec(id="a", type="t"), version=Version(last), epoch=Epoch(1))
        return Claimed(record, Instant(0), newest, tuple(rest[:first_page]), len(rest) > first_page)


class Folds:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}
        self.applied: list[int] = []

    def apply(self, event: Event) -> None:
        self.applied.append(event.version)

    def snapshot(self) -> Mapping[str, Any]:
        return self.state

    def restore_state(self, state: dict[str, Any]) -> None:
        self.state = state


def snapshot(version: int, schema: int = 1) -> Snapshot:
    """A good one."""
    return Snapshot({"at": version}, Version(version), Epoch(1), schema, Instant(0))


def recover(source: Source, agent: object, *, code: StateCode | None = None, **policy: Any) -> Any:
    """Recovers as the host does."""
    recovery = Recovery(source, source.claimed(), code or StateCode("t"), ReplayPolicy(**policy), found=source.found)
    return recover_agent_state(recovery, agent)


def test_the_snapshot_is_used_and_only_the_events_after_it_are_applied() -> None:
    """Never twice, and none missing."""
    agent = Folds()
    recover(Source([event(n) for n in range(1, 8)], [snapshot(4)]), agent)
    assert (agent.state, agent.applied) == ({"at": 4}, [5, 6, 7])


def test_a_history_of_many_pages_is_applied_whole_and_in_order() -> None:
    """Beyond the page that came with the claim, page by page."""

    class Applies:
        def __init__(self) -> None:
            self.applied: list[int] = []

        def apply(self, event: Event) -> None:
            self.applied.append(event.version)

    agent = Applies()
    source = Source([event(n) for n in range(1, 2 * PAGE + 51)])
    recover(source, agent)
    assert agent.applied == list(range(1, 2 * PAGE + 51))
    assert source.pages == 2


def test_the_runtimes_own_events_are_passed_over_unless_asked_for() -> None:
    """They share the stream and its versions, so they are no gap."""
    events = [event(1, runtime=True), event(2), event(3, runtime=True), event(4)]
    agent, curious = Folds(), Folds()
    recover(Source(events), agent)
    recover(Source(events), curious, lifecycle=True)
    assert (agent.applied, curious.applied) == ([2, 4], [1, 2, 3, 4])


@pytest.mark.parametrize("missing", [1, 3, 7])
def test_a_missing_event_is_never_papered_over(missing: int) -> None:
    """At the start, in the middle, at the end: the error has the position."""
    source = Source([event(n) for n in range(1, 8)])
    claimed_last = 7
    source.stored = [e for e in source.stored if e.version != missing]
    agent = Folds()
    record = AgentRecord(AgentSpec(id="a", type="t"), version=Version(claimed_last))
    claimed = Claimed(record, Instant(0), None, tuple(source.stored), more=False)
    with pytest.raises(EventIntegrityError) as caught:
        recover_agent_state(Recovery(source, claimed, StateCode("t")), agent)
    assert caught.value.fields["version"] == missing


def test_a_gap_is_passed_over_only_where_that_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """integrity=warn: the rest is applied, and a line says what is missing."""
    source = Source([event(n) for n in (1, 2, 5, 6)])
    agent = Folds()
    recover(source, agent, forgive=True)
    assert agent.applied == [1, 2, 5, 6]
    violations = [{"kind": "gap", "from_version": 3, "to_version": 4}]
    assert source.said() == [("integrity.violated", {"count": 1, "violations": violations})]
    assert "events 3 to 4: events are missing" in caplog.text


def test_only_the_newest_are_replayed_only_where_that_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """replay_overflow=newest: the older ones are skipped, and a line says how many."""
    agent, source = Folds(), Source([event(n) for n in range(1, 11)], [snapshot(2)])
    recover(source, agent, newest=3)
    assert agent.applied == [8, 9, 10]
    assert source.said() == [("replay.truncated", {"skipped": 5, "kept": 3, "from_version": 8})]
    short = Source([event(n) for n in range(1, 6)], [snapshot(2)])
    recover(short, agent, newest=3)
    assert short.said() == []
    assert "5 older events" in caplog.text


def test_damaged_snapshots_are_passed_over_and_counted() -> None:
    """The next older good one is used, with a longer replay; the damaged one stays where it is."""
    agent = Folds()
    kept: list[Snapshot | DamagedSnapshot] = [
        DamagedSnapshot("checksum", b"x"),
        DamagedSnapshot("checksum", b"y"),
        snapshot(2),
    ]
    source = Source([event(n) for n in range(1, 6)], kept)
    done = recover(source, agent)
    assert (agent.state, agent.applied, done.damaged) == ({"at": 2}, [3, 4, 5], 2)
    assert [one.raw for one in source.aside] == [b"x", b"y"]
    payload = {"problem": "checksum", "bytes": 1, "place": "namespace"}
    assert source.said() == [("snapshot.damaged", payload), ("snapshot.damaged", payload)]


def test_without_any_good_snapshot_all_events_are_applied() -> None:
    """Slower, and right."""
    agent = Folds()
    recover(Source([event(n) for n in range(1, 4)], [DamagedSnapshot("checksum", b"x")]), agent)
    assert (agent.state, agent.applied) == ({}, [1, 2, 3])


def test_newer_state_is_never_loaded_by_older_code() -> None:
    """It is left for a worker that can read it."""
    with pytest.raises(NewerStateError, match="schema 2") as caught:
        recover(Source([event(1)], [snapshot(1, schema=2)]), Folds())
    assert (caught.value.found, caught.value.known, caught.value.type) == (2, 1, "t")


def test_replay_events_gets_everything_at_once() -> None:
    """The seed's form: one call, in order."""

    class Replays:
        def __init__(self) -> None:
            self.calls: list[list[int]] = []

        def replay_events(self, events: Sequence[Event]) -> None:
            self.calls.append([e.version for e in events])

    agent = Replays()
    recover(Source([event(n) for n in range(1, 4)]), agent)
    assert agent.calls == [[1, 2, 3]]


@pytest.mark.spec(86)
def test_an_agent_without_state_is_left_as_it_is() -> None:
    """Nothing is read for it."""
    source = Source([event(1)])
    assert recover(source, object()).replayed == 0
    assert source.pages == 0


@pytest.mark.spec(93)
def test_the_seeds_helper_prefers_a_non_empty_snapshot() -> None:
    """Then it does not ask for the events at all."""

    class Store:
        def __init__(self, state: Any) -> None:
            self.state = state

        def load(self, agent_id: str) -> Any:
            if isinstance(self.state, Exception):
                raise self.state
            return self.state

    def never() -> dict[str, Any]:
        raise AssertionError("events were asked for")

    assert recover_snapshot_or_events(Store({"x": 1}), "a", never) == {"x": 1}
    nothings: tuple[Any, ...] = (None, {}, OSError("away"))
    for empty in nothings:
        assert recover_snapshot_or_events(Store(empty), "a", lambda: {"from": "events"}) == {"from": "events"}


class Remembers:
    """Has state and folds nothing."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None

    def snapshot(self) -> Mapping[str, Any]:
        return self.state or {}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.state = state


def test_an_agent_whose_only_state_is_damaged_never_begins_from_nothing() -> None:
    """An error, and the last trace of its state stays where it is."""
    source, agent = Source([event(1)], [DamagedSnapshot("checksum", b"x")]), Remembers()
    with pytest.raises(EventIntegrityError, match="all 1 snapshots are damaged"):
        recover(source, agent)
    assert (agent.state, source.aside) == (None, [])
    assert [kind for kind, _ in source.said()] == ["snapshot.damaged"]


class Damaged(Source):
    """One event's bytes are no event any more."""

    @override
    def read(self, stream_id: str, options: ReadOptions | None = None) -> tuple[Event, ...]:
        found = super().read(stream_id, options)
        bad = next((e.version for e in found if e.payload.get("bad")), None)
        if bad is not None:
            raise EventIntegrityError(agent_id="a", version=bad, problem="no JSON")
        return found


def test_what_stands_before_a_damaged_event_is_applied_and_nothing_after_it() -> None:
    """Unless integrity=warn was chosen: then all but the damaged one, and an event that says which."""
    events = [event(n) for n in range(1, 6)]
    events[2] = replace(events[2], payload={"bad": True})

    def claimed_before_the_damage(source: Source) -> Claimed:
        return replace(source.claimed(), events=tuple(events[:2]), more=True)

    source, agent = Damaged(events), Folds()
    with pytest.raises(EventIntegrityError) as caught:
        recover_agent_state(Recovery(source, claimed_before_the_damage(source), StateCode("t")), agent)
    assert (caught.value.version, caught.value.problem, agent.applied) == (3, "no JSON", [1, 2])

    source, agent = Damaged(events, [snapshot(1)]), Folds()
    recovery = Recovery(
        source, replace(source.claimed(), events=()), StateCode("t"), ReplayPolicy(forgive=True), found=source.found
    )
    recover_agent_state(recovery, agent)
    assert agent.applied == [2, 4, 5]
    violations = [{"kind": "damaged", "from_version": 3, "to_version": 3}]
    assert source.said() == [("integrity.violated", {"count": 1, "violations": violations})]


def accepted(source: Source, version: int, *, anew: bool = False) -> Claimed:
    """A claim of an agent whose losses up to this version were accepted."""
    claimed = source.claimed()
    return replace(
        claimed, record=replace(claimed.record, accepted_version=Version(version), begin_anew=anew), events=()
    )


def test_what_was_accepted_as_lost_is_passed_over_and_said() -> None:
    """A gap and a damaged event, both at versions that were accepted; the rest is applied."""
    events = [event(n) for n in (1, 4, 5, 6)]
    events[2] = replace(events[2], payload={"bad": True})
    source, agent = Damaged(events), Folds()
    recover_agent_state(Recovery(source, accepted(source, 5), StateCode("t"), found=source.found), agent)
    assert agent.applied == [1, 4, 6]
    violations = [
        {"kind": "gap", "from_version": 2, "to_version": 3},
        {"kind": "damaged", "from_version": 5, "to_version": 5},
    ]
    assert source.said() == [("integrity.violated", {"count": 2, "violations": violations})]


@pytest.mark.parametrize(("version", "found_at"), [(0, 3), (2, 3), (3, 4), (4, 5)])
def test_what_is_lost_beyond_what_was_accepted_is_not_passed_over(version: int, found_at: int) -> None:
    """Also where a gap begins before it: the position is the first that nobody has accepted."""
    source, agent = Source([event(n) for n in (1, 2, 6, 7)]), Folds()
    with pytest.raises(EventIntegrityError) as caught:
        recover_agent_state(Recovery(source, accepted(source, version), StateCode("t")), agent)
    assert (caught.value.version, agent.applied) == (found_at, [1, 2])
    recover_agent_state(Recovery(source, accepted(source, 5), StateCode("t")), agent := Folds())
    assert agent.applied == [1, 2, 6, 7]


def test_an_agent_whose_only_state_was_given_up_begins_from_nothing_and_that_is_said() -> None:
    """The damaged bytes are kept aside; after an incarnation has run, damaged snapshots are news."""
    source, agent = Source([event(1)], [DamagedSnapshot("checksum", b"x")]), Remembers()
    recovery = Recovery(source, accepted(source, 1, anew=True), StateCode("t"), found=source.found)
    done = recover_agent_state(recovery, agent)
    assert (agent.state, done.damaged, [one.raw for one in source.aside]) == (None, 1, [b"x"])
    lost = [{"kind": "state", "from_version": 1, "to_version": 1}]
    assert [kind for kind, _ in source.said()] == ["snapshot.damaged", "integrity.violated"]
    assert source.said()[1][1] == {"count": 1, "violations": lost}

    source.kept.append(DamagedSnapshot("checksum", b"y"))
    with pytest.raises(EventIntegrityError, match="all 1 snapshots are damaged"):
        recover_agent_state(Recovery(source, accepted(source, 1), StateCode("t")), agent)
    assert source.kept == [DamagedSnapshot("checksum", b"y")]


def test_a_good_snapshot_is_never_given_up() -> None:
    """One that was put there meanwhile is used, and nothing is said to be lost."""
    source, agent = Source([event(1)], [DamagedSnapshot("checksum", b"x"), snapshot(1)]), Remembers()
    recovery = Recovery(source, accepted(source, 1, anew=True), StateCode("t"), found=source.found)
    recover_agent_state(recovery, agent)
    assert (agent.state, [kind for kind, _ in source.said()]) == ({"at": 1}, ["snapshot.damaged"])


def test_a_state_that_is_safe_elsewhere_is_not_given_up_with_what_is_damaged_here() -> None:
    """It may still be given: its store has to be asked, or the state be deleted on purpose."""
    source = Source([event(1)], [DamagedSnapshot("checksum", b"x")])
    claimed = accepted(source, 1, anew=True)
    claimed = replace(claimed, record=replace(claimed.record, state_saved="1|1"))
    with pytest.raises(SnapshotStoreError, match="delete the agent's snapshots"):
        recover_agent_state(Recovery(source, claimed, StateCode("t")), Remembers())


def test_many_violations_are_one_event_that_names_the_first() -> None:
    """A history full of holes must not flood the stream."""
    source, agent = Source([event(n) for n in range(1, 100, 2)]), Folds()
    recover(source, agent, forgive=True)
    ((_, payload),) = source.said()
    assert (payload["count"], len(payload["violations"])) == (49, 20)


def origin(config: Mapping[str, Any], *, factory: str = "shop.T", agent_type: str = "t") -> str:
    """What takes a snapshot."""
    return state_origin(agent_type=agent_type, factory=factory, config=config)


@pytest.mark.parametrize(
    ("before", "changed"),
    [
        (origin({"step": 1}), ["config"]),
        (origin({"step": 2}, factory="other.T"), ["factory"]),
        (origin({"step": 2}), []),
        ("", []),
    ],
    ids=["config", "factory", "nothing", "not known"],
)
def test_a_snapshot_that_other_code_or_another_config_has_taken_is_used_and_that_is_said(
    before: str, changed: list[str]
) -> None:
    """The rule for what changed between two incarnations: the state goes on, never silently."""
    taken, agent = replace(snapshot(2), origin=before), Folds()
    source = Source([event(1), event(2)], [taken])
    recover(source, agent, code=StateCode("t", origin=origin({"step": 2})))
    assert agent.state == {"at": 2}
    expected = [("agent.config_changed", {"changed": changed, "snapshot_version": 2})] if changed else []
    assert source.said() == expected


def test_an_old_state_is_upcast_and_that_is_said() -> None:
    """Through every step, with both schemas named."""
    upcasters, agent = Upcasters(), Folds()
    upcasters.add("t", 1, lambda state: {"one": state["at"]})
    upcasters.add("t", 2, lambda state: {"two": state["one"]})
    source = Source([event(1), event(2), event(3)], [snapshot(2)])
    recover(source, agent, code=StateCode("t", 3, upcasters=upcasters))
    assert (agent.state, agent.applied) == ({"two": 2}, [3])
    payload = {"changed": ["schema"], "snapshot_version": 2, "from_schema": 1, "to_schema": 3}
    assert source.said() == [("agent.config_changed", payload)]


def test_an_old_state_without_upcaster_is_not_loaded() -> None:
    """As if it were of this schema, which it is not."""
    agent = Folds()
    with pytest.raises(StateUpcastError, match="from_version=1"):
        recover(Source([event(1), event(2)], [snapshot(2)]), agent, code=StateCode("t", 2))
    assert agent.state == {}


def test_a_state_from_outside_and_one_of_another_type_know_no_schema() -> None:
    """Whoever saved or moved it means it for this code."""
    foreign, other = Folds(), Folds()
    recover(Source([event(1), event(2)], [snapshot(2, schema=0)]), foreign, code=StateCode("t", 2))
    moved = replace(snapshot(2, schema=7), origin=origin({}, agent_type="u"))
    source = Source([event(1), event(2)], [moved])
    recover(source, other, code=StateCode("t", 2, origin=origin({})))
    assert (foreign.state, other.state) == ({"at": 2}, {"at": 2})
    assert source.said()[0][1]["changed"] == ["type"]


# -- state that is nowhere but in snapshots ---------------------------------------------------------------------------


class Keeps:
    """Its only state is its snapshots."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {}

    def snapshot(self) -> Mapping[str, Any]:
        return self.state

    def restore_state(self, state: dict[str, Any]) -> None:
        self.state = state


class Bucket:
    """A snapshot store of the user's own, which may be away."""

    def __init__(self, version: int = 0) -> None:
        about = Snapshot({}, Version(version), Epoch(1), 1, Instant(0))
        self.kept = wrap_state("a", {"in": "bucket"}, about) if version else None

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None: ...

    def load(self, agent_id: str) -> Mapping[str, Any] | None:
        if self.kept is None:
            raise OSError("away")
        return self.kept

    def delete(self, agent_id: str) -> None: ...


def keep(source: Source, saved: str, bucket: Bucket | None) -> Keeps:
    """Recovers an agent that folds no events."""
    claimed, agent, events = source.claimed(), Keeps(), Source([])
    claimed = replace(claimed, record=replace(claimed.record, state_saved=saved))
    anything: Any = events
    elsewhere = SnapshotsElsewhere(bucket, anything) if bucket is not None else None
    recovery = Recovery(source, claimed, StateCode("t"), elsewhere=elsewhere, found=source.found)
    recover_agent_state(recovery, agent)
    return agent


@pytest.mark.parametrize("saved", ["7|1", "5|1"], ids=["of a later event", "of the same event, later"])
@pytest.mark.parametrize("bucket", [Bucket(), None], ids=["away", "not known here"])
def test_an_agent_never_goes_on_from_less_than_is_known_to_be_safe_elsewhere(saved: str, bucket: Bucket | None) -> None:
    """The namespace has a state from a day when the bucket was away; it is older, and nothing tells the rest."""
    source = Source([event(n) for n in range(1, 9)], [snapshot(5)])
    with pytest.raises(SnapshotStoreError, match="delete the agent's snapshots"):
        keep(source, saved, bucket)
    with pytest.raises(SnapshotStoreError):
        keep(Source([event(1)]), saved, bucket)


def test_what_the_namespace_has_later_is_gone_on_from() -> None:
    """Of a later event, or saved from outside; an agent that folds its events needs neither."""
    source = Source([event(n) for n in range(1, 9)], [snapshot(5)])
    assert keep(source, "4|1", Bucket()).state == {"at": 5}
    assert keep(source, "4|1", Bucket(4)).state == {"at": 5}
    outside = Source([event(n) for n in range(1, 9)], [replace(snapshot(7), epoch=Epoch(0))])
    assert keep(outside, "7|1", Bucket()).state == {"at": 7}
    folds = Folds()
    recover(source, folds)
    assert folds.applied == [6, 7, 8]


def test_of_two_states_of_one_event_the_one_that_was_saved_later_counts() -> None:
    """Without a note that the one elsewhere is safe, it is that of the namespace, which was saved when it failed."""
    source = Source([event(n) for n in range(1, 9)], [snapshot(5)])
    assert keep(source, "5|1", Bucket(5)).state == {"in": "bucket"}
    assert keep(source, "", Bucket(5)).state == {"at": 5}
    assert keep(source, "", Bucket(6)).state == {"in": "bucket"}
