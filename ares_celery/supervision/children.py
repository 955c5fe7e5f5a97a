"""The part of a Manager that is about agents and those that they spawned."""

from __future__ import annotations

import logging
from typing import Final

from ares_celery.errors import AgentNotFoundError, AresError
from ares_celery.ids import check_agent_id
from ares_celery.model.agent import AgentInfo
from ares_celery.model.command import Deadline
from ares_celery.model.info import agent_info
from ares_celery.runtime.commits import Applied
from ares_celery.runtime.queries import Ports
from ares_celery.supervision.families import FamilyKeeper

__all__ = ["Children"]

log: Final = logging.getLogger(__name__)

#: Children that a stop asks at once; it leaves more to the sweep, so as not to keep its caller waiting.
_AT_ONCE: Final = 100


class Children:
    """Lists children, and takes them along when their parent is stopped."""

    _ports: Ports

    def children(self, agent_id: str) -> list[AgentInfo]:
        """The agents that this one has spawned, in that order, whatever state they are in; deleted ones left out.

        Raises:
            AgentNotFoundError: The agent itself does not exist.

        Example:
            ``[child.id for child in manager.children("planner-1") if child.state == "running"]``
        """
        checked, store = check_agent_id(agent_id), self._ports.store
        reads = store.read_many(store.children(checked))
        found = [agent_info(read.record) for read in reads if read.record and read.record.spec.parent == checked]
        if not found and store.read_record(checked) is None:
            raise AgentNotFoundError(agent_id=checked)
        return found

    def _take_along(self, applied: Applied) -> None:
        """Asks the children at once, as a courtesy: what is not done here, the sweep does."""
        record = applied.record
        if record is None or not applied.plan.deadlines.get(Deadline.CHILDREN) or record.children > _AT_ONCE:
            return
        try:
            FamilyKeeper(self._ports.store, self._ports.committer).cascade(record)
        except AresError as error:
            log.warning("agent %s: its children are asked to stop by the sweep: %s", record.id, error)
