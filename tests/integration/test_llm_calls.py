"""Agents that call models through the real SDKs, on a real store: what a fault does to their next call, and to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentContext, AgentFailedError, SyncAgentContext
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentSpec
from ares_celery.model.fault import LLM_ERRORS
from tests.hosting import Runtime
from tests.llm_server import LLMServer
from tests.redis_server import RedisServer
from tests.wait import wait_until

openai: Any = pytest.importorskip("openai")
anthropic: Any = pytest.importorskip("anthropic")

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs/howto/call-language-models.md"
SERVERS: list[LLMServer] = []
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
#: What the SDKs raise in the agent.
RAISED = {
    "rate_limit": "RateLimitError",
    "timeout": "APITimeoutError",
    "connection": "APIConnectionError",
    "server_error": "InternalServerError",
    "overloaded": "InternalServerError",
    "auth": "AuthenticationError",
    "malformed": "JSONDecodeError",
    "cut_stream": "APIConnectionError",
}


class Asker:
    """Asks OpenAI for each message, without repeats."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: object) -> object:
        """The answer."""
        url, http = SERVERS[-1].url + "/v1", ctx.llm_http_client()
        client = openai.AsyncOpenAI(api_key="k", base_url=url, http_client=http, max_retries=0)
        return (await client.chat.completions.create(**ASK)).choices[0].message.content


class PlainAsker:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, message: object) -> object:
        """The answer."""
        url, http = SERVERS[-1].url + "/v1", ctx.llm_http_client()
        client = openai.OpenAI(api_key="k", base_url=url, http_client=http, max_retries=0)
        return client.chat.completions.create(**ASK).choices[0].message.content


class Reader:
    """Reads streams of Anthropic, one after the other, and dies of whatever goes wrong."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> None:
        """Until it is asked to stop."""
        http = ctx.llm_http_client()
        client = anthropic.AsyncAnthropic(api_key="k", base_url=SERVERS[-1].url, http_client=http, max_retries=0)
        while not ctx.stop_requested:
            async for _ in await client.messages.create(**ASK, max_tokens=9, stream=True):
                pass
            await ctx.sleep(0.05)


@pytest.fixture
def server() -> Iterator[LLMServer]:
    """The provider of both APIs."""
    with LLMServer() as made:
        SERVERS.append(made)
        yield made
        SERVERS.remove(made)


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str, server: LLMServer) -> Iterator[Runtime]:
    """It runs."""
    with Runtime(redis_server.url, namespace, hints=True, chaos=True) as made:
        made.manager.start()
        made.register("asker", Asker)
        made.register("plain-asker", PlainAsker)
        made.register("reader", Reader)
        yield made


def start(runtime: Runtime, kind: str, agent_id: str) -> None:
    """An agent that runs."""
    runtime.manager.start_agent(AgentSpec(id=agent_id, type=kind))
    runtime.until(agent_id, "running")


def inject(runtime: Runtime, agent_id: str, kind: str, **options: Any) -> None:
    """Injects a failure."""
    runtime.manager.inject_llm_failure(agent_id, kind, reason="a test", **options)


def fail(runtime: Runtime, agent_id: str, kind: str) -> None:
    """Injects a failure that stays, and waits until the agent's process knows."""
    inject(runtime, agent_id, kind)
    wait_until(lambda: _incarnation(runtime, agent_id).faults is not None, "the fault to be known")


def heal(runtime: Runtime, agent_id: str) -> None:
    """Ends it, and waits until the agent's process knows."""
    runtime.manager.heal(agent_id)
    wait_until(lambda: _incarnation(runtime, agent_id).faults is None, "the fault to be over")


def _incarnation(runtime: Runtime, agent_id: str) -> Any:
    (found,) = [one for one in runtime.host._hosted.all() if one.agent_id == agent_id]
    return found


@pytest.mark.spec(136)
@pytest.mark.spec(139)
@pytest.mark.parametrize("kind", ["asker", "plain-asker"])
def test_an_injected_failure_is_met_by_the_agents_next_call(runtime: Runtime, server: LLMServer, kind: str) -> None:
    """Each kind, in the SDK's own errors; nobody else meets it, and none behind its end."""
    start(runtime, kind, "other")
    for number, failure in enumerate(LLM_ERRORS):
        agent_id = f"a-{number}"
        start(runtime, kind, agent_id)
        assert runtime.manager.process(agent_id, "?", timeout=8) == "The sky is blue."
        fail(runtime, agent_id, failure)
        before = len(server.calls)
        with pytest.raises(AgentFailedError) as caught:
            runtime.manager.process(agent_id, "?", timeout=8)
        assert caught.value.type == RAISED[failure]
        assert len(server.calls) - before == (1 if failure == "cut_stream" else 0)
        assert runtime.manager.process("other", "?", timeout=8) == "The sky is blue."
        heal(runtime, agent_id)
        assert runtime.manager.process(agent_id, "?", timeout=8) == "The sky is blue."


def test_an_agent_that_dies_of_a_model_is_not_charged(runtime: Runtime, server: LLMServer) -> None:
    """Cause llm, each kind, and it is back; a wrong key is a crash."""
    for failure in LLM_ERRORS:
        start(runtime, "reader", failure)
        inject(runtime, failure, failure, count=1)
    for failure in LLM_ERRORS:
        info = runtime.until(failure, "running", incarnation=2, timeout=15)
        (stopped,) = runtime.events(failure, "failover.triggered")
        expected = ("crash", 1) if failure == "auth" else ("llm", 0)
        assert (stopped.payload["cause"], info.charged, info.restarts) == (*expected, 1), failure


def test_the_agent_of_the_page_works_as_it_is_printed(
    runtime: Runtime, server: LLMServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a step, within a limit, and what it spends is counted; asked again, the step is not paid for twice."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    block = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(block.replace('@agent("writer")', ""), names)  # noqa: S102 - our own page
    runtime.registry.register("writer", names["Writer"])
    start(runtime, "writer", "w")
    server.refuse(429, retry_after="0.2")
    assert runtime.manager.process("w", "why is the sky blue?", timeout=15, message_id="m") == "The sky is blue."
    assert runtime.manager.process("w", "why is the sky blue?", timeout=15, message_id="m") == "The sky is blue."
    assert server.statuses == [429, 200]
    record = runtime.store.read(AgentId("w")).record
    assert record is not None
    assert record.spending.own.tokens == 9
