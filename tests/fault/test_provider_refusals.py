"""One refusal of a provider holds up the whole fleet for as long as it asks, and costs nobody a restart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.llm_server import Call, LLMServer

pytest.importorskip("anthropic")
pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

ASYNC, PLAIN = 46, 4
AGENT_IDS = [f"a-{number:02}" for number in range(ASYNC)] + [f"p-{number}" for number in range(PLAIN)]
RETRY_AFTER = 7.0
#: Calls that the limit had let through before it was closed reach the provider within this time.
UNDER_WAY = 0.75


@pytest.fixture
def server() -> Iterator[LLMServer]:
    """The provider."""
    with LLMServer() as made:
        yield made


def who(call: Call) -> str:
    """The agent that made a call."""
    return what(call).split()[0]


def what(call: Call) -> str:
    """Which of its calls it is."""
    return str(call.body["messages"][0]["content"])


@pytest.mark.pain("P38")
def test_a_retry_after_holds_up_all_fifty_agents_and_they_come_back_spread(
    make_fleet: Callable[..., Fleet], server: LLMServer
) -> None:
    """On four workers, threads and prefork: silence for 7 s, then all come, never at once; nothing else is repeated."""
    fleet = make_fleet(HEARTBEAT_INTERVAL="1s", LEASE_TTL="10s", START_TIMEOUT="40s")
    env = {"ARES_AGENT_MODULES": "tests.llm_agents"}
    workers = [fleet.start_worker(f"w{number}", [AGENTS], slots=16, env=env) for number in range(2)]
    workers.append(fleet.start_worker("w2", [AGENTS, SUPERVISION, CONTROL], slots=20, env=env))
    workers.append(fleet.start_worker("plain", ["plain"], pool="prefork", slots=PLAIN, env=env))
    fleet.ready(*workers)
    for agent_id in AGENT_IDS:
        kind, queue = ("llm-caller", None) if agent_id.startswith("a") else ("llm-plain-caller", "plain")
        fleet.manager.start_agent(AgentSpec(id=agent_id, type=kind, queue=queue, config={"url": server.url}))
    fleet.wait(lambda: {who(call) for call in list(server.calls)} == set(AGENT_IDS), "all to call", timeout=40)

    server.refuse(429, retry_after=f"{RETRY_AFTER:g}")
    fleet.wait(lambda: 429 in server.statuses, "the refusal")
    refused = server.calls[server.statuses.index(429)]
    fleet.wait(
        lambda: {who(call) for call in list(server.calls) if call.at > refused.at + UNDER_WAY} == set(AGENT_IDS),
        "all to come back",
        timeout=30,
    )

    calls = list(server.calls)
    silent = [call.at - refused.at for call in calls if UNDER_WAY < call.at - refused.at < RETRY_AFTER]
    assert silent == [], "nobody calls while the limit is closed"
    back: dict[str, float] = {}
    for call in calls:
        if call.at - refused.at >= RETRY_AFTER:
            back.setdefault(who(call), call.at)
    assert sorted(back) == sorted(AGENT_IDS)
    assert max(back.values()) - min(back.values()) >= 2, "they do not come back at once"
    in_half_a_second = max(sum(0 <= later - at < 0.5 for later in back.values()) for at in back.values())
    assert in_half_a_second <= 25
    sent = Counter(what(call) for call in calls)
    assert {name for name, times in sent.items() if times > 1} == {what(refused)}, "only what was refused is sent again"
    assert sent[what(refused)] == 2
    infos = [fleet.info(agent_id) for agent_id in AGENT_IDS]
    assert {(info.state.value, info.incarnation, info.restarts, info.charged) for info in infos} == {
        ("running", 1, 0, 0)
    }
    assert len({info.worker for info in infos}) == 4
