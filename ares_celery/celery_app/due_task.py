"""The base of our tasks: waiting happens in the store, never in a message with an ETA."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from celery import Task
from typing_extensions import override

from ares_celery.celery_app.launcher import refuse_eager
from ares_celery.celery_app.names import NAMESPACE_HEADER
from ares_celery.celery_app.routing import send_home
from ares_celery.errors import AresError, OperationNotSupportedError

if TYPE_CHECKING:
    from celery import Celery
    from celery.result import AsyncResult

    _Task = Task[..., Any]
else:
    # Only newer versions of Celery are generic when they run.
    _Task = Task

__all__ = ["TIME_LIMIT", "AgentTask", "AresTask"]

#: Seconds, ten years. None and 0 fall back to the fleet's task_time_limit, which would kill agents.
TIME_LIMIT: Final = 10 * 365 * 24 * 3600


class AresTask(_Task):
    """Options that all our tasks carry themselves, whatever the settings of the app they live in."""

    abstract = True
    #: Nothing comes from the app's settings: neither its defaults for tasks nor its annotations, see `annotate`.
    from_config: tuple[tuple[str, str], ...] = ()
    typing = True
    #: Messages that Celery itself could not take apart would end the worker.
    Strategy = "ares_celery.celery_app.strategy:guarded"
    #: Early: a message is a nudge, and what a late one redelivers would run twice.
    acks_late = False
    #: Celery's own loop around lost workers has no backoff and no cap.
    reject_on_worker_lost = False
    retry_on_worker_lost = False
    acks_on_failure_or_timeout = True
    ignore_result = False
    store_eager_result = False
    track_started = True
    store_errors_even_if_ignored = False
    serializer = "json"
    #: One second below the hard one, which Celery demands to be larger.
    soft_time_limit = TIME_LIMIT - 1
    time_limit = TIME_LIMIT
    #: The store counts attempts.
    max_retries = None
    rate_limit = None
    #: Refusals and agents' own failures are told by their results and logged where they arise: no second traceback.
    throws = (AresError,)
    #: Of the app; filled in when the task is added to it.
    ares_namespace: str = ""

    @classmethod
    @override
    def bind(cls, app: Celery) -> Celery:
        """Joins the task with its app, and leaves no trace in the app's settings.

        A worker writes the modules of all tasks into the setting `include`, for children that start afresh. Ours come
        with the app's own module, so it finds nothing but a module of Celery that is always in there.
        """
        cls.__module__ = "celery.app.builtins"
        bind: Any = super().bind
        return cast("Celery", bind(app))

    @classmethod
    @override
    def annotate(cls) -> None:
        """Celery would lay the app's ``task_annotations`` over the task here; they are meant for its own tasks."""

    @override
    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Sends the task now.

        Raises:
            OperationNotSupportedError: A countdown or eta was given, or the app runs its tasks eagerly.
        """
        refuse_eager(self.app, self.name)
        if options.get("countdown") or options.get("eta"):
            raise OperationNotSupportedError(
                operation=f"countdown or eta on task {self.name}",
                reason="the worker that holds such a message loses it when it dies; send it when it is due",
            )
        send: Any = super().apply_async
        return cast("AsyncResult[Any]", send(args, kwargs, task_id, producer, link, link_error, shadow, **options))

    @override
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the body, unless the message is meant for another namespace."""
        refuse_eager(self.app, self.name)
        meant = self.request.get(NAMESPACE_HEADER) or (self.request.headers or {}).get(NAMESPACE_HEADER)
        own = self.ares_namespace
        if meant is not None and own and meant != own:
            return {"noop": send_home(self.app, own, self.name, self.request, (args, kwargs))}
        if self.request.called_directly:
            return super().__call__(*args, **kwargs)
        # Celery's own would push an empty request over that of the worker, and a retry would not know its message.
        return self.run(*args, **kwargs)


class AgentTask(AresTask):
    """Base of the two tasks that host agents."""

    abstract = True
    Request = "ares_celery.celery_app.request:AgentRequest"

    if not TYPE_CHECKING:
        # Celery's property also sets the backend of one task; ours is the process's.
        @property
        def backend(self) -> Any:  # noqa: ANN401 - any of Celery's backends
            """Where results go: one backend a process; see `Wiring.result_backend`."""
            # Late, as the wiring imports what imports this.
            from ares_celery.celery_app.wiring import wiring_of

            return wiring_of(self.app).result_backend

    @override
    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Sends the task now; a retry (``Task.retry``) is not sent at all.

        The commit that failed the attempt has set its deadline in the store already, and the sweep sends the message
        when it is due, with this task id and these retries. Celery's own retry does the rest: state, event, result.
        """
        if options.get("retries") and task_id is not None:
            return self.AsyncResult(task_id)
        return super().apply_async(args, kwargs, task_id, producer, link, link_error, shadow, **options)
