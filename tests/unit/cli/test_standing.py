"""What commands say is true: the state that an agent really is in, why, and until when."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from ares_celery.cli.agent_words import state_words
from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.clock import instant_from
from ares_celery.config import RuntimeConfig
from ares_celery.ids import Epoch, Version
from ares_celery.model.agent import AgentInfo, AgentState, Desired
from ares_celery.model.event import Event, EventType, ReadOptions
from ares_celery.model.snapshot import Snapshot
from ares_celery.model.stats import RuntimeStats
from ares_celery.store.base import DamagedSnapshot
from tests.unit.cli.calling import RecordingManager, agent, run

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CHANGING = ("stop", "pause", "resume", "restart", "restore", "unpark")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The store behind the commands: it has the time, and whatever a test puts into it."""
    made = SimpleNamespace(namespace="shop", server_time=lambda: instant_from(NOW))
    monkeypatch.setattr(Session, "store", made)
    return made


def answering(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    """Let the Manager answer so."""
    monkeypatch.setattr(Session, "manager", RecordingManager(answer))


def waiting(**more: Any) -> AgentInfo:
    """An agent whose next attempt is due in four seconds."""
    due = NOW + timedelta(seconds=4)
    return agent("a", AgentState.RESURRECTING, waiting_on="backoff", next_attempt=due, **more)


# -- after a command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", CHANGING)
def test_a_parked_agent_is_said_to_be_parked_whatever_was_asked(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """`stop` notes a wish and un-parks nothing; the text says what does."""
    answering(monkeypatch, agent("a", AgentState.PARKED, cause="max_restarts"))

    done = run("agents", command, "a")

    assert done.stderr == "agent a is parked (max_restarts) and stays so until `ares agents restart a`\n"


@pytest.mark.parametrize(
    ("info", "words"),
    [
        (agent("a", AgentState.STOPPED), ["is stopped", "`ares agents start a`"]),
        (agent("a", AgentState.COMPLETED), ["is completed", "its work is done"]),
        (agent("a", AgentState.PAUSED), ["is paused", "`ares agents resume a`"]),
        (agent("a", AgentState.STOPPING, desired=Desired.STOPPED), ["is stopping\n"]),
        (agent("a", AgentState.STOPPING, desired=Desired.PAUSED), ["is stopping; then it rests"]),
        (agent("a", AgentState.STOPPING), ["is stopping; then its next incarnation starts"]),
        (agent("a", AgentState.STARTING, waiting_on="slot"), ["is starting", "free slot"]),
        (agent("a", AgentState.STARTING, waiting_on="schema"), ["is starting", "newer code"]),
        (agent("a", AgentState.RESURRECTING, waiting_on="group", group="g"), ["is resurrecting", "waits for group g"]),
        (agent("a", AgentState.RUNNING, worker="w@h", pid=47), ["is running", "worker w@h, pid 47"]),
        (agent("a", AgentState.REGISTERED), ["is registered", "`ares runtime start`"]),
        (agent("a", AgentState.REGISTERED, desired=Desired.STOPPED), ["does not run", "`ares agents start a`"]),
        (agent("a", AgentState.PARKED, cause="integrity"), ["is parked (integrity)", "unpark a --accept-loss"]),
        (agent("a", AgentState.PARKED, cause="reconcile"), ["is parked (reconcile)", "`ares agents reconcile a`"]),
        (agent("a", AgentState.PARKED, cause="budget"), ["is parked (budget)", "--budget", "ares agents unpark a"]),
        (None, ["agent a does not exist any more"]),
    ],
    ids=lambda value: value.state.value if isinstance(value, AgentInfo) else None,
)
def test_a_command_says_how_the_agent_stands_afterwards(
    monkeypatch: pytest.MonkeyPatch, info: AgentInfo | None, words: list[str]
) -> None:
    """The state of the record, what it means, and the command that changes it."""
    answering(monkeypatch, info)

    said = run("agents", "stop", "a").stderr

    assert [part for part in words if part not in said] == []


def test_an_agent_that_waits_for_its_next_attempt_is_said_to(
    monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace
) -> None:
    """By the store's clock, not the terminal's."""
    answering(monkeypatch, waiting())

    assert run("agents", "stop", "a", "--no-wait").stderr == "agent a is resurrecting, next try in 4 s\n"


@pytest.mark.parametrize("state", ["running", "stopped", "new"])
def test_the_runtime_s_commands_say_the_state_that_it_is_in(
    monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace, state: str
) -> None:
    """`runtime start` on one that somebody stopped meanwhile does not claim that it runs."""
    answering(monkeypatch, None)
    store.runtime = lambda: SimpleNamespace(state=SimpleNamespace(value=state))

    said = [run("runtime", command).stderr for command in ("start", "stop")]

    assert all(text.startswith(f"the runtime of namespace shop is {state}") for text in said)


# -- looking -----------------------------------------------------------------------------------------------------------


def test_the_list_bounds_reasons_and_shows_the_next_attempt(
    monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace
) -> None:
    """One long reason must not push everything else aside; JSON has all of it."""
    reason = "ValueError: " + "x" * 300
    answering(monkeypatch, [waiting(reason=reason)])

    (_, line) = run("agents", "ls").stdout.splitlines()
    (shown,) = json.loads(run("agents", "ls", "-o", "json").stdout)

    assert "resurrecting, next try in 4 s" in line
    assert re.split(" {2,}", line)[-1] == reason[:39] + "…"
    assert shown["reason"] == reason


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"state": AgentState.WAITING, "waiting_on": "approval:deploy", "reason": "wait"}, "approval deploy"),
        (
            {"state": AgentState.WAITING, "waiting_on": "approval:step:refund", "waiting_until": NOW},
            "approval step:refund until 2026-01-02T03:04:05+00:00",
        ),
        (
            {"state": AgentState.WAITING, "waiting_on": "timer", "waiting_until": NOW, "reason": "wait"},
            "until 2026-01-02T03:04:05+00:00",
        ),
        ({"state": AgentState.RUNNING, "step": "outer/approval:deploy"}, "approval deploy, keeps its slot"),
        ({"state": AgentState.RUNNING, "step": "fetch", "reason": "by hand"}, "by hand"),
    ],
)
def test_the_list_shows_what_agents_wait_for(
    monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace, facts: dict[str, Any], shown: str
) -> None:
    """Where others have the reason of their state; with the slot or without it."""
    answering(monkeypatch, [agent("a", **facts)])

    (_, line) = run("agents", "ls").stdout.splitlines()

    assert re.split(" {2,}", line)[-1] == shown


BUDGET = {"state": AgentState.PARKED, "cause": "budget", "spent": {"tokens": 60, "usd": 0.3}}
OWN = {**BUDGET, "reason": "the tokens of agent 'a' are used up (60 of 50)"}


@pytest.mark.parametrize(
    ("facts", "now"),
    [
        (
            {**OWN, "budget": {"tokens": 60}},
            "its tokens are used up (60 of 60); `ares agents update a --budget tokens=…`",
        ),
        ({**OWN, "budget": {"tokens": 70}, "spent_below": {"tokens": 10}}, "its tokens are used up (70 of 70)"),
        ({**OWN, "budget": {"tokens": 61, "usd": 0.3}}, "its usd are used up (0.3 of 0.3)"),
        ({**OWN, "budget": {"tokens": 61}}, ", and is allowed more now: `ares agents unpark a` lets it go on"),
        ({**OWN}, ", and is allowed more now: `ares agents unpark a` lets it go on"),
        ({**BUDGET, "reason": "the tokens of agent 'top' are used up (9 of 9)"}, "tells whose budget was used up"),
    ],
)
def test_whether_a_budget_is_enough_now_is_said(
    monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace, facts: dict[str, Any], now: str
) -> None:
    """By `update` and by `show`: the reason is that of the parking."""
    answering(monkeypatch, agent("a", **facts))

    said = run("agents", "update", "a", "--budget", "tokens=61").stderr
    shown = run("agents", "show", "a").stdout

    assert now in said
    assert said.count("used up (") <= 1
    (line,) = [line for line in shown.splitlines() if line.startswith("now ")]
    assert now in line


def test_an_agent_s_page_shows_its_process_and_its_next_attempt(
    monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace
) -> None:
    """The pid is what `kill` wants."""
    answering(monkeypatch, waiting(pid=4711))

    facts = dict(line.split(maxsplit=1) for line in run("agents", "show", "a").stdout.splitlines())

    assert facts["pid"] == "4711"
    assert facts["waiting_on"] == "backoff"
    assert facts["next_attempt"] == "2026-01-02T03:04:09.000+00:00 (in 4.0 s)"


def test_a_failover_s_whole_payload_fits_into_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its delay is the last field; whose event it is was asked for and is not repeated."""
    payload = {"agent_id": "a", "reason": "ConnectionError: the backend is away", "cause": "crash", "charged": True}
    payload |= {"restarts": 3, "incarnation": 3, "delay_ms": 2000}
    event = Event("e1", "a", Version(1), EventType.FAILOVER_TRIGGERED, payload, NOW, 0, {"module": "runtime"})
    monkeypatch.setattr(Session, "manager", SimpleNamespace(events=RecordingManager((event,))))

    shown = run("agents", "events", "a").stdout

    assert '"delay_ms": 2000}' in shown
    assert "agent_id" not in shown


@pytest.mark.parametrize(
    ("options", "shown", "said"),
    [
        ((), range(4, 54), "… older ones: --to 3; all: -n 0"),
        (("-n", "2"), [52, 53], "… older ones: --to 51; all: -n 0"),
        (("--newest", "-n", "2"), [53, 52], "… older ones: --to 51; all: -n 0"),
        (("--to", "51", "-n", "2"), [50, 51], "… older ones: --to 49; all: -n 0"),
        (("--from", "4", "-n", "2"), [4, 5], "… more: --from 6; all: -n 0"),
        (("--from", "4"), range(4, 54), ""),
        (("--from", "52", "--newest"), [53, 52], ""),
        (("--to", "3"), [1, 2, 3], ""),
        (("-n", "0"), range(1, 54), ""),
        (("-n", "53"), range(1, 54), ""),
    ],
)
@pytest.mark.parametrize("output", ["table", "json"])
def test_the_last_events_are_shown_in_order_and_what_is_left_out_is_said(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], shown: Any, said: str, output: str
) -> None:
    """What happened just now is what one looks for; a cut that nobody tells of looks like nothing happened."""
    stream = [Event(f"e{one}", "a", Version(one), "tick", {}, NOW) for one in range(1, 54)]

    def read(_: str, asked: ReadOptions) -> list[Event]:
        found = [one for one in stream if one.version >= asked.from_version]
        found = [one for one in found if not asked.to_version or one.version <= asked.to_version]
        found = found if asked.direction == "ascending" else found[::-1]
        return found[: asked.limit] if asked.limit else found

    monkeypatch.setattr(Session, "manager", SimpleNamespace(events=SimpleNamespace(read=read)))
    done = run("agents", "events", "a", *options, "-o", output)
    if output == "json":
        versions = [one["version"] for one in json.loads(done.stdout)]
    else:
        versions = [int(line.split()[0]) for line in done.stdout.splitlines()[1:]]
    assert versions == list(shown)
    assert done.stderr.strip() == said


def test_snapshots_show_their_state_when_it_is_asked_for(store: SimpleNamespace) -> None:
    """States may be large, so not by default."""
    snapshot = Snapshot({"total": 7}, Version(3), Epoch(1), 1, instant_from(NOW))
    store.stored_snapshots = RecordingManager((snapshot,)).stored_snapshots
    store.damaged_snapshots = RecordingManager((DamagedSnapshot("its checksum does not fit", b"7|"),)).damaged_snapshots

    assert "total" not in run("agents", "snapshots", "a").stdout
    assert '{"total": 7}' in run("agents", "snapshots", "a", "--state").stdout
    assert "its checksum does not fit" in run("agents", "snapshots", "a").stdout
    assert json.loads(run("agents", "snapshots", "a", "-o", "json").stdout)[0]["state"] == {"total": 7}


def test_no_snapshots_are_a_sentence_that_says_when_the_first_comes(
    monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace
) -> None:
    """With the namespace's own numbers; programs get an empty list."""
    answering(monkeypatch, agent("a", AgentState.RUNNING))
    store.stored_snapshots = store.damaged_snapshots = RecordingManager(()).snapshots
    store.config = RuntimeConfig(snapshot_interval="90s", snapshot_every_events=70)

    done = run("agents", "snapshots", "a", "--state")

    assert (done.exit_code, done.stdout) == (0, "")
    assert "no snapshot yet: the first comes after 1m 30s, 70 events or an orderly end" in done.stderr
    assert json.loads(run("agents", "snapshots", "a", "-o", "json").stdout) == []


@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_stream_of_no_agent_without_events_is_not_taken_for_an_agent(
    monkeypatch: pytest.MonkeyPatch, follow: tuple[str, ...]
) -> None:
    """The mark of a plug-in's stream is one that no agent's id may have."""
    events = SimpleNamespace(read=RecordingManager(()).read, subscribe=RecordingManager(nullcontext()).subscribe)
    monkeypatch.setattr(Session, "manager", SimpleNamespace(events=events))

    done = run("agents", "events", "@plugin:audit", *follow)

    assert done.exit_code == ExitCode.NOT_FOUND
    assert "stream '@plugin:audit' has no events" in done.stderr
    assert run("agents", "events", "a b").exit_code == ExitCode.USAGE


def test_a_plug_in_s_stream_is_shown_like_an_agent_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is handed on as it is."""
    event = Event("e1", "@plugin:audit", Version(1), EventType.PLUGIN_STARTED, {"plugin": "audit"}, NOW)
    events = RecordingManager((event,))
    monkeypatch.setattr(Session, "manager", SimpleNamespace(events=events))

    assert '{"plugin": "audit"}' in run("agents", "events", "@plugin:audit").stdout
    assert events.calls[0][1][0] == "@plugin:audit"


def test_the_uptime_has_units(monkeypatch: pytest.MonkeyPatch, store: SimpleNamespace) -> None:
    """For people; programs get seconds."""
    stats = RuntimeStats(active_agents=1, total_restarts=0, uptime=timedelta(hours=27, seconds=4.5))
    answering(monkeypatch, stats)
    store.runtime = lambda: SimpleNamespace(state=SimpleNamespace(value="running"), reason="", actor="")

    facts = dict(line.split(maxsplit=1) for line in run("runtime", "status").stdout.splitlines())

    assert facts["uptime"] == "1d 3h 4s"
    assert json.loads(run("runtime", "status", "-o", "json").stdout)["uptime"] == 27 * 3_600 + 4.5


def test_a_degraded_agent_is_said_to_be_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs, and somebody should know what it does without."""
    missing = "MCP server 'wiki' is not connected: gone"
    found = agent("a", AgentState.RUNNING, degraded=missing)
    assert state_words(found) == "running, degraded"
    answering(monkeypatch, found)
    assert f"; degraded: {missing}" in run("agents", "resume", "a").stderr
