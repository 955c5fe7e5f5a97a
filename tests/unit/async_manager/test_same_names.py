"""AsyncManager and Manager have the same names: whoever adds to one is told to add to the other."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import pytest

from ares_celery import AgentHandle, AsyncAgentHandle, AsyncManager, AsyncSubscription, Manager, Subscription
from ares_celery.async_manager.ports import (
    AsyncCheckpoints,
    AsyncEvents,
    AsyncEventSubscription,
    AsyncMemory,
    AsyncSnapshots,
)
from ares_celery.store.async_access import AsyncAccess
from ares_celery.store.base import EventStore, MemoryManager, SnapshotStore
from ares_celery.store.checkpoints import CheckpointStore
from ares_celery.store.messages import AsyncMailbox, Mailbox
from ares_celery.store.redis.async_access import AsyncRedisAccess
from ares_celery.store.redis.async_mailbox import AsyncRedisMailbox
from ares_celery.store.redis.async_subscription import AsyncRedisSubscription

#: Not awaited: they ask nobody, or what they return is awaited piece by piece.
PLAIN = {"from_env", "connect", "local", "with_snapshot_store", "process_stream", "subscribe"}
#: What an awaitable twin has more.
MORE = {"begin"}

PAIRS = [
    (Manager, AsyncManager),
    (AgentHandle, AsyncAgentHandle),
    (EventStore, AsyncEvents),
    (SnapshotStore, AsyncSnapshots),
    (CheckpointStore, AsyncCheckpoints),
    (MemoryManager, AsyncMemory),
    (Subscription, AsyncSubscription),
    (Subscription, AsyncEventSubscription),
    (Subscription, AsyncRedisSubscription),
    (AsyncMailbox, AsyncRedisMailbox),
    (AsyncAccess, AsyncRedisAccess),
]


def public(kind: type) -> dict[str, Any]:
    """The public members of a class, and of its bases of ours."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("ares_celery"):
            found.update({name: member for name, member in vars(base).items() if not name.startswith("_")})
    return found


def shape(member: Any) -> object:
    """What a caller sees of a method: names, kinds and defaults of its parameters."""
    if isinstance(member, (property, functools.cached_property)):
        return "property"
    function = member.__func__ if isinstance(member, (staticmethod, classmethod)) else member
    parameters = list(inspect.signature(function).parameters.values())
    return [(one.name, one.kind, one.default) for one in parameters if one.name not in {"self", "cls"}]


@pytest.mark.parametrize(("blocking", "awaitable"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_awaitable_twin_has_the_same_names_parameters_and_defaults(blocking: type, awaitable: type) -> None:
    """Every public method and property, of the façade, the handle and the ports."""
    ours, twins = public(blocking), public(awaitable)
    assert set(twins) - MORE == set(ours)
    assert {name: shape(member) for name, member in ours.items()} == {name: shape(twins[name]) for name in ours}


@pytest.mark.parametrize("awaitable", [pair[1] for pair in PAIRS[:6]], ids=lambda kind: kind.__name__)
def test_whatever_asks_somebody_is_awaited(awaitable: type) -> None:
    """No blocking method was left among them."""
    methods = {name: member for name, member in public(awaitable).items() if inspect.isfunction(member)}
    plain = {name for name, member in methods.items() if not inspect.iscoroutinefunction(member)}
    assert plain <= PLAIN


def test_the_ports_of_callers_are_the_same_for_threads_and_loops() -> None:
    """Dealing with dead letters is the workers' own, on threads; so is a wait that holds a connection."""
    ours, twins = public(Mailbox), public(AsyncMailbox)
    assert set(ours) - set(twins) == {"elect_postman", "send_and_wait", "settle_letters"}
    assert {name: shape(member) for name, member in twins.items()} == {name: shape(ours[name]) for name in twins}
