"""Signals that end an agent's code; none of them is an error."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

__all__ = ["AgentSignal", "FencedSignal", "StopSignal", "WaitSignal"]


class AgentSignal(BaseException):
    """Root of the signals that unwind an agent's code; not an Exception, so ``except Exception`` cannot eat them."""

    text: ClassVar[str] = "the agent's code is to end"

    @override
    def __str__(self) -> str:
        """What it was raised with, or else what it means."""
        return super().__str__() or self.text


class StopSignal(AgentSignal):
    """The agent did not yield in time after it was asked to; its next context call ends it."""

    text = "the agent is to end, and its code did not return in time; what it recorded is kept, its next life goes on"


class FencedSignal(AgentSignal):
    """The incarnation is over: another may run already; nothing more may be written."""

    text = (
        "this incarnation of the agent is over: nothing more may be done with its ctx, as another may run already; "
        "keep no ctx beyond the call that it came with"
    )


class WaitSignal(AgentSignal):
    """The agent waits without its slot: this ends the incarnation in order, and the next one begins from the top."""

    text = "the agent waits without its slot; its code begins from the top when what it waits for is there"
