"""Who acts in the world of the lifecycle: processes, incarnations, and what operators ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ares_celery.ids import Epoch, Instant
from ares_celery.model.agent import AgentSpec
from ares_celery.model.birth import Birth
from ares_celery.model.command import (
    Command,
    Delete,
    IfExists,
    Pause,
    Register,
    Restart,
    Restore,
    Resume,
    Spawn,
    Start,
    Stop,
    Update,
)


@dataclass(eq=False)
class Process:
    """A worker's process."""

    identity: str
    alive: bool = True
    frozen: bool = False
    #: Somebody saw it exit and told the store.
    noticed: bool = False

    @property
    def turns(self) -> bool:
        return self.alive and not self.frozen


@dataclass(eq=False)
class Incarnation:
    """An agent's code in a process, as the process sees it."""

    agent_id: str
    fence: str
    process: Process
    #: It may act until then without another renewal; afterwards its ctx calls wait.
    lease_until: Instant
    recovering: bool = True
    #: Steps of it that run, are never repeated, and have no outcome yet.
    open_steps: int = 0
    #: It ended, or learned that it is fenced.
    over: bool = False
    #: The agent was deleted meanwhile: whoever has its id now is another agent.
    orphan: bool = False

    @property
    def epoch(self) -> Epoch:
        return Epoch(int(self.fence.partition("|")[0]))

    @property
    def turns(self) -> bool:
        """Its code runs on, fenced or not."""
        return not self.over and self.process.turns

    def may_act(self, now: int) -> bool:
        """Its code may have outside effects at this moment."""
        return self.process.alive and not self.over and not self.orphan and now < self.lease_until


Maker = Callable[[str], Command]


def spec_of(agent_id: str, labels: dict[str, str] | None = None) -> AgentSpec:
    """The spec that this world gives to an agent; the second one belongs to a group."""
    return AgentSpec(id=agent_id, type="t", labels=labels or {}, group="g" if agent_id == "b" else None)


def spawner(agent_id: str, *, stillborn: bool) -> Command:
    """What an agent outside of this world asks, always by the same call."""
    spec = spec_of(agent_id).model_copy(update={"parent": "p"})
    return Spawn(spec=spec, birth=Birth("call", 1, 0, 0, reports=True), root="p", stillborn=stillborn)


def _starter(mode: IfExists) -> Maker:
    return lambda agent_id: Start(spec=spec_of(agent_id), if_exists=mode)


_MODES: Final[tuple[IfExists, ...]] = ("error", "return", "restart", "update", "error", "error", "error")
#: What operators ask, each as often as it stands here.
ASKED: Final[tuple[Maker, ...]] = (
    *[_starter(mode) for mode in _MODES],
    *[lambda _: Stop(), lambda _: Stop(force=True), lambda _: Stop(force=True)],
    *[lambda _: Pause(), lambda _: Resume(), lambda _: Restart(), lambda _: Restart(), lambda _: Restore()],
    lambda agent_id: Register(spec=spec_of(agent_id)),
    lambda agent_id: Update(spec=spec_of(agent_id, labels={"v": "2"})),
    *[lambda agent_id: spawner(agent_id, stillborn=False), lambda agent_id: spawner(agent_id, stillborn=True)],
    lambda _: Delete(),
)
