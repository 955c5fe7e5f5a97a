"""Sends nudges as Celery messages; nothing depends on their arrival."""

from __future__ import annotations

import uuid
from typing import Any, Final

from celery import Celery
from kombu.exceptions import ChannelError
from kombu.transport.virtual import Channel
from typing_extensions import override

from ares_celery.celery_app.names import NAMESPACE_HEADER, RESURRECT_AGENT, RUN_AGENT, queue_name
from ares_celery.celery_app.producers import Producers
from ares_celery.celery_app.routing import make_queue
from ares_celery.errors import OperationNotSupportedError
from ares_celery.model.plan import Nudge
from ares_celery.runtime.ports import Launcher

__all__ = ["PUBLISH_RETRIES", "CeleryLauncher", "refuse_eager"]

#: Bounded on purpose: the deadline `nudge` or `attempt` in the store sends the message again, so waiting gains nothing.
PUBLISH_RETRIES: Final = {"max_retries": 2, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.2}


class CeleryLauncher(Launcher):
    """Publishes ``ares.run_agent`` and ``ares.resurrect_agent``.

    Every message has a fresh task id, but for Celery's own retries, as workers remember revoked ids for hours.

    Args:
        app: Publishes; the tasks need not be registered in it.
        namespace: Whose queues the messages go to.
        producers: Publishes through these; None = the app's own pool.

    Example:
        CeleryLauncher(app, "ares").launch(nudge)
    """

    def __init__(self, app: Celery, namespace: str, *, producers: Producers | None = None) -> None:
        self._app = app
        self._namespace = namespace
        self._producers = producers

    @override
    def launch(self, nudge: Nudge) -> None:
        """Publishes the nudge; may raise what Kombu raises when the broker is away."""
        name = RESURRECT_AGENT if nudge.resurrect else RUN_AGENT
        refuse_eager(self._app, name)
        if self._producers is None:
            self._send(nudge, name, None)
            return
        with self._producers.acquire() as producer:
            self._send(nudge, name, producer)

    def _send(self, nudge: Nudge, name: str, producer: Any) -> None:  # noqa: ANN401 - kombu's, without types
        # The type stubs know names of queues only.
        queue: Any = make_queue(queue_name(self._namespace, nudge.queue))
        self._app.send_task(
            name,
            args=(nudge.agent_id, nudge.epoch),
            task_id=nudge.task_id or uuid.uuid4().hex,
            queue=queue,
            producer=producer,
            root_id=f"{nudge.agent_id}@{nudge.epoch}",
            retries=nudge.retries,
            # What Flower and logs show: no config, no state, nothing secret.
            argsrepr=f"({str(nudge.agent_id)!r}, {nudge.epoch})",
            kwargsrepr=f"{{'incarnation': {nudge.incarnation}}}",
            serializer="json",
            retry=True,
            retry_policy=PUBLISH_RETRIES,
            # Tells the sender that it will not wait for the result, or its backend would subscribe to it for ever ...
            ignore_result=True,
            # ... while the header tells the worker that the result is to be stored.
            headers={NAMESPACE_HEADER: self._namespace, "ignore_result": False},
            add_to_parent=False,
        )

    @override
    def waiting(self, queue: str | None) -> int | None:
        """Asks the broker; None unless it is one of Kombu's own transports, such as Redis. May raise like `launch`."""
        # The stub of an app's pool names what that does not hold.
        pool: Any = self._app.pool if self._producers is None else self._producers.connections
        with pool.acquire(block=True) as connection:
            # Bounded, as a channel alone would wait for the broker without end.
            connection.ensure_connection(**PUBLISH_RETRIES)
            channel = connection.default_channel
            if not isinstance(channel, Channel):
                return None
            try:
                answer = channel.queue_declare(queue=queue_name(self._namespace, queue), passive=True)
            except ChannelError:
                # An empty queue is none in Redis.
                return 0
            return int(answer.message_count)


def refuse_eager(app: Celery, task: str) -> None:
    """Refuses to act in an app whose tasks run in the caller.

    Raises:
        OperationNotSupportedError: ``task_always_eager`` is set.
    """
    if app.conf.task_always_eager:
        raise OperationNotSupportedError(
            operation=f"task {task}",
            reason="task_always_eager is set, and an agent cannot live in its caller; unset it, or use Manager.local()",
            setting="task_always_eager",
        )
