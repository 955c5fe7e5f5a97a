"""What a new incarnation finds of the work that earlier ones had begun."""

from __future__ import annotations

import logging
from typing import Final

from ares_celery.model.agent import AgentRecord
from ares_celery.store.checkpoints import CheckpointStore

__all__ = ["recover_executions"]

log: Final = logging.getLogger(__name__)


def recover_executions(checkpoints: CheckpointStore, record: AgentRecord) -> None:
    """Gives back the executions that earlier incarnations held, before the agent's own code runs.

    Costs nothing for an agent without unfinished ones: the claim has brought their number along.

    Raises:
        FencedError: The incarnation is over. StoreUnavailableError: They could not be read.
    """
    if not record.executions:
        return
    # One recovery an incarnation: its fence tells a repeat from the next one.
    given_back = checkpoints.recover(record.id, fence=record.fence, op=f"recover|{record.fence}", lost=record.failover)
    if given_back:
        log.info(
            "agent %s: %d executions of earlier incarnations are ready again: %s",
            record.id,
            len(given_back),
            ", ".join(execution.id for execution in given_back[:10]),
            extra={"agent_id": record.id, "epoch": record.epoch},
        )
