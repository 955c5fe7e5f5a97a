"""Survival runs, scenarios, what came of them, and the stream of events, over HTTP."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

from ares_celery.runtime.callers import me
from ares_celery.web.flower_extension import stream
from tests.contract.web.flower_site import PREFIX, FlowerSite
from tests.hosting import Runtime
from tests.wait import wait_until


def scenario(*actions: dict[str, Any], **config: Any) -> dict[str, Any]:
    """A file of the seed's form."""
    return {"name": "over HTTP", "actions": list(actions), "config": config}


def slow(delay: str = "5ms", **more: Any) -> dict[str, Any]:
    """One step of it."""
    return {"action": {"type": "slow_agent", "target_id": "one", "metadata": {"delay": delay}}, **more}


# -- survival ----------------------------------------------------------------------------------------------------------


def test_a_survival_run_is_accepted_shown_and_stopped(site: FlowerSite, runtime: Runtime) -> None:
    """202 at once with its seed; a second one is refused; stopped, it is over within seconds and told of."""
    begun = site.post("/arena/survival", {"seed": 7, "duration": "10m", "interval": 60, "faults": ["slow_agent"]})
    assert begun.status == 202
    assert (begun.json["seed"], begun.json["status"], begun.json["actor"]) == (7, "running", "operator (flower)")

    shown = site.get("/arena/survival/status").json
    assert (shown["survival"]["seed"], shown["survival"]["duration"], shown["survival"]["interval"]) == (7, 600.0, 60.0)
    assert shown["survival"]["actor"] == "operator (flower)"
    assert shown["survival"] == site.get("/arena/stats").json["survival"]
    second = site.post("/arena/survival", {"seed": 8})
    assert (second.status, second.code) == (409, "arena_busy")

    wait_until(lambda: runtime.manager.list_faults("one"), "the first fault")
    stopped = site.post("/arena/survival/stop", {"reason": "seen enough"})
    assert (stopped.status, stopped.json["survival"]["stop_reason"]) == (200, "seen enough")
    run = f"/arena/run/{begun.json['id']}"
    wait_until(lambda: site.get(run).json["status"] != "running", "the run to end", timeout=15)
    over = site.get(run).json
    assert (over["status"], over["report"]["partial_because"]) == ("interrupted", "seen enough")
    assert (over["report"]["seed"], over["report"]["verdict"]["agents"]) == (7, 1)
    assert runtime.manager.list_faults() == ()
    assert site.get("/arena/survival/status").json["survival"] is None
    assert site.post("/arena/survival/stop").json == {"survival": None}


@pytest.mark.parametrize(
    "body",
    [
        {"duration": "long"},
        {"interval": 0},
        {"seed": -1},
        {"seed": "x"},
        {"faults": ["rain"]},
        {"faults": "slow_agent"},
        {"agents": [1]},
        {"force": "yes"},
        {"durations": 1},
    ],
)
def test_a_survival_run_that_cannot_be_is_a_bad_request(refusing: FlowerSite, body: dict[str, Any]) -> None:
    """400, and the arena stays free."""
    assert (refusing.post("/arena/survival", body).status, refusing.get("/arena/survival/status").json["survival"]) == (
        400,
        None,
    )


# -- scenarios ---------------------------------------------------------------------------------------------------------


def test_a_scenario_is_validated_with_everything_that_is_wrong(refusing: FlowerSite) -> None:
    """Every fault with its place; a good one, one by name and one as text of a file are valid."""
    wrong = scenario({"action": {"type": "explode"}}, slow(delay="soon", depends_on=["nothing"]), timeout=-1)
    told = refusing.post("/arena/scenario/validate", {"scenario": wrong})
    assert (told.status, told.json["valid"]) == (200, False)
    places = [problem["place"] for problem in told.json["problems"]]
    assert len(places) >= 3
    assert any("actions[0]" in place for place in places)
    for good in (scenario(slow()), "kill-agent", "name: as text\nactions:\n- action: {type: kill_leader}\n"):
        body = {"scenario": good, **({"variables": {"agent_id": "a"}} if good == "kill-agent" else {})}
        assert refusing.post("/arena/scenario/validate", body).json == {"valid": True, "problems": []}
    for variables in ({}, {"agent_id": "a", "agentid": "b"}):
        body = {"scenario": "kill-agent", "variables": variables}
        assert refusing.post("/arena/scenario/validate", body).json["valid"] is False
    listed = [one["name"] for one in refusing.get("/arena/scenarios").json["scenarios"]]
    assert "kill-agent" in listed
    assert len(listed) >= 10


def test_a_scenario_is_run_judged_and_set_right(site: FlowerSite, runtime: Runtime) -> None:
    """Whoever asks waits for the report, or asks for it later; each fault ends with the run."""
    run = site.post("/arena/scenario/run", {"scenario": scenario(slow(expect_success=True))})
    assert (run.status, run.json["status"]) == (200, "completed")
    assert (run.json["report"]["passed"], run.json["report"]["verdict"]["agents"]) == (1, 1)
    assert runtime.manager.list_faults() == ()

    later = site.post("/arena/scenario/run", {"scenario": scenario(slow()), "wait": False}).json
    path = f"/arena/run/{later['id']}"
    wait_until(lambda: site.get(path).json["status"] != "running", "the run to end")
    assert site.get(path).json["report"]["verified"] is True
    runs = site.get("/arena/history").json["runs"]
    assert [one["id"] for one in runs] == [later["id"], run.json["id"]]
    assert {one["status"] for one in runs} == {"completed"}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"scenario": scenario(slow(delay="soon"))}, 400, "invalid_scenario"),
        ({"scenario": "no-such-one"}, 404, "scenario_not_found"),
        ({"scenario": "/etc/hostname"}, 404, "scenario_not_found"),
        ({"scenario": "../../pyproject.toml"}, 404, "scenario_not_found"),
        ({"scenario": 5}, 400, "invalid_setting"),
        ({}, 400, "invalid_setting"),
        ({"scenario": "kill-agent", "variables": [1]}, 400, "invalid_setting"),
        ({"scenario": "kill-agent"}, 400, "invalid_scenario"),
        ({"scenario": scenario(slow()), "wait": "no"}, 400, "invalid_setting"),
    ],
)
def test_a_scenario_that_cannot_be_run_is_refused(
    refusing: FlowerSite, body: dict[str, Any], status: int, code: str
) -> None:
    """No path of this machine is opened, and a variable without a value is a fault."""
    answer = refusing.post("/arena/scenario/run", body)
    assert (answer.status, answer.code) == (status, code)
    assert refusing.get("/arena/history").json["runs"] == []


def test_a_scenario_over_http_runs_no_programs_and_calls_no_addresses(refusing: FlowerSite, tmp_path: Any) -> None:
    """Whoever has a login of Flower has none of this machine; every place is named, for each part of a file."""
    made = tmp_path / "made"
    program = {"type": "process", "path": "/usr/bin/touch", "arguments": [str(made)]}
    address = {"type": "http", "url": f"http://127.0.0.1:{refusing.port}/healthcheck"}
    code = {"type": "python", "module": "os", "func": "getcwd"}
    ours = {"type": "python", "module": "ares_celery.arena.actions"}
    link = {**ours, "func": "redis_outage", "arguments": {"link": "127.0.0.1:1"}}
    beat = {**ours, "func": "stop_beat", "arguments": {"pidfile": str(made)}}
    clock = {**ours, "func": "clock_offset", "arguments": {"file": str(made), "offset": "2h"}}

    def one(name: str, provider: dict[str, Any], kind: str = "action") -> dict[str, Any]:
        return {"type": kind, "name": name, "provider": provider, **({"tolerance": 200} if kind == "probe" else {})}

    file = {
        "title": "reaches out",
        "steady-state-hypothesis": {"title": "up", "probes": [one("a", address, "probe")]},
        "method": [one("b", program), one("link", link), one("beat", beat), one("clock", clock)],
        "rollbacks": [one("c", program)],
    }
    for route in ("run", "validate"):
        answer = refusing.post(f"/arena/scenario/{route}", {"scenario": file}).json
        problems = answer["error"]["problems"] if route == "run" else answer["problems"]
        assert [problem["place"].split("[")[0] for problem in problems] == [
            "steady-state-hypothesis.probes",
            "method",
            "method",
            "method",
            "method",
            "rollbacks",
        ]
    moved = scenario({"action": {"type": "clock_offset", "target_id": str(made), "metadata": {"offset": "2h"}}})
    assert refusing.post("/arena/scenario/run", {"scenario": moved}).code == "invalid_scenario"
    refused = refusing.post("/arena/scenario/run", {"scenario": {"title": "code", "method": [one("d", code)]}})
    assert (refused.status, refused.code) == (400, "invalid_scenario")
    assert not made.exists()


def test_a_scenario_over_http_reads_nothing_of_the_environment(
    site: FlowerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds passwords, and the report of a run would show them; a default is used, and text that is none refused."""
    monkeypatch.setenv("FLOWER_BASIC_AUTH", "hush")
    body = {
        "title": "it is ${word}",
        "configuration": {"word": {"type": "env", "key": "FLOWER_BASIC_AUTH", "default": "nothing"}},
        "method": [{"type": "probe", "name": "p", "provider": _listing()}],
    }
    for given in (body, json.dumps(body, indent=1)):
        told = site.post("/arena/scenario/run", {"scenario": given})
        assert (told.status, told.json["report"]["title"]) == (200, "it is nothing")
    odd = site.post("/arena/scenario/validate", {"scenario": "\ud800\n"})
    assert (odd.status, odd.json["valid"]) == (200, False)


def _listing() -> dict[str, Any]:
    return {
        "type": "python",
        "module": "ares_celery.arena.probes",
        "func": "agent_state",
        "arguments": {"agent_id": "one"},
    }


def test_a_survival_run_of_agents_that_do_not_exist_is_not_found(refusing: FlowerSite) -> None:
    """404 with the id, and the arena stays free."""
    answer = refusing.post("/arena/survival", {"agents": ["nobody"]})
    assert (answer.status, answer.code, answer.json["error"]["agent_id"]) == (404, "agent_not_found", "nobody")
    assert refusing.get("/arena/survival/status").json["survival"] is None


def test_whoever_waits_for_a_run_and_goes_away_ends_it(site: FlowerSite, runtime: Runtime) -> None:
    """What it did is set right, and its report says why it is partial."""
    body = {"scenario": scenario(slow(), {**slow(), "delay": "10m"})}
    with closing(HTTPConnection("127.0.0.1", site.port, timeout=20)) as connection:
        import json

        connection.request("POST", f"{PREFIX}/arena/scenario/run", json.dumps(body).encode(), site.headers())
        wait_until(lambda: runtime.manager.list_faults("one"), "the first fault")

    def run() -> dict[str, Any]:
        return dict(site.get("/arena/history").json["runs"][0])

    wait_until(lambda: run()["status"] == "interrupted", "the run to end")
    report = site.get(f"/arena/run/{run()['id']}").json["report"]
    assert report["partial_because"] == "whoever waited for it has gone"
    assert runtime.manager.list_faults() == ()


def test_runs_are_bounded_and_old_ones_are_forgotten(site: FlowerSite) -> None:
    """Four at a time, then 409; a run that nobody knows is 404."""
    body = {"scenario": scenario({**slow(), "delay": "10m"}), "wait": False}
    begun = [site.post("/arena/scenario/run", body) for _ in range(5)]
    assert [one.status for one in begun] == [200, 200, 200, 200, 409]
    unknown = site.get("/arena/run/unknown")
    assert (unknown.status, unknown.code) == (404, "not_found")
    site.desk.runs.close()
    wait_until(lambda: all(run.done.done() for run in site.desk.runs.all()), "the runs to end")
    for _ in range(21):
        site.post("/arena/scenario/run", {"scenario": scenario(slow(delay="0"))})
    assert len(site.get("/arena/history").json["runs"]) <= 21
    assert site.get(f"/arena/run/{begun[0].json['id']}").status == 404


def test_who_logged_in_did_what_a_run_did(site: FlowerSite, runtime: Runtime) -> None:
    """Faults of scenarios and survival runs, and what sets them right: in the history, and in the agent's events."""
    site.post("/arena/scenario/run", {"scenario": scenario(slow())})
    site.post("/arena/survival", {"seed": 7, "duration": 0.3, "interval": 0.1, "faults": ["slow_agent", "pause_agent"]})

    def is_over() -> bool:
        # Who was paused and is to run again may need a look of the sweep for it.
        runtime.sweep()
        return site.get("/arena/survival/status").json["survival"] is None

    wait_until(is_over, "the survival run to end", timeout=20)
    told = [(one["operation"], one["actor"]) for one in site.get("/arena/history").json["history"]]
    assert {name for name, _ in told} >= {"slow_agent", "heal"}
    assert {actor for _, actor in told} == {"operator (flower)"}
    for kind in ("fault.injected", "fault.healed"):
        assert {event.payload["actor"] for event in runtime.events("one", kind)} == {"operator (flower)"}
    # Nothing of it stays behind for whoever asks next.
    runtime.manager.slow_agent("one", 1)
    assert runtime.events("one", "fault.injected")[-1].payload["actor"] == me()


# -- what came of it ---------------------------------------------------------------------------------------------------


def test_history_and_score_tell_of_what_was_done_from_anywhere(site: FlowerSite, runtime: Runtime) -> None:
    """From the audit stream and the events: a restart of Flower forgets none of it, and a death counts."""
    before = site.get("/arena/score").json
    assert (before["score"], before["grade"], before["actions"]) == ("no data", "no data", 0)
    runtime.manager.slow_agent("one", 1, actor="somebody else", reason="by hand")
    runtime.manager.corrupt_memory("one", actor="somebody else")
    runtime.manager.heal()
    runtime.manager.notify_agent_dead("one", "a test wants it so", epoch=runtime.manager.get_agent_info("one").epoch)  # type: ignore[union-attr]
    runtime.until("one", "running", incarnation=2)

    told = [(one["operation"], one["actor"]) for one in site.get("/arena/history?agent_id=one").json["history"]]
    assert told[:2] == [("slow_agent", "somebody else"), ("corrupt_memory", "somebody else")]
    assert [name for name, _ in told] == ["slow_agent", "corrupt_memory", "heal"]
    assert len(site.get("/arena/history?limit=1").json["history"]) == 1
    # A return counts when it has held for two seconds.
    wait_until(lambda: site.get("/arena/metrics?since=10m&agent_id=one").json["recovered"], "the return", timeout=20)
    metrics = site.get("/arena/metrics?since=10m&agent_id=one").json
    assert (metrics["actions"], metrics["deaths"], metrics["recovered"]) == (2, 1, 1)
    assert metrics["mttr"]["max"] > 0
    score = site.get("/arena/score?since=600").json
    # Availability grows from one answer to the next.
    assert {**score, **{name: metrics[name] for name in ("score", "grade")}} == {name: metrics[name] for name in score}
    assert 90 < score["score"] <= 100
    stats = site.get("/arena/stats").json
    assert (stats["agents"], stats["chaos"]["enabled"]) == ({"total": 1, "by_state": {"running": 1}}, True)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/arena/history?limit=0", 400),
        ("/arena/history?limit=ten", 400),
        ("/arena/history?since=whenever", 400),
        ("/arena/score?since=8d", 400),
        ("/arena/score?since=0", 400),
        ("/arena/score?since=nan", 400),
        ("/arena/metrics?agent_id=nobody", 404),
        ("/arena/stream?agent_id=nobody", 404),
        ("/arena/stream?agent_id=no%20body", 400),
        ("/arena/stream?cursor=nonsense", 400),
    ],
)
def test_questions_that_cannot_be_answered_are_refused(refusing: FlowerSite, path: str, status: int) -> None:
    """With 400 or 404, as everywhere."""
    assert refusing.get(path).status == status


# -- the stream --------------------------------------------------------------------------------------------------------


def test_the_stream_tells_events_and_goes_on_where_it_was(site: FlowerSite) -> None:
    """Each fault as it comes; whoever comes back with Last-Event-ID misses none of what was meanwhile."""
    with site.stream("/arena/stream?agent_id=one") as events:
        assert events.response.status == 200
        assert events.response.headers["Content-Type"] == "text/event-stream; charset=UTF-8"
        assert events.response.headers["X-Accel-Buffering"] == "no"
        first = events.frame()
        site.post("/arena/agent/one/slow", {"delay": 1})
        injected = events.until("fault.injected")
        assert (injected["agent_id"], injected["payload"]["kind"]) == ("one", "slow")
        site.post("/chaos/heal")
        assert events.until("fault.healed")["version"] == injected["version"] + 1
    with site.stream("/arena/stream?agent_id=one", Last_Event_ID=injected["id"]) as events:
        assert events.until("fault.healed")["version"] == injected["version"] + 1
    with site.stream("/arena/stream?agent_id=one&types=fault.healed", Last_Event_ID=first["id"]) as events:
        events.frame()
        assert events.frame()["event"] == "fault.healed"


def test_what_agents_emit_is_told_only_to_whoever_names_it(site: FlowerSite, runtime: Runtime) -> None:
    """It is theirs; the runtime's own events come unasked."""
    with site.stream("/arena/stream") as all_of_them, site.stream("/arena/stream?types=private") as named:
        all_of_them.frame()
        named.frame()
        runtime.manager.process("one", "hello", timeout=5)
        assert named.until("private")["payload"] == {"word": "hello"}
        site.post("/arena/agent/one/slow", {"delay": 1})
        assert all_of_them.frame()["event"] == "fault.injected"


def test_a_quiet_stream_is_not_cut_and_one_without_a_reader_ends(
    site: FlowerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments keep proxies from cutting it; when the client goes, nothing of it stays."""
    monkeypatch.setattr(stream, "QUIET", 0.05)
    with site.stream("/arena/stream") as events:
        events.frame()
        assert [events.frame() for _ in range(3)] == [{"": "nothing new"}] * 3
        assert site.desk.streams == 1
    wait_until(lambda: site.desk.streams == 0, "the stream to end")


def test_streams_are_bounded(site: FlowerSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """503 for whoever comes too late, and room again when somebody has gone."""
    monkeypatch.setattr(stream, "MOST_STREAMS", 1)
    with site.stream("/arena/stream") as events:
        events.frame()
        assert site.get("/arena/stream").status == 503
    wait_until(lambda: site.desk.streams == 0, "the stream to end")
    with site.stream("/arena/stream") as events:
        assert events.response.status == 200


def test_nothing_blocks_the_loop_of_flower(site: FlowerSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a verdict takes its time, everything else is answered, and the next verdict waits for its turn."""
    begun, goes_on = threading.Semaphore(0), threading.Event()

    def judge(*_: object) -> Any:
        begun.release()
        goes_on.wait(10)
        raise ValueError

    monkeypatch.setattr("ares_celery.web.flower_extension.records.judge", judge)
    waiting = [threading.Thread(target=lambda: site.get("/arena/score")) for _ in range(2)]
    for thread in waiting:
        thread.start()
    try:
        assert begun.acquire(timeout=10)
        assert site.get("/chaos/faults").status == 200
        assert not begun.acquire(timeout=0.3)
        goes_on.set()
        assert begun.acquire(timeout=10)
    finally:
        goes_on.set()
        for thread in waiting:
            thread.join(10)


def test_a_long_cursor_is_told_once_a_second_and_one_too_long_for_a_header_never(
    site: FlowerSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever resumes from an older one gets some events again, and each event stays small."""
    monkeypatch.setattr(stream, "_SHORT", 1)
    monkeypatch.setattr(stream, "_RARELY", 3600)
    with site.stream("/arena/stream") as events:
        assert "id" in events.frame()
        site.post("/arena/agent/one/slow", {"delay": 1})
        frame = events.frame()
        assert (frame["event"], "id" in frame) == ("fault.injected", False)
        monkeypatch.setattr(stream, "_RARELY", 0.0)
        site.post("/chaos/heal")
        assert "id" in events.frame()
        monkeypatch.setattr(stream, "_LONG", 10)
        site.post("/arena/agent/one/slow", {"delay": 1})
        assert "id" not in events.frame()
