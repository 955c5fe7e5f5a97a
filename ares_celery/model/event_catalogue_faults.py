"""What the events of disturbances say: faults on purpose, and connections that are lost; part of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ares_celery.model.event import EventType
from ares_celery.model.event_facts import EventFacts

__all__ = ["FAULTS"]

_AGENT_ID: Final = {"agent_id": "whose stream it is"}
_FAULT: Final = {"fault": "its id", "kind": "`partition`, `memory`, `mcp`, `llm`, `slow` or `tool_timeout`"}

FAULTS: Final[Mapping[EventType, EventFacts]] = {
    EventType.FAULT_INJECTED: EventFacts(
        "A fault was injected on purpose, and is active from now on.",
        "the manager that was asked to",
        {
            **_AGENT_ID,
            **_FAULT,
            "duration": "seconds until it ends by itself",
            "count": "calls that it may affect; absent when all",
            "probability": "of affecting a call",
            "seed": "decides which calls",
            "delay": "seconds that a call waits; of `slow`",
            "timeout": "seconds that a call of a tool has; of `tool_timeout`",
            "error_type": "how calls of models fail; of `llm`",
            "retry_after": "seconds that the model asks to wait; of `llm`, absent when it does not",
            "server": "which MCP server is cut off; of `mcp`, empty for all",
            "reason": "why",
            "actor": "who injected it",
        },
    ),
    EventType.FAULT_HEALED: EventFacts(
        "Somebody ended a fault before its time.",
        "the manager that was asked to",
        {**_AGENT_ID, **_FAULT, "reason": "why", "actor": "who healed it"},
    ),
    EventType.FAULT_ENDED: EventFacts(
        "A fault is over by itself.",
        "the sweep; the hosting process when its count is used up; a manager when another one replaces it",
        {**_AGENT_ID, **_FAULT, "by": "`time`, `count` or `replaced`"},
    ),
    EventType.CHAOS_ENABLED: EventFacts(
        "Faults are allowed for a time; in the stream `@chaos`, as the one that follows.",
        "the manager that was asked to",
        {"duration": "seconds", "reason": "why", "actor": "who allowed them"},
    ),
    EventType.CHAOS_DISABLED: EventFacts(
        "Faults are no longer allowed for a time.",
        "the manager that was asked to; the sweep when the time is over",
        {
            "by": "`request` or `time`",
            "reason": "why; absent when the time is over",
            "actor": "who forbade them; absent when the time is over",
        },
    ),
    EventType.MCP_DISCONNECTED: EventFacts(
        "A call of the agent found no connection to an MCP server, or lost it; it goes on without.",
        "the hosting process",
        {**_AGENT_ID, "server": "the server's name", "problem": "what was seen of it"},
    ),
    EventType.MCP_CONNECTED: EventFacts(
        "A call of the agent went well over a connection that it had lost before.",
        "the hosting process",
        {**_AGENT_ID, "server": "the server's name"},
    ),
}
