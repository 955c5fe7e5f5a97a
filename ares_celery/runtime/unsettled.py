"""Ends of incarnations whose steps have outcomes that nobody knows: a person has to say what came of them."""

from __future__ import annotations

import logging
from typing import Final

from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.transitions import UNKNOWN_OUTCOME
from ares_celery.model.unsettled import why_parked
from ares_celery.runtime.ends import Crash, End, Parked
from ares_celery.store.steps import StepReader

__all__ = ["parked_instead"]

log: Final = logging.getLogger(__name__)


def parked_instead(steps: StepReader, agent_id: AgentId, end: End | None = None) -> Parked:
    """The end by which a person is asked, instead of ``end``; names the steps if the store tells them now."""
    try:
        reason = why_parked(agent_id, steps.intents(agent_id))
    except StoreUnavailableError as error:
        log.warning("agent %s: the steps to be settled could not be read: %s", agent_id, error)
        reason = why_parked(agent_id, ())
    if isinstance(end, Crash):
        fields = end.error.fields
        reason += f"; then its code failed: {fields['type']}: {fields['error']}"
    return Parked(UNKNOWN_OUTCOME, reason)
