"""Streamed answers in a harness: the real writer and store, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentFailedError,
    Chunk,
    ProcessTimeoutError,
    StreamResult,
    SyncAgentContext,
)
from ares_celery.testing import AgentHarness


class Talker:
    """Says a few words, one every ten seconds."""

    def __init__(self, agent_id: str) -> None:
        self.said: list[str] = []
        self.ended = ""

    async def process_stream(self, ctx: AgentContext, message: str) -> AsyncIterator[Any]:
        try:
            for word in message.split():
                if word == "fail":
                    raise ValueError("lost for words")
                self.said.append(word)
                yield word
                await ctx.sleep(10)
            yield StreamResult({"words": len(message.split())})
            self.ended = "whole"
        finally:
            self.ended = self.ended or "cut"


class PlainTalker:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.said: list[str] = []
        self.ended = ""

    def process_stream(self, ctx: SyncAgentContext, message: str) -> Generator[Any, None, dict[str, int]]:
        try:
            for word in message.split():
                if word == "fail":
                    raise ValueError("lost for words")
                self.said.append(word)
                yield word
                ctx.sleep(10)
            self.ended = "whole"
        finally:
            self.ended = self.ended or "cut"
        return {"words": len(message.split())}


COLOURS = pytest.mark.parametrize("made", [Talker, PlainTalker], ids=["async", "plain"])


@COLOURS
def test_an_answer_comes_in_pieces_and_then_whole(made: type[Any]) -> None:
    """In simulated time, by sequence numbers, the result last."""
    with AgentHarness(made) as harness:
        chunks = list(harness.stream("to be or"))
        assert [(chunk.seq, chunk.data, chunk.final) for chunk in chunks] == [
            (1, "to", False),
            (2, "be", False),
            (3, "or", False),
            (4, {"words": 3}, True),
        ]
        assert 30 <= harness.now < 32
        assert harness.agent.ended == "whole"


@COLOURS
def test_a_crash_between_two_pieces_is_not_seen_by_who_reads(made: type[Any]) -> None:
    """The message is handled again from its top; what was stored comes once."""
    with AgentHarness(made) as harness:
        chunks = harness.stream("to be or")
        found = [next(chunks), next(chunks)]
        harness.crash()
        harness.restart()
        found += list(chunks)
        assert found[:2] == [Chunk(1, "to", final=False), Chunk(2, "be", final=False)]
        assert found[2:] == [Chunk(3, "or", final=False), Chunk(4, {"words": 3}, final=True)]
        assert harness.agent.said == ["to", "be", "or"]


@COLOURS
def test_what_the_agent_raises_in_the_middle_reaches_who_reads(made: type[Any]) -> None:
    """After the pieces before it."""
    with AgentHarness(made) as harness:
        chunks = harness.stream("to fail")
        assert next(chunks).data == "to"
        with pytest.raises(AgentFailedError, match="lost for words"):
            next(chunks)


@COLOURS
def test_a_reader_that_leaves_ends_the_stream(made: type[Any]) -> None:
    """The agent's generator is closed at its next piece."""
    with AgentHarness(made) as harness:
        chunks = harness.stream("to be or not to be")
        next(chunks)
        chunks.close()
        harness.advance(60)
        assert harness.agent.ended == "cut"
        assert len(harness.agent.said) < 4


def test_a_piece_that_does_not_come_in_time_says_so() -> None:
    """The time is that of each piece."""

    class Slow:
        def __init__(self, agent_id: str) -> None: ...

        async def process_stream(self, ctx: AgentContext, message: object) -> AsyncIterator[int]:
            yield 1
            await asyncio.sleep(1000)  # on purpose: simulated time
            yield 2

    with AgentHarness(Slow) as harness:
        chunks = harness.stream(None, timeout=100)
        assert next(chunks).data == 1
        with pytest.raises(ProcessTimeoutError) as caught:
            next(chunks)
        assert 100 <= harness.now < 102
        assert "test_streams.py" in caught.value.__notes__[0]
