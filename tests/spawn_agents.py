"""Agents whose processes die in the middle of a spawn; workers of tests/fault/test_spawn_kills.py import them."""

from __future__ import annotations

import os
import signal
from typing import Any

from ares_celery import AgentContext, AgentSpec, agent
from ares_celery.model.command import Spawn
from ares_celery.runtime.commits import Committer
from tests.step_agents import is_there, write

_APPLY = Committer.apply


def _die_once(spec: AgentSpec, where: str) -> None:
    """Kills this process where the child's config says so, the first time that it comes here."""
    mark = f"{spec.config['folder']}/{spec.id}.killed"
    if spec.config.get("dies") == where and not is_there(mark):
        write(mark, where)
        os.kill(os.getpid(), signal.SIGKILL)


def _apply(self: Committer, agent_id: Any, command: Any, **options: Any) -> Any:
    """The parent lists the child; then this makes it; then the parent's step is recorded."""
    if not isinstance(command, Spawn) or command.spec is None:
        return _APPLY(self, agent_id, command, **options)
    _die_once(command.spec, "listed")
    applied = _APPLY(self, agent_id, command, **options)
    _die_once(command.spec, "made")
    return applied


# For the processes of this worker alone.
setattr(Committer, "apply", _apply)  # noqa: B010 - a method may not be assigned to; here it is meant


@agent("breeder")
class Breeder:
    """Spawns its children in order, and lives on."""

    def __init__(self, agent_id: str, folder: str, children: dict[str, str]) -> None:
        self.folder, self.children = folder, children

    async def start(self, ctx: AgentContext) -> None:
        for child, dies in self.children.items():
            await ctx.spawn(AgentSpec(id=child, type="leaf", config={"folder": self.folder, "dies": dies}))
        await ctx.emit("bred", {})
        while not ctx.stop_requested:
            await ctx.sleep(60)


@agent("leaf")
class Leaf:
    """Notes that it was started."""

    def __init__(self, agent_id: str, folder: str, dies: str = "") -> None:
        self.journal = f"{folder}/{agent_id}.starts"

    async def start(self, ctx: AgentContext) -> None:
        write(self.journal, str(ctx.incarnation))
        while not ctx.stop_requested:
            await ctx.sleep(60)
