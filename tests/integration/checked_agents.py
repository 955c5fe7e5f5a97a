"""Agents of the next release, for the command that checks stored states before a deployment."""

from __future__ import annotations

from typing import Any

from ares_celery import AgentContext, agent, upcaster


@agent("checked-counter", schema=2)
class Counter:
    """Its state of schema 1 had another key."""

    def __init__(self, agent_id: str, step: int = 1) -> None:
        self.total = 0

    async def process(self, ctx: AgentContext, message: object) -> object:
        return message

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = int(state["total"])


@upcaster("checked-counter", from_version=1)
def name_the_total(state: dict[str, Any]) -> dict[str, Any]:
    """From ``n`` to ``total``."""
    return {"total": state["n"]}


@agent("checked-forgetful", schema=3)
class Forgetful:
    """Somebody has forgotten its upcasters."""

    def __init__(self, agent_id: str) -> None: ...

    async def process(self, ctx: AgentContext, message: object) -> object:
        return message

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        raise SystemExit("no state is right")


@agent("checked-hidden")
class Hidden:
    """Has lost its restore_state."""

    def __init__(self, agent_id: str) -> None: ...

    async def process(self, ctx: AgentContext, message: object) -> object:
        return message
