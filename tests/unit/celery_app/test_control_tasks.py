"""The Manager by task name: what has a task, what it takes, how it refuses, and that it never waits for long."""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import fakeredis
import pytest
from typing_extensions import override

from ares_celery import AresError, Manager, RuntimeConfig
from ares_celery.celery_app.client import Manager as WholeManager
from ares_celery.celery_app.control_ports import LONGEST_WAIT, ControlPorts, LateListener, wait_politely
from ares_celery.celery_app.control_tasks import CONTROLS, WITHOUT_TASK, Control, as_json, call_control, parameters_of
from ares_celery.celery_app.factory import create_app
from ares_celery.celery_app.supervision_tasks import epoch_of
from ares_celery.celery_app.wiring import Wiring, wiring_of
from ares_celery.config import ProcessSettings
from ares_celery.errors import (
    AgentNotFoundError,
    ChaosDisabledError,
    ExecutionNotFoundError,
    InvalidSettingError,
    MessageNotFoundError,
    OperationNotSupportedError,
    ProcessTimeoutError,
    StoreUnavailableError,
    error_from_wire,
)
from ares_celery.ids import AgentId
from ares_celery.model import command as commands
from ares_celery.model.agent import Owner, RuntimeState
from ares_celery.model.event import NewEvent
from ares_celery.model.plan import Nudge
from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.ports import Launcher
from ares_celery.store.redis.hurry import Hurry, InHurry
from ares_celery.store.redis.store import RedisStore
from tools.tasks_docs import PAGE, render

BY_NAME = {control.method: control for control in CONTROLS}
#: What JSON can hold and hardly a parameter takes.
ODD: list[Any] = [None, True, -1, 2**70, 1.5, float("nan"), "", "\ud800", "x" * 2000, [], [[]], {}, {"a": [None]}]


class Nobody(Launcher):
    """No broker."""

    @override
    def launch(self, nudge: Nudge) -> None:
        """Forgets it."""

    @override
    def waiting(self, queue: str | None) -> int | None:
        """Something always waits, so that no task waits long."""
        return 1


@pytest.fixture
def wiring(namespace: str) -> Iterator[Wiring]:
    """An app's wiring over a Redis in this process, with an agent ``a`` that is meant to run."""
    settings = ProcessSettings(namespace=namespace, broker_url="memory://", result_url="cache+memory://")
    made = wiring_of(create_app(settings, set_as_current=False))
    store = RedisStore.from_client(fakeredis.FakeRedis(server=fakeredis.FakeServer()), namespace, RuntimeConfig())
    committer = Committer(store, lambda: store.config, Nobody())
    made.control_ports = ControlPorts(lambda _: (store, committer))
    store.set_runtime(RuntimeState.RUNNING, only_from=(RuntimeState.NEW,), reason="test", actor="test")
    call(made, "start_agent", agent={"id": "a", "type": "t"}, task_id="t-0")
    yield made
    store.close()


def call(wiring: Wiring, method: str, *args: Any, task_id: str = "t-1", **kwargs: Any) -> Any:
    """What the task answers, through JSON as Celery sends it."""
    return json.loads(json.dumps(as_json(call_control(BY_NAME[method], wiring, task_id, args, kwargs))))


# -- the table ---------------------------------------------------------------------------------------------------------


def test_every_public_name_of_a_manager_is_a_task_or_says_why_not() -> None:
    """Whoever adds a method decides."""
    public = {name for name, _ in inspect.getmembers(WholeManager) if not name.startswith("_")}
    own = {"read_events", "follow_events", "list_snapshots", "list_executions", "get_execution", "list_types"}
    own |= {"list_steps", "list_intents"}
    told = (set(BY_NAME) - own - {"get_config"}) | set(WITHOUT_TASK)
    assert public - told == set(), "neither in CONTROLS nor in WITHOUT_TASK"
    assert told - public - {"state_sources"} == set(), "told of what a Manager does not have"
    assert not set(BY_NAME) & set(WITHOUT_TASK)


def test_the_page_of_tasks_is_up_to_date() -> None:
    """A changed table without its page fails here: run `python -m tools.tasks_docs`."""
    assert PAGE.read_text() == render()


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.method)
def test_the_parameters_of_a_task_are_those_of_the_method(control: Control) -> None:
    """Whatever does not wait is called by task as it is called in Python."""
    method = getattr(Manager, control.method, None)
    waits = {"timeout", "wait", "factory", "op"}
    if method is not None and control.call is None:
        of_method = list(inspect.signature(method).parameters)[1:]
        assert [name for name in parameters_of(control) if name not in waits] == [
            name for name in of_method if name not in waits
        ]
    # The one timeout that is no wait of the task: an agent's tools have so long.
    assert control.method == "tool_timeout" or not {"timeout", "wait"} & set(parameters_of(control))


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_arguments_that_do_not_fit_are_named_with_those_that_do(wiring: Wiring) -> None:
    """The sender learns which, and what the task takes."""
    cases: list[tuple[Mapping[str, Any], str]] = [
        ({"agent": "a"}, "agent"),
        ({}, "agent_id"),
        ({"op": "x"}, "agent_id"),
    ]
    for kwargs, field in cases:
        with pytest.raises(
            OperationNotSupportedError, match=r"ares\.stop_agent .*do not fit.*it takes agent_id, force"
        ) as refused:
            call(wiring, "stop_agent", **kwargs)
        assert (refused.value.field, refused.value.takes[0]) == (field, "agent_id")
    with pytest.raises(OperationNotSupportedError, match="too many positional"):
        call(wiring, "stats", 1)


def test_how_long_a_task_waits_is_not_for_its_sender_to_say(wiring: Wiring) -> None:
    """The same arguments as for a Manager work; those that would make it wait do nothing."""
    assert call(wiring, "stop_agent", agent_id="a", wait=True, timeout=3600) is None
    started = call(wiring, "start_agent", agent="a", wait="running", timeout=3600, task_id="t-2")
    assert started["id"] == "a"


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.method)
def test_whatever_json_an_argument_is_the_answer_is_json_or_an_error_of_ours(control: Control, wiring: Wiring) -> None:
    """Field, value and cure, in a text; never a bare exception of Python."""
    good = {"agent_id": "a", "agent": "a", "config": {}, "message": 1, "states": ["running"], "key": "k", "value": 1}
    good |= {"execution_id": "e", "message_id": "m", "settings": {}, "name": "g"}
    good |= {"delay": 1, "duration": 1, "timeout": 1, "worker": "w@host"}
    takes = parameters_of(control)
    refused: list[tuple[str, str]] = []
    needed = {name: good[name] for name, one in takes.items() if one.default is inspect.Parameter.empty}
    for name in takes:
        for number, odd in enumerate(ODD):
            try:
                call(wiring, control.method, task_id=f"{name}-{number}", **{**needed, name: odd})
            except AresError as error:
                refused.append((str(error), json.dumps(error.args[0], allow_nan=False)))
    assert all(text for text, _ in refused)


@pytest.mark.parametrize(("given", "epoch"), [(None, None), (7, 7), ("1795976170953320", 1_795_976_170_953_320)])
def test_a_report_names_an_epoch_as_number_or_text(given: object, epoch: int | None) -> None:
    """Some languages cannot hold so large a number."""
    assert epoch_of(given) == epoch


@pytest.mark.parametrize("given", [True, 1.5, "seven", "", "9" * 17, [], {}])
def test_a_report_of_no_epoch_is_refused(given: object) -> None:
    """It would be taken for one of an incarnation that never was, and be ignored."""
    with pytest.raises(InvalidSettingError, match=r"epoch=.*leave it out"):
        epoch_of(given)


def test_a_report_with_arguments_that_do_not_fit_is_refused(wiring: Wiring) -> None:
    """By name, as a command is."""
    task: Any = wiring.app.tasks["ares.notify_agent_dead"]
    with pytest.raises(InvalidSettingError, match="epoch='x'"):
        task.run("a", "seen dead", "x")
    with pytest.raises(OperationNotSupportedError, match=r"do not fit: reason is missing; it takes agent_id") as one:
        task.run("a")
    assert one.value.field == "reason"
    with pytest.raises(OperationNotSupportedError, match="agent is unknown, agent_id is missing"):
        task.run(agent="a", reason="x")


def test_a_flag_is_true_or_false_and_no_text_that_means_either(wiring: Wiring) -> None:
    """The text "false" would fence an agent, or kill its neighbours."""
    with pytest.raises(InvalidSettingError, match=r"force='false' is not valid: use True or False"):
        call(wiring, "stop_agent", "a", force="false")
    with pytest.raises(InvalidSettingError, match="force=0"):
        call(wiring, "kill_agent", "a", force=0)
    with pytest.raises(InvalidSettingError, match="merge=None"):
        call(wiring, "update_agent", "a", config={}, merge=None)
    with pytest.raises(InvalidSettingError, match="accept_loss='no'"):
        call(wiring, "unpark_agent", "a", accept_loss="no")
    assert call(wiring, "get_agent", "a")["desired"] == "running"


def test_an_operation_id_that_is_no_id_is_refused(wiring: Wiring) -> None:
    """It becomes part of a key, and of the audit stream: each call might leave megabytes there."""
    with pytest.raises(InvalidSettingError, match=r"op='o+' is not valid: may have 400 characters") as one:
        call(wiring, "stop_agent", "a", op="o" * 401)
    assert len(str(one.value)) < 500
    with pytest.raises(InvalidSettingError, match="may have 400"):
        call(wiring, "set_config", {}, op="o" * 401)
    call(wiring, "stop_agent", "a", op="o" * 400)


def test_a_wait_for_no_state_is_refused_and_an_unknown_execution_named(wiring: Wiring) -> None:
    """The one would be pending for ever, the other a riddle."""
    with pytest.raises(InvalidSettingError, match=r"states='\[\]' is not valid: name at least one of registered"):
        call(wiring, "wait_for", "a", [])
    with pytest.raises(ExecutionNotFoundError, match="has no execution 'e-1'"):
        call(wiring, "get_execution", "a", "e-1")


def test_a_message_that_comes_twice_is_heard_once(wiring: Wiring) -> None:
    """The task's id is the message's, where the sender gave none."""
    sent = [call(wiring, "send", "a", {"n": 1}, task_id="task-7") for _ in range(2)]
    assert sent == ["task-7", "task-7"]
    assert call(wiring, "process", "a", {"n": 2}, task_id="task-8") == {"pending": "task-8"}
    for _ in range(2):
        assert call(wiring, "process_stream", "a", {"n": 3}, task_id="task-10") == {"pending": "task-10"}
    assert call(wiring, "process", "a", {"n": 2}, task_id="task-9", message_id="task-8") == {"pending": "task-8"}
    store = wiring.control_ports.store
    assert [one.message_id for one in store.inbox(AgentId("a"))] == ["task-7", "task-8", "task-10"]


def test_a_stream_is_asked_for_read_and_left(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk by chunk behind a seq; pending where there is none yet."""
    store = wiring.control_ports.store
    call(wiring, "process_stream", "a", {"n": 1}, "m-1")
    assert call(wiring, "read_chunks", "a", "m-1") == {"pending": "m-1"}
    assert call(wiring, "cancel_stream", "a", "m-1") is None
    call(wiring, "process_stream", "a", {"n": 2}, message_id="m-2", detached=True)
    with pytest.raises(InvalidSettingError, match="detached='yes'"):
        call(wiring, "process_stream", "a", {"n": 2}, detached="yes")
    with pytest.raises(InvalidSettingError, match="after_seq=-1"):
        call(wiring, "read_chunks", "a", "m-1", -1)
    with pytest.raises(MessageNotFoundError, match="'m-9' to agent 'a'"):
        call(wiring, "read_chunks", "a", "m-9")
    for task in ("read_chunks", "cancel_stream"):
        with pytest.raises(InvalidSettingError, match="message_id=None"):
            call(wiring, task, "a", None)

    def none(*_: Any, **__: Any) -> tuple[()]:
        return ()

    monkeypatch.setattr(store, "read_chunks", none)
    assert call(wiring, "read_chunks", "a", "m-1", 7) == {"chunks": []}, "behind the end nothing is pending"
    assert call(wiring, "dead_letters", "a") == []
    assert store.inbox(AgentId("a"))


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_wait_says_where_the_agent_is(wiring: Wiring) -> None:
    """It is asked for again by the same call."""
    assert call(wiring, "wait_for", "a", ["running"]) == {"pending": "a", "state": "starting"}
    assert call(wiring, "wait_for", "a", ["starting"])["state"] == "starting"
    with pytest.raises(AgentNotFoundError):
        call(wiring, "wait_for", "b", ["running"])


def test_events_are_read_by_page_and_followed_by_cursor(wiring: Wiring) -> None:
    """A service that polls misses nothing and gets nothing twice."""
    store = wiring.control_ports.store
    store.events.append("a", [NewEvent("said", {"n": number}) for number in range(5)])
    version = store.events.stream_version("a")
    page = call(wiring, "read_events", "a", limit=2, direction="descending")
    assert [event["version"] for event in page["events"]] == [version, version - 1]
    assert page["stream_version"] == version
    assert page["events"][0]["payload"] == {"n": 4}
    seen: list[int] = []
    cursor = "beginning"
    for _ in range(4):
        got = call(wiring, "follow_events", cursor, types=["said"], limit=2)
        seen += [event["payload"]["n"] for event in got["events"]]
        assert got["problems"] == []
        cursor = got["cursor"]
    assert seen == [0, 1, 2, 3, 4]
    now = call(wiring, "follow_events")
    assert now["events"] == []
    store.events.append("a", [NewEvent("said", {"n": 5})])
    assert [event["payload"]["n"] for event in call(wiring, "follow_events", now["cursor"])["events"]] == [5]


def test_what_is_stored_of_an_agent_is_listed(wiring: Wiring) -> None:
    """Snapshots without states, executions, settings, types; an unknown agent is an error."""
    store = wiring.control_ports.store
    store.snapshots.save("a", {"secret": 1})
    (kept,) = call(wiring, "list_snapshots", "a")
    assert set(kept) == {"version", "epoch", "schema", "time"}
    assert call(wiring, "list_executions", "a") == []
    with pytest.raises(AresError) as refused:
        call(wiring, "get_execution", "a", "e")
    assert refused.value.code == "execution_not_found"
    store.report_types({"t": {"names": [], "required": [], "open": True}})
    assert call(wiring, "list_types") == {"t": {"names": [], "required": [], "open": True}}
    assert call(wiring, "get_config")["lease_ttl"] == "8s"
    assert call(wiring, "audit", limit=1)[0]["operation"] == "start"
    for method in ("list_snapshots", "list_executions", "list_intents"):
        with pytest.raises(AgentNotFoundError):
            call(wiring, method, "nobody")
    with pytest.raises(AgentNotFoundError):
        call(wiring, "list_steps", "nobody", "e")


def test_steps_and_open_intents_are_listed(wiring: Wiring) -> None:
    """Steps without what they returned; a page of each has a size."""
    store, agent_id = wiring.control_ports.store, AgentId("a")
    record = store.read(agent_id).record
    assert record is not None
    fence = store.claim(agent_id, record.epoch, token="t", owner=Owner("i", "w", "t"), page=1).record.fence  # noqa: S106
    store.open_steps(agent_id, "e", fence=fence, op="o")
    for number in (1, 2, 3):
        done = StepRecord(f"s{number}", "f", "safe", {"secret": number})
        store.record_step(agent_id, fence, "e", done, op=f"r{number}")
    store.record_intent(agent_id, fence, "e", StepIntent("e", "pay", "charge", arguments=[5]), op="i")
    listed = call(wiring, "list_steps", "a", "e", limit=2)
    assert [(one["number"], one["id"], one["failed"]) for one in listed] == [(2, "s2", False), (3, "s3", False)]
    assert "secret" not in str(listed)
    assert call(wiring, "list_steps", "a", "other") == []
    (open_,) = call(wiring, "list_intents", "a")
    assert (open_["execution"], open_["step"], open_["function"], open_["arguments"]) == ("e", "pay", "charge", [5])
    for method, given in (("list_steps", ("a", "e")), ("list_intents", ("a",))):
        with pytest.raises(InvalidSettingError, match="whole number from 1 to 1000"):
            call(wiring, method, *given, limit=0)


@pytest.mark.parametrize("limit", [0, 1001, True, "5"])
@pytest.mark.parametrize("method", ["audit", "follow_events", "read_events"])
def test_a_page_has_a_size(method: str, limit: Any, wiring: Wiring) -> None:
    """The error names field, value and cure."""
    given = {"agent_id": "a"} if method == "read_events" else {}
    with pytest.raises(InvalidSettingError, match=r"limit=.*whole number from 1 to 1000"):
        call(wiring, method, **given, limit=limit)


def test_the_runtime_is_moved_without_waiting(wiring: Wiring) -> None:
    """Stop and start are wishes; the sweep carries them out."""
    store = wiring.control_ports.store
    assert call(wiring, "stop", reason="night") is None
    assert (store.runtime().state, store.runtime().reason, store.runtime().actor) == ("stopped", "night", "task t-1")
    assert call(wiring, "start") is None
    assert store.runtime().state == "running"


@pytest.mark.parametrize(("theirs", "kept"), [(None, 3600), (86_400, 3600), (60, 60), (timedelta(days=7), 3600)])
def test_the_result_of_a_command_ends_within_an_hour(theirs: Any, kept: int, namespace: str) -> None:
    """Also in an app whose own results never end; those stay as they are, and so do those of agents."""
    settings = ProcessSettings(namespace=namespace, broker_url="memory://", result_url="redis://127.0.0.1:1/0")
    app: Any = create_app(settings, set_as_current=False, celery_settings={"result_expires": theirs})
    own, task = app.tasks["ares.stats"].backend, app.tasks["ares.run_agent"].backend
    assert own.expires == kept
    assert getattr(own, "failure_expires", kept) == kept
    usual = int(theirs.total_seconds()) if isinstance(theirs, timedelta) else theirs
    assert (app.backend.expires, task.expires) == (usual, usual)
    assert app.tasks["ares.stop_agent"].backend is own


# -- time --------------------------------------------------------------------------------------------------------------


class TurnedClock:
    """A clock that each look at it, and each wait, turns."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 100.0, step

    def monotonic(self) -> float:
        self.now += self.step
        return self.now

    def wall(self) -> Any:
        return 0

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.now += seconds
        return event.is_set()


class Impatient:
    """Ports of a task whose time a turned clock measures."""

    def __init__(self, clock: TurnedClock, *, others: bool) -> None:
        self.hurry, self.others = Hurry(clock), others

    def others_wait(self) -> bool:
        return self.others


@pytest.mark.parametrize(("others", "waits"), [(True, [0.05]), (False, [0.05, 0.1, 0.2, 0.4, 0.15])])
def test_a_task_waits_a_second_at_most_and_less_while_others_wait(*, others: bool, waits: list[float]) -> None:
    """Each slot serves every command."""
    clock, waited = TurnedClock(), list[float]()
    ports: Any = Impatient(clock, others=others)

    def look(limit: timedelta) -> None:
        waited.append(round(limit.total_seconds(), 3))
        clock.now += limit.total_seconds()
        raise ProcessTimeoutError(agent_id="a", message_id="m", timeout=0)

    with ports.hurry.within(1.0), pytest.raises(ProcessTimeoutError):
        wait_politely(ports, look)
    assert waited == waits


def test_nothing_is_sent_once_the_time_of_a_call_is_over() -> None:
    """The error says that the store is slow; outside of a control task nobody hurries."""
    clock, sent = TurnedClock(), list[tuple[Any, ...]]()

    class Driver:
        def execute_command(self, *args: Any) -> Any:
            sent.append(args)

        def pipeline(self, transaction: bool = True) -> Any:  # noqa: FBT001, FBT002 - the driver's own
            sent.append(("pipeline",))

        def pubsub(self, **kwargs: Any) -> Any: ...

        def close(self) -> None: ...

    hurry = Hurry(clock)
    driver = InHurry(Driver(), hurry, "redis://h")
    with hurry.within(1.0):
        driver.execute_command("PING")
        clock.now += 1.0
        with pytest.raises(StoreUnavailableError, match=r"redis://h.*so slow.*ask again"):
            driver.execute_command("PING")
        with pytest.raises(StoreUnavailableError, match="so slow"):
            driver.pipeline()
    driver.pipeline()
    assert sent == [("PING",), ("pipeline",)]


def test_those_behind_one_who_opens_the_store_do_not_wait_one_after_the_other() -> None:
    """Each has its own second."""
    opening, opened = threading.Event(), threading.Event()

    def slowly(hurry: Hurry) -> Any:
        opening.set()
        opened.wait(10)
        raise StoreUnavailableError(url="x", problem="down")

    ports = ControlPorts(slowly)

    def open_first() -> None:
        with contextlib.suppress(StoreUnavailableError):
            _ = ports.store

    first = threading.Thread(target=open_first)
    first.start()
    assert opening.wait(5)
    with ports.hurry.within(0.02), pytest.raises(StoreUnavailableError, match="could not be opened in time"):
        _ = ports.store
    opened.set()
    first.join()


def test_a_command_is_tried_no_longer_than_its_committer_wants() -> None:
    """A caller's own patience is bounded by it."""
    clock, tries = TurnedClock(), list[int]()

    class Away:
        def read(self, agent_id: AgentId, *, op: str = "") -> Any:
            tries.append(1)
            raise StoreUnavailableError(url="x", problem="down")

    away: Any = Away()
    committer = Committer(away, RuntimeConfig(), Nobody(), clock=clock, most_patience=timedelta(seconds=1))
    command = commands.Restart(reason="", actor="")
    with pytest.raises(StoreUnavailableError):
        committer.apply(AgentId("a"), command, patience=timedelta(hours=1))
    assert len(tries) == 6
    assert clock.now == pytest.approx(101.0)


def test_a_listener_that_does_not_exist_yet_wants_nothing() -> None:
    """Plug-ins start after the first command."""
    heard: list[Any] = []

    class Listener:
        wants_events = True

        def publish(self, events: Any) -> None:
            heard.append(events)

    found: dict[str, Any] = {}
    late: Any = LateListener(lambda: found.get("bus"))
    late.publish(["lost"])
    assert not late.wants_events
    found["bus"] = Listener()
    assert late.wants_events
    late.publish(["told"])
    assert heard == [["told"]]


def test_a_worker_forked_while_another_thread_opens_its_ports_opens_its_own() -> None:
    """What the fork copied may be locked for good."""
    made: list[int] = []

    def open_(_: Hurry) -> Any:
        made.append(1)
        return object(), object()

    ports = ControlPorts(open_)
    ports._lock.acquire()
    ports.forget()
    assert ports.store is not None
    assert made == [1]


# -- faults on purpose, from afar --------------------------------------------------------------------------------------

#: The tasks that disturb an agent, with what they need; and what each of them refuses, by the parameter at fault.
FAULT_TASKS: dict[str, dict[str, Any]] = {
    "slow_agent": {"delay": "500ms"},
    "tool_timeout": {"timeout": 2},
    "partition_network": {},
    "corrupt_memory": {},
    "disconnect_mcp": {"server": "git"},
    "inject_llm_failure": {"error_type": "rate_limit", "retry_after": "7s"},
    "kill_agent": {},
}
OF_CALLS = ("slow_agent", "tool_timeout", "disconnect_mcp", "inject_llm_failure")
REFUSED_TASKS: list[tuple[str, dict[str, Any]]] = [
    *((method, {"duration": "25h"}) for method in FAULT_TASKS if method != "kill_agent"),
    *((method, {"reason": 3}) for method in FAULT_TASKS),
    *((method, {"count": 0}) for method in OF_CALLS),
    *((method, {"probability": 2}) for method in OF_CALLS),
    *((method, {"seed": -1}) for method in (*OF_CALLS, "corrupt_memory")),
    ("slow_agent", {"delay": -1}),
    ("tool_timeout", {"timeout": "soon"}),
    ("inject_llm_failure", {"error_type": "sulks"}),
    ("inject_llm_failure", {"retry_after": "x"}),
    ("disconnect_mcp", {"server": 3}),
    ("kill_agent", {"force": "yes"}),
]
each_fault_task = pytest.mark.parametrize("method", FAULT_TASKS)


def refused_by(wiring: Wiring, method: str, **given: Any) -> AresError:
    """The error of a task, rebuilt from what travels; within the second that a task has."""
    began = time.monotonic()
    with pytest.raises(AresError) as caught:
        call(wiring, method, task_id="t-2", **{"agent_id": "a", **FAULT_TASKS.get(method, {}), **given})
    assert time.monotonic() - began < LONGEST_WAIT
    made = error_from_wire(json.loads(json.dumps(caught.value.args[0])))
    assert (type(made), str(made), made.fields) == (type(caught.value), str(caught.value), caught.value.fields)
    return made


@pytest.mark.spec(138)
@each_fault_task
def test_what_refuses_a_fault_travels_whole(wiring: Wiring, method: str) -> None:
    """An unknown agent, and a namespace that allows no faults: class, text and fields, by task as in Python."""
    off = refused_by(wiring, method)
    assert isinstance(off, ChaosDisabledError)
    assert (off.fields["operation"], off.fields["namespace"]) == (method, wiring.settings.namespace)
    for allowed in (False, True):
        if allowed:
            assert call(wiring, "enable_chaos", duration="1h", task_id="t-on")["until"] is not None
        unknown = refused_by(wiring, method, agent_id="ghost")
        assert isinstance(unknown, AgentNotFoundError)
        assert unknown.fields["agent_id"] == "ghost"
    assert call(wiring, "list_faults", task_id="t-3") == []


@pytest.mark.parametrize(("method", "odd"), REFUSED_TASKS)
def test_the_parameters_of_a_fault_are_checked_by_task_too(wiring: Wiring, method: str, odd: dict[str, Any]) -> None:
    """By name, before anything is written; a parameter that there is not is an error as well."""
    call(wiring, "enable_chaos", duration="1h", task_id="t-on")
    refused = refused_by(wiring, method, **odd)
    assert isinstance(refused, InvalidSettingError)
    assert refused.fields["field"] == next(iter(odd))
    assert isinstance(refused_by(wiring, method, how="hard"), OperationNotSupportedError)
    assert call(wiring, "list_faults", task_id="t-3") == []


@pytest.mark.parametrize("method", ["slow_agent", "tool_timeout", "disconnect_mcp", "inject_llm_failure"])
def test_a_fault_by_task_is_one_however_often_the_message_comes(wiring: Wiring, method: str) -> None:
    """Its id is the task's; the same answer each time; healed by task, once."""
    call(wiring, "enable_chaos", duration="1h", task_id="t-on")
    given = {"agent_id": "a", **FAULT_TASKS[method], "count": 3, "probability": 0.5, "seed": 7, "duration": "90s"}
    made = [call(wiring, method, task_id="t-9", **given) for _ in range(2)]
    assert made[0] == made[1]
    shown = {key: made[0][key] for key in ("id", "agent_id", "count", "probability", "seed", "actor")}
    assert shown == {"id": "t-9", "agent_id": "a", "count": 3, "probability": 0.5, "seed": 7, "actor": "task t-9"}
    assert call(wiring, "list_faults", task_id="t-3", agent_id="a") == [made[0]]
    assert call(wiring, "heal", task_id="t-4", agent_id="a") == [made[0]]
    assert call(wiring, "heal", task_id="t-5") == []
    assert call(wiring, "disable_chaos", task_id="t-6") == []
    assert isinstance(refused_by(wiring, method), ChaosDisabledError)
