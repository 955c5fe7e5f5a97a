"""What scenarios do: plain functions with JSON arguments, for ``ares arena run`` and for Chaos Toolkit's ``chaos run``.

The agents are those of the run that calls them, else of the namespace that ``ARES_REDIS_URL`` and ``ARES_NAMESPACE``
name. Faults are refused unless the namespace allows them (`ares chaos enable --for 1h`). Spans are seconds as a
number, or text such as ``500ms``, ``10s``, ``2m``.

Example, of a file:
    ``{type: python, module: ares_celery.arena.actions, func: kill_agent, arguments: {agent_id: counter-1}}``
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from ares_celery.arena.dags import without_edge, without_node
from ares_celery.arena.link import tell_link
from ares_celery.arena.preconditions import allows_chaos
from ares_celery.arena.ring import Ring, at_hand
from ares_celery.chaos.moved_clock import move_clock, parse_offset
from ares_celery.errors import (
    ActivityFailedError,
    AgentNotFoundError,
    ChaosDisabledError,
    FaultNotFoundError,
    OperationNotSupportedError,
)
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.durations import parse_duration
from ares_celery.model.fault import LONGEST_DURATION, Fault

__all__ = [
    "clock_offset",
    "corrupt_memory",
    "disconnect_mcp",
    "heal",
    "inject_llm_failure",
    "kill_agent",
    "kill_leader",
    "kill_orchestrator",
    "kill_worker",
    "partition_network",
    "pause_agent",
    "redis_latency",
    "redis_outage",
    "remove_edge",
    "remove_node",
    "restart_agent",
    "resume_agent",
    "slow_agent",
    "stop_beat",
    "tool_timeout",
]

log: Final = logging.getLogger(__name__)

Span = float | str
#: Seconds between two looks.
_INTERVAL: Final = 0.02
#: A pause of no length is one that ends at once.
_SHORTEST: Final = timedelta(milliseconds=1)


def kill_agent(
    agent_id: str, *, force: bool = False, wait: Span | None = None, reason: str = "arena"
) -> Mapping[str, Any]:
    """Sends SIGKILL to the process that hosts the agent; others in it die as well, so that needs ``force``.

    With ``wait`` it fails unless the agent runs again, in a later incarnation, within that time.
    """
    with at_hand() as ring:
        before = _incarnations(ring, [agent_id])
        killed = _kill(ring, agent_id, force=force, reason=reason)
        _await_return(ring, "kill_agent", before, wait, killed)
        return killed


def kill_worker(worker: str, *, wait: Span | None = None, reason: str = "arena") -> Mapping[str, Any]:
    """Sends SIGKILL to the main process of a worker, with its pool children; names in the log before who dies with it.

    Returns ``worker``, ``pid`` and ``agents``. With ``wait`` it fails unless all of them run again within that time.
    """
    with at_hand() as ring:
        infos: list[AgentInfo] = list(ring.manager.list_agents())
        hosted = [info.id for info in infos if info.worker == worker]
        log.warning("worker %s is killed, and with it %s", worker, ", ".join(hosted) or "no agent")
        killed: Mapping[str, Any] = ring.manager.kill_worker(worker, force=True, reason=reason)
        lost = _note_killed(ring, killed["agents"], infos)
        told = {**killed, "incarnations": lost}
        _await_return(ring, "kill_worker", lost, wait, told)
        return told


def _kill(ring: Ring, agent_id: str, *, force: bool, reason: str) -> Mapping[str, Any]:
    """Kills, and notes who died with the process."""
    before = ring.manager.list_agents()
    killed: Mapping[str, Any] = ring.manager.kill_agent(agent_id, force=force, reason=reason)
    lost = _note_killed(ring, [agent_id, *killed["co_tenants"]], before)
    return {**killed, "incarnations": lost}


def _note_killed(ring: Ring, agent_ids: Sequence[str], before: Sequence[AgentInfo]) -> dict[str, int]:
    """Notes who died: what the store says of them is of before until that is noticed. Gives their incarnations."""
    lost = {info.id: info.incarnation for info in before if info.id in agent_ids}
    ring.killed.update(lost.items())
    return lost


def _incarnations(ring: Ring, agent_ids: Sequence[str]) -> dict[str, int]:
    infos: list[AgentInfo | None] = [ring.manager.get_agent_info(one) for one in agent_ids]
    return {info.id: info.incarnation for info in infos if info is not None}


def _await_return(ring: Ring, name: str, before: Mapping[str, int], wait: Span | None, did: Mapping[str, Any]) -> None:
    """Waits until each agent runs in a later incarnation; an error says what was done all the same."""
    if wait is None:
        return
    left = dict(before)
    until = ring.clock.monotonic() + parse_duration(wait).total_seconds()
    while True:
        for agent_id, incarnation in list(left.items()):
            info: AgentInfo | None = ring.manager.get_agent_info(agent_id)
            if info is not None and info.incarnation > incarnation and info.state is AgentState.RUNNING:
                del left[agent_id]
        if not left:
            return
        if ring.clock.monotonic() >= until or ring.pause(_INTERVAL):
            problem = f"{', '.join(left)} did not come back within {wait}"
            raise ActivityFailedError(name=name, problem=problem, did=did)


def kill_leader(*, force: bool = False, reason: str = "arena") -> Mapping[str, Any]:
    """Kills the first live agent of type ``leader``, or with the label ``role: leader``."""
    return _kill_role("leader", force=force, reason=reason)


def kill_orchestrator(*, force: bool = False, reason: str = "arena") -> Mapping[str, Any]:
    """Kills the first live agent of type ``orchestrator``, or with the label ``role: orchestrator``."""
    return _kill_role("orchestrator", force=force, reason=reason)


def _kill_role(role: str, *, force: bool, reason: str) -> Mapping[str, Any]:
    with at_hand() as ring:
        for info in ring.manager.list_agents(states=[AgentState.RUNNING]):
            if role in {info.type, info.labels.get("role")}:
                return _kill(ring, info.id, force=force, reason=reason)
    raise ActivityFailedError(
        name=f"kill_{role}", problem=f"no running agent is of type {role!r} or labelled role={role}"
    )


def pause_agent(agent_id: str, *, duration: Span | None = None, reason: str = "arena") -> Mapping[str, Any]:
    """Lets the agent rest: for so long, or until it is resumed, by the end of the run at the latest.

    Should nobody be left to resume it, it runs again by itself, after ``duration`` or a day. One that somebody else has
    paused before stays so.
    """
    with at_hand() as ring:
        manager, undo = ring.manager, f"resume {agent_id}"
        before: AgentInfo | None = manager.get_agent_info(agent_id)
        if before is not None and before.paused and all(one.name != undo for one in ring.undone):
            return {"agent_id": agent_id, "paused": True}
        # Kept first: a pause whose answer is lost has happened all the same.
        kept = ring.later(undo, lambda: _resume_if_paused(ring, agent_id))
        lasts = LONGEST_DURATION if duration is None else max(parse_duration(duration), _SHORTEST)
        manager.pause_agent(agent_id, duration=lasts, reason=reason)
        if duration is not None:
            is_over = not ring.pause(lasts.total_seconds())
            manager.resume_agent(agent_id, reason=reason)
            if is_over:
                ring.forget(kept)
        return {"agent_id": agent_id, "paused": duration is None}


def _resume_if_paused(ring: Ring, agent_id: str) -> None:
    info: AgentInfo | None = ring.manager.get_agent_info(agent_id)
    if info is not None and info.paused:
        ring.manager.resume_agent(agent_id, reason="the run is over")


def resume_agent(agent_id: str, *, reason: str = "arena") -> Mapping[str, Any]:
    """Lets a paused agent run again; one that is not paused: no effect."""
    with at_hand() as ring:
        ring.manager.resume_agent(agent_id, reason=reason)
        return {"agent_id": agent_id, "paused": False}


def restart_agent(agent_id: str, *, reason: str = "arena") -> Mapping[str, Any]:
    """Ends the agent's incarnation in order and begins a new one."""
    with at_hand() as ring:
        ring.manager.restart_agent(agent_id, reason=reason)
        return {"agent_id": agent_id}


# -- faults that last --------------------------------------------------------------------------------------------------


def slow_agent(  # noqa: PLR0913 - one parameter for each thing that may be said of a fault
    agent_id: str,
    delay: Span,
    *,
    duration: Span | None = None,
    count: int | None = None,
    probability: float = 1.0,
    seed: int | None = None,
    reason: str = "arena",
) -> Mapping[str, Any]:
    """Lets each call of the agent wait for ``delay``; 0 ends that."""
    return _inject("slow_agent", agent_id, delay, **_said(duration, count, probability, seed, reason))


def tool_timeout(  # noqa: PLR0913 - as above
    agent_id: str,
    timeout: Span,
    *,
    duration: Span | None = None,
    count: int | None = None,
    probability: float = 1.0,
    seed: int | None = None,
    reason: str = "arena",
) -> Mapping[str, Any]:
    """Cuts off each tool call of the agent after ``timeout``; 0 ends that."""
    return _inject("tool_timeout", agent_id, timeout, **_said(duration, count, probability, seed, reason))


def partition_network(
    agent_id: str, *, duration: Span | None = None, wait: Span | None = None, reason: str = "arena"
) -> Mapping[str, Any]:
    """Cuts the agent's incarnation off the store: it is brought back elsewhere, and the old one is refused.

    With ``wait`` it fails unless the agent runs again, in a later incarnation, within that time.
    """
    return _end_of_one("partition_network", agent_id, wait, duration=duration, reason=reason)


def corrupt_memory(
    agent_id: str,
    *,
    duration: Span | None = None,
    seed: int | None = None,
    wait: Span | None = None,
    reason: str = "arena",
) -> Mapping[str, Any]:
    """Damages the newest stored snapshot, and lets the agent's incarnation die at its next call.

    With ``wait`` it fails unless the agent runs again, in a later incarnation, within that time.
    """
    return _end_of_one("corrupt_memory", agent_id, wait, duration=duration, seed=seed, reason=reason)


def disconnect_mcp(  # noqa: PLR0913 - as above
    agent_id: str,
    *,
    server: str = "",
    duration: Span | None = None,
    count: int | None = None,
    probability: float = 1.0,
    seed: int | None = None,
    reason: str = "arena",
) -> Mapping[str, Any]:
    """Cuts the agent's connections to MCP servers, or to one of them."""
    more = _said(duration, count, probability, seed, reason)
    return _inject("disconnect_mcp", agent_id, server=server, **more)


def inject_llm_failure(  # noqa: PLR0913 - as above
    agent_id: str,
    *,
    error_type: str = "rate_limit",
    retry_after: Span | None = None,
    duration: Span | None = None,
    count: int | None = None,
    probability: float = 1.0,
    seed: int | None = None,
    reason: str = "arena",
) -> Mapping[str, Any]:
    """Lets requests to language models fail, with rate_limit or another of the errors that a fault may have."""
    more = _said(duration, count, probability, seed, reason)
    return _inject("inject_llm_failure", agent_id, error_type=error_type, retry_after=retry_after, **more)


def heal(agent_id: str | None = None, *, fault: str | None = None, reason: str = "arena") -> list[Mapping[str, Any]]:
    """Ends the faults of an agent, or one kind of them, or those of all agents; none active: no effect."""
    with at_hand() as ring:
        return [one.to_json() for one in ring.manager.heal(agent_id, fault, reason=reason)]


def _said(
    duration: Span | None, count: int | None, probability: float, seed: int | None, reason: str
) -> dict[str, Any]:
    return {"duration": duration, "count": count, "probability": probability, "seed": seed, "reason": reason}


def _inject(method: str, agent_id: str, *amount: Span, **said: Any) -> Mapping[str, Any]:  # noqa: ANN401 - JSON
    with at_hand() as ring:
        given = [parse_duration(one) for one in amount]
        fault: Fault | None = getattr(ring.manager, method)(agent_id, *given, **said)
        # Zero ends a fault, and there is none to be told of.
        if fault is None or (given and given[0] <= timedelta(0)):
            return {"agent_id": agent_id, "cleared": True}
        ring.later(f"heal {fault.kind.value} of {agent_id}", lambda: _heal_if_active(ring, fault))
        return fault.to_json()


def _end_of_one(method: str, agent_id: str, wait: Span | None, **said: Any) -> Mapping[str, Any]:  # noqa: ANN401 - JSON
    """A fault that an incarnation does not survive."""
    with at_hand() as ring:
        before = _incarnations(ring, [agent_id])
        told = {**_inject(method, agent_id, **said), "incarnations": before}
        _await_return(ring, method, before, wait, told)
        return told


def _heal_if_active(ring: Ring, fault: Fault) -> None:
    # One that ended by itself is no error; nor is an agent that was deleted meanwhile.
    with contextlib.suppress(AgentNotFoundError, FaultNotFoundError):
        ring.manager.heal(fault.agent_id, fault.id, reason="the run is over")


# -- what agents stand on ----------------------------------------------------------------------------------------------


def redis_latency(link: str, delay: Span, *, duration: Span = "10s") -> Mapping[str, Any]:
    """Makes each round trip to Redis slower by ``delay``, for whoever connects through ``ares arena link``.

    Args:
        link: The link's address for actions.
        delay: Added to question and answer together.
        duration: When it ends by itself.
    """
    return _disturb_link("redis_latency", link, duration, delay=parse_duration(delay).total_seconds())


def redis_outage(link: str, *, duration: Span = "10s") -> Mapping[str, Any]:
    """Cuts every connection through ``ares arena link``, and refuses new ones, for ``duration``."""
    return _disturb_link("redis_outage", link, duration, cut=True)


def _disturb_link(name: str, link: str, duration: Span, **said: float) -> Mapping[str, Any]:
    with at_hand() as ring:
        _demand_chaos(ring, name)
        told = tell_link(link, {"duration": parse_duration(duration).total_seconds(), **said}, name)
        ring.later(f"end {name}", lambda: tell_link(link, {"duration": 0}, name))
        return told


def clock_offset(file: str, offset: float | str, *, duration: Span = "10s") -> Mapping[str, Any]:
    """Moves the wall clock of the worker of this machine that was started with this file as ``ARES_CLOCK_FILE``.

    Args:
        file: The file.
        offset: How far: seconds, or text such as ``2h`` and ``-90s``; 0 puts it right.
        duration: When it is right again by itself.
    """
    with at_hand() as ring:
        _demand_chaos(ring, "clock_offset")
        told = move_clock(Path(file), parse_offset(offset), parse_duration(duration))
        ring.later(f"put right the clock of {file}", lambda: _put_right(file))
        return told


def _put_right(file: str) -> None:
    # A worker that is gone has no clock.
    with contextlib.suppress(OperationNotSupportedError):
        move_clock(Path(file), timedelta(0), timedelta(0))


def stop_beat(pidfile: str = "celerybeat.pid") -> Mapping[str, Any]:
    """Kills the beat of this machine whose process id stands in ``pidfile``; the sweeps of the workers go on.

    Whoever watches beat starts it again; nothing here does.
    """
    with at_hand() as ring:
        _demand_chaos(ring, "stop_beat")
    try:
        pid = int(Path(pidfile).read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError) as error:
        raise ActivityFailedError(name="stop_beat", problem=f"{pidfile} names no process here: {error}") from error
    # The number may be another process's by now.
    if b"beat" not in command:
        raise ActivityFailedError(name="stop_beat", problem=f"process {pid} of {pidfile} is no beat")
    os.kill(pid, signal.SIGKILL)
    return {"pid": pid}


def _demand_chaos(ring: Ring, operation: str) -> None:
    """What reaches no agent passes no store that would refuse it."""
    manager = ring.manager
    if not allows_chaos(manager):
        raise ChaosDisabledError(operation=operation, namespace=manager.namespace)


# -- registered DAGs ---------------------------------------------------------------------------------------------------


def remove_node(node_id: str, *, dag: str = "", reason: str = "arena") -> Mapping[str, Any]:
    """Takes a node, and the edges at it, out of a registered DAG; the end of the run puts it back."""
    return _change_dag(dag, reason, "remove_node", lambda value: without_node(value, node_id))


def remove_edge(source_id: str, target_id: str, *, dag: str = "", reason: str = "arena") -> Mapping[str, Any]:
    """Takes an edge out of a registered DAG; the end of the run puts it back."""
    return _change_dag(dag, reason, "remove_edge", lambda value: without_edge(value, source_id, target_id))


def _change_dag(
    dag: str, reason: str, name: str, change: Callable[[object], Mapping[str, Any] | None]
) -> Mapping[str, Any]:
    with at_hand() as ring:
        manager = ring.manager
        keys: list[str] = [dag] if dag else list(manager.introspect().dags.get("keys", ()))
        changed = {key: after for key in keys if (after := change(manager.get_agent_dag(key))) is not None}
        if not changed:
            problem = f"DAG {dag!r} has none of this name" if dag else "no registered DAG has one of this name"
            raise ActivityFailedError(name=name, problem=problem)
        if len(changed) > 1:
            raise OperationNotSupportedError(
                operation=name, reason=f"several DAGs have it: {', '.join(changed)}; name one"
            )
        ((key, after),) = changed.items()
        before = manager.get_agent_dag(key)
        manager.register_agent_dag(key, after, reason=reason)
        ring.later(f"put back DAG {key}", lambda: manager.register_agent_dag(key, before, reason="the run is over"))
        return {"dag": key}
