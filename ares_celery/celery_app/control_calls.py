"""What control tasks do where the Manager's own method would wait, read without end, or is none of a task's."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, cast

from ares_celery.celery_app.control_ports import ControlPorts, wait_politely
from ares_celery.clock import to_datetime
from ares_celery.errors import (
    AgentNotFoundError,
    EventGapError,
    EventIntegrityError,
    ExecutionNotFoundError,
    InvalidSettingError,
    ProcessTimeoutError,
    WaitTimeoutError,
)
from ares_celery.ids import AgentId, check_agent_id, check_execution_id
from ares_celery.manager import CoreManager
from ares_celery.model.agent import RuntimeState
from ares_celery.model.event import Event, EventFilter, ReadOptions
from ares_celery.model.execution import Execution
from ares_celery.model.message import Chunk
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.callers import as_shown, check_flags, check_texts
from ares_celery.runtime.messages import check_seq, checked_ids

__all__ = [
    "MOST_OF_A_PAGE",
    "audit",
    "dead_letters",
    "follow_events",
    "get_config",
    "get_execution",
    "list_executions",
    "list_intents",
    "list_snapshots",
    "list_steps",
    "list_types",
    "move_runtime",
    "process",
    "process_stream",
    "read_chunks",
    "read_events",
    "wait_for",
]

Given = Mapping[str, Any]

#: Entries of one answer: what a result of Celery and a slot can bear.
MOST_OF_A_PAGE: Final = 1_000
#: Seconds at the end of a task's time in which no further event is asked for.
_RESERVE: Final = 0.3
_WHOLE: Final = f"give a whole number from 1 to {MOST_OF_A_PAGE}"
_TEXTS: Final = "give a list of texts, or leave it out"


# -- messages ----------------------------------------------------------------------------------------------------------


def process(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401 - the agent's own JSON
    """Answers, or says under which message id to ask again."""
    message_id = given["message_id"]
    try:
        return wait_politely(
            ports,
            lambda limit: manager.process(given["agent_id"], given["message"], timeout=limit, message_id=message_id),
        )
    except ProcessTimeoutError:
        return {"pending": message_id}


def process_stream(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """Asks for an answer in pieces, and says under which message id to read them."""
    agent_id, message_id = checked_ids(given["agent_id"], given["message_id"])
    detached = given.get("detached", False)
    check_flags(detached=detached)
    ports.store.send(
        agent_id, given["message"], message_id=message_id, wants_reply=True, stream=True, detached=detached
    )
    return {"pending": message_id}


def read_chunks(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - JSON
    """The chunks that are there, none behind the end, or the message id to ask again with."""
    check_texts(message_id=given["message_id"])
    agent_id, message_id = checked_ids(given["agent_id"], given["message_id"])
    after = check_seq(given.get("after_seq", 0))

    def look(limit: timedelta) -> tuple[Chunk, ...]:
        seconds = limit.total_seconds()
        found = ports.store.read_chunks(agent_id, message_id, after=after, timeout=seconds)
        if found is None:
            raise ProcessTimeoutError(agent_id=agent_id, message_id=message_id, timeout=seconds)
        return found

    try:
        return {"chunks": wait_politely(ports, look)}
    except ProcessTimeoutError:
        return {"pending": message_id}


def dead_letters(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """Messages that were given up on; a page."""
    return manager.dead_letters(given.get("agent_id"), limit=_limit(given))


# -- waiting -----------------------------------------------------------------------------------------------------------


def wait_for(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401 - JSON
    """What is known of the agent once it is in one of the states; else where it is now."""
    agent_id = given["agent_id"]
    try:
        return wait_politely(ports, lambda limit: manager.wait_for(agent_id, given["states"], timeout=limit))
    except WaitTimeoutError as late:
        return {"pending": agent_id, "state": late.state}


def move_runtime(ports: ControlPorts, given: Given, to: RuntimeState, only_from: tuple[RuntimeState, ...]) -> None:
    """Moves the runtime's state; the sweep then starts or ends the agents, as a task may not wait for them."""
    reason, actor = given.get("reason") or "", given["actor"]
    check_texts(reason=reason, actor=actor)
    ports.store.set_runtime(to, only_from=only_from, reason=reason, actor=actor)


# -- events ------------------------------------------------------------------------------------------------------------


def read_events(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """A page of one stream, and the version that the stream has now."""
    stream_id = _stream_id(given["agent_id"])
    direction = given.get("direction", "ascending")
    options = ReadOptions(
        from_version=given.get("from_version", 0),
        to_version=given.get("to_version", 0),
        limit=_limit(given),
        direction=direction,
    )
    found = manager.events.read(stream_id, options)
    return {"events": [_shown(event) for event in found], "stream_version": manager.events.stream_version(stream_id)}


def follow_events(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401 - JSON
    """What was stored since a cursor, and the cursor for the next call."""
    cursor, limit = given.get("cursor"), _limit(given)
    if cursor is not None:
        check_texts(cursor=cursor)
    wanted = EventFilter(streams=_texts(given, "agent_ids"), types=_texts(given, "types"))
    events: list[dict[str, Any]] = []
    problems: list[dict[str, Any]] = []
    with manager.events.subscribe(wanted, cursor=cursor) as subscription:
        while len(events) + len(problems) < limit and ports.hurry.left > _RESERVE:
            try:
                event = subscription.poll(timeout=0)
            except (EventGapError, EventIntegrityError) as problem:
                problems.append(problem.fields)
                continue
            if event is None:
                break
            events.append(_shown(event))
        if not events and not problems:
            # A subscription outlives outages, and a caller has to know of one.
            ports.store.server_time()
        return {"events": events, "problems": problems, "cursor": subscription.cursor}


def _shown(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "stream_id": event.stream_id,
        "version": event.version,
        "type": event.type,
        "payload": event.payload,
        "time": event.time,
        "epoch": event.epoch,
        "metadata": dict(event.metadata),
    }


# -- what is stored ----------------------------------------------------------------------------------------------------


def list_snapshots(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401 - JSON
    """The kept snapshots of an agent without their states, newest first, then the damaged ones."""
    agent_id = _known(manager, given)
    found = [*ports.store.stored_snapshots(agent_id), *ports.store.damaged_snapshots(agent_id)]
    return [
        {"version": one.version, "epoch": one.epoch, "schema": one.schema, "time": to_datetime(one.time)}
        if isinstance(one, Snapshot)
        else {"problem": one.problem}
        for one in found
    ]


def list_executions(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """The executions of an agent, without their checkpoints."""
    return [_execution(one) for one in manager.checkpoints.list_executions(_known(manager, given))]


def get_execution(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """One execution with its checkpoint."""
    execution_id, agent_id = check_execution_id(given["execution_id"]), _known(manager, given)
    found = manager.checkpoints.load(agent_id, execution_id)
    if found is None:
        raise ExecutionNotFoundError(agent_id=agent_id, execution=execution_id)
    return {**_execution(found), "checkpoint": found.envelope}


def list_steps(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """The newest records of an execution's steps, without what they returned."""
    execution_id, limit, agent_id = check_execution_id(given["execution_id"]), _limit(given), _known(manager, given)
    return [
        {
            "number": one.number,
            "id": one.id,
            "function": one.function,
            "replay": one.replay,
            "attempts": one.attempts,
            "failed": one.error is not None,
            "actor": one.actor,
            "time": to_datetime(one.time),
        }
        for one in manager.checkpoints.steps(agent_id, execution_id)[-limit:]
    ]


def list_intents(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """The steps of an agent whose outcome nobody knows; a page."""
    limit, agent_id = _limit(given), _known(manager, given)
    return [
        {
            "execution": one.execution,
            "step": one.step,
            "function": one.function,
            "arguments": one.arguments,
            "incarnation": one.incarnation,
            "time": to_datetime(one.time),
        }
        for one in manager.checkpoints.intents(agent_id)[:limit]
    ]


def _execution(one: Execution) -> dict[str, Any]:
    return {
        "agent_id": one.agent_id,
        "id": one.id,
        "state": one.state,
        "attempts": one.attempts,
        "epoch": one.epoch,
        "next_attempt_at": to_datetime(one.next_attempt_at) if one.next_attempt_at else None,
        "created_at": to_datetime(one.created_at),
        "changed_at": to_datetime(one.changed_at),
    }


def list_types(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """The agent types that workers can host."""
    return ports.store.known_types()


def get_config(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """The namespace's settings."""
    return manager.config


def audit(manager: CoreManager, ports: ControlPorts, given: Given) -> Any:  # noqa: ANN401, ARG001 - as the others
    """Who asked for what; a page."""
    return manager.audit(given.get("agent_id"), since=given.get("since"), limit=_limit(given))


# -- arguments ---------------------------------------------------------------------------------------------------------


def _limit(given: Given) -> int:
    limit = given.get("limit", 100)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MOST_OF_A_PAGE:
        raise InvalidSettingError(field="limit", value=as_shown(limit), problem=_WHOLE)
    return limit


def _texts(given: Given, field: str) -> list[str] | None:
    value = given.get(field)
    if value is None:
        return None
    entries = cast("list[object]", value)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in entries):
        raise InvalidSettingError(field=field, value=as_shown(entries), problem=_TEXTS)
    return cast("list[str]", entries)


def _stream_id(name: object) -> str:
    """An agent's id, or a stream whose mark no agent's id may have."""
    if isinstance(name, str) and name.startswith("@"):
        return name
    return check_agent_id(cast("str", name))


def _known(manager: CoreManager, given: Given) -> AgentId:
    """The id of an agent that exists."""
    agent_id = check_agent_id(given["agent_id"])
    if manager.get_agent_info(agent_id) is None:
        raise AgentNotFoundError(agent_id=agent_id)
    return agent_id
