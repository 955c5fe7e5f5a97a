"""Signals that end an agent's code; none of them is an error."""

from __future__ import annotations

__all__ = ["AgentSignal", "FencedSignal", "StopSignal", "WaitSignal"]


class AgentSignal(BaseException):
    """Root of the signals that unwind an agent's code; not an Exception, so ``except Exception`` cannot eat them."""


class StopSignal(AgentSignal):
    """The agent did not yield in time after it was asked to; its next context call ends it."""


class FencedSignal(AgentSignal):
    """The incarnation is over: another may run already; nothing more may be written."""


class WaitSignal(AgentSignal):
    """The agent waits without its slot: this ends the incarnation in order, and the next one begins from the top."""
