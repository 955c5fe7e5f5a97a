"""New configs for agents that run, and the audit stream, through the Manager's own methods."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from ares_celery import AgentContext, AgentSpec, Manager
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    ChaosDisabledError,
    EventTooLargeError,
    InvalidConfigError,
    InvalidSettingError,
)
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Stepper:
    """Answers with the config it was made with."""

    def __init__(self, agent_id: str, step: int = 1, unit: str = "m") -> None:
        self.made_with = {"step": step, "unit": unit}

    async def process(self, ctx: AgentContext, message: object) -> object:
        return self.made_with


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running one."""
    with Runtime(redis_server.url, namespace) as made:
        made.register("stepper", Stepper)
        made.manager.start()
        yield made


def begin(runtime: Runtime, agent_id: str = "a") -> None:
    """An agent that runs."""
    spec = AgentSpec(id=agent_id, type="stepper", config={"step": 2}, labels={"keep": "me"})
    runtime.manager.start_agent(spec, wait="running")


def test_an_update_waits_for_the_next_incarnation(runtime: Runtime) -> None:
    """The one that runs keeps its config; the whole rest of the spec stays."""
    begin(runtime)
    info = runtime.manager.update_agent("a", config={"step": 5})
    assert (info.state, info.incarnation, info.labels) == ("running", 1, {"keep": "me"})
    assert runtime.manager.process("a", "?") == {"step": 2, "unit": "m"}
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=2)
    assert runtime.manager.process("a", "?") == {"step": 5, "unit": "m"}


def test_an_update_applied_by_restart_is_in_force_at_once(runtime: Runtime) -> None:
    """One call; not charged."""
    begin(runtime)
    runtime.manager.update_agent("a", config={"unit": "km"}, merge=True, apply="restart", reason="units", actor="ann")
    info = runtime.until("a", "running", incarnation=2)
    assert runtime.manager.process("a", "?") == {"step": 2, "unit": "km"}
    assert (info.manual_restarts, info.charged, info.actor) == (1, 0, "ann")


def test_a_config_that_does_not_fit_changes_nothing(runtime: Runtime) -> None:
    """The type's own constructor says what fits; from afar what its workers reported."""
    begin(runtime)
    with pytest.raises(InvalidConfigError, match="stp"):
        runtime.manager.update_agent("a", config={"stp": 5}, apply="restart")
    with pytest.raises(InvalidConfigError):
        runtime.manager.update_agent("a", config={"step": object()})
    with pytest.raises(InvalidSettingError, match="apply"):
        runtime.manager.update_agent("a", config={}, apply="now")  # type: ignore[arg-type]
    with pytest.raises(AgentNotFoundError):
        runtime.manager.update_agent("nobody", config={})
    record = runtime.store.read("a").record  # type: ignore[arg-type]
    assert record is not None
    assert (record.spec.config, record.incarnation, record.state) == ({"step": 2}, 1, "running")


def test_a_repeated_update_restarts_once(runtime: Runtime) -> None:
    """By its operation id, as a message that comes twice."""
    begin(runtime)
    for _ in range(2):
        runtime.manager.update_agent("a", config={"step": 5}, apply="restart", op="update-1")
        runtime.until("a", "running", incarnation=2)
    assert runtime.manager.get_agent_info("a").incarnation == 2  # type: ignore[union-attr]


def test_every_changing_method_leaves_its_entry_and_no_other_call_does(runtime: Runtime) -> None:
    """Who, why and what came of it, in order; refusals and no-ops are no changes."""
    manager = runtime.manager
    why: dict[str, Any] = {"actor": "ann"}

    def stop(**more: Any) -> None:
        manager.stop_agent("a", reason="rest", **why, **more)

    manager.register_agent(AgentSpec(id="a", type="stepper"), reason="new", **why)
    manager.start_agent("a", wait="running", reason="go", **why)
    manager.update_agent("a", config={"step": 3}, reason="three", **why)
    manager.restart_agent("a", reason="again", **why)
    runtime.until("a", "running", incarnation=2)
    manager.restore_agent("a", reason="fail over", **why)
    runtime.until("a", "running", incarnation=3)
    epoch = manager.get_agent_info("a").epoch  # type: ignore[union-attr]
    manager.notify_agent_dead("a", "no pulse", epoch=epoch, **why)
    runtime.until("a", "running", incarnation=4)
    manager.pause_agent("a", reason="lunch", **why)
    runtime.until("a", "paused")
    manager.resume_agent("a", reason="back", **why)
    runtime.until("a", "running", incarnation=5)
    stop()
    # No changes:
    stop()
    manager.register_agent(AgentSpec(id="a", type="stepper"), **why)
    manager.update_agent("a", config={"step": 3}, **why)
    with pytest.raises(AgentNotRunningError):
        manager.pause_agent("a", **why)
    with pytest.raises(ChaosDisabledError):
        manager.kill_agent("a", **why)
    manager.delete_agent("a", reason="tidy", **why)

    entries = manager.audit("a")
    assert [(e.operation, e.reason, e.state) for e in entries] == [
        ("register", "new", "registered"),
        ("start", "go", "starting"),
        ("update", "three", "running"),
        ("restart", "again", "stopping"),
        ("restore", "fail over", "stopping"),
        ("notify_dead", "no pulse", "stopping"),
        ("pause", "lunch", "stopping"),
        ("resume", "back", "starting"),
        ("stop", "rest", "stopping"),
        ("delete", "tidy", "deleted"),
    ]
    assert {e.actor for e in entries} == {"ann"}
    assert len({e.op for e in entries}) == len(entries)
    assert [e.time for e in entries] == sorted(e.time for e in entries)
    assert [e.changed for e in entries if e.changed] == [("config",)]


def test_the_default_actor_is_a_user_at_a_host(runtime: Runtime) -> None:
    """And the runtime's own start is in the whole stream."""
    begin(runtime)
    first, second = runtime.manager.audit()
    assert (first.operation, first.agent_id, second.operation) == ("runtime.start", None, "start")
    assert "@" in first.actor
    assert first.actor == second.actor


def test_the_audit_stream_is_asked_by_time(runtime: Runtime) -> None:
    """An aware instant, or the same as text; anything else is refused by name."""
    begin(runtime)
    manager = runtime.manager
    last = manager.audit()[-1].time
    assert [e.operation for e in manager.audit(since=last)] == ["start"]
    assert manager.audit(since=(last + timedelta(seconds=1)).isoformat()) == []
    for bad in ("yesterday", last.replace(tzinfo=None), "2026-07-01T12:00:00"):
        with pytest.raises(InvalidSettingError, match="since"):
            manager.audit(since=bad)
    with pytest.raises(InvalidSettingError, match="limit"):
        manager.audit(limit=0)
    assert isinstance(last, datetime)


def test_a_restart_of_a_type_that_nobody_knows_any_more_is_refused(runtime: Runtime) -> None:
    """Before anything ends: the incarnation goes on."""
    begin(runtime)
    runtime.store.report_types({"other": {"open": True, "names": [], "required": []}})
    runtime.registry._types.clear()
    with pytest.raises(Exception, match="stepper"):
        runtime.manager.restart_agent("a")
    assert runtime.manager.get_agent_info("a").incarnation == 1  # type: ignore[union-attr]
    assert runtime.manager.process("a", "?") == {"step": 2, "unit": "m"}


# -- settings ----------------------------------------------------------------------------------------------------------


def test_running_agents_follow_a_change_of_the_settings(runtime: Runtime, redis_server: RedisServer) -> None:
    """Set by another process; the host of this one, its keeper and its decisions go by it without a restart."""
    begin(runtime)
    with Manager(redis_url=redis_server.url, namespace=runtime.store.namespace) as other:
        other.set_config({"max_restarts_per_agent": "1", "max_event_bytes": "64"}, reason="try", actor="ann")
    wait_until(lambda: runtime.store.config.max_event_bytes == 64, "the keeper to bring the change along")
    with pytest.raises(EventTooLargeError, match="64"):
        runtime.manager.send("a", "x" * 100)
    for wanted in ("running", "parked"):
        epoch = runtime.manager.get_agent_info("a").epoch  # type: ignore[union-attr]
        runtime.manager.notify_agent_dead("a", "no pulse", epoch=epoch)
        runtime.until("a", wanted, incarnation=2)
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.cause, info.charged) == ("cap", 1)
    assert runtime.manager.config.max_restarts_per_agent == 1


def test_a_settings_change_that_cannot_be_is_refused_by_the_manager(runtime: Runtime) -> None:
    """With the field; nothing is noted."""
    with pytest.raises(InvalidSettingError, match="lease_ttl"):
        runtime.manager.set_config({"heartbeat_interval": "1s"})
    assert [e.operation for e in runtime.manager.audit()] == ["runtime.start"]
