"""Chunks of streamed answers: numbered by the store, bounded, and only while somebody reads; dead letters."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
import redis

from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    FencedError,
    MessageIdReusedError,
    MessageNotFoundError,
    StreamGapError,
)
from ares_celery.ids import AgentId
from ares_celery.model.command import Complete, Delete, Die, Pause, Release, Stop
from ares_celery.model.message import Chunk, DeadReason, MessageKind
from ares_celery.model.restart import DeathCause
from ares_celery.store.base import InboxMessage, Reply
from ares_celery.store.redis import chunk_calls, letter_calls, mailbox
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run, run_namespace, start, take
from tests.contract.store.backends import Backend
from tests.key_leaks import leaked_keys

pytestmark = pytest.mark.contract


def streaming(store: RedisStore, *, detached: bool = False) -> tuple[str, InboxMessage]:
    """An agent that has a stream to answer: its fence, and the message."""
    fence = run(store)
    store.send(AGENT, 1, message_id="m", wants_reply=True, stream=True, detached=detached)
    (message,) = store.take(AGENT, fence)
    return fence, message


def pieces(*numbers: int) -> list[bytes]:
    """Encoded values."""
    return [str(number).encode() for number in numbers]


def read(store: RedisStore, after: int = 0) -> list[tuple[int, Any, bool]]:
    """What a reader gets now."""
    return [
        (chunk.seq, chunk.data, chunk.final) for chunk in store.read_chunks(AGENT, "m", after=after, timeout=0) or ()
    ]


def test_chunks_are_read_behind_a_seq_and_end_with_the_result(store: RedisStore) -> None:
    """From 1 without gaps; the end is one chunk more, written with the answer and the message's end."""
    fence, message = streaming(store)
    assert (message.kind, message.wants_reply) == (MessageKind.STREAM, True)
    assert store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(10, 20)) == 2
    assert read(store) == [(1, 10, False), (2, 20, False)]
    assert read(store, 2) == []
    store.reply(AGENT, fence, message, Reply("m", {"sum": 30}), chunks=2)
    assert read(store, 1) == [(2, 20, False), (3, {"sum": 30}, True)]
    assert read(store, 3) == []
    assert store.inbox(AGENT) == ()
    assert store.wait_reply(AGENT, "m", timeout=0) == Reply("m", {"sum": 30})
    assert store.read_chunks(AGENT, "m", after=3, timeout=5) == ()


def test_a_late_write_adds_nothing_behind_the_end(store: RedisStore) -> None:
    """Its writer was cut off before the answer was stored, and the call was under way."""
    fence, message = streaming(store, detached=True)
    store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(1))
    store.reply(AGENT, fence, message, Reply("m", "end"), chunks=1)
    assert store.write_chunks(AGENT, fence, message, first=2, pieces=pieces(2, 3, 4)) is None
    assert read(store) == [(1, 1, False), (2, "end", True)]


def test_no_chunks_in_time_are_told_from_a_stream_that_is_unknown(store: RedisStore) -> None:
    """Whoever asks again and again for what was never asked would wait for ever."""
    streaming(store)
    assert store.read_chunks(AGENT, "m", after=0, timeout=0) is None
    with pytest.raises(
        MessageNotFoundError, match=r"'nobody-asked' to agent 'counter-1' is known.* process_stream\(\)"
    ) as one:
        store.read_chunks(AGENT, "nobody-asked", after=0, timeout=5)
    assert (one.value.agent_id, one.value.message_id) == (AGENT, "nobody-asked")
    store.send(AGENT, 1, message_id="answered", wants_reply=True)
    with pytest.raises(MessageNotFoundError):
        store.read_chunks(AGENT, "answered", after=0, timeout=5)


def test_what_is_stored_already_is_dropped_by_its_seq(store: RedisStore) -> None:
    """The next incarnation begins from the top: its reader sees the next seq, once."""
    fence, message = streaming(store)
    store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(1, 2, 3))
    act(store, Die(epoch=record_of(store).epoch, reason="killed", cause=DeathCause.LOST, proof=True))
    with pytest.raises(FencedError):
        store.write_chunks(AGENT, fence, message, first=4, pieces=pieces(4))
    with pytest.raises(FencedError):
        store.take(AGENT, fence)
    heir = take(store, record_of(store).epoch, claimer="t2").record.fence
    (again,) = store.take(AGENT, heir)
    assert (again.message_id, again.began) == ("m", 1)
    assert store.write_chunks(AGENT, heir, again, first=0, pieces=[]) == 3
    assert store.write_chunks(AGENT, heir, again, first=1, pieces=pieces(91, 92)) == 3
    assert store.write_chunks(AGENT, heir, again, first=3, pieces=pieces(93, 4)) == 4
    assert [data for _, data, _ in read(store)] == [1, 2, 3, 4]
    # It gives fewer chunks than its forerunner: the end still comes behind all that was read.
    store.reply(AGENT, heir, again, Reply("m", "end"), chunks=2)
    assert read(store, 4) == [(5, "end", True)]


def test_a_waiting_reader_is_woken_by_the_next_chunk(store: RedisStore) -> None:
    """It waits on the server."""
    fence, message = streaming(store)
    found: list[Chunk] = []
    reader = threading.Thread(target=lambda: found.extend(store.read_chunks(AGENT, "m", after=0, timeout=10) or ()))
    reader.start()
    store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(7))
    reader.join(5)
    assert found == [Chunk(1, 7, final=False)]


def test_a_reader_that_falls_behind_is_told_what_is_gone(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, raw: redis.Redis
) -> None:
    """By number and by bytes the oldest make room; the gap is named, and reading goes on behind it."""
    monkeypatch.setattr(chunk_calls, "MOST_CHUNKS", 3)
    fence, message = streaming(store)
    store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(1, 2, 3, 4, 5))
    with pytest.raises(StreamGapError) as gap:
        read(store)
    assert (gap.value.first, gap.value.last, gap.value.count) == (1, 2, 2)
    assert [seq for seq, _, _ in read(store, 2)] == [3, 4, 5]
    monkeypatch.setattr(chunk_calls, "MOST_BYTES", 2)
    store.write_chunks(AGENT, fence, message, first=6, pieces=pieces(6))
    assert [seq for seq, _, _ in read(store, 4)] == [5, 6]
    with pytest.raises(StreamGapError):
        read(store, 3)
    store.write_chunks(AGENT, fence, message, first=7, pieces=[b'"much more than two"'])
    assert [seq for seq, _, _ in read(store, 6)] == [7]
    raw.delete(Keys(store.namespace, store.config.shards).chunks(AGENT, "m"))
    with pytest.raises(StreamGapError) as gone:
        read(store, 4)
    assert (gone.value.first, gone.value.last) == (5, 7)


def test_a_stream_whose_caller_left_takes_no_more(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, raw: redis.Redis
) -> None:
    """Told by cancel, or by nobody reading for the lease; a detached one goes on in both cases."""
    fence, message = streaming(store)
    store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(1))
    store.cancel(AGENT, "m")
    store.cancel(AGENT, "m")
    assert store.write_chunks(AGENT, fence, message, first=2, pieces=pieces(2)) is None
    assert [seq for seq, _, _ in read(store)] == [1]
    store.send(AGENT, 1, message_id="n", wants_reply=True, stream=True)
    left = store.inbox(AGENT)[1]
    monkeypatch.setattr(chunk_calls, "CALLER_LEASE", -chunk_calls.CALLER_LEASE)
    assert store.write_chunks(AGENT, fence, left, first=1, pieces=pieces(1)) is None
    store.send(AGENT, 1, message_id="d", wants_reply=True, stream=True, detached=True)
    detached = store.inbox(AGENT)[2]
    store.cancel(AGENT, "d")
    assert store.write_chunks(AGENT, fence, detached, first=1, pieces=pieces(1)) == 1
    key = Keys(store.namespace, store.config.shards).message(AGENT, "d")
    assert raw.hget(key, "left") is None
    act(store, Complete(fence=fence))
    act(store, Delete())
    run(store)
    raw.hset(key, "detached", "0")
    store.cancel(AGENT, "d")
    assert raw.hget(key, "left") is None, "it was its deleted namesake's"


def test_who_reads_is_there(store: RedisStore, raw: redis.Redis) -> None:
    """Each read moves the moment from which a caller counts as gone."""
    streaming(store)
    key = Keys(store.namespace, store.config.shards).message(AGENT, "m")
    raw.hset(key, "seen", "1000000")
    read(store)
    seen = cast("bytes", raw.hget(key, "seen"))
    assert int(seen) > store.server_time() - 5_000_000


def test_the_time_in_which_nobody_reached_the_server_is_no_absence_of_the_caller(
    store: RedisStore, raw: redis.Redis
) -> None:
    """What counts is how long the host looked in vain: a minute of outage is four seconds of that."""
    fence, message = streaming(store)
    key = Keys(store.namespace, store.config.shards).message(AGENT, "m")

    def look(seconds_later: int) -> int | None:
        for field in ("seen", "looked"):
            found = cast("bytes | None", raw.hget(key, field))
            if found is not None:
                raw.hset(key, field, int(found) - seconds_later * 1_000_000)
        return store.write_chunks(AGENT, fence, message, first=1, pieces=[])

    assert look(0) == 0
    assert look(60) == 0, "the server was away"
    assert look(3) == 0
    read(store)
    assert look(3) == 0, "the caller was seen"
    assert look(60) == 0
    assert look(2) == 0
    assert look(2) is None, "for eleven seconds nobody has read"
    assert look(0) is None


def test_a_caller_that_was_missed_before_the_handling_began_has_left(store: RedisStore, raw: redis.Redis) -> None:
    """Nobody looked for it meanwhile; its stream is not begun."""
    fence, message = streaming(store)
    key = Keys(store.namespace, store.config.shards).message(AGENT, "m")
    raw.hset(key, "seen", store.server_time() - 11_000_000)
    assert store.write_chunks(AGENT, fence, message, first=1, pieces=[]) is None


def test_readers_learn_that_the_agent_rests(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, also while they wait; what is stored is read first."""
    # So that no look of their own comes before the mark.
    monkeypatch.setattr(mailbox, "BLOCK_MS", 4_000)
    fence, message = streaming(store)
    store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(1))
    raised: list[Exception] = []

    def wait() -> None:
        try:
            store.read_chunks(AGENT, "m", after=1, timeout=10)
        except AgentNotRunningError as error:
            raised.append(error)

    reader = threading.Thread(target=wait)
    reader.start()
    act(store, Complete(fence=fence))
    reader.join(3)
    assert [error.state for error in raised] == ["completed"]  # type: ignore[attr-defined]
    assert [seq for seq, _, _ in read(store)] == [1]


def test_a_message_begins_once_an_incarnation(store: RedisStore) -> None:
    """Its own reads and answers count nothing twice; what is given back was not begun."""
    fence = run(store)
    for name in ("a", "b", "c"):
        store.send(AGENT, name, message_id=name, wants_reply=False)
    first = store.take(AGENT, fence)
    store.take(AGENT, fence)
    store.reply(AGENT, fence, first[0], Reply("a"), then=first[1].entry)
    store.give_back(AGENT, fence, [first[1].entry])
    store.reply(AGENT, fence, first[1], Reply("b"), then=first[2].entry)
    store.send(AGENT, "d", message_id="d", wants_reply=False)
    act(store, Die(epoch=record_of(store).epoch, reason="killed", cause=DeathCause.LOST, proof=True))
    heir = take(store, record_of(store).epoch, claimer="t2").record.fence
    assert [(message.body, message.began) for message in store.take(AGENT, heir, begin=2)] == [("c", 1), ("d", 0)]
    assert [(message.body, message.began) for message in store.take(AGENT, heir)] == [("c", 1), ("d", 0)]


def test_what_is_given_back_was_not_begun(store: RedisStore) -> None:
    """By the incarnation that began it, and by no other."""
    fence = run(store)
    for name in ("a", "b", "c"):
        store.send(AGENT, name, message_id=name, wants_reply=False)
    first, second, third = store.take(AGENT, fence, begin=3)
    store.give_back(AGENT, fence, [third.entry])
    store.reply(AGENT, fence, first, Reply("a"), then=second.entry)
    act(store, Die(epoch=record_of(store).epoch, reason="killed", cause=DeathCause.LOST, proof=True))
    with pytest.raises(FencedError):
        store.give_back(AGENT, fence, [second.entry])
    heir = take(store, record_of(store).epoch, claimer="t2").record.fence
    store.give_back(AGENT, heir, [second.entry, third.entry])
    assert [(message.body, message.began) for message in store.take(AGENT, heir)] == [("b", 1), ("c", 0)]


def test_who_waits_for_a_paused_agent_learns_that_it_is_gone(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once."""
    monkeypatch.setattr(mailbox, "BLOCK_MS", 4_000)
    fence = run(store)
    store.send(AGENT, 1, message_id="m", wants_reply=True)
    act(store, Pause())
    act(store, Release(fence=fence))
    raised: list[Exception] = []

    def wait() -> None:
        try:
            store.wait_reply(AGENT, "m", timeout=10)
        except AgentNotFoundError as error:
            raised.append(error)

    caller = threading.Thread(target=wait)
    caller.start()
    act(store, Delete())
    caller.join(3)
    assert len(raised) == 1


def test_a_message_that_is_given_up_on_is_kept_with_its_reason(store: RedisStore, raw: redis.Redis) -> None:
    """Once; whoever waits gets the error; the agent's stream and the counters say so; it ends by itself."""
    fence, message = streaming(store)
    store.write_chunks(AGENT, fence, message, first=1, pieces=pieces(1))
    reply = Reply("m", error={"code": "message_poisoned", "message": "it died"})
    assert store.bury(AGENT, fence, message, DeadReason.POISON, reply)
    assert not store.bury(AGENT, fence, message, DeadReason.POISON, reply)
    with pytest.raises(FencedError):
        store.bury(AGENT, "1|x", message, DeadReason.POISON, reply)
    (letter,) = store.dead_letters(limit=10)
    assert (letter.agent_id, letter.message_id, letter.body) == (AGENT, "m", 1)
    assert (letter.reason, letter.kind, letter.problem) == (DeadReason.POISON, MessageKind.STREAM, "it died")
    assert store.inbox(AGENT) == ()
    assert store.wait_reply(AGENT, "m", timeout=0) == reply
    assert [seq for seq, _, _ in read(store)] == [1]
    with pytest.raises(Exception, match="it died"):
        read(store, 1)
    assert store.counters()["dead_letters_poison"] == 1
    event = store.events.read(AGENT)[-1]
    assert (event.type, event.payload["reason"]) == ("message.dead_lettered", "poison")
    assert event.version == record_of(store).version
    assert store.dead_letters(AGENT, limit=1) == [letter]
    assert store.dead_letters(AgentId("other"), limit=1) == []
    assert leaked_keys(raw, store.namespace) == []
    store.settle_letters([letter])
    store.settle_letters([letter])
    assert store.dead_letters(limit=10) == []


def test_letters_are_bounded_in_number_and_age(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, raw: redis.Redis
) -> None:
    """The oldest make room; those of a deleted agent are kept with theirs."""
    monkeypatch.setattr(letter_calls, "LETTERS_KEPT", 2)
    keys = Keys(store.namespace, store.config.shards)
    fields: dict[Any, Any] = {
        "a": AGENT, "m": "old", "k": "send", "r": "failed", "p": "", "b": "1", "s": "1", "t": "1",
    }  # fmt: skip
    raw.xadd(keys.dead(keys.shard_of(AGENT)), fields, id="1-0")
    assert [letter.message_id for letter in store.dead_letters(limit=5)] == ["old"]
    fence = run(store)
    for number in range(4):
        store.send(AGENT, number, message_id=f"m{number}", wants_reply=number == 0)
    act(store, Pause())
    act(store, Release(fence=fence))
    act(store, Delete())
    assert [(letter.body, letter.reason.value) for letter in store.dead_letters(limit=5)] == [
        (3, "deleted"),
        (2, "deleted"),
    ]
    assert store.counters()["dead_letters_deleted"] == 4


def test_a_message_of_an_older_version_is_read_and_its_id_recognised(store: RedisStore, raw: redis.Redis) -> None:
    """Its mark was a string, its entry without a kind."""
    fence = run(store)
    keys = Keys(store.namespace, store.config.shards)
    created = cast("bytes", raw.hget(keys.agent(AGENT), "created_at"))
    raw.xadd(keys.inbox(AGENT), {"m": "old", "b": "1", "r": "1", "t": "1790000000000000"})
    raw.set(keys.message(AGENT, "old"), created, ex=600)
    store.send(AGENT, 1, message_id="old", wants_reply=True)
    store.cancel(AGENT, "old")
    with pytest.raises(MessageNotFoundError):
        store.read_chunks(AGENT, "old", after=0, timeout=0)
    (message,) = store.take(AGENT, fence)
    assert (message.kind, message.message_id) == (MessageKind.PROCESS, "old")
    store.reply(AGENT, fence, message, Reply("old", 2))
    assert store.wait_reply(AGENT, "old", timeout=0) == Reply("old", 2)


def test_a_stream_that_a_worker_of_an_older_version_answered_ends_with_that_answer(
    store: RedisStore, raw: redis.Redis
) -> None:
    """It knows of no chunks: it consumes the message and stores the answer alone. The reader waits for no more."""
    _, message = streaming(store)
    keys = Keys(store.namespace, store.config.shards)
    assert store.read_chunks(AGENT, "m", after=0, timeout=0) is None
    raw.xdel(keys.inbox(AGENT), message.entry)
    raw.xadd(keys.reply(AGENT, "m"), {"v": b'{"value":7,"error":null}'})
    assert read(store) == [(1, 7, True)]
    assert read(store) == [(1, 7, True)]
    assert store.read_chunks(AGENT, "m", after=1, timeout=5) == ()
    assert 0 < raw.ttl(keys.chunks(AGENT, "m")) <= 600


def test_an_id_is_refused_for_another_body_or_kind(store: RedisStore) -> None:
    """Equal values are the same body, whatever the order of their keys."""
    start(store)
    store.send(AGENT, {"a": 1, "b": [2]}, message_id="m", wants_reply=True)
    store.send(AGENT, {"b": [2], "a": 1}, message_id="m", wants_reply=True)
    for body, options in (({"a": 1}, {}), ({"a": 1, "b": [2]}, {"stream": True})):
        with pytest.raises(MessageIdReusedError):
            store.send(AGENT, body, message_id="m", wants_reply=True, **options)
    with pytest.raises(MessageIdReusedError):
        store.send(AGENT, {"a": 1, "b": [2]}, message_id="m", wants_reply=False)
    assert len(store.inbox(AGENT)) == 1
    act(store, Stop())
    store.send(AGENT, {"a": 1, "b": [2]}, message_id="m", wants_reply=True)


def test_one_process_takes_letters_to_their_handlers(backend: Backend) -> None:
    """Until its time runs out."""
    store = run_namespace(backend.open())
    assert store.elect_postman("a", ttl_ms=60_000)
    assert not store.elect_postman("b", ttl_ms=60_000)
    assert store.elect_postman("a", ttl_ms=60_000)
