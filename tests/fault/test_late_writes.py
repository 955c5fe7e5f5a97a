"""Writes and messages of incarnations that are over: refused, whatever became of their agent meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ares_celery import AgentNotFoundError, AgentSpec, AresError, FencedError
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import AgentRecord
from ares_celery.model.command import AttemptFailed, Complete, MarkRunning, Park, Release
from ares_celery.model.event import NewEvent
from ares_celery.store.base import InboxMessage, Lease, Reply
from tests.fleet import AGENTS, Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

#: What may have become of an agent.
ENDINGS = ("stopped", "completed", "parked", "restarted", "deleted")


def live_and_end(fleet: Fleet, ending: str) -> AgentRecord:
    """Lets an agent live and come to this end; returns it as it was when it lived."""
    kinds = {"parked": "short-lived", "completed": "finisher"}
    spec = AgentSpec(id="a", type=kinds.get(ending, "idler"), max_restarts=1)
    fleet.manager.start_agent(spec, wait="running")
    if ending == "parked":
        fleet.until("a", "running", incarnation=2)
    lived = fleet.record("a")
    assert lived.hosted
    match ending:
        case "restarted":
            fleet.manager.restart_agent("a")
            fleet.until("a", "running", incarnation=2)
        case "stopped" | "deleted":
            fleet.manager.stop_agent("a")
        case _:
            fleet.until("a", ending)
    if ending == "deleted":
        fleet.manager.delete_agent("a")
    return lived


def writes_of(fleet: Fleet, lived: AgentRecord) -> Mapping[str, Callable[[], object]]:
    """Everything that the incarnation might still want to write, under the fence that it held."""
    store, committer, agent_id, fence = fleet.store, fleet.manager._ports.committer, lived.id, lived.fence
    event, version = NewEvent("late", {}), store.events.stream_version(agent_id)
    asked = InboxMessage("1-0", "m", None, wants_reply=True, time=lived.claimed_at)
    return {
        "append": lambda: store.append(agent_id, fence, [event], op="late 1", expected=version),
        "append above others": lambda: store.append(agent_id, fence, [event], op="late 2", expected=Version(0)),
        "append of many": lambda: store.append(agent_id, fence, [event, event], op="late 3", expected=version),
        "snapshot": lambda: store.save_snapshot(agent_id, fence, {"late": True}, version=version, schema=1),
        "reply": lambda: store.reply(agent_id, fence, asked, Reply("m", "late")),
        "running": lambda: committer.apply(agent_id, MarkRunning(fence=fence)),
        "completion": lambda: committer.apply(agent_id, Complete(fence=fence)),
        "release": lambda: committer.apply(agent_id, Release(fence=fence)),
        "parking": lambda: committer.apply(agent_id, Park(fence=fence, cause="integrity")),
        "failed attempt": lambda: committer.apply(agent_id, AttemptFailed(fence=fence)),
    }


def refusal_of(write: Callable[[], object]) -> type[AresError] | None:
    """How a write was refused; None: it was not."""
    try:
        write()
    except AresError as error:
        return type(error)
    return None


def everything_of(fleet: Fleet) -> object:
    """All that is stored of the agent."""
    events = [(event.version, event.type) for event in fleet.events("a")]
    return fleet.store.read(AgentId("a")).record, events, fleet.store.stored_snapshots(AgentId("a"))


@pytest.mark.spec(52)
@pytest.mark.parametrize("ending", ENDINGS)
def test_what_an_incarnation_writes_after_its_end_is_refused(fleet: Fleet, ending: str) -> None:
    """Events, snapshots, answers, states and leases under the old fence; a message of the old epoch: all refused."""
    fleet.worker("worker", slots=4)
    lived = live_and_end(fleet, ending)
    before = everything_of(fleet)
    refusals = {FencedError, AgentNotFoundError} if ending == "deleted" else {FencedError}

    for what, write in writes_of(fleet, lived).items():
        assert refusal_of(write) in refusals, what
    (change,) = fleet.store.renew([Lease(lived.id, lived.fence, lived.signal)]).changes
    assert change.fenced
    late = fleet.send("ares.run_agent", "a", lived.epoch, queue=AGENTS)
    assert fleet.result(late) == {"noop": "deleted" if ending == "deleted" else "epoch"}
    if ending != "deleted":
        # Even the newest epoch claims no agent that rests, nor one that somebody holds.
        late = fleet.send("ares.resurrect_agent", "a", fleet.record("a").epoch, queue=AGENTS)
        assert fleet.result(late) == {"noop": "owned" if ending == "restarted" else "not desired"}

    assert everything_of(fleet) == before
