"""The arena against a real Redis and a real host: verdicts from real events, the command line, Chaos Toolkit."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import redis
import yaml

from ares_celery import AgentContext, AgentSpec
from ares_celery.arena.actions import redis_latency, redis_outage, stop_beat
from ares_celery.arena.link import tell_link
from ares_celery.arena.loading import parse_scenario
from ares_celery.arena.probes import agent_deaths
from ares_celery.arena.ring import Ring, entered
from ares_celery.arena.runner import ScenarioRun
from ares_celery.arena.survival import plan_survival
from ares_celery.arena.verdict.journal import RunStatus, ScenarioReport
from ares_celery.arena.verdict.judge import judged
from ares_celery.errors import ActivityFailedError, AgentNotFoundError
from tests.hosting import Runtime
from tests.integration.command_line import ROOT, Command, ares, environment
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytest_plugins = ["pytester"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

ACTIONS = "ares_celery.arena.actions"


class Worker:
    """Counts, and takes a step that must not run twice in each of its lives."""

    def __init__(self, agent_id: str) -> None:
        self.total = 0

    async def start(self, ctx: AgentContext) -> None:
        async with ctx.execution(f"life-{ctx.incarnation}"):
            await ctx.step.with_options(replay="never")("once", self.work)
        while not ctx.stop_requested:
            await ctx.emit("ticked", {})
            await ctx.sleep(0.05)

    def apply(self, event: Any) -> None:
        self.total += 1

    async def work(self) -> int:
        return 1

    def snapshot(self) -> dict[str, Any]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


@contextlib.contextmanager
def living(runtime: Runtime, ids: Sequence[str]) -> Generator[None]:
    """Agents run there, swept by a thread."""
    over = threading.Event()
    runtime.register("worker", Worker)
    runtime.manager.start()
    for agent_id in ids:
        runtime.manager.start_agent(AgentSpec(id=agent_id, type="worker"))
    for agent_id in ids:
        runtime.until(agent_id, "running")

    def sweep() -> None:
        while not over.wait(0.05):
            runtime.sweep()

    thread = threading.Thread(target=sweep)
    thread.start()
    yield
    over.set()
    thread.join(5)


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A namespace with two agents that run, swept by a thread."""
    with Runtime(redis_server.url, namespace) as made, living(made, ("a", "b")):
        yield made


def env_of(runtime: Runtime, folder: Path) -> dict[str, str]:
    """Where a process of its own finds the namespace."""
    return environment(
        folder, ARES_REDIS_URL=runtime.url, ARES_NAMESPACE=runtime.store.namespace, ARES_AGENT_MODULES=""
    )


def pausing(rest: str) -> dict[str, Any]:
    """A scenario of one pause, in Chaos Toolkit's form."""
    provider = {"type": "python", "module": ACTIONS, "func": "pause_agent"}
    probe = {
        "type": "probe",
        "name": "it runs",
        "tolerance": True,
        "provider": {
            "type": "python",
            "module": "ares_celery.arena.probes",
            "func": "becomes",
            "arguments": {"agent_id": "a"},
        },
    }
    resume = {"type": "python", "module": ACTIONS, "func": "resume_agent", "arguments": {"agent_id": "a"}}
    return {
        "version": "1.0.0",
        "title": "a rest",
        "description": "An agent rests and goes on.",
        "steady-state-hypothesis": {"title": "it runs", "probes": [probe]},
        "method": [
            {
                "type": "action",
                "name": "rest",
                "provider": {**provider, "arguments": {"agent_id": "a", "duration": rest}},
            }
        ],
        "rollbacks": [{"type": "action", "name": "resume", "provider": resume}],
    }


@pytest.mark.spec(146)
def test_mttr_is_that_of_real_recovery_events(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two deaths are recovered; the numbers are those of the events in the stream, and the histories are sound."""
    deeds = ModuleType("arena_real_deeds")

    def die(agent_id: str) -> None:
        before = runtime.manager.get_agent_info(agent_id)
        assert before is not None
        runtime.manager.notify_agent_dead(agent_id, "on purpose", epoch=before.epoch)
        wait_until(lambda: _runs(runtime, agent_id, before.incarnation + 1), "its next life")

    deeds.die = die  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "arena_real_deeds", deeds)
    method = [
        {
            "type": "action",
            "name": f"death of {one}",
            "provider": {"type": "python", "module": "arena_real_deeds", "func": "die", "arguments": {"agent_id": one}},
        }
        for one in ("a", "b")
    ]
    scenario = parse_scenario({"title": "t", "method": method}, allow_modules=["arena_real_deeds"])
    report = ScenarioRun(runtime.manager, scenario, allow_modules=["arena_real_deeds"]).run()
    verdict = judged(runtime.manager, report).verdict
    assert verdict is not None
    assert (report.status, verdict.deaths, verdict.recovered) == (RunStatus.COMPLETED, 2, 2)
    times = []
    for agent_id in ("a", "b"):
        (triggered,) = runtime.events(agent_id, "failover.triggered")
        (completed,) = runtime.events(agent_id, "failover.completed")
        times.append((completed.time - triggered.time).total_seconds())
    assert verdict.times is not None
    assert verdict.times.to_json() == {
        "count": 2,
        "min": min(times),
        "avg": pytest.approx(sum(times) / 2),
        "p95": max(times),
        "max": max(times),
        "last": times[1],
    }
    assert min(times) > 0
    assert verdict.is_sound
    assert verdict.availability is not None
    assert 0 < verdict.availability < 100
    assert [one.target for one in verdict.effects if one.detected is not None and one.recovered] == ["a", "b"]


class Frail:
    """Lives once; every later life ends as soon as it has begun."""

    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> None:
        await ctx.emit("began", {})
        if ctx.incarnation > 1:
            raise RuntimeError("too frail")
        while not ctx.stop_requested:
            await ctx.sleep(60)


@pytest.mark.spec(146)
@pytest.mark.parametrize("cap", [0, 3], ids=["for ever", "given up on"])
def test_an_agent_that_crashes_at_once_in_each_later_life_has_not_recovered(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, cap: int
) -> None:
    """Though it ran again, and made progress, a moment after each death: never completed, and why."""
    deeds = ModuleType("arena_frail_deeds")

    def die() -> None:
        runtime.manager.notify_agent_dead("f", "on purpose", epoch=runtime.manager.get_agent_info("f").epoch)  # type: ignore[union-attr]
        wait_until(lambda: runtime.manager.get_agent_info("f").incarnation >= 3, "two more lives")  # type: ignore[union-attr]

    deeds.die = die  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "arena_frail_deeds", deeds)
    runtime.register("frail", Frail)
    runtime.manager.start_agent(AgentSpec(id="f", type="frail", max_restarts=cap), wait="running")
    provider = {"type": "python", "module": "arena_frail_deeds", "func": "die"}
    document = {
        "title": "t",
        "method": [{"type": "action", "name": "die", "provider": provider}],
        "extensions": [{"name": "ares", "agents": ["f"], "config": {"settle": "1s", "steady": "500ms"}}],
    }
    scenario = parse_scenario(document, allow_modules=["arena_frail_deeds"])
    report = judged(
        runtime.manager, ScenarioRun(runtime.manager, scenario, allow_modules=["arena_frail_deeds"]).run(), ["f"]
    )
    verdict = report.verdict
    assert verdict is not None
    assert (report.status, verdict.deaths, verdict.recovered) == (RunStatus.DEVIATED, 1, 0)
    assert verdict.relapses >= 2
    assert len(report.reasons) == 1
    assert report.reasons[0].startswith("f was given up on (cap): " if cap else "f died ")
    assert "too frail" in report.reasons[0]
    assert verdict.is_sound


@pytest.mark.parametrize("page", [1, 3, 250])
def test_a_probe_counts_the_deaths_of_a_time(runtime: Runtime, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """Whatever lies between and behind them; a restore that somebody asked for is none."""
    monkeypatch.setattr("ares_celery.arena.probes._PAGE", page)
    with entered(Ring(runtime.manager)):
        assert agent_deaths("a", within="1m") == 0
        for number in (1, 2):
            epoch = runtime.manager.get_agent_info("a").epoch  # type: ignore[union-attr]
            runtime.manager.notify_agent_dead("a", "on purpose", epoch=epoch)
            wait_until(partial(_runs, runtime, "a", number + 1), "its next life")
        assert agent_deaths("a", within="1m") == 2
        runtime.manager.restore_agent("a")
        wait_until(partial(_runs, runtime, "a", 4), "its restored life")
        assert len(runtime.events("a", "failover.triggered")) == 3
        assert agent_deaths("a", within="1m") == 2
        wait_until(lambda: agent_deaths("a", within="200ms") == 0, "a time without deaths")
        assert agent_deaths("b", within="24h") == 0
        with pytest.raises(AgentNotFoundError):
            agent_deaths("nobody", within="1m")


def _runs(runtime: Runtime, agent_id: str, incarnation: int) -> bool:
    info = runtime.manager.get_agent_info(agent_id)
    return info is not None and info.state == "running" and info.incarnation >= incarnation


def test_the_command_runs_a_file_and_writes_its_report(runtime: Runtime, tmp_path: Path) -> None:
    """As JSON on stdout, and in three files; nothing is left of the pause."""
    (tmp_path / "rest.json").write_text(json.dumps(pausing("200ms")))
    files = [f"--{kind}={tmp_path / kind}" for kind in ("html", "junit", "report")]
    done = ares("arena", "run", "rest.json", "-o", "json", *files, env=env_of(runtime, tmp_path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["status"], told["passed"], told["verdict"]["deaths"]) == ("completed", 1, 0)
    assert all(one["holds"] for one in told["verdict"]["invariants"])
    assert json.loads((tmp_path / "report").read_text()) == told
    assert "<svg" in (tmp_path / "html").read_text()
    assert "<testsuites" in (tmp_path / "junit").read_text()


def test_a_report_that_nobody_could_write_is_known_before_the_run(runtime: Runtime, tmp_path: Path) -> None:
    """Not behind it."""
    (tmp_path / "rest.json").write_text(json.dumps(pausing("1ms")))
    env = env_of(runtime, tmp_path)
    done = ares("arena", "run", "rest.json", "--report", "no/such/report.json", env=env, folder=tmp_path)
    assert done.returncode == 2
    assert "there is no folder 'no/such' to write to" in done.stderr
    assert runtime.events("a", "agent.stopped") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_with_its_rollbacks(runtime: Runtime, tmp_path: Path, number: signal.Signals) -> None:
    """However often it comes: the report says that it is partial, the agent runs again, the exit code is 1."""
    rest = pausing("1h")
    look = {"type": "process", "path": "sh", "arguments": ["-c", "touch slow; sleep 0.5; touch done"]}
    rest["rollbacks"].insert(0, {"type": "action", "name": "slow", "provider": look})
    (tmp_path / "rest.json").write_text(json.dumps(rest))
    with Command("arena", "run", "rest.json", "-o", "json", env=env_of(runtime, tmp_path), folder=tmp_path) as command:
        wait_until(lambda: runtime.manager.get_agent_info("a").paused, "the pause", timeout=20)  # type: ignore[union-attr]
        command.process.send_signal(number)
        wait_until((tmp_path / "slow").exists, "the first rollback", timeout=20)
        command.process.send_signal(number)
        assert command.process.wait(20) == 1
        told = json.loads(command.out[-1])
    assert (told["status"], told["partial"], told["partial_because"]) == ("interrupted", True, number.name)
    rolled = [(one["name"], one["outcome"]) for one in told["activities"] if one["phase"] == "rollback"]
    assert rolled == [("resume a", "succeeded"), ("slow", "succeeded"), ("resume", "succeeded")]
    assert (tmp_path / "done").exists()
    runtime.until("a", "running")


def test_where_a_hypothesis_fails_the_rollbacks_run_and_the_exit_code_says_when(
    runtime: Runtime, tmp_path: Path
) -> None:
    """5 before, and nothing is done; 1 after."""
    rest = pausing("1h")
    rest["method"][0]["provider"]["arguments"].pop("duration")
    rest["steady-state-hypothesis"]["probes"][0]["provider"]["arguments"]["timeout"] = 0
    (tmp_path / "after.json").write_text(json.dumps(rest))
    rest["steady-state-hypothesis"]["probes"][0]["provider"]["arguments"]["incarnation"] = 99
    (tmp_path / "before.json").write_text(json.dumps(rest))
    phases: dict[str, list[tuple[str, str]]] = {}
    for name, code, status in (("before", 5, "precondition"), ("after", 1, "deviated")):
        env = env_of(runtime, tmp_path)
        done = ares("arena", "run", f"{name}.json", "-o", "json", env=env, folder=tmp_path)
        assert done.returncode == code, done.stderr
        told = json.loads(done.stdout)
        assert told["status"] == status
        phases[name] = [(one["phase"], one["outcome"]) for one in told["activities"]]
        runtime.until("a", "running")
    right = ("rollback", "succeeded")
    assert phases["before"] == [("before", "failed"), right]
    assert phases["after"] == [("before", "succeeded"), ("method", "succeeded"), ("after", "failed"), right, right]


def test_signals_at_any_moment_end_a_run_once_with_its_rollbacks(runtime: Runtime, tmp_path: Path) -> None:
    """Hundreds of them, in the middle of each other, of output and of what is set right."""
    (tmp_path / "rest.json").write_text(json.dumps(pausing("1h")))
    numbers = itertools.cycle((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    with Command("arena", "run", "rest.json", "-o", "json", env=env_of(runtime, tmp_path), folder=tmp_path) as command:
        wait_until(lambda: runtime.manager.get_agent_info("a").paused, "the pause", timeout=20)  # type: ignore[union-attr]
        while runtime.manager.get_agent_info("a").paused:  # type: ignore[union-attr]
            for number in itertools.islice(numbers, 100):
                command.process.send_signal(number)
        assert command.process.wait(20) == 1
        told = json.loads(command.out[-1])
    assert told["status"] == "interrupted"
    assert told["partial_because"] in {"SIGTERM", "SIGINT", "SIGHUP"}
    rolled = [(one["name"], one["outcome"]) for one in told["activities"] if one["phase"] == "rollback"]
    assert rolled == [("resume a", "succeeded"), ("resume", "succeeded")]
    runtime.until("a", "running")


def test_nobody_stays_paused_when_the_process_of_a_run_is_killed(runtime: Runtime, tmp_path: Path) -> None:
    """The end of the pause stands in the store, and the arena is held for seconds only."""
    env = env_of(runtime, tmp_path)
    arguments = ("arena", "survival", "--fault", "pause_agent", "--agent", "a", "--for", "1h", "--every", "4s")
    with Command(*arguments, env=env, folder=tmp_path) as command:
        wait_until(lambda: runtime.manager.get_agent_info("a").paused, "the pause", timeout=20)  # type: ignore[union-attr]
        command.process.kill()
        command.process.wait(10)
    runtime.until("a", "running")
    assert runtime.events("a", "agent.started")[-1].payload["reason"] == "resume"
    client: Any = redis.Redis.from_url(runtime.url)
    with client:
        (key,) = client.keys(f"*{runtime.store.namespace}*:arena")
        assert 0 < client.pttl(key) <= 15_000


@pytest.mark.spec(144)
def test_a_second_survival_run_of_another_process_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    """With exit code 5 and the words why; asked from a third one the first ends, and reports its part."""
    env = env_of(runtime, tmp_path)
    arguments = ("arena", "survival", "--seed", "7", "--fault", "pause_agent", "-o", "json")
    with Command(*arguments, "--for", "1h", "--every", "30m", env=env, folder=tmp_path) as first:
        wait_until(runtime.manager.arena, "the first run", timeout=20)
        second = ares(*arguments, "--for", "1s", env=env, folder=tmp_path)
        assert second.returncode == 5
        assert "a survival run of" in second.stderr
        assert "(seed 7)" in second.stderr
        assert runtime.manager.stop_arena(reason="enough") is not None
        assert first.process.wait(30) == 1
        told = json.loads(first.out[-1])
    assert (told["partial_because"], told["seed"]) == ("enough", 7)
    assert runtime.manager.arena() is None
    runtime.until("a", "running")
    runtime.until("b", "running")


@pytest.mark.spec(144)
def test_one_seed_gives_one_order_of_faults_by_the_command_in_equal_fleets(
    redis_server: RedisServer, namespace: str, tmp_path: Path
) -> None:
    """Two namespaces, the same agents, the same seed: the same faults on the same agents with the same arguments."""
    faults = ("pause_agent", "slow_agent", "tool_timeout", "disconnect_mcp", "inject_llm_failure")
    said = [word for fault in faults for word in ("--fault", fault)]
    arguments = ("arena", "survival", "--seed", "2026", "--for", "1600ms", "--every", "200ms", *said, "-o", "json")
    with contextlib.ExitStack() as stack:
        commands: list[Command] = []
        for name in ("one", "two"):
            runtime = stack.enter_context(Runtime(redis_server.url, f"{namespace}-{name}", chaos=True))
            stack.enter_context(living(runtime, ("a", "b", "c") if name == "one" else ("c", "a", "b")))
            env = env_of(runtime, tmp_path) | {"ARES_CHAOS": "true"}
            commands.append(stack.enter_context(Command(*arguments, env=env, folder=tmp_path)))
        assert [command.process.wait(40) for command in commands] == [0, 0], commands[0].talk
        reports = [json.loads(command.out[-1]) for command in commands]
    orders = [[deed_of(one) for one in told["activities"] if one["phase"] == "method"] for told in reports]
    assert orders[0] == orders[1]
    plan = plan_survival(2026, "abc", duration=timedelta(seconds=1.6), interval=timedelta(seconds=0.2), faults=faults)
    assert [(fault, target) for fault, target, _ in orders[0]] == [(one.fault, one.target) for one in plan]
    assert len(plan) == 8
    assert len({fault for fault, _, _ in orders[0]}) > 2
    assert [told["seed"] for told in reports] == [2026, 2026]


def deed_of(activity: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Fault, target, and what it was injected with."""
    shown = ("kind", "delay", "timeout", "error_type", "server", "probability", "count")
    output = activity["output"]
    return activity["fault"], activity["target"], {name: output[name] for name in shown if name in output}


def test_chaos_toolkit_runs_our_actions_and_probes(runtime: Runtime, tmp_path: Path) -> None:
    """The very same file, by the real `chaos`; its journal has what they gave."""
    pytest.importorskip("chaoslib", reason="in the set of highest versions only")
    (tmp_path / "rest.json").write_text(json.dumps(pausing("200ms")))
    chaos = Path(sys.executable).parent / "chaos"
    env = env_of(runtime, tmp_path) | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    for command in ("validate", "run"):
        done = subprocess.run(
            [str(chaos), "--no-version-check", command, "rest.json"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    journal = json.loads((tmp_path / "journal.json").read_text())
    assert (journal["status"], journal["deviated"]) == ("completed", False)
    assert journal["run"][0]["output"] == {"agent_id": "a", "paused": False}
    assert [len(runtime.events("a", "agent.stopped")), runtime.events("a", "agent.stopped")[0].payload["reason"]] == [
        1,
        "pause",
    ]


@pytest.fixture
def ring(runtime: Runtime) -> Iterator[Ring]:
    """What actions find that are called by themselves, where faults are allowed for a time."""
    runtime.manager.enable_chaos("1h")
    made = Ring(runtime.manager)
    with entered(made):
        yield made


@pytest.mark.usefixtures("ring")
def test_the_link_to_redis_is_slow_or_cut_as_actions_say(redis_server: RedisServer, tmp_path: Path) -> None:
    """And no longer than they say; a beat is killed only if it is one."""
    env = environment(tmp_path)
    with Command("arena", "link", "--to", redis_server.url, env=env, folder=tmp_path) as command:
        wait_until(lambda: len(command.out) == 2, "the link", timeout=20)
        url, control = (line.partition("=")[2] for line in command.out)
        client: Any = redis.Redis.from_url(url)
        assert timed(client) < 0.2
        for said in ({"duration": float("nan")}, {"duration": -1}, {"duration": 1, "delay": float("inf")}):
            with pytest.raises(ActivityFailedError, match="cannot be"):
                tell_link(control, said, "redis_latency")
        assert redis_latency(control, "400ms", duration="1h") == {"delay": 0.4, "cut": False, "duration": 3600.0}
        assert timed(client) >= 0.4
        assert redis_outage(control, duration="300ms")["cut"]
        with pytest.raises(redis.ConnectionError):
            client.ping()
        wait_until(lambda: answers(client), "the end of the outage")
        assert timed(client) < 0.2
        client.close()
    with pytest.raises(ActivityFailedError, match="ares arena link"):
        redis_outage(control)
    pidfile = tmp_path / "beat.pid"
    pidfile.write_text(str(os.getpid()))
    with pytest.raises(ActivityFailedError, match="is no beat"):
        stop_beat(str(pidfile))
    beat = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)  # on purpose: until it is killed", "beat"]
    )
    pidfile.write_text(str(beat.pid))
    wait_until(lambda: b"beat" in Path(f"/proc/{beat.pid}/cmdline").read_bytes().split(b"\0"), "its start")
    assert stop_beat(str(pidfile)) == {"pid": beat.pid}
    assert beat.wait(10) == -signal.SIGKILL


def timed(client: Any) -> float:
    """Seconds of one round trip."""
    before = time.monotonic()
    client.ping()
    return time.monotonic() - before


def answers(client: Any) -> bool:
    """The server can be reached."""
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


@pytest.mark.pain("P46")
@pytest.mark.timeout(150)
def test_the_page_on_chaos_in_ci_is_right(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files, as printed, and the commands of its CI: the tests pass with real workers that are killed."""
    page = (ROOT / "docs/howto/run-chaos-in-ci.md").read_text()
    for name, text in re.findall(r"```(?:python|yaml)\n# ([\w/.]+)\n(.*?)```", page, re.DOTALL):
        path = pytester.path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:cacheprovider --strict-markers -W error")

    (job,) = yaml.safe_load((pytester.path / ".github/workflows/chaos.yaml").read_text())["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands[:2] == [
        "sudo apt-get install --yes redis-server",
        'pip install "$(echo wheels/ares_celery-*.whl)[testing,arena]"',
    ]
    for command in commands[2:]:
        done = pytester.run("sh", "-c", command)
        assert done.ret == 0, done.outlines

    reports = pytester.path / "reports"
    (suite,) = ET.parse(reports / "pytest.xml").getroot()  # noqa: S314 - pytest's own
    assert [suite.get(name) for name in ("tests", "errors", "failures", "skipped")] == ["3", "0", "0", "0"]
    told = {path.stem: json.loads(path.read_text()) for path in reports.glob("*.json")}
    survived = told["test_chaos.py-test_the_tills_survive_whatever_comes"]
    assert (len(told), survived["seed"], survived["verdict"]["deaths"]) == (3, 7, 3)
    assert {path.stem for path in reports.glob("*.html")} == set(told)
    assert all("<svg" in path.read_text() for path in reports.glob("*.html"))


def test_a_report_is_partial_when_the_manager_of_the_run_is_stopped(runtime: Runtime) -> None:
    """From a thread of the same process."""
    run = ScenarioRun(runtime.manager, parse_scenario(pausing("1h")))
    reports: list[ScenarioReport] = []
    thread = threading.Thread(target=lambda: reports.append(run.run()))
    thread.start()
    wait_until(lambda: runtime.manager.get_agent_info("a").paused, "the pause")  # type: ignore[union-attr]
    run.stop("enough")
    thread.join(20)
    assert reports[0].partial
    runtime.until("a", "running")
