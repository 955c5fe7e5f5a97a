"""Stored states: whose code may claim them, where damaged ones go, and what agents said and were told."""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
import pytest
import redis

from ares_celery.errors import (
    AgentNotFoundError,
    EventTooLargeError,
    FencedError,
    SessionNotFoundError,
    UnserialisableError,
)
from ares_celery.ids import AgentId, Version
from ares_celery.model.command import Deadline, DeadlineDue, Die, Release
from ares_celery.model.conversation import ConversationMessage
from ares_celery.model.info import agent_info
from ares_celery.model.snapshot import Snapshot, state_origin
from ares_celery.store.base import Claimed, DamagedSnapshot
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.state_calls import MOST_DAMAGED, MOST_MESSAGES, MOST_SESSIONS
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, CLAIMER, OWNER, act, record_of, run, start
from tests.key_leaks import keys_of_agent, leaked_keys

pytestmark = pytest.mark.contract

ORIGIN = state_origin(agent_type="counter", factory="shop.Counter", config={})


def keys_of(store: RedisStore) -> Keys:
    """The names of the namespace's keys."""
    return Keys(store.namespace, store.config.shards)


def claim_knowing(store: RedisStore, **schemas: int) -> Claimed:
    """A claim by a worker that knows these schemas."""
    epoch = record_of(store).epoch
    return store.claim(AGENT, epoch, token=CLAIMER, owner=OWNER, page=10, schemas=schemas)


def saved_with_schema(store: RedisStore, schema: int) -> None:
    """An agent whose newest state has a schema, released and claimable again."""
    fence = run(store)
    store.save_snapshot(AGENT, fence, {"n": 1}, version=Version(1), schema=schema, origin=ORIGIN)
    act(store, Release(fence=fence, reason="drain"))


# -- newer state ------------------------------------------------------------------------------------------------------


def test_state_of_newer_code_is_not_given_to_older_code(store: RedisStore) -> None:
    """The claim is refused in the script, nothing is charged or begun, and the agent says what it waits for."""
    saved_with_schema(store, 2)
    before = record_of(store)
    with pytest.raises(FencedError) as refused:
        claim_knowing(store, counter=1, other=7)
    assert refused.value.fields["reason"] == "schema"
    after = record_of(store)
    assert (after.incarnation, after.attempt, after.charged, after.epoch) == (
        before.incarnation,
        before.attempt,
        before.charged,
        before.epoch,
    )
    assert not after.hosted
    assert agent_info(after).waiting_on == "schema"
    claimed = claim_knowing(store, counter=2)
    assert (claimed.record.state_schema, claimed.record.refused) == (2, "")
    assert agent_info(claimed.record).waiting_on is None


@pytest.mark.parametrize("schemas", [{"counter": 3}, {"other": 1}, {}], ids=["newer", "another type", "says nothing"])
def test_state_of_older_code_and_of_another_type_may_be_claimed(store: RedisStore, schemas: dict[str, int]) -> None:
    """Only who says that it knows less is refused."""
    saved_with_schema(store, 2)
    assert claim_knowing(store, **schemas).record.hosted


def nudge_at(store: RedisStore, raw: redis.Redis) -> int:
    """When the agent's message is sent again."""
    keys = keys_of(store)
    score: Any = raw.zscore(keys.deadlines(keys.shard_of(AGENT)), f"nudge|{AGENT}")
    return int(score)


def test_a_refused_claim_is_tried_elsewhere_soon_at_first_and_rarely_later(store: RedisStore, raw: redis.Redis) -> None:
    """Within a second for the first twenty messages; then at the spacing of messages that nobody claims."""
    saved_with_schema(store, 2)
    for _ in range(3):  # so that it would be sent again in ten seconds
        act(store, DeadlineDue(kind=Deadline.NUDGE))
    assert nudge_at(store, raw) > store.server_time() + 9_000_000
    with pytest.raises(FencedError):
        claim_knowing(store, counter=1)
    assert nudge_at(store, raw) <= store.server_time() + 1_000_000
    for _ in range(20):
        act(store, DeadlineDue(kind=Deadline.NUDGE))
    with pytest.raises(FencedError):
        claim_knowing(store, counter=1)
    assert nudge_at(store, raw) > store.server_time() + 50_000_000


def test_forgotten_snapshots_may_be_rebuilt_by_any_code(store: RedisStore) -> None:
    """Whoever deletes the states lets older code replay the events."""
    saved_with_schema(store, 2)
    store.snapshots.delete(AGENT)
    assert record_of(store).state_schema == 0
    assert claim_knowing(store, counter=1).snapshot is None


def test_the_state_of_a_store_elsewhere_is_noted_by_the_holder_of_the_fence_alone(store: RedisStore) -> None:
    """Before and after it is saved there."""
    fence = run(store)
    store.note_state(AGENT, fence, origin=ORIGIN, schema=2)
    assert (record_of(store).state_schema, record_of(store).state_saved) == (2, "")
    store.note_state(AGENT, fence, origin=ORIGIN, schema=2, saved="7|1")
    store.note_state(AGENT, fence, origin=ORIGIN, schema=3)
    assert (record_of(store).state_schema, record_of(store).state_saved) == (3, "7|1")
    act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
    for late in (fence, "", "nobody"):
        with pytest.raises(FencedError):
            store.note_state(AGENT, late, origin=ORIGIN, schema=9)
    assert record_of(store).state_schema == 3


def test_a_state_that_only_the_namespace_could_take_is_newer_than_the_one_of_the_same_event_elsewhere(
    store: RedisStore,
) -> None:
    """The note that the one elsewhere is safe goes with it; a note of another event stays."""
    fence = run(store)
    epoch = fence.partition("|")[0]
    for saved, version, left in ((f"7|{epoch}", 7, ""), (f"7|{epoch}", 8, f"7|{epoch}")):
        store.note_state(AGENT, fence, origin=ORIGIN, schema=2, saved=saved)
        store.save_snapshot(AGENT, fence, {"n": 1}, version=Version(version), schema=2, origin=ORIGIN)
        assert record_of(store).state_saved == left


def test_what_an_incarnation_does_without_is_noted_by_the_holder_of_the_fence_and_goes_with_it(
    store: RedisStore,
) -> None:
    """Shown while it is hosted; a later incarnation begins whole."""
    fence = run(store)
    store.note_degraded(AGENT, fence, "no server \ud800" + "x" * 5_000)
    shown = agent_info(record_of(store)).degraded
    assert shown.startswith("no server \\ud800x")
    assert len(shown) < 4_100
    for late in ("", "nobody", f"{record_of(store).epoch + 1}|t"):
        with pytest.raises(FencedError):
            store.note_degraded(AGENT, late, "never")
    assert agent_info(record_of(store)).degraded == shown
    store.note_degraded(AGENT, fence, "")
    assert agent_info(record_of(store)).degraded == ""
    store.note_degraded(AGENT, fence, "gone")
    act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
    assert agent_info(record_of(store)).degraded == ""
    claim_knowing(store, counter=1)
    assert (record_of(store).hosted, record_of(store).degraded) == (True, "")
    with pytest.raises(FencedError):
        store.note_degraded(AGENT, fence, "late")


# -- stored form ------------------------------------------------------------------------------------------------------


def as_the_first_release_reads(blob: bytes) -> tuple[list[int], Any]:
    """What that release makes of a snapshot: its numbers and its state; an error where the checksum does not fit."""
    *numbers, checksum, data = blob.split(b"|", 5)
    assert sha256(b"|".join(numbers) + b"|" + data).hexdigest().encode() == checksum
    return [int(number) for number in numbers], msgspec.json.decode(data)


def test_a_snapshot_says_what_took_it_and_the_first_release_which_knew_of_no_origin_reads_it_whole(
    store: RedisStore, raw: redis.Redis
) -> None:
    """Workers of both releases may run side by side; neither takes the other's snapshots for damaged."""
    fence = run(store)
    store.save_snapshot(AGENT, fence, {"a|b": " |\n "}, version=Version(1), schema=2, origin=ORIGIN)
    (snapshot,) = store.stored_snapshots(AGENT)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.origin, snapshot.state) == (ORIGIN, {"a|b": " |\n "})
    client: Any = raw
    key = keys_of(store).snapshots(AGENT)
    numbers, state = as_the_first_release_reads(client.lindex(key, 0))
    assert (numbers, state) == ([1, snapshot.epoch, 2, snapshot.time], {"a|b": " |\n "})


@pytest.mark.parametrize(
    "origin", [None, b"", ORIGIN.encode()], ids=["first release", "nobody's", "before the checksum"]
)
@pytest.mark.parametrize("end", [b"", b"\n", b"  \t\n\n"])
def test_snapshots_of_older_forms_are_read_too(
    store: RedisStore, raw: redis.Redis, origin: bytes | None, end: bytes
) -> None:
    """With what they say, also when somebody has put blanks behind the state."""
    run(store)
    about = b"1|7|2|9|" + (b"" if origin is None else origin + b"|")
    data = b'{"a|b":"|"}' + end
    blob = about + sha256(about + data).hexdigest().encode() + b"|" + data
    client: Any = raw
    client.execute_command("LPUSH", keys_of(store).snapshots(AGENT), blob)
    (read,) = store.stored_snapshots(AGENT)
    assert isinstance(read, Snapshot)
    assert (read.version, read.epoch, read.schema, read.state) == (1, 7, 2, {"a|b": "|"})
    assert not origin or read.origin == ORIGIN


def test_a_damaged_head_does_not_break_the_claim(store: RedisStore, raw: redis.Redis) -> None:
    """A bar that became a digit makes a version longer than any: the claim goes well, and brings the damage along."""
    fence = run(store)
    store.save_snapshot(AGENT, fence, {"n": 1}, version=Version(1), schema=1)
    act(store, Release(fence=fence, reason="drain"))
    client: Any = raw
    key = keys_of(store).snapshots(AGENT)
    client.execute_command("LSET", key, 0, client.lindex(key, 0).replace(b"|", b"1", 2))
    claimed = claim_knowing(store)
    assert isinstance(claimed.snapshot, DamagedSnapshot)
    assert [event.version for event in claimed.events] == [1, 2]


# -- damaged snapshots ------------------------------------------------------------------------------------------------


def test_damaged_snapshots_are_set_aside_where_later_ones_do_not_push_them_out(
    store: RedisStore, raw: redis.Redis
) -> None:
    """Byte for byte, once, by the holder of the fence; only delete forgets them."""
    client: Any = raw
    key, fence = keys_of(store).snapshots(AGENT), run(store)
    for number in (1, 2, 3):
        store.save_snapshot(AGENT, fence, {"n": number}, version=Version(number), schema=1)
    client.execute_command("LSET", key, 0, b"3|rubbish")
    client.execute_command("LSET", key, 1, b"2|rubbish")
    newest, older, good = store.stored_snapshots(AGENT)
    assert isinstance(newest, DamagedSnapshot)
    assert isinstance(older, DamagedSnapshot)
    with pytest.raises(FencedError):
        store.set_aside(AGENT, "1|nobody", [newest, older])
    assert store.set_aside(AGENT, fence, [newest, older]) == 2
    assert store.set_aside(AGENT, fence, [newest, older]) == 0
    for number in range(4, 12):
        store.save_snapshot(AGENT, fence, {"n": number}, version=Version(number), schema=1)
    assert [one.raw for one in store.damaged_snapshots(AGENT)] == [b"3|rubbish", b"2|rubbish"]
    assert good not in store.stored_snapshots(AGENT)
    store.snapshots.delete(AGENT)
    assert len(store.damaged_snapshots(AGENT)) == 2


def test_copies_of_damaged_states_from_elsewhere_are_kept_once_and_bounded(store: RedisStore) -> None:
    """The same one again is no second one."""
    fence = run(store)
    for _ in range(3):
        store.set_aside(AGENT, fence, [DamagedSnapshot("x", b"theirs")], copies=True)
    assert len(store.damaged_snapshots(AGENT)) == 1
    for number in range(MOST_DAMAGED + 3):
        store.set_aside(AGENT, fence, [DamagedSnapshot("x", b"%d" % number)], copies=True)
    assert len(store.damaged_snapshots(AGENT)) == MOST_DAMAGED


# -- conversations ----------------------------------------------------------------------------------------------------


def said(number: int) -> ConversationMessage:
    """A message that is told apart by a number."""
    return ConversationMessage("user", {"n": number}, datetime(2026, 1, 1, tzinfo=UTC), turn_id=f"t{number}")


def test_a_message_comes_back_with_all_its_fields(store: RedisStore) -> None:
    """Role, content, time, turn, tool call and tool calls; a time that was not given is that of Redis."""
    start(store)
    memory, at = store.memory, datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert memory.open_session(AGENT, "s|1 é") == "s|1 é"
    full = ConversationMessage("tool", ["x", None], at, "turn", "call", ({"id": "call", "args": {}},))
    memory.add_message(AGENT, "s|1 é", full)
    memory.add_message(AGENT, "s|1 é", ConversationMessage("user", "ü"))
    first, second = memory.messages(AGENT, "s|1 é")
    assert first == full
    assert (second.role, second.content, second.turn_id, second.tool_calls) == ("user", "ü", "", ())
    assert second.time is not None
    assert second.time.year >= 2026


def test_the_latest_session_is_the_one_that_began_last(store: RedisStore) -> None:
    """To open an old one again does not make it the latest."""
    start(store)
    memory = store.memory
    assert memory.latest_session(AGENT) is None
    made = memory.open_session(AGENT)
    memory.open_session(AGENT, "second")
    memory.open_session(AGENT, made)
    assert memory.latest_session(AGENT) == "second"
    assert memory.messages(AGENT, "unknown") == []


def test_a_message_id_used_twice_is_one_message(store: RedisStore) -> None:
    """The first stays."""
    start(store)
    session = store.memory.open_session(AGENT)
    store.memory.add_message(AGENT, session, said(1), message_id="m|1")
    store.memory.add_message(AGENT, session, said(2), message_id="m|1")
    store.memory.add_message(AGENT, session, said(3))
    assert [message.content["n"] for message in store.memory.messages(AGENT, session)] == [1, 3]


def test_the_oldest_messages_and_sessions_go(store: RedisStore, raw: redis.Redis) -> None:
    """With all that was kept of them."""
    client: Any = raw
    start(store)
    store.memory.open_session(AGENT, "long")
    for number in range(MOST_MESSAGES + 2):
        store.memory.add_message(AGENT, "long", said(number), message_id=f"m{number}")
    kept = store.memory.messages(AGENT, "long")
    assert [message.content["n"] for message in kept] == list(range(2, MOST_MESSAGES + 2))
    for number in range(MOST_SESSIONS):
        store.memory.open_session(AGENT, f"s{number}")
    assert store.memory.messages(AGENT, "long") == []
    assert client.hlen(keys_of(store).memory(AGENT)) == 0
    assert client.zcard(keys_of(store).sessions(AGENT)) == MOST_SESSIONS


def test_nothing_is_remembered_of_nobody(store: RedisStore) -> None:
    """An agent that does not exist, a session that was not begun, and what is no JSON or too large."""
    memory = store.memory
    with pytest.raises(AgentNotFoundError):
        memory.open_session("nobody")
    with pytest.raises(AgentNotFoundError):
        memory.add_message("nobody", "s", said(1))
    start(store)
    with pytest.raises(SessionNotFoundError):
        memory.add_message(AGENT, "s", said(1))
    with pytest.raises(SessionNotFoundError):
        memory.open_session(AGENT, "")
    memory.open_session(AGENT, "s")
    with pytest.raises(UnserialisableError, match="session 's'"):
        memory.add_message(AGENT, "s", ConversationMessage("user", {1, 2}))
    with pytest.raises(EventTooLargeError):
        memory.add_message(AGENT, "s", ConversationMessage("user", "x" * 2_000_000))
    assert memory.messages(AGENT, "s") == []


def test_a_deleted_agent_leaves_no_state_behind(store: RedisStore, raw: redis.Redis) -> None:
    """No damaged snapshot, no session, no message; and while it lives none of these keys is a leak."""
    from ares_celery.model.command import Stop

    fence = run(store)
    store.save_snapshot(AGENT, fence, {"n": 1}, version=Version(1), schema=1)
    store.set_aside(AGENT, fence, [DamagedSnapshot("x", b"y")], copies=True)
    store.memory.add_message(AGENT, store.memory.open_session(AGENT), said(1))
    assert leaked_keys(raw, store.namespace) == []
    act(store, Stop(force=True))
    read = store.read(AgentId(AGENT))
    store.delete(AGENT, read, op="delete")
    left = [key for key in keys_of_agent(raw, store.namespace, AGENT) if raw.ttl(key) == -1]
    assert left == []
