"""``ares.<manager method>``: the Manager for services that have only Celery; JSON in, JSON out, never a long wait."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from celery import Celery
from pydantic_core import to_jsonable_python

from ares_celery.celery_app import control_calls as calls
from ares_celery.celery_app.control_ports import LONGEST_WAIT, ControlPorts
from ares_celery.celery_app.due_task import AresTask
from ares_celery.celery_app.names import TASK_PREFIX
from ares_celery.celery_app.wiring import Wiring, wiring_of
from ares_celery.errors import OperationNotSupportedError
from ares_celery.manager import AgentHandle, CoreManager
from ares_celery.model.agent import RuntimeState

__all__ = [
    "CONTROLS",
    "LONGEST_WAIT",
    "WITHOUT_TASK",
    "Control",
    "ControlTask",
    "add_control_tasks",
    "bind",
    "parameters_of",
]

Call = Callable[[CoreManager, ControlPorts, Mapping[str, Any]], Any]


def _no_arguments() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Control:
    """One method that may be called by task.

    Attributes:
        method: Of the Manager; also the task's name, after ``ares.``.
        answers: What its result is, for the page of tasks.
        fixed: Arguments that a task may not choose, as they would make it wait.
        call: Instead of the method itself, where that would wait or read without end.
        parameters: A function that has the task's parameters, where they are not the method's.
    """

    method: str
    answers: str = "null"
    fixed: Mapping[str, Any] = field(default_factory=_no_arguments)
    call: Call | None = None
    parameters: Callable[..., None] | None = None


def _process(agent_id: str, message: object, message_id: str = "") -> None:
    """Asks an agent. A task has no say in how long it waits."""


def _process_stream(agent_id: str, message: object, message_id: str = "", detached: bool = False) -> None:  # noqa: FBT001, FBT002 - the wire's names
    """Asks an agent for an answer in pieces, which ``ares.read_chunks`` reads."""


def _read_chunks(agent_id: str, message_id: str, after_seq: int = 0) -> None:
    """The pieces behind ``after_seq``, none behind the end. What nobody reads for long ends, unless it is detached."""


def _dead_letters(agent_id: str | None = None, limit: int = 100) -> None:
    """Messages that were given up on, of one agent or of all, newest first."""


def _wait_for(agent_id: str, states: list[str]) -> None:
    """Waits until the agent is in one of the states."""


def _read_events(
    agent_id: str, from_version: int = 0, to_version: int = 0, limit: int = 100, direction: str = "ascending"
) -> None:
    """Reads a page of an agent's stream; 0 = from its first, or to its last event; limit up to 1,000."""


def _follow_events(
    cursor: str | None = None, agent_ids: list[str] | None = None, types: list[str] | None = None, limit: int = 100
) -> None:
    """Events stored since a cursor, of all agents or of some; null = from now, "beginning" = from the first."""


def _list_snapshots(agent_id: str) -> None:
    """The kept snapshots of an agent, newest first, without their states; then the damaged ones."""


def _list_executions(agent_id: str) -> None:
    """The executions of an agent, without their checkpoints."""


def _get_execution(agent_id: str, execution_id: str) -> None:
    """One execution, with its checkpoint."""


def _list_steps(agent_id: str, execution_id: str, limit: int = 100) -> None:
    """What the steps of an execution have recorded, without what they returned: the newest, at most 1,000."""


def _list_intents(agent_id: str, limit: int = 100) -> None:
    """The steps that were begun, must not be repeated, and whose outcome nobody knows, oldest first; at most 1,000."""


def _list_types() -> None:
    """The agent types that workers can host, each with the parameters of its config."""


def _get_config() -> None:
    """The namespace's settings."""


def _audit(agent_id: str | None = None, since: str | None = None, limit: int = 100) -> None:
    """Who asked for what and why, oldest first: the newest entries, at most 1,000."""


def _start(reason: str = "", actor: str = "") -> None:
    """Makes the namespace's runtime run; agents that should run are launched. On a running one a no-op."""


def _stop(reason: str = "", actor: str = "") -> None:
    """Ends every agent in order, and keeps all from starting until ``ares.start``. Does not wait for their ends."""


def _runtime(to: RuntimeState, *only_from: RuntimeState) -> Call:
    def call(manager: CoreManager, ports: ControlPorts, given: Mapping[str, Any]) -> None:  # noqa: ARG001 - as the others
        calls.move_runtime(ports, given, to, only_from)

    return call


_INFO: Final = "`AgentInfo`"

#: The methods that may be called by task. Nothing else is reachable by a message.
CONTROLS: Final = (
    Control("register_agent", _INFO, {"factory": None}),
    Control("start_agent", _INFO, {"wait": "durable", "timeout": None}),
    Control("stop_agent", fixed={"wait": False, "timeout": None}),
    Control("update_agent", _INFO),
    Control("restart_agent"),
    Control("restore_agent"),
    Control("pause_agent"),
    Control("resume_agent"),
    Control("unpark_agent"),
    Control("reconcile_agent", _INFO),
    Control("delete_agent"),
    Control("approve", "`InterruptInfo`"),
    Control("interrupts", "list of `InterruptInfo`"),
    Control("kill_agent", "`agent_id`, `pid`, `worker`, `co_tenants`"),
    Control("kill_worker", "`worker`, `pid`, `agents`"),
    Control("slow_agent", "`Fault`, or null when it was cleared"),
    Control("tool_timeout", "`Fault`, or null when it was cleared"),
    Control("partition_network", "`Fault`"),
    Control("corrupt_memory", "`Fault`"),
    Control("disconnect_mcp", "`Fault`"),
    Control("inject_llm_failure", "`Fault`"),
    Control("heal", "list of `Fault`: those that were healed"),
    Control("list_faults", "list of `Fault`"),
    Control("closed_limits", "list of `ClosedLimit`"),
    Control("enable_chaos", "`ChaosState`"),
    Control("disable_chaos", "list of `Fault`: those that were healed"),
    Control("define_group", "`GroupInfo`"),
    Control("get_group", "`GroupInfo` or null"),
    Control("list_groups", "list of `GroupInfo`"),
    Control("delete_group"),
    Control("get_agent", f"{_INFO} or null"),
    Control("get_agent_info", f"{_INFO} or null"),
    Control("list_agents", f"list of {_INFO}"),
    Control("children", f"list of {_INFO}"),
    Control("wait_for", f'{_INFO}, or `{{"pending": agent_id, "state": …}}`: ask again', {}, calls.wait_for, _wait_for),
    Control("stats", "`RuntimeStats`; `uptime` as an ISO 8601 duration"),
    Control("audit", "list of `AuditEntry`", {}, calls.audit, _audit),
    Control("register_agent_dag"),
    Control("get_agent_dag", "the JSON that was registered, or null"),
    Control("introspect", "`RuntimeSnapshot`"),
    Control("arena", "the survival run: `owner`, `info`, `since`, `stop`; or null"),
    Control("stop_arena", "the same run, which ends soon; or null"),
    Control("get_config", "`RuntimeConfig`; durations as `8s`", {}, calls.get_config, _get_config),
    Control("set_config", "`RuntimeConfig` afterwards"),
    Control("list_types", "type → parameters", {}, calls.list_types, _list_types),
    Control("send", "the message's id"),
    Control(
        "process", 'the agent\'s answer, or `{"pending": message_id}`: ask again with it', {}, calls.process, _process
    ),
    Control("process_stream", '`{"pending": message_id}`', {}, calls.process_stream, _process_stream),
    Control(
        "read_chunks",
        '`{"chunks": [{"seq", "data", "final"}, …]}`, or `{"pending": message_id}`: ask again',
        {},
        calls.read_chunks,
        _read_chunks,
    ),
    Control("cancel_stream"),
    Control("dead_letters", "list of `DeadLetter`", {}, calls.dead_letters, _dead_letters),
    Control("read_events", "`events`, `stream_version`", {}, calls.read_events, _read_events),
    Control(
        "follow_events", "`events`, `problems`, `cursor` for the next call", {}, calls.follow_events, _follow_events
    ),
    Control(
        "list_snapshots",
        "list of `version`, `epoch`, `schema`, `time`, or of `problem`",
        {},
        calls.list_snapshots,
        _list_snapshots,
    ),
    Control(
        "list_executions",
        "list of `id`, `state`, `attempts`, `epoch`, `next_attempt_at`, `created_at`, `changed_at`",
        {},
        calls.list_executions,
        _list_executions,
    ),
    Control("get_execution", "the same of one, and `checkpoint`", {}, calls.get_execution, _get_execution),
    Control(
        "list_steps",
        "list of `number`, `id`, `function`, `replay`, `attempts`, `failed`, `actor`, `time`",
        {},
        calls.list_steps,
        _list_steps,
    ),
    Control(
        "list_intents",
        "list of `execution`, `step`, `function`, `arguments`, `incarnation`, `time`",
        {},
        calls.list_intents,
        _list_intents,
    ),
    Control("start", call=_runtime(RuntimeState.RUNNING, RuntimeState.NEW, RuntimeState.STOPPED), parameters=_start),
    Control("stop", call=_runtime(RuntimeState.STOPPED, RuntimeState.RUNNING), parameters=_stop),
)

#: Public names of a Manager that no control task has, each with the reason.
WITHOUT_TASK: Final[Mapping[str, str]] = {
    "notify_agent_dead": "is a task of its own, on the supervision queue",
    "fork_agent": "copies a whole history, which may take longer than a task may; from Python or `ares agents fork`",
    "hold_arena": "kept by the process of the run, for seconds at a time",
    "release_arena": "by the process of the run",
    "compact": "takes as long as the stream and its summariser; hosting processes compact by themselves",
    "compact_all": "takes as long as all streams together; hosting processes compact by themselves",
    "events": "an object of the process; `ares.read_events` and `ares.follow_events` read, agents and services append",
    "snapshots": "an object of the process; `ares.list_snapshots` lists, states stay in the store",
    "checkpoints": "an object of the process; `ares.list_executions`, `ares.get_execution`, `ares.list_steps` and "
    "`ares.list_intents` read",
    "memory": "an object of the process",
    "config": "`ares.get_config`",
    "state_sources": "of the process that hosts",
    "with_snapshot_store": "of the process that hosts; no code is named by a message",
    "namespace": "the queue's name says it",
    "from_env": "makes a manager in this process",
    "connect": "makes a manager in this process",
    "local": "makes a manager in this process",
    "close": "closes a manager of this process",
}


class ControlTask(AresTask):
    """Base of the control tasks: what they carry and answer is shown nowhere."""

    abstract = True
    Request = "ares_celery.celery_app.control_request:ControlRequest"
    #: Over in a moment: a second write for each command would show that it began.
    track_started = False
    #: The answer of an agent is for its caller, not for Flower's list of tasks.
    resultrepr_maxsize = 0

    if not TYPE_CHECKING:
        # Celery's property also sets the backend of one task; ours is the process's.
        @property
        def backend(self) -> Any:  # noqa: ANN401 - any of Celery's backends
            """Where results go; see `Wiring.control_backend`."""
            return wiring_of(self.app).control_backend


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
    """Calls the method with what the message brought, within the second that a control task has.

    The task's id is the operation id, so a message that comes twice acts once.

    Raises:
        OperationNotSupportedError: The arguments do not fit the method, or it may not wait.
        StoreUnavailableError: The store did not answer in time; the same call again is safe.
        AresError: What the method raises.
    """
    given = bind(control, args, kwargs)
    takes = parameters_of(control)
    ports = wiring.control_ports
    with ports.hurry.within(LONGEST_WAIT):
        manager = CoreManager(ports)
        if "actor" in takes:
            given["actor"] = given.get("actor") or f"task {task_id}"
        if _may_lack(takes, "message_id") and given.get("message_id") in (None, ""):
            # Of a message that comes twice the agent hears once, too.
            given["message_id"] = task_id
        if control.call is not None:
            return control.call(manager, ports, given)
        if "op" in takes:
            given["op"] = given.get("op") or task_id
        return getattr(manager, control.method)(**given, **control.fixed)


def _may_lack(takes: Mapping[str, inspect.Parameter], name: str) -> bool:
    return name in takes and takes[name].default is not inspect.Parameter.empty


def parameters_of(control: Control) -> Mapping[str, inspect.Parameter]:
    """The parameters that a task may give, by name."""
    shape: Callable[..., Any] = control.parameters or getattr(CoreManager, control.method)
    taken = inspect.signature(shape).parameters
    return {name: one for name, one in taken.items() if name not in {"self", *control.fixed}}


def bind(control: Control, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name.

    Raises:
        OperationNotSupportedError: They do not fit; it names which, and those that do.
    """
    takes = parameters_of(control)
    # What would make the task wait is left out without a word, so that a call for a Manager works here, too.
    named = {name: value for name, value in kwargs.items() if name not in control.fixed}
    try:
        return dict(inspect.Signature(list(takes.values())).bind(*args, **named).arguments)
    except TypeError as error:
        unknown, missing = sorted(set(named) - set(takes)), _missing(takes, args, named)
        problems = [f"{name} is unknown" for name in unknown] + [f"{name} is missing" for name in missing]
        raise OperationNotSupportedError(
            operation=f"task {TASK_PREFIX}{control.method}",
            reason=f"its arguments do not fit: {', '.join(problems) or error}; it takes {', '.join(takes) or 'none'}",
            field=(unknown or missing or [""])[0],
            takes=list(takes),
        ) from error


def _missing(takes: Mapping[str, inspect.Parameter], args: tuple[Any, ...], named: Mapping[str, Any]) -> list[str]:
    wanted = [name for name, one in takes.items() if one.default is inspect.Parameter.empty]
    return [name for name in wanted[len(args) :] if name not in named]


def as_json(value: object) -> Any:  # noqa: ANN401 - JSON
    """A method's value as JSON; a handle becomes what is known of its agent."""
    if isinstance(value, AgentHandle):
        value = value.info()
    return to_jsonable_python(value)
