"""The children of the agent under test, which the test plays: their code does not run."""

from __future__ import annotations

from typing import Final

from ares_celery.errors import AgentNotFoundError, AgentNotRunningError
from ares_celery.ids import AgentId, check_agent_id
from ares_celery.model.agent import AgentInfo, AgentRecord, AgentState, Owner
from ares_celery.model.command import Command, Complete, MarkRunning, Park
from ares_celery.store.redis.json_values import encode_json
from ares_celery.testing.view import AgentView

__all__ = ["Children"]

#: Who hosts them, as far as anybody sees.
_OWNER: Final = Owner("test", "test", "test")
_CLAIMABLE: Final = frozenset({AgentState.STARTING, AgentState.RESURRECTING})


class Children(AgentView):
    """What a test sees of agents that its agent has spawned, and what it lets become of them."""

    @property
    def children(self) -> list[AgentInfo]:
        """The agents that it has spawned, oldest first, as the manager sees them."""
        return self.manager.children(self.agent_id)

    def complete_child(self, child_id: str, result: object = None) -> None:
        """Plays a child that completes; the agent is told if it wants to be, and goes on.

        Args:
            child_id: Which child.
            result: What ``child.result()`` gives: a JSON value.

        Raises:
            AgentNotFoundError: There is no child of this id. AgentNotRunningError: It is stopped, or over.
            UnserialisableError: The result is no plain JSON.
        """
        text = "" if result is None else encode_json(result, what="the result", agent_id=child_id)[0].decode()
        record = self._hosted(child_id)
        self._end_child(record, Complete(fence=record.fence, result=text))

    def park_child(self, child_id: str, reason: str, *, cause: str = "attempts") -> None:
        """Plays a child that is given up on.

        Raises:
            AgentNotFoundError: There is no child of this id. AgentNotRunningError: It is stopped, or over.
        """
        record = self._hosted(child_id)
        self._end_child(record, Park(reason, fence=record.fence, cause=cause))

    def _hosted(self, child_id: str) -> AgentRecord:
        """The child, as if a worker ran it."""
        child, bench = check_agent_id(child_id), self._bench
        record = bench.store.read_record(child)
        if record is None or record.spec.parent != self.agent_id:
            raise AgentNotFoundError(agent_id=child, message=f"agent {self.agent_id!r} has no child {child!r}")
        if record.state in _CLAIMABLE and not record.hosted:
            fence = bench.store.claim(child, record.epoch, token="test", owner=_OWNER, page=1).record.fence  # noqa: S106 - nothing secret
            record = bench.committer.apply(child, MarkRunning(fence=fence)).record or record
        if not record.hosted:
            raise AgentNotRunningError(agent_id=child, state=record.state.value, operation="playing its end")
        return record

    def _end_child(self, record: AgentRecord, command: Command) -> None:
        self._bench.committer.apply(AgentId(record.spec.id), command)
        self._bench.look_at_deadlines()
        self._settle()

    def _settle(self) -> None:
        """Lets the agent do what it now can."""
        self._bench.drive(self.now, self._waits)
        self._raise_failure()

    def _waits(self) -> bool:
        """It waits for time to pass or for something to happen, not only for its turn."""
        process = self._bench.process
        return process is None or not process.lives or process.stage.next_at > self.now
