"""A blocking Manager where an event loop runs: every method says so, at once, and names AsyncManager."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from ares_celery import AgentSpec, Manager, OperationNotSupportedError
from ares_celery.runtime.loop_guard import refuse_event_loop
from tests.unit.async_manager.test_same_names import public

#: What a method needs, by the name of the parameter.
SAMPLES: dict[str, Any] = {
    "agent": AgentSpec(id="a", type="x"),
    "agent_id": "a",
    "config": {},
    "delay": 1,
    "duration": 1,
    "info": {},
    "key": "k",
    "message": 1,
    "message_id": "m",
    "name": "n",
    "new_id": "b",
    "owner": "run",
    "reason": "r",
    "settings": {"max_inbox": 5},
    "states": {"running"},
    "stream_id": "s",
    "timeout": 1,
    "value": 1,
    "worker": "w@host",
}
#: Not needed one by one, but one of them is.
ALSO: dict[str, dict[str, Any]] = {"reconcile_agent": {"retry": True}}
#: They ask nobody.
FREE = {"close", "connect", "from_env", "local", "state_sources", "with_snapshot_store"}
#: Nothing listens there: whoever tried to connect would say so.
NOWHERE = "redis://127.0.0.1:1/0"

BLOCKING = sorted(set(public(Manager)) - FREE)


def use(manager: Manager, name: str) -> None:
    """Calls a method with what it needs, or reads a property."""
    member = getattr(manager, name)
    if callable(member):
        parameters = inspect.signature(member).parameters.values()
        needed = {one.name: SAMPLES[one.name] for one in parameters if one.default is one.empty}
        member(**needed, **ALSO.get(name, {}))


@pytest.mark.parametrize("name", BLOCKING)
async def test_every_blocking_method_and_port_is_refused_on_an_event_loop(name: str) -> None:
    """Before anything is opened or sent."""
    manager = Manager(redis_url=NOWHERE, namespace="n")
    with pytest.raises(OperationNotSupportedError, match="AsyncManager"):
        use(manager, name)


async def test_a_manager_that_hosts_is_guarded_too() -> None:
    """Its start() comes before everything else of it."""
    with Manager.local(redis_url=NOWHERE) as manager:
        for call in (manager.start, manager.stop, manager.stats, lambda: manager.events):
            with pytest.raises(OperationNotSupportedError, match="AsyncManager"):
                call()


def test_threads_without_a_loop_pass_also_while_another_has_one() -> None:
    """The question is about the thread that asks."""
    refuse_event_loop()

    async def on_loop() -> None:
        await asyncio.to_thread(refuse_event_loop)
        with pytest.raises(OperationNotSupportedError, match=r"Manager\.process is not supported"):
            refuse_event_loop("process")

    asyncio.run(on_loop())
    refuse_event_loop()
