"""`ares agents approve` as people and scripts use it, on an agent that asks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ares_celery import AgentContext
from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.model.agent import AgentState
from ares_celery.testing import AgentHarness
from tests.unit.cli.calling import run


class Asker:
    """Asks one thing after the other."""

    def __init__(self, agent_id: str) -> None:
        self.said: list[Any] = []

    async def start(self, ctx: AgentContext) -> list[Any]:
        for name in ("deploy", "announce"):
            word = await ctx.wait_for_approval(name, {"about": name}, timeout="7d", release_slot=True)
            await ctx.emit("heard", {"decision": word.decision, "payload": word.payload, "by": word.actor})
        return []


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentHarness]:
    """An agent that waits for a word about `deploy`; the command line speaks with its manager."""
    with AgentHarness(Asker) as harness:
        harness.advance("1h")
        assert harness.is_waiting
        monkeypatch.setattr(Session, "manager", harness._bench.manager)
        yield harness


def test_a_word_is_passed_on_and_the_agent_goes_on(asking: AgentHarness) -> None:
    """What the agent is told, by whom, and why; one line for people."""
    why = ["--reason", "looked at it", "--actor", "ann"]
    done = run("agents", "approve", "a", "deploy", "yes", "--payload", '{"window": "now"}', *why)
    assert (done.exit_code, done.stdout, done.stderr) == (ExitCode.OK, "deploy of agent a is approved\n", "")
    heard = asking.run_until("heard", timeout=5)
    assert heard.payload == {"decision": "yes", "payload": {"window": "now"}, "by": "ann"}
    (resolved,) = [event for event in asking.all_events if event.type == "interrupt.resolved"]
    assert (resolved.payload["actor"], resolved.payload["reason"]) == ("ann", "looked at it")


@pytest.mark.parametrize(
    ("words", "approved"),
    [([], True), (["true"], True), (["1"], True), (["Accepted"], True), (["no"], False), (["not today"], False)],
)
def test_without_a_word_it_is_a_yes(asking: AgentHarness, words: list[str], *, approved: bool) -> None:
    """Programs get the question as it is decided now."""
    done = run("agents", "approve", "a", "deploy", *words, "-o", "json")
    told = json.loads(done.stdout)
    assert done.exit_code == ExitCode.OK
    assert (told["name"], told["state"], told["decision"]) == ("deploy", "resolved", (*words, "approve")[0])
    assert told["approved"] is approved
    assert told["actor"]
    assert told["decided_at"]
    asking.run_until("heard", timeout=5)
    (resolved,) = [event for event in asking.all_events if event.type == "interrupt.resolved"]
    assert resolved.payload["approved"] is approved


def test_a_no_is_said_to_be_one(asking: AgentHarness) -> None:
    """With the word that was taken for it."""
    assert run("agents", "approve", "a", "-o", "json").stdout.count('"approved": null') == 1
    done = run("agents", "approve", "a", "deploy", "not today")
    assert done.stdout == "deploy of agent a is refused (decision 'not today')\n"


def test_a_name_that_nobody_asks_is_not_found_and_the_open_ones_are_named(asking: AgentHarness) -> None:
    """Exit code 3; nothing is decided. So for a question that is another one by now, and an agent that is not there."""
    done = run("agents", "approve", "a", "delpoy")
    assert (done.exit_code, done.stdout) == (ExitCode.NOT_FOUND, "")
    assert "'delpoy'" in done.stderr
    assert "open: ['deploy']" in done.stderr
    assert run("agents", "approve", "a", "deploy", "--interrupt-id", "0" * 32).exit_code == ExitCode.NOT_FOUND
    assert run("agents", "approve", "nobody", "deploy").exit_code == ExitCode.NOT_FOUND
    assert run("agents", "approve", "nobody").exit_code == ExitCode.NOT_FOUND
    assert [(one.name, one.state) for one in asking.interrupts] == [("deploy", "open")]


def test_who_comes_second_is_told_who_was_first(asking: AgentHarness) -> None:
    """Exit code 5, with who, what and when; the first word stands."""
    assert run("agents", "approve", "a", "deploy", "no", "--actor", "ann").exit_code == ExitCode.OK
    second = run("agents", "approve", "a", "deploy", "yes", "--actor", "bob")
    assert (second.exit_code, second.stdout) == (ExitCode.PRECONDITION, "")
    assert "'deploy' of agent 'a' is decided already: 'no' by ann at 2026-01-01T01:0" in second.stderr
    assert asking.run_until("heard", timeout=5).payload["decision"] == "no"


def test_who_comes_too_late_is_told_so(asking: AgentHarness) -> None:
    """Exit code 5, also before the agent has noticed."""
    asking._bench.manager.pause_agent("a", actor="ann")
    asking.advance("7d")
    late = run("agents", "approve", "a", "deploy")
    assert late.exit_code == ExitCode.PRECONDITION
    assert "in time" in late.stderr


def test_without_a_name_it_lists_what_is_asked(asking: AgentHarness) -> None:
    """What is open comes first, with what the agent says about it; in JSON a list."""
    run("agents", "approve", "a", "deploy", "--actor", "ann")
    asking.run_until("heard", timeout=5)
    asking.run_until(lambda: len(asking.interrupts) > 1, timeout=5)
    lines = run("agents", "approve", "a").stdout.splitlines()
    assert lines[0].split() == ["NAME", "STATE", "ASKED", "UNTIL", "DECISION", "PAYLOAD"]
    assert [line.split()[:2] for line in lines[1:]] == [["announce", "open"], ["deploy", "resolved"]]
    assert '{"about": "announce"}' in lines[1]
    assert "approve by ann" in lines[2]
    listed = json.loads(run("agents", "approve", "a", "-o", "json").stdout)
    assert [(one["name"], one["state"], one["payload"]) for one in listed] == [
        ("announce", "open", {"about": "announce"}),
        ("deploy", "resolved", None),
    ]


@pytest.mark.parametrize("words", [["deploy", " "], ["deploy", "x" * 1_001], ["deploy", "--payload", "not json"]])
def test_what_is_no_word_is_a_usage_error(asking: AgentHarness, words: list[str]) -> None:
    """Nothing is decided."""
    assert run("agents", "approve", "a", *words).exit_code == ExitCode.USAGE
    assert [one.state for one in asking.interrupts] == ["open"]


def test_a_paused_agent_finds_the_word_when_it_is_resumed(asking: AgentHarness) -> None:
    """The command says nothing else then."""
    asking.pause()
    assert run("agents", "approve", "a", "deploy").exit_code == ExitCode.OK
    assert asking.info.state is AgentState.PAUSED
    asking.resume()
    asking.run_until("heard", timeout=5)
