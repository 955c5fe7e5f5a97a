"""Faults over HTTP: who may, what is refused with which status, and that what is asked is what the manager does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from flower.options import options as flower_options
from tornado.web import create_signed_value

from ares_celery.web.flower_extension.faults import ACTIONS
from ares_celery.web.flower_extension.loading import LOOPBACK, load_beside
from tests.contract.web.flower_site import FlowerSite
from tests.hosting import Runtime

CHANGING = [
    *(f"/arena/agent/one/{name}" for name in ACTIONS),
    "/arena/agent/one/heal",
    "/arena/scenario/run",
    "/arena/scenario/validate",
    "/arena/survival",
    "/arena/survival/stop",
    "/chaos/heal",
]
LOOKING = [
    "/arena/history",
    "/arena/metrics",
    "/arena/run/x",
    "/arena/scenarios",
    "/arena/score",
    "/arena/stats",
    "/arena/stream",
    "/arena/survival/status",
    "/chaos/faults",
    "/no/such/route",
]
EVERY = [*(("POST", path) for path in CHANGING), *(("GET", path) for path in LOOKING)]


@pytest.mark.parametrize("login", [None, "operator:wrong", "other:of-the-test", "öperator:ß", ""])
def test_no_route_answers_without_the_right_login(refusing: FlowerSite, login: str | None) -> None:
    """401 everywhere, nothing is done, and browsers are told how to log in."""
    for method, path in EVERY:
        answer = refusing.ask(method, path, login=login)
        assert (answer.status, answer.code) == (401, "unauthorized"), path
        assert answer.headers["WWW-Authenticate"] == 'Basic realm="flower"'


def test_without_a_login_that_is_configured_every_route_is_closed(
    runtime: Runtime, make_site: Callable[..., FlowerSite], monkeypatch: pytest.MonkeyPatch
) -> None:
    """401 by default, as for Flower's own API; open only where somebody asks for that, and never for other sites."""
    # What a FLOWER_BASIC_AUTH comes to that is set to nothing, and none at all.
    empty, closed = (make_site(basic_auth=nothing) for nothing in ([""], []))
    for site in (empty, closed):
        for login in ("operator:of-the-test", "", ":"):
            assert {site.ask(method, path, login=login).status for method, path in EVERY} == {401}, login

    monkeypatch.setenv("FLOWER_UNAUTHENTICATED_API", "true")
    assert closed.get("/chaos/faults", login=None).json == {"faults": []}
    assert closed.post("/chaos/heal", login=None, Origin="http://elsewhere.example").status == 403
    slow = closed.post("/arena/agent/one/slow", {"delay": 1}, login=None)
    assert (slow.status, slow.json["actor"]) == (200, "flower")
    assert "Access-Control-Allow-Origin" not in slow.headers


def test_with_a_login_by_somebody_elses_page_only_its_cookie_opens(
    runtime: Runtime, make_site: Callable[..., FlowerSite]
) -> None:
    """No cookie, or that of somebody who is not allowed: nothing is told and nothing done, whatever header is sent."""
    site = make_site(auth="me@example.com", basic_auth=[])

    def cookie(user: str) -> str:
        signed = create_signed_value(site.flower.settings["cookie_secret"], "user", user)
        return f"user={signed.decode()}"

    for headers in ({}, {"Cookie": cookie("me@elsewhere.example")}, {"Cookie": "user=me@example.com"}):
        for login in (None, "operator:of-the-test"):
            assert {site.get(path, login=login, **headers).status for path in LOOKING} == {401}
            # Some versions ask for the page's own token first.
            assert {site.post(path, {}, login=login, **headers).status for path in CHANGING} <= {401, 403}
    assert runtime.manager.list_faults() == ()
    assert site.get("/chaos/faults", login=None, Cookie=cookie("me@example.com")).json == {"faults": []}


def test_requests_of_other_sites_are_refused(refusing: FlowerSite) -> None:
    """403 for a foreign Origin or a browser's word, with a right login, too; our own pages and scripts may."""
    for path in CHANGING:
        for headers in (
            {"Origin": "http://elsewhere.example"},
            {"Origin": "null"},
            {"Sec_Fetch_Site": "cross-refusing"},
        ):
            assert refusing.post(path, {}, **headers).status == 403, path
    own = {"Origin": f"http://127.0.0.1:{refusing.port}", "Sec_Fetch_Site": "same-origin"}
    assert refusing.post("/chaos/heal", {}, **own).status == 200


def test_a_read_only_flower_changes_nothing(runtime: Runtime, make_site: Callable[..., FlowerSite]) -> None:
    """Every POST is refused; looking goes on."""
    site = make_site(read_only=True)
    for path in CHANGING:
        answer = site.post(path, {"delay": 1})
        assert (answer.status, answer.json["error"]["message"]) == (403, "this Flower is read-only"), path
    assert site.get("/chaos/faults").json == {"faults": []}


@pytest.mark.parametrize("agent_id", ["", "%20", "a%20b", "x" * 257, "x" * 201, "a%2Fb", "%C3%A4"])
def test_an_id_that_cannot_be_is_a_bad_request(refusing: FlowerSite, agent_id: str) -> None:
    """Empty, blanks, too long or other characters: 400, whatever is asked of it."""
    for name in [*ACTIONS, "heal"]:
        answer = refusing.post(f"/arena/agent/{agent_id}/{name}", {"delay": 1} if name == "slow" else {})
        assert (answer.status, answer.code) == (400, "invalid_agent_id"), name
    assert refusing.get(f"/chaos/faults?agent_id={agent_id}").code == "invalid_agent_id"


@pytest.mark.parametrize("name", [*ACTIONS, "heal"])
def test_an_agent_that_does_not_exist_is_not_found(refusing: FlowerSite, name: str) -> None:
    """404 with the id, not an internal error."""
    answer = refusing.post(f"/arena/agent/nobody/{name}", {"delay": 1} if name == "slow" else _body(name))
    assert (answer.status, answer.code, answer.json["error"]["agent_id"]) == (404, "agent_not_found", "nobody")


def _body(name: str) -> dict[str, Any]:
    return {"timeout": 1} if name == "tool-timeout" else {}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[1]", "JSON object"),
        (b'"slow"', "JSON object"),
        (b'{"delay": NaN}', "NaN is no JSON"),
        (b"[" * 100_000, "too deep"),
        ({"delay": 1, "durration": 2}, "there is no such field here; there are delay, duration"),
        ({}, "say how long"),
        ({"delay": "soon"}, "soon"),
        ({"delay": -1}, "-1"),
        ({"delay": True}, "True"),
        ({"delay": 1, "duration": "25h"}, "at most 24h"),
        ({"delay": 1, "probability": 2}, "up to 1"),
        ({"delay": 1, "count": 0}, "from 1"),
        ({"delay": 1, "reason": 5}, "reason"),
    ],
)
def test_a_body_that_cannot_be_is_a_bad_request(refusing: FlowerSite, body: Any, problem: str) -> None:
    """400 with what is wrong, and nothing is injected."""
    answer = refusing.post("/arena/agent/one/slow", body)
    assert (answer.status, answer.code) == (400, "invalid_setting")
    assert problem in answer.json["error"]["message"]
    assert refusing.get("/chaos/faults").json == {"faults": []}


def test_parameters_that_nobody_knows_are_refused(refusing: FlowerSite) -> None:
    """A slip in a name must not pass for a default."""
    assert refusing.get("/chaos/faults?agent=one").status == 400
    assert refusing.get("/chaos/faults?agent_id=one&agent_id=two").status == 400
    assert refusing.get("/chaos/faults?agent_id=%FF").status == 400
    assert refusing.post("/chaos/heal?agent_id=one").status == 400
    assert refusing.get("/arena/agent/one/slow").status == 405


@pytest.mark.spec(147)
@pytest.mark.parametrize(("given", "seconds"), [("1m30s", 90.0), (90, 90.0), (90.5, 90.5), ("500ms", 0.5), ("2", 2.0)])
def test_durations_are_text_or_numbers(refusing: FlowerSite, given: Any, seconds: float) -> None:
    """As on the command line: seconds, or text with a unit."""
    told = refusing.post("/arena/agent/one/slow", {"delay": given, "duration": given}).json
    (fault,) = refusing.post("/chaos/heal").json["healed"]
    assert told == fault
    assert told["delay"] == seconds
    lasts = datetime.fromisoformat(told["until"]) - datetime.fromisoformat(told["since"])
    assert lasts.total_seconds() == seconds


def test_a_body_is_json_whatever_its_content_type_says(refusing: FlowerSite) -> None:
    """``curl -d`` calls it a form."""
    for kind in ("application/x-www-form-urlencoded", "application/json", "text/plain"):
        told = refusing.post("/arena/agent/one/slow", {"delay": "5ms"}, Content_Type=kind)
        assert (told.status, told.json["delay"]) == (200, 0.005)
    assert len(refusing.post("/chaos/heal", b"", Content_Type="application/x-www-form-urlencoded").json["healed"]) == 1


def test_each_fault_is_that_of_the_manager(site: FlowerSite, runtime: Runtime) -> None:
    """Its values arrive, it names who logged in, and a repeat with the same op is the same fault."""
    calls = {"count": 3, "probability": 0.5, "seed": 7, "duration": "2m", "reason": "game day"}
    told = [
        site.post("/arena/agent/one/slow", {"delay": "5ms", **calls, "op": "slow-1"}).json,
        site.post("/arena/agent/one/slow", {"delay": "5ms", **calls, "op": "slow-1"}).json,
        site.post("/arena/agent/one/tool-timeout", {"timeout": 2, **calls}).json,
        site.post("/arena/agent/one/mcp-disconnect", {"server": "files", **calls}).json,
        site.post("/arena/agent/one/llm-failure", {"error_type": "overloaded", "retry_after": 7, **calls}).json,
        site.post("/arena/agent/one/memory-corrupt", {"seed": 3}).json,
        site.post("/arena/agent/one/partition", {"duration": "100ms"}).json,
    ]
    assert told[0] == told[1]
    assert [one["kind"] for one in told[1:]] == ["slow", "tool_timeout", "mcp", "llm", "memory", "partition"]
    assert {one["actor"] for one in told} == {"operator (flower)"}
    assert {(one["count"], one["probability"], one["seed"], one["reason"]) for one in told[:5]} == {
        (3, 0.5, 7, "game day")
    }
    assert (told[3]["server"], told[4]["error_type"], told[4]["retry_after"]) == ("files", "overloaded", 7.0)
    listed = {one["id"] for one in site.get("/chaos/faults?agent_id=one").json["faults"]}
    assert {one["id"] for one in told[:5]} <= listed
    assert {one.id for one in runtime.manager.list_faults()} <= {one["id"] for one in told}


def test_zero_clears_and_heal_ends_faults(site: FlowerSite, runtime: Runtime) -> None:
    """One kind, one by its id, all of an agent, all of all."""
    site.post("/arena/agent/one/slow", {"delay": 1})
    cleared = site.post("/arena/agent/one/slow", {"delay": 0}).json
    assert cleared == {"agent_id": "one", "action": "slow", "cleared": True}
    assert runtime.manager.list_faults() == ()

    def inject() -> str:
        site.post("/arena/agent/one/slow", {"delay": 1})
        return str(site.post("/arena/agent/one/llm-failure").json["id"])

    inject()
    assert [one["kind"] for one in site.post("/arena/agent/one/heal", {"fault": "slow"}).json["healed"]] == ["slow"]
    llm = inject()
    assert [one["id"] for one in site.post("/chaos/heal", {"agent_id": "one", "fault": llm}).json["healed"]] == [llm]
    inject()
    assert {one["kind"] for one in site.post("/chaos/heal", {"reason": "enough"}).json["healed"]} == {"slow", "llm"}
    assert site.post("/chaos/heal").json == {"healed": []}
    assert runtime.manager.list_faults() == ()


def test_pause_and_resume_act(site: FlowerSite, runtime: Runtime) -> None:
    """And the audit stream names who logged in."""
    assert site.post("/arena/agent/one/pause", {"reason": "a look"}).status == 200
    runtime.until("one", "paused")
    assert site.post("/arena/agent/one/resume").status == 200
    runtime.until("one", "running")
    paused = next(entry for entry in runtime.manager.audit("one") if entry.operation == "pause")
    assert (paused.actor, paused.reason) == ("operator (flower)", "a look")


def test_where_faults_are_not_allowed_everything_that_disturbs_is_refused(site: FlowerSite, runtime: Runtime) -> None:
    """403 for each, a pause included; looking, healing and resuming go on. Allowed for a time is allowed."""
    runtime.manager.set_config({"chaos": False})
    scenario = {"name": "one", "actions": [{"action": {"type": "kill_agent", "target_id": "one"}}]}
    bodies: dict[str, Any] = {"slow": {"delay": 1}, "tool-timeout": {"timeout": 1}}
    asked: dict[str, Any] = {f"/arena/agent/one/{name}": bodies.get(name, {}) for name in ACTIONS if name != "resume"}
    asked |= {"/arena/survival": {"duration": "1s", "interval": "1s"}, "/arena/scenario/run": {"scenario": scenario}}
    for path, body in asked.items():
        answer = site.post(path, body)
        assert (answer.status, answer.code) == (403, "chaos_disabled"), path
    for path in ("/arena/agent/one/resume", "/arena/agent/one/heal", "/chaos/heal", "/arena/survival/stop"):
        assert site.post(path).status == 200, path
    assert runtime.manager.get_agent_info("one").state == "running"  # type: ignore[union-attr]
    assert runtime.manager.arena() is None

    runtime.manager.enable_chaos("1m")
    assert site.post("/arena/agent/one/pause").status == 200


def test_below_a_prefix_the_routes_are_there_too(runtime: Runtime, make_site: Callable[..., FlowerSite]) -> None:
    """Flower's url_prefix holds for ours."""
    site = make_site(url_prefix="ops")
    assert site.prefix == "/ops"
    assert site.post("/arena/agent/one/slow", {"delay": 1}).status == 200
    assert len(site.get("/chaos/faults").json["faults"]) == 1


def test_a_store_that_is_away_is_said_with_503(
    redis_server: Any, namespace: str, make_site: Callable[..., FlowerSite]
) -> None:
    """Not an internal error, and nothing of Flower stands still meanwhile."""
    site = FlowerSite("redis://127.0.0.1:1/0", namespace)
    try:
        answer = site.get("/chaos/faults")
        assert (answer.status, answer.code) == (503, "store_unavailable")
    finally:
        site.close()


def test_the_configuration_of_the_working_folder_is_read_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours takes the place of the file that Flower would have found; an address that is set stays."""
    monkeypatch.chdir(tmp_path)
    options = flower_options.mockable()
    with monkeypatch.context() as context:
        context.setattr(options, "address", "")
        context.setattr(options, "tasks_columns", "name")
        load_beside("flowerconfig.py")
        assert (flower_options.address, flower_options.tasks_columns) == (LOOPBACK, "name")
        assert LOOPBACK == "127.0.0.1"
        flower_options.address = "127.0.0.9"
        Path("flowerconfig.py").write_text("tasks_columns = 'uuid'\n")
        load_beside("flowerconfig.py")
        assert (flower_options.address, flower_options.tasks_columns) == ("127.0.0.9", "uuid")
