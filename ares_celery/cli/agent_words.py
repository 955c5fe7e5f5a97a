"""What is true of an agent now, as sentences: its state, what that means, and the command that changes it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from ares_celery.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ares_celery.cli.apps import Session
    from ares_celery.model.agent import AgentInfo

__all__ = ["budget_words", "say_standing", "seconds_left", "standing", "state_words", "store_time", "wait_words"]


def say_standing(session: Session, agent_id: str) -> None:
    """Says how the agent stands after a command: what the record has, not what was asked for."""
    info = session.manager.get_agent_info(agent_id)
    if info is None:
        say(f"agent {agent_id} does not exist any more")
    else:
        say(standing(info, store_time(session, [info])))


def store_time(session: Session, infos: Iterable[AgentInfo]) -> datetime | None:
    """The store's time, which next attempts are due by; None, and nothing is asked, when nobody waits for one."""
    from ares_celery.clock import to_datetime

    if any(info.next_attempt is not None for info in infos):
        return to_datetime(session.store.server_time())
    return None


def standing(info: AgentInfo, now: datetime | None = None) -> str:
    """One sentence on an agent: its state and what that means."""
    return f"agent {info.id} is {state_words(info, now)}{_meaning(info)}"


def state_words(info: AgentInfo, now: datetime | None = None) -> str:
    """The state, with the time of the next attempt while one is waited for: ``resurrecting, next try in 4 s``.

    Args:
        info: The agent.
        now: The store's time; None when it is not known.
    """
    left = seconds_left(info, now)
    state = f"{info.state.value}, degraded" if info.degraded else info.state.value
    return state if left is None else f"{state}, next try in {left:.0f} s"


def seconds_left(info: AgentInfo, now: datetime | None) -> float | None:
    """Seconds until the next attempt, not below zero; None when none is waited for."""
    if info.next_attempt is None or now is None:
        return None
    return max(0.0, (info.next_attempt - now).total_seconds())


def _meaning(info: AgentInfo) -> str:  # noqa: PLR0911 - one line a state
    match info.state.value:
        case "registered":
            return _registered(info)
        case _ if info.waiting_on == "group":
            return f": it waits for group {info.group}, which is being restarted"
        case "starting" | "resurrecting":
            return _unclaimed(info)
        case "running":
            process = f", pid {info.pid}" if info.pid else ""
            without = f"; degraded: {info.degraded}" if info.degraded else ""
            return f" (incarnation {info.incarnation}, worker {info.worker or '-'}{process}){without}"
        case "stopping":
            return _after_the_stop(info)
        case "stopped":
            return f"; `ares agents start {info.id}` starts it again with its state"
        case "completed":
            return f": its work is done; `ares agents start {info.id}` starts it again with its state"
        case "paused":
            return f" with its state and messages kept; `ares agents resume {info.id}` lets it go on"
        case "parked":
            return _parked(info)
        case _:
            return ""


def _unclaimed(info: AgentInfo) -> str:
    if info.waiting_on == "schema":
        return ": newer code has written its state, so it waits for a worker with that code"
    waits = info.state.value == "starting" and info.waiting_on == "slot"
    return ": it waits for a worker with a free slot" if waits else ""


def _registered(info: AgentInfo) -> str:
    if info.desired == "running":
        return ": it starts when the runtime runs (`ares runtime start`)"
    return f" and does not run; `ares agents start {info.id}` starts it"


def _after_the_stop(info: AgentInfo) -> str:
    match info.desired.value:
        case "running":
            return "; then its next incarnation starts"
        case "paused":
            return f"; then it rests until `ares agents resume {info.id}`"
        case _:
            return ""


def _parked(info: AgentInfo) -> str:  # noqa: PLR0911 - one sentence a cause
    cause = f" ({info.cause})" if info.cause else ""
    if info.cause == "integrity":
        return (
            f"{cause} and stays so: `ares agents show {info.id}` tells where; `ares agents unpark {info.id} "
            "--accept-loss` goes on without what is lost"
        )
    if info.cause == "reconcile":
        what = f"`ares agents show {info.id}` tells which step may or may not have happened"
        return f"{cause} and stays so: {what}; `ares agents reconcile {info.id}` says which of both"
    if info.cause == "budget":
        return f"{cause}{budget_words(info)}"
    if info.cause == "step_changed":
        return (
            f"{cause} and stays so: deploy code that fits what its step recorded, then `ares agents restart {info.id}`"
        )
    if info.cause == "step_rejected":
        return (
            f"{cause} and stays so: `ares agents show {info.id}` tells who did not allow which step; "
            f"`ares agents unpark {info.id}` has the question asked again"
        )
    if info.cause == "step_result":
        return (
            f"{cause} and stays so: `ares agents show {info.id}` tells which step gave what cannot be recorded; deploy "
            f"one whose result can be, then `ares agents restart {info.id}`"
        )
    return f"{cause} and stays so until `ares agents restart {info.id}`"


def budget_words(info: AgentInfo) -> str:
    """How an agent that was parked for its budget stands now; its reason tells how it stood then."""
    unpark = f"`ares agents unpark {info.id}` lets it go on"
    below = info.spent_below or {}
    for name, limit in (info.budget or {}).items():
        spent = round(info.spent.get(name, 0) + below.get(name, 0), 6)
        if spent >= limit:
            return (
                f" and stays so: its {name} are used up ({spent} of {limit}); `ares agents update {info.id} "
                f"--budget {name}=…` allows more, then {unpark}"
            )
    if f"of agent {info.id!r} are used up" in info.reason:
        return f", and is allowed more now: {unpark}"
    return (
        f" and stays so: `ares agents show {info.id}` tells whose budget was used up; `ares agents update` with "
        f"--budget allows that agent more, then {unpark}"
    )


def wait_words(info: AgentInfo) -> str:
    """What an agent waits for, without its slot or in the middle of its code; empty: for nothing that is known."""
    kind, _, name = (info.waiting_on or "").partition(":")
    until = f"until {info.waiting_until.isoformat(timespec='seconds')}" if info.waiting_until is not None else ""
    if info.state.value == "waiting":
        return " ".join(part for part in (f"approval {name}" if kind == "approval" else "", until) if part)
    if kind == "limit":
        return f"limit {name}"
    # A question whose answer is waited for in place is the step at hand.
    kind, _, name = (info.step or "").rpartition("/")[2].partition(":")
    return f"approval {name}, keeps its slot" if kind == "approval" and name else ""
