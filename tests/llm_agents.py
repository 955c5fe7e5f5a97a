"""Agents of a fleet that call a language model through the real SDK; workers import this module by name."""

from __future__ import annotations

import itertools
from typing import Any

from anthropic import Anthropic, AsyncAnthropic

from ares_celery import AgentContext, SyncAgentContext, agent

#: As every agent here says it.
LIMIT: dict[str, Any] = {"rate": "900/min", "concurrency": 50}
EVERY = 1.0


def asked(agent_id: str, number: int) -> dict[str, Any]:
    """A call that the provider can tell from all others."""
    message = {"role": "user", "content": f"{agent_id} {number}"}
    return {"model": "m", "max_tokens": 9, "messages": [message]}


@agent("llm-caller")
class Caller:
    """Calls every second, as far as the limit lets it."""

    def __init__(self, agent_id: str, url: str) -> None:
        self.agent_id, self.url = agent_id, url

    async def start(self, ctx: AgentContext) -> None:
        client = AsyncAnthropic(api_key="k", base_url=self.url, http_client=ctx.llm_http_client())
        for number in itertools.count(1):
            if ctx.stop_requested:
                break
            async with ctx.limit("anthropic", **LIMIT):
                await client.messages.create(**asked(self.agent_id, number))
            await ctx.sleep(EVERY)


@agent("llm-plain-caller")
class PlainCaller:
    """The same, plain."""

    def __init__(self, agent_id: str, url: str) -> None:
        self.agent_id, self.url = agent_id, url

    def start(self, ctx: SyncAgentContext) -> None:
        client = Anthropic(api_key="k", base_url=self.url, http_client=ctx.llm_http_client())
        for number in itertools.count(1):
            if ctx.stop_requested:
                break
            with ctx.limit("anthropic", **LIMIT):
                client.messages.create(**asked(self.agent_id, number))
            ctx.sleep(EVERY)
