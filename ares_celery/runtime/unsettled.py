"""Ends of incarnations whose steps have outcomes that nobody knows: a person has to say what came of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.transitions import UNKNOWN_OUTCOME
from ares_celery.model.unsettled import why_parked
from ares_celery.runtime.ends import Crash, End, Parked
from ares_celery.store.steps import StepReader

__all__ = ["parked_instead"]

log: Final = logging.getLogger(__name__)
NOTHING: Final[Mapping[tuple[str, str], str]] = {}


def parked_instead(
    steps: StepReader, agent_id: AgentId, end: End | None = None, returned: Mapping[tuple[str, str], str] = NOTHING
) -> Parked:
    """The end by which a person is asked, instead of ``end``; names the steps if the store tells them now.

    Args:
        steps: Where they are noted.
        agent_id: Whose.
        end: How its code has ended.
        returned: By execution and step, why the result of one that returned cannot be recorded.
    """
    try:
        reason = why_parked(agent_id, steps.intents(agent_id), returned)
    except StoreUnavailableError as error:
        log.warning("agent %s: the steps to be settled could not be read: %s", agent_id, error)
        reason = why_parked(agent_id, ())
    fields = end.error.fields if isinstance(end, Crash) else {}
    if fields and fields["error"] not in reason:
        reason += f"; then its code failed: {fields['type']}: {fields['error']}"
    return Parked(UNKNOWN_OUTCOME, reason)
