"""``ares.run_agent`` and ``ares.resurrect_agent``: a pool slot for an incarnation's life."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, Final, assert_never

from celery import Celery

from ares_celery.celery_app.django_database import let_go_of_database
from ares_celery.celery_app.due_task import AgentTask
from ares_celery.celery_app.log import agent_lines
from ares_celery.celery_app.message import message_of
from ares_celery.celery_app.names import RESURRECT_AGENT, RUN_AGENT
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.ids import AgentId, Epoch
from ares_celery.runtime.outcome import Crashed, Delivery, Ended, Noop, Outcome, RetryLater

__all__ = ["add_agent_tasks"]

log: Final = logging.getLogger(__name__)

_INCARNATION: Final = re.compile(r"'incarnation': (\d+)")


def add_agent_tasks(app: Celery, namespace: str) -> None:
    """Adds both tasks to the app; ``shared=False``, as other apps of the process are not ours."""

    @app.task(name=RUN_AGENT, base=AgentTask, bind=True, shared=False, ares_namespace=namespace)
    def run_agent(self: AgentTask, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever was sent
        return host_message(self, args, kwargs)

    @app.task(name=RESURRECT_AGENT, base=AgentTask, bind=True, shared=False, ares_namespace=namespace)
    def resurrect_agent(self: AgentTask, *args: Any, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
        return host_message(self, args, kwargs)

    _ = run_agent, resurrect_agent


def host_message(task: AgentTask, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Hosts the incarnation that a message asks for; one that asks for none costs a warning and nothing else."""
    message = message_of(task.name, args, kwargs)
    if message is None:
        # Without its arguments: nobody knows what they are.
        log.warning("%s[%s] names no agent and epoch; nothing is done", task.name, task.request.id)
        return {"noop": "bad message"}
    return host_agent(task, message.agent_id, message.epoch)


def host_agent(task: AgentTask, agent_id: AgentId, epoch: Epoch) -> dict[str, Any]:
    """Runs the incarnation to its end, or gives the message to another worker while this one drains."""
    let_go_of_database()
    wiring, request = wiring_of(task.app), task.request
    delivery = Delivery(str(request.id), int(request.retries or 0), str(request.hostname))
    number = _INCARNATION.search(str(request.get("kwargsrepr") or ""))
    with (
        agent_lines(
            agent_id=agent_id, incarnation=number.group(1) if number else "", epoch=epoch, task_id=delivery.task_id
        ),
        wiring.term_is_hint(),
    ):
        outcome = Noop("draining") if wiring.is_draining else wiring.host().run(agent_id, epoch, delivery)
        if outcome == Noop("draining"):
            wiring.send_again(agent_id, epoch)
    return finish(task, agent_id, outcome)


def finish(task: AgentTask, agent_id: AgentId, outcome: Outcome) -> dict[str, Any]:
    """Says the outcome in Celery's words: a result, the agent's error, or a retry that waits in the store."""
    match outcome:
        case Noop(reason):
            return {"noop": reason}
        case Ended(state, incarnation):
            return {"state": state.value, "incarnation": incarnation}
        case Crashed(error):
            raise error
        case RetryLater(error, next_epoch, delay):
            # The type stubs know no further options.
            retry: Any = task.retry
            raise retry(
                args=(agent_id, next_epoch),
                kwargs={},
                exc=error,
                countdown=delay.total_seconds(),
                # The store counts attempts and has granted this one.
                max_retries=int(task.request.retries or 0) + 1,
                root_id=f"{agent_id}@{next_epoch}",
            )
        case _:
            assert_never(outcome)
