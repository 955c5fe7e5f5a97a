"""Steps that must not be repeated and that the store has forgotten, as it came back older: noted once more."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Final

from ares_celery.clock import Clock
from ares_celery.errors import AresError, NotConfirmedError, StoreUnavailableError
from ares_celery.model.step import StepIntent
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.store.base import IncarnationStore

__all__ = ["note_forgotten"]

log: Final = logging.getLogger(__name__)

#: Seconds between two tries while the store does not answer.
_PAUSE: Final = 0.2


def note_forgotten(store: IncarnationStore, incarnation: Incarnation, clock: Clock) -> None:
    """Gives the store back the intents that it lost, so that a person is asked before such a step runs again.

    This process knows that the steps were begun, which nobody else does any more. Waits out an outage. What the store
    refuses is logged: it came back so old that it does not even know this incarnation.
    """
    for version, intent in incarnation.begun_never:
        if version is None or version > incarnation.kept_version:
            _note(store, incarnation, intent, clock)


def _note(store: IncarnationStore, incarnation: Incarnation, intent: StepIntent, clock: Clock) -> None:
    agent_id, fence, execution = incarnation.agent_id, incarnation.fence, intent.execution
    op = uuid.uuid4().hex
    while True:
        try:
            opened = store.open_steps(agent_id, execution, fence=fence, op=op)
            if intent.step not in opened.steps:
                store.record_intent(agent_id, fence, execution, intent, op=f"{op}-intent")
        except NotConfirmedError:
            # It is written: whoever goes on with the agent finds it, if that lives on.
            return
        except StoreUnavailableError:
            clock.wait(threading.Event(), _PAUSE)
        except AresError as error:
            log.error(  # noqa: TRY400 - the sentence says it all
                "agent %s: step %r of execution %r was begun, must not run twice, and may: the store came back older, "
                "without it, and could not be told: %s",
                agent_id,
                intent.step,
                execution,
                error,
                extra={"agent_id": agent_id},
            )
            return
        else:
            return
