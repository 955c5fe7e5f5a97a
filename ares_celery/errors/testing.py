"""Errors that a test gets from the testing kit."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = ["AgentStuckError", "DidNotHappenError"]


class DidNotHappenError(AresError, AssertionError):
    """What a test waited for did not come; the text says what came instead, and where the agent waits."""

    code = "did_not_happen"
    template = "{wanted} did not happen within {timeout} simulated seconds{instead}"


class AgentStuckError(AresError, AssertionError):
    """Code of an agent under test ran on in real time without ever waiting; ``stack`` shows where."""

    code = "agent_stuck"
    template = "agent {agent_id!r} did not come to rest {problem}; it is here:\n{stack}"
