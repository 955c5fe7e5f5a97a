"""``ares.<manager method>``: the Manager for services that have only Celery; JSON in, JSON out, never a long wait."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from celery import Celery
from pydantic_core import to_jsonable_python

from ares_celery.celery_app.due_task import AresTask
from ares_celery.celery_app.names import TASK_PREFIX
from ares_celery.celery_app.wiring import Wiring, wiring_of
from ares_celery.errors import OperationNotSupportedError, ProcessTimeoutError
from ares_celery.manager import AgentHandle, CoreManager
from ares_celery.model.agent import RuntimeState

__all__ = ["CONTROLS", "LONGEST_WAIT", "Control", "add_control_tasks"]

#: Seconds that a control task may wait: its slot serves every other command.
LONGEST_WAIT: Final = 1.0

Call = Callable[[CoreManager, Wiring, Mapping[str, Any]], Any]


def _no_arguments() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Control:
    """One method that may be called by task.

    Attributes:
        method: Of the Manager; also the task's name, after ``ares.``.
        fixed: Arguments that a task may not choose, as they would make it wait.
        call: Instead of the method itself, where that would wait.
        parameters: A function that has the task's parameters, where they are not the method's.
    """

    method: str
    fixed: Mapping[str, Any] = field(default_factory=_no_arguments)
    call: Call | None = None
    parameters: Callable[..., None] | None = None


def _process(manager: CoreManager, wiring: Wiring, given: Mapping[str, Any]) -> Any:  # noqa: ANN401, ARG001 - JSON
    """Answers, or says under which message id to ask again."""
    message_id = given.get("message_id") or uuid.uuid4().hex
    if not isinstance(message_id, str):
        raise OperationNotSupportedError(
            operation=f"task {TASK_PREFIX}process",
            reason=f"its message_id is a {type(message_id).__name__}; give a text, or none to get one",
        )
    try:
        return manager.process(given["agent_id"], given["message"], timeout=LONGEST_WAIT, message_id=message_id)
    except ProcessTimeoutError:
        return {"pending": message_id}


def _process_parameters(agent_id: str, message: object, message_id: str = "") -> None:
    """The task's own parameters: a caller has no say in how long it waits."""


def _runtime(state: RuntimeState, only_from: tuple[RuntimeState, ...], word: str) -> Call:
    """Moves the runtime's state; the sweep then starts or ends the agents, as a task may not wait for them."""

    def call(manager: CoreManager, wiring: Wiring, given: Mapping[str, Any]) -> None:  # noqa: ARG001 - as the others
        reason, actor = str(given.get("reason") or word), str(given["actor"])
        wiring.store.set_runtime(state, only_from=only_from, reason=reason, actor=actor)

    return call


#: The methods that may be called by task. Nothing else is reachable by a message.
CONTROLS: Final = (
    Control("register_agent", {"factory": None}),
    Control("start_agent", {"wait": "durable", "timeout": None}),
    Control("stop_agent", {"wait": False, "timeout": None}),
    Control("update_agent"),
    Control("restart_agent"),
    Control("restore_agent"),
    Control("pause_agent"),
    Control("resume_agent"),
    Control("unpark_agent"),
    Control("delete_agent"),
    Control("kill_agent"),
    Control("define_group"),
    Control("get_group"),
    Control("list_groups"),
    Control("delete_group"),
    Control("get_agent"),
    Control("get_agent_info"),
    Control("list_agents"),
    Control("stats"),
    Control("audit"),
    Control("register_agent_dag"),
    Control("get_agent_dag"),
    Control("introspect"),
    Control("set_config"),
    Control("send"),
    Control("process", call=_process, parameters=_process_parameters),
    Control("start", call=_runtime(RuntimeState.RUNNING, (RuntimeState.NEW, RuntimeState.STOPPED), "start")),
    Control("stop", call=_runtime(RuntimeState.STOPPED, (RuntimeState.RUNNING,), "stop")),
)


class ControlTask(AresTask):
    """Base of the control tasks: what they carry and answer is shown nowhere."""

    abstract = True
    Request = "ares_celery.celery_app.control_request:ControlRequest"
    #: The answer of an agent is for its caller, not for Flower's list of tasks.
    resultrepr_maxsize = 0


def add_control_tasks(app: Celery, namespace: str) -> None:
    """Adds one task for each entry of the table to the app."""
    for control in CONTROLS:
        _add(app, namespace, control)


def _add(app: Celery, namespace: str, control: Control) -> None:
    # typing=False: the arguments are checked against the method itself, with an error of ours.
    @app.task(
        name=TASK_PREFIX + control.method,
        base=ControlTask,
        bind=True,
        shared=False,
        typing=False,
        ares_namespace=namespace,
    )
    def command(self: ControlTask, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - JSON
        wiring = wiring_of(self.app)
        return as_json(call_control(control, wiring, str(self.request.id), args, kwargs))

    _ = command


def call_control(
    control: Control, wiring: Wiring, task_id: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:  # noqa: ANN401 - JSON
    """Calls the method with what the message brought.

    The task's id is the operation id, so a message that comes twice acts once.

    Raises:
        OperationNotSupportedError: The arguments do not fit the method, or it may not wait.
        AresError: What the method raises.
    """
    manager = CoreManager(wiring)
    method = getattr(manager, control.method)
    shape = control.parameters or method
    given = _bind(control, shape, args, kwargs)
    parameters = inspect.signature(shape).parameters
    if "actor" in parameters:
        given["actor"] = given.get("actor") or f"task {task_id}"
    if control.call is not None:
        return control.call(manager, wiring, given)
    if "op" in parameters:
        given["op"] = given.get("op") or task_id
    return method(**given, **control.fixed)


def _bind(
    control: Control, shape: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        given = dict(inspect.signature(shape).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise OperationNotSupportedError(
            operation=f"task {TASK_PREFIX}{control.method}", reason=f"its arguments do not fit: {error}"
        ) from error
    for name in control.fixed:
        given.pop(name, None)
    return given


def as_json(value: object) -> Any:  # noqa: ANN401 - JSON
    """A method's value as JSON; a handle becomes what is known of its agent."""
    if isinstance(value, AgentHandle):
        value = value.info()
    return to_jsonable_python(value)
