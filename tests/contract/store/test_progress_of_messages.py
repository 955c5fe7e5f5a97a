"""A message that records something is begun anew: earlier deaths no longer count."""

from __future__ import annotations

import pytest
import redis

from ares_celery.errors import FencedError
from ares_celery.model.command import Die, MarkRunning
from ares_celery.model.step import StepRecord
from ares_celery.store.base import InboxMessage, Reply
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run, take

pytestmark = pytest.mark.contract


def began(store: RedisStore, fence: str) -> InboxMessage:
    """The message, as an incarnation begins it."""
    (message,) = store.take(AGENT, fence, after="", begin=1)
    return message


def record(store: RedisStore, fence: str, name: str, *, begun: str = "") -> None:
    """A step of it."""
    store.open_steps(AGENT, "msg:m1", fence=fence, op=f"o-{name}")
    store.record_step(AGENT, fence, "msg:m1", StepRecord(name, "f", "safe", value=1), op=name, begun=begun)


def next_life(store: RedisStore, number: int) -> str:
    """The incarnation dies with its process, and the next one runs; gives its fence."""
    act(store, Die("process lost", epoch=record_of(store).epoch, proof=True))
    fence = take(store, record_of(store).epoch, claimer=f"t{number}").record.fence
    act(store, MarkRunning(fence=fence))
    return fence


def test_a_new_record_is_the_first_beginning_of_its_message(store: RedisStore) -> None:
    """A repeat of what an earlier life has recorded is not; nor is a record that names no message."""
    fence = run(store)
    store.send(AGENT, None, message_id="m1", wants_reply=True)
    assert began(store, fence).began == 0
    record(store, fence, "s1")
    for life in (2, 3):
        fence = next_life(store, life)
        message = began(store, fence)
        assert message.began == life - 1
        record(store, fence, "s1", begun=message.entry)
    record(store, fence, "s2")
    fence = next_life(store, 4)
    message = began(store, fence)
    assert message.began == 3
    record(store, fence, "s3", begun=message.entry)
    assert began(store, fence).began == 0
    fence = next_life(store, 5)
    assert began(store, fence).began == 1
    store.give_back(AGENT, fence, [message.entry])
    fence = next_life(store, 6)
    assert began(store, fence).began == 1


def test_a_message_that_is_answered_is_not_counted_again(store: RedisStore, raw: redis.Redis) -> None:
    """A task that its handling has left behind may still record; what is over records nothing."""
    fence = run(store)
    store.send(AGENT, None, message_id="m1", wants_reply=True)
    message = began(store, fence)
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    store.reply(AGENT, fence, message, Reply("m1", 1))
    store.record_step(AGENT, fence, "e1", StepRecord("s1", "f", "safe"), op="s1", begun=message.entry)
    assert raw.exists(Keys(store.namespace, store.config.shards).handling(AGENT)) == 0
    next_life(store, 2)
    with pytest.raises(FencedError):
        store.record_step(AGENT, fence, "e1", StepRecord("s2", "f", "safe"), op="s2", begun=message.entry)
