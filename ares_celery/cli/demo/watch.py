"""Follows the demo's agents while they work: what the table shows and the kills are chosen by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ares_celery.cli.demo.agents import FILE_COUNTED, TOKENIZER
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.event import EventType, ReadOptions

__all__ = ["Row", "View", "Watch"]


@dataclass(frozen=True, slots=True)
class Row:
    """One agent at one moment.

    Attributes:
        agent_id: Which.
        state: What it does.
        worker: Node name of its worker without the host; empty while nobody hosts it.
        incarnation: Which life.
        restarts: Resurrections so far.
        done: Files counted.
        files: Files to count.
        ran_since: When its newest incarnation began to run; None before.
    """

    agent_id: str
    state: AgentState
    worker: str
    incarnation: int
    restarts: int
    done: int
    files: int
    ran_since: datetime | None

    @property
    def is_mid_work(self) -> bool:
        """It runs, has done something and has something to do."""
        return self.state is AgentState.RUNNING and 0 < self.done < self.files - 1


@dataclass(frozen=True, slots=True)
class View:
    """All agents at one moment."""

    rows: Sequence[Row]

    @property
    def progress(self) -> float:
        """The part of all files that is done, 0 to 1."""
        return sum(row.done for row in self.rows) / max(1, sum(row.files for row in self.rows))

    @property
    def is_complete(self) -> bool:
        """Every agent is done."""
        return all(row.state is AgentState.COMPLETED for row in self.rows)

    @property
    def is_quiet(self) -> bool:
        """Nobody is on the way from one life to the next."""
        return all(row.state in (AgentState.RUNNING, AgentState.COMPLETED) for row in self.rows)

    def row(self, agent_id: str) -> Row:
        """The row of an agent."""
        return next(row for row in self.rows if row.agent_id == agent_id)


class Watch:
    """Reads what is new in each stream.

    Args:
        manager: Of the demo's namespace.
        shares: How many files each agent has to count.
    """

    def __init__(self, manager: CoreManager, shares: Mapping[str, int]) -> None:
        self._manager = manager
        self._shares = dict(shares)
        self._version = dict.fromkeys(shares, 0)
        self._done = dict.fromkeys(shares, 0)
        self._ran_since: dict[str, datetime] = {}

    def look(self) -> View:
        """Looks once; a few round trips."""
        found = {info.id: info for info in self._manager.list_agents(type=TOKENIZER)}
        for agent_id in found:
            self._read_news(agent_id)
        return View([self._row(found[agent_id]) for agent_id in self._shares if agent_id in found])

    def _read_news(self, agent_id: str) -> None:
        options = ReadOptions(from_version=self._version[agent_id] + 1)
        for event in self._manager.events.read(agent_id, options):
            self._version[agent_id] = event.version
            if event.type == FILE_COUNTED:
                self._done[agent_id] += 1
            elif event.type in (EventType.AGENT_STARTED, EventType.FAILOVER_COMPLETED):
                self._ran_since[agent_id] = event.time

    def _row(self, info: AgentInfo) -> Row:
        return Row(
            agent_id=info.id,
            state=info.state,
            worker=(info.worker or "").partition("@")[0],
            incarnation=info.incarnation,
            restarts=info.restarts,
            done=self._done[info.id],
            files=self._shares[info.id],
            ran_since=self._ran_since.get(info.id),
        )
