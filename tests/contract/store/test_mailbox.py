"""Messages: put once, seen until answered, answers read by whoever waits."""

from __future__ import annotations

import threading

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    EventTooLargeError,
    FencedError,
    MailboxFullError,
    UnserialisableError,
)
from ares_celery.ids import AgentId
from ares_celery.model.command import Complete, Delete, Park, Pause, Release, Stop
from ares_celery.store.base import InboxMessage, Lease, Reply
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.mailbox_calls import REPLY_TTL
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, OWNER, act, run, run_namespace, start
from tests.contract.store.backends import Backend, LosingDriver
from tests.wait import wait_until

pytestmark = pytest.mark.contract


def test_a_message_is_answered_and_gone(store: RedisStore) -> None:
    """Sent, seen by the agent, answered; the answer can be read again and again."""
    fence = run(store)
    store.send(AGENT, {"ask": "total"}, message_id="m1", wants_reply=True)
    (message,) = store.inbox(AGENT)
    assert (message.message_id, message.body, message.wants_reply) == ("m1", {"ask": "total"}, True)
    assert message.time <= store.server_time()
    store.reply(AGENT, fence, message, Reply("m1", {"total": 3}))
    assert store.inbox(AGENT) == ()
    for _ in range(2):
        assert store.wait_reply(AGENT, "m1", timeout=0) == Reply("m1", {"total": 3})


def test_a_waiting_caller_is_woken_by_the_answer(store: RedisStore) -> None:
    """It waits on the server, not in turns."""
    fence = run(store)
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    found: list[Reply | None] = []
    caller = threading.Thread(target=lambda: found.append(store.wait_reply(AGENT, "m1", timeout=10)))
    caller.start()
    store.reply(AGENT, fence, store.inbox(AGENT)[0], Reply("m1", error={"code": "agent_failed"}))
    caller.join(5)
    assert found == [Reply("m1", None, {"code": "agent_failed"})]
    assert store.wait_reply(AGENT, "nobody-asked", timeout=0.05) is None


def test_one_message_id_is_one_message(backend: Backend, raw: redis.Redis) -> None:
    """A repeat, also after a lost answer and after the message was consumed, puts nothing."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)
    store.send(AGENT, 0, message_id="m0", wants_reply=False)
    driver.lose_next = True
    with pytest.raises(ConnectionError):
        store.send(AGENT, 1, message_id="m1", wants_reply=True)
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    assert [message.message_id for message in store.inbox(AGENT)] == ["m0", "m1"]
    store.reply(AGENT, fence, store.inbox(AGENT)[1], Reply("m1", "first"))
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    assert [message.message_id for message in store.inbox(AGENT)] == ["m0"]
    assert store.wait_reply(AGENT, "m1", timeout=0) == Reply("m1", "first")


def test_an_answer_given_twice_is_the_first(store: RedisStore) -> None:
    """The answer to the reply was lost: the repeat finds the message consumed."""
    fence = run(store)
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    (message,) = store.inbox(AGENT)
    store.reply(AGENT, fence, message, Reply("m1", "first"))
    store.reply(AGENT, fence, message, Reply("m1", "second"))
    assert store.wait_reply(AGENT, "m1", timeout=0) == Reply("m1", "first")


def test_an_agent_made_anew_gets_the_messages_of_its_own_time(store: RedisStore) -> None:
    """The message id was used with its deleted namesake: no repeat, and no old answer."""
    fence = run(store)
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    store.reply(AGENT, fence, store.inbox(AGENT)[0], Reply("m1", "old"))
    act(store, Complete(fence=fence))
    act(store, Delete())
    run(store)
    store.send(AGENT, 2, message_id="m1", wants_reply=True)
    assert [message.body for message in store.inbox(AGENT)] == [2]
    assert store.wait_reply(AGENT, "m1", timeout=0) is None


def test_the_inbox_is_read_in_pages(store: RedisStore) -> None:
    """Oldest first, after an entry, at most so many."""
    start(store)
    for number in range(5):
        store.send(AGENT, number, message_id=f"m{number}", wants_reply=False)
    first = store.inbox(AGENT, limit=2)
    assert [message.body for message in first] == [0, 1]
    assert [message.body for message in store.inbox(AGENT, after=first[-1].entry, limit=2)] == [2, 3]


def test_who_gets_messages_is_a_matter_of_state(store: RedisStore) -> None:
    """A paused one keeps them for later; nobody, stopped and parked are errors that say so."""
    with pytest.raises(AgentNotFoundError):
        store.send(AgentId("nobody"), 1, message_id="m", wants_reply=False)
    fence = run(store)
    act(store, Pause())
    act(store, Release(fence=fence))
    store.send(AGENT, 1, message_id="m1", wants_reply=False)
    assert len(store.inbox(AGENT)) == 1
    act(store, Stop())
    with pytest.raises(AgentNotRunningError) as stopped:
        store.send(AGENT, 1, message_id="m2", wants_reply=False)
    assert stopped.value.state == "stopped"
    store.send(AGENT, 1, message_id="m1", wants_reply=False)  # it was taken while the agent was paused
    other = AgentId("parked")
    act(store, Park(fence=run(store, other), cause="integrity", reason="gap at 3"), other)
    with pytest.raises(AgentParkedError) as parked:
        store.send(other, 1, message_id="m1", wants_reply=False)
    assert (parked.value.cause, parked.value.reason) == ("integrity", "gap at 3")


def test_bodies_are_plain_json_of_a_bounded_size(backend: Backend) -> None:
    """Refused before anything is sent; the same for answers."""
    store = run_namespace(backend.open(RuntimeConfig(max_event_bytes=100)))
    fence = run(store)
    with pytest.raises(UnserialisableError, match="message 'm1'"):
        store.send(AGENT, {"when": b""}, message_id="m1", wants_reply=True)
    with pytest.raises(EventTooLargeError):
        store.send(AGENT, "x" * 100, message_id="m1", wants_reply=True)
    assert store.inbox(AGENT) == ()
    store.send(AGENT, "x" * 98, message_id="m1", wants_reply=True)
    with pytest.raises(UnserialisableError, match="answer to message 'm1'"):
        store.reply(AGENT, fence, store.inbox(AGENT)[0], Reply("m1", {1, 2}))
    assert len(store.inbox(AGENT)) == 1


def test_a_full_inbox_refuses(store: RedisStore, raw: redis.Redis) -> None:
    """The sender learns the limit; what waits is kept."""
    start(store)
    with raw.pipeline(transaction=False) as pipeline:
        for number in range(1_000):
            pipeline.xadd(Keys(store.namespace, store.config.shards).inbox(AGENT), {"m": number})
        pipeline.execute()
    with pytest.raises(MailboxFullError, match="ares config set max_inbox") as full:
        store.send(AGENT, 1, message_id="m", wants_reply=False)
    assert (full.value.limit, store.config.max_inbox) == (1_000, 1_000)
    assert raw.xlen(Keys(store.namespace, store.config.shards).inbox(AGENT)) == 1_000


def test_only_the_holder_of_the_fence_answers(store: RedisStore) -> None:
    """A zombie's answer is refused, and the message stays for its successor."""
    run(store)
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    (message,) = store.inbox(AGENT)
    for fence in ("", "1|x"):
        with pytest.raises(FencedError):
            store.reply(AGENT, fence, message, Reply("m1", 1))
    assert store.inbox(AGENT) == (message,)


def test_answers_and_marks_end_by_themselves(store: RedisStore, raw: redis.Redis) -> None:
    """Ten minutes after the answer nothing of the message is left."""
    fence = run(store)
    store.send(AGENT, 1, message_id="m/1", wants_reply=True)
    store.reply(AGENT, fence, store.inbox(AGENT)[0], Reply("m/1", 1))
    keys = Keys(store.namespace, store.config.shards)
    for key in (keys.reply(AGENT, "m/1"), keys.message(AGENT, "m/1")):
        assert 0 < int(raw.ttl(key)) <= REPLY_TTL.total_seconds()


def test_the_host_is_woken_by_messages_and_requests(store: RedisStore) -> None:
    """On its channel, with the agent's id; an exception of the callback does not end it."""
    heard: list[str] = []

    def callback(agent_id: AgentId) -> None:
        heard.append(agent_id)
        if len(heard) == 1:
            raise RuntimeError("a callback that fails")

    wakeups = store.wakeups(OWNER.identity)
    wakeups.listen(callback)
    try:
        wait_until(lambda: wakeups.is_listening, "the subscription")
        run(store)
        store.send(AGENT, 1, message_id="m1", wants_reply=False)
        wait_until(lambda: heard == [AGENT], "the message's hint")
        act(store, Stop())
        wait_until(lambda: heard == [AGENT, AGENT], "the request's hint")
    finally:
        wakeups.close()
        wakeups.close()
    with pytest.raises(RuntimeError, match="closed"):
        wakeups.listen(callback)


def test_a_message_that_came_with_its_hint_is_no_news_of_the_next_renewal(store: RedisStore) -> None:
    """The hint says its number; one that did not bring its message, and a request before it, stay news."""
    brought: list[InboxMessage] = []
    hints: list[str] = []

    def mail(_fence: str, hint: InboxMessage | str) -> bool:
        brought.extend([hint] if isinstance(hint, InboxMessage) else [])
        return True

    wakeups = store.wakeups(OWNER.identity)
    wakeups.listen(hints.append, mail)
    try:
        wait_until(lambda: wakeups.is_listening, "the subscription")
        fence = run(store)
        store.send(AGENT, "hé\nllo", message_id="m\n1", wants_reply=False)
        wait_until(lambda: len(brought) == 1, "the message")
        assert (brought[0].message_id, brought[0].body, brought[0].signal) == ("m\n1", "hé\nllo", 1)
        assert store.renew([Lease(AGENT, fence, brought[0].signal)]).changes == ()
        store.send(AGENT, 2, message_id="m2", wants_reply=False)
        wait_until(lambda: hints == [AGENT], "a hint alone, as another message waits")
        assert store.renew([Lease(AGENT, fence, brought[0].signal)]).changes
        for message in store.inbox(AGENT):
            store.reply(AGENT, fence, message, Reply(message.message_id))
        act(store, Pause(reason="night"))
        store.send(AGENT, 3, message_id="m3", wants_reply=False)
        wait_until(lambda: len(brought) == 2, "the third message")
        assert brought[1].signal == 4, "the pause took a number between: whoever has seen 2 is told of it"
    finally:
        wakeups.close()
