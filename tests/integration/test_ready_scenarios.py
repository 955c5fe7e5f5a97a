"""Every scenario that comes with the package, run as people run it, against real workers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentSpec
from ares_celery.arena.loading import load_scenario, ready_scenarios
from tests.conftest import REQUIRE_REDIS
from tests.fleet import Fleet
from tests.integration.command_line import Command, ares, environment
from tests.llm_server import LLMServer
from tests.redis_server import NoRedisServerError, RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

#: Seconds between two heartbeats are many at once here: whoever is not disturbed must not die of a busy machine.
SETTINGS = {"HEARTBEAT_INTERVAL": "500ms", "LEASE_TTL": "3s", "CHAOS": "false"}
#: Those that leave the process of the agent alone, each with an agent of its own.
SIDE_BY_SIDE = (
    "corrupt-memory",
    "llm-outage",
    "llm-rate-limit",
    "mcp-disconnect",
    "partition",
    "pause-and-resume",
    "slow-agent",
    "tool-timeout",
)
KILLS = ("kill-agent", "kill-worker")
VARIABLES = {"patience": "30s", "lasts": "5s", "overlap": "1s", "rest": "500ms"}
HAS_HTTP = find_spec("httpx2") is not None or find_spec("httpx") is not None


@dataclass(frozen=True)
class Ran:
    """What a command left.

    Attributes:
        code: Its exit code.
        told: What it printed on stdout.
        talk: What it printed on stderr.
        page: Its page.
        met: Rounds of the agent that met something, from the beginning of the run to its end: what and how.
        slowest: Seconds of the slowest of those rounds.
    """

    code: int
    told: dict[str, Any]
    talk: str
    page: str
    met: list[dict[str, str]]
    slowest: float

    @property
    def verdict(self) -> dict[str, Any]:
        """What the events say."""
        assert self.code == 0, self.talk
        return dict(self.told["verdict"])

    @property
    def effect(self) -> dict[str, Any]:
        """What came of the fault."""
        return dict(self.verdict["effects"][0])


class Ring:
    """A fleet, its command line, and the runs so far."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder
        self.env = environment(folder, ARES_REDIS_URL=fleet.redis.url, ARES_NAMESPACE=fleet.namespace)
        self.ran: dict[str, Ran] = {}

    def has_worked(self, agent_id: str) -> bool:
        """The agent has done some rounds."""
        return len(self.fleet.events(agent_id, "round")) > 2

    def is_whole(self, agent_id: str) -> bool:
        """Nothing is taken from the agent."""
        return not self.fleet.info(agent_id).degraded

    def arguments(self, name: str, **more: str) -> list[str]:
        """A run as people type it."""
        known = load_scenario(name, demand_variables=False).variables
        given = {one: value for one, value in VARIABLES.items() if one in known} | more
        said = [word for item in given.items() for word in ("--var", "=".join(item))]
        return ["arena", "run", name, *said, "-o", "json", "--html", f"{name}.html"]

    def side_by_side(self, names: Mapping[str, str]) -> None:
        """Runs scenarios at the same time, each on an agent."""
        commands = {
            name: Command(*self.arguments(name, agent_id=agent_id), env=self.env, folder=self.folder)
            for name, agent_id in names.items()
        }
        try:
            for name, command in commands.items():
                code = command.process.wait(90)
                self._note(name, code, command.out, command.talk, names[name])
        finally:
            for command in commands.values():
                command.__exit__(None, None, None)

    def alone(self, name: str, agent_id: str, **more: str) -> None:
        """Runs one scenario."""
        done = ares(*self.arguments(name, agent_id=agent_id, **more), env=self.env, folder=self.folder)
        self._note(name, done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), agent_id)

    def _note(self, name: str, code: int, out: list[str], talk: list[str], agent_id: str) -> None:
        told = json.loads("\n".join(out)) if out else {}
        page = self.folder / f"{name}.html"
        rounds = [
            one.payload
            for one in self.fleet.events(agent_id, "round")
            if told and told["started"] <= one.time.isoformat() <= told["ended"]
        ]
        self.ran[name] = Ran(
            code,
            told,
            "\n".join(talk),
            page.read_text() if page.exists() else "",
            [one["met"] for one in rounds if one["met"]],
            max((one["took"] for one in rounds), default=0.0),
        )


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A fleet in which all ten were run."""
    folder = tmp_path_factory.mktemp("ready")
    server = RedisServer(appendonly=False)
    try:
        server.start()
    except NoRedisServerError as error:
        if REQUIRE_REDIS:
            pytest.fail(str(error))
        pytest.skip(str(error))
    settings = {**SETTINGS, "AGENT_MODULES": "tests.scenario_agents"}
    with server, LLMServer() as model, Fleet(server, f"t{uuid.uuid4().hex[:12]}", folder, settings) as fleet:
        made = Ring(fleet, folder)
        # Two of them are killed, and the third has room for all.
        fleet.ready(*[fleet.start_worker(f"w{number}", slots=len(ready_scenarios()) + 2) for number in range(3)])
        for name in (*SIDE_BY_SIDE, *KILLS):
            config = {"model": model.url} if HAS_HTTP else {}
            fleet.manager.start_agent(AgentSpec(id=name, type="grocer", config=config))
        for name in (*SIDE_BY_SIDE, *KILLS):
            fleet.wait(partial(made.has_worked, name), f"work of {name}", timeout=40)
        run_all(made)
        yield made


def run_all(ring: Ring) -> None:
    """Each of the ten, and before them what is refused."""
    ring.alone("kill-agent", "kill-agent")
    ring.ran["refused"] = ring.ran.pop("kill-agent")
    allowed = ares("chaos", "enable", "--for", "10m", env=ring.env, folder=ring.folder)
    assert allowed.returncode == 0, allowed.stderr
    ring.alone("kill-agent", "kill-agent")
    ring.ran["not forced"] = ring.ran.pop("kill-agent")
    ring.side_by_side({name: name for name in SIDE_BY_SIDE})
    ring.alone("kill-agent", "kill-agent", force="true")
    ring.alone("kill-worker", "kill-worker", worker=str(ring.fleet.info("kill-worker").worker))


def test_all_ready_scenarios_are_run_here(ring: Ring) -> None:
    """Ten, and none of them forgotten."""
    assert sorted((*SIDE_BY_SIDE, *KILLS)) == list(ready_scenarios())
    assert set(ready_scenarios()) <= set(ring.ran)


@pytest.mark.parametrize("name", ready_scenarios())
def test_a_ready_scenario_ends_well_and_leaves_nothing_behind(ring: Ring, name: str) -> None:
    """Exit code 0, a whole report, sound histories, every activity as it had to be."""
    ran = ring.ran[name]
    assert ran.code == 0, ran.talk
    assert (ran.told["status"], ran.told["partial"], ran.told["failed"], ran.told["verified"]) == (
        "completed",
        False,
        0,
        True,
    )
    assert [one["phase"] for one in ran.told["activities"] if one["outcome"] != "succeeded"] == []
    assert {one["phase"] for one in ran.told["activities"]} >= {"before", "method", "after"}
    assert all(one["holds"] for one in ran.verdict["invariants"])
    assert ran.verdict["problems"] == []
    assert ran.effect["target"] == ("" if name == "kill-worker" else name)
    assert "<svg" in ran.page


def test_nothing_is_left_of_the_ten(ring: Ring) -> None:
    """No fault is active, all agents run, whole and without gaps."""
    assert ring.fleet.manager.list_faults() == ()
    for name in (*SIDE_BY_SIDE, *KILLS):
        ring.fleet.until(name, "running")
        ring.fleet.wait(partial(ring.is_whole, name), f"{name} to be whole")
        numbers = [one.payload["number"] for one in ring.fleet.events(name, "round")]
        assert numbers == list(range(1, len(numbers) + 1)), name


@pytest.mark.parametrize("name", ["kill-agent", "kill-worker", "partition", "corrupt-memory"])
def test_where_agents_die_the_report_has_their_death_and_return(ring: Ring, name: str) -> None:
    """Detected, recovered, MTTR; by the events of the streams."""
    ran = ring.ran[name]
    effect, verdict = ran.effect, ran.verdict
    # A report with `agents` judges that one; a worker takes along whoever it hosts.
    hit = ring.ran["kill-worker"].told["activities"][2]["output"]["agents"] if name == "kill-worker" else [name]
    assert effect["agents"] == sorted(hit)
    assert (effect["deaths"], verdict["deaths"], verdict["recovered"]) == (len(hit),) * 3
    assert 0 <= effect["detected"] < effect["recovered"]
    assert verdict["mttr"]["count"] == len(hit)
    assert 0 < verdict["mttr"]["min"] <= verdict["mttr"]["avg"] <= verdict["mttr"]["p95"] <= verdict["mttr"]["max"]
    assert verdict["availability"] < 100
    assert effect["felt"]["failover.triggered"] == effect["felt"]["failover.completed"] == len(hit)
    assert verdict["mttr"]["max"] == max(one["seconds"] for one in verdict["failovers"])


def test_a_partition_is_healed_and_damage_is_noticed(ring: Ring) -> None:
    """The lease ran out; the snapshot was found damaged when the agent came back."""
    partition, memory = ring.ran["partition"].effect, ring.ran["corrupt-memory"].effect
    assert partition["cause"] == "lost"
    assert partition["detected"] >= 2.0
    assert (partition["ended"], memory["cause"]) == ("healed", "crash")
    assert memory["felt"]["snapshot.damaged"] == 1


@pytest.mark.parametrize(
    "name", ["llm-outage", "llm-rate-limit", "mcp-disconnect", "slow-agent", "tool-timeout", "pause-and-resume"]
)
def test_where_agents_live_on_nothing_is_charged(ring: Ring, name: str) -> None:
    """No death, no restart; a fault lasted as long as it was told to."""
    ran = ring.ran[name]
    assert (ran.verdict["deaths"], ran.effect["deaths"], ran.effect["detected"]) == (0, 0, None)
    assert ran.verdict["mttr"] == "no data"
    if name in {"mcp-disconnect", "slow-agent", "tool-timeout"}:
        assert ran.effect["ended"] in {"time", "healed"}
        assert 2.5 < ran.effect["lasted"] < 10


def test_each_fault_is_felt(ring: Ring) -> None:
    """By the agent itself, and by the events of the runtime where it tells of that."""
    slow, tool = ring.ran["slow-agent"], ring.ran["tool-timeout"]
    assert slow.slowest >= 1
    assert {"tool": "ToolTimeoutError"} in tool.met
    # The last of them may be told of after the run.
    assert tool.effect["felt"]["step.failed"] - len(tool.met) in {0, 1}
    server = ring.ran["mcp-disconnect"]
    assert {"server": "MCPConnectionLostError"} in server.met
    assert server.effect["felt"]["mcp.disconnected"] == 1
    pause = ring.ran["pause-and-resume"].effect["felt"]
    assert pause == {"agent.started": 1, "agent.stopped": 1}


@pytest.mark.skipif(not HAS_HTTP, reason="in the set of highest versions only")
def test_models_fail_as_the_files_say(ring: Ring) -> None:
    """Half of the requests with 500, and three with 429; every other one goes through."""
    outage, limit = ring.ran["llm-outage"], ring.ran["llm-rate-limit"]
    assert outage.met
    assert set(map(str, outage.met)) == {"{'model': 'HTTPStatusError 500'}"}
    assert set(outage.effect["felt"]) == {"step.failed"}
    assert outage.effect["felt"]["step.failed"] - len(outage.met) in {0, 1}
    assert limit.met == [{"model": "HTTPStatusError 429"}] * 3
    assert (limit.effect["ended"], limit.effect["felt"]) == ("count", {"step.failed": 3})


def test_a_broken_expectation_and_an_unmet_precondition_have_their_exit_codes(ring: Ring) -> None:
    """1: neighbours in the process were not to be killed; 5: nobody has allowed faults, or there is no such agent."""
    kept, refused = ring.ran["not forced"], ring.ran["refused"]
    assert (kept.code, kept.told["status"], kept.told["failed"]) == (1, "deviated", 1)
    (action,) = [one for one in kept.told["activities"] if one["phase"] == "method"]
    assert (action["expected"], action["as_expected"], action["outcome"]) == ("success", False, "failed")
    assert (refused.code, refused.told["status"]) == (5, "precondition")
    assert "chaos is off" in refused.told["partial_because"]
    assert refused.told["activities"] == []
    assert len(kept.told["reasons"]) == 1
    assert kept.told["reasons"][0].startswith("kill the agent: ")
    nobody = ares(*ring.arguments("kill-agent", agent_id="nobody"), env=ring.env, folder=ring.folder)
    assert nobody.returncode == 5, nobody.stderr
    told = json.loads(nobody.stdout)
    assert "'nobody' does not exist" in told["partial_because"]
    assert (told["reasons"], told["activities"]) == ([told["partial_because"]], [])
