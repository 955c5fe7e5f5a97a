"""What a test sees of its agent."""

from __future__ import annotations

from typing import Any, Final, cast

from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.event import Event, ReadOptions, is_runtime_event
from ares_celery.model.snapshot import Snapshot
from ares_celery.model.waits import InterruptInfo
from ares_celery.store.base import DamagedSnapshot
from ares_celery.store.redis.json_values import decode_json, encode_json
from ares_celery.testing.bench import Bench, with_traceback
from ares_celery.testing.process import SentMessage

__all__ = ["AgentView"]

#: Events, and characters of a payload, that the text of an error shows.
_SHOWN: Final = 10
_WIDTH: Final = 120


class AgentView:
    """The harness's questions; none of them lets the agent run."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._seen: list[Event] = []

    @property
    def agent(self) -> Any:  # noqa: ANN401 - an instance of the user's class
        """The live instance: of the present incarnation, or of the last one."""
        return self._bench.instance

    @property
    def agent_id(self) -> str:
        """Its id."""
        return self._bench.agent_id

    @property
    def info(self) -> AgentInfo:
        """What the manager says of it: state, incarnation, restarts, result."""
        return self._bench.info

    @property
    def is_running(self) -> bool:
        """Its code runs, or would if the test let it."""
        return self._bench.process is not None and self._bench.process.lives

    @property
    def is_waiting(self) -> bool:
        """It waits for a time or a decision and has given its slot back; time that passes may bring it on."""
        return self._bench.record.state is AgentState.WAITING

    @property
    def interrupts(self) -> list[InterruptInfo]:
        """What it asks and has asked people, open questions first."""
        return self._bench.manager.interrupts(self.agent_id)

    @property
    def now(self) -> float:
        """Simulated seconds since the test began."""
        return self._bench.clock.monotonic()

    @property
    def all_events(self) -> list[Event]:
        """Every event of its stream, oldest first, the runtime's own among them."""
        after = self._seen[-1].version + 1 if self._seen else 1
        self._seen += self._bench.store.events.read(self.agent_id, ReadOptions(from_version=after))
        return list(self._seen)

    @property
    def events(self) -> list[Event]:
        """The events that the agent emitted, oldest first."""
        return [event for event in self.all_events if not is_runtime_event(event)]

    @property
    def snapshots(self) -> list[Snapshot]:
        """The snapshots that are kept, oldest first; damaged ones left out."""
        stored = self._bench.store.stored_snapshots(self._bench.agent_id)
        return [one for one in reversed(stored) if not isinstance(one, DamagedSnapshot)]

    def steps(self, execution: str = "main") -> dict[str, Any]:
        """What the steps of an execution have recorded, by id, in the order of recording; ``msg:<id>`` of a message.

        Of a step that failed for good, the error as a mapping: type, message, traceback.
        """
        found = self._bench.store.checkpoints.steps(self._bench.agent_id, execution)
        return {one.id: one.value if one.error is None else dict(one.error) for one in found}

    @property
    def state(self) -> dict[str, Any]:
        """What the agent's ``snapshot()`` gives now, as it would come back from the store.

        Raises:
            UnserialisableError: It is no plain JSON. AttributeError: The agent has no ``snapshot``.
        """
        data, _ = encode_json(dict(self.agent.snapshot()), what="the state", agent_id=self.agent_id)
        return cast("dict[str, Any]", decode_json(data))

    @property
    def sent(self) -> list[SentMessage]:
        """What it sent to other agents, oldest first. Nobody gets it; :meth:`send` plays their answers."""
        return list(self._bench.world.sent)

    @property
    def missing(self) -> set[str]:
        """Ids of agents that do not exist, for the test to change; a message to any other is in :attr:`sent`."""
        return self._bench.world.missing

    @property
    def manager(self) -> CoreManager:
        """The agent's manager, for what has no method here. Its waits are in simulated time."""
        return self._bench.manager

    # -- words ------------------------------------------------------------------------------------------------------

    def _raise_failure(self) -> None:
        failure = self._bench.failure()
        if failure is not None:
            raise with_traceback(failure)

    def _instead(self) -> str:
        """What did happen, for the text of an error."""
        process, record = self._bench.process, self._bench.record
        lines = [f": agent {self.agent_id!r} is {record.state}, incarnation {record.incarnation}, at {self.now:g} s"]
        if process is not None and process.lives:
            lines.append(f"it waits at {self._bench.whereabouts(process) or 'nothing of its own'}")
        elif self._bench.has_crashed:
            lines.append("it has crashed in this test: call restart()")
        elif record.reason:
            lines.append(f"it ended: {record.reason}")
        events = self.all_events
        lines.append(f"its last events of {len(events)}:" if events else "it has no events")
        lines += [_line(event) for event in events[-_SHOWN:]]
        return "\n  ".join(lines)


def _line(event: Event) -> str:
    payload = str(dict(event.payload))
    shown = payload if len(payload) <= _WIDTH else f"{payload[: _WIDTH - 1]}…"
    return f"  {event.version:>4}  {event.time:%H:%M:%S}  {event.type}  {shown}"
