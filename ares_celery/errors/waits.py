"""Errors about what agents ask people, and wait for."""

from __future__ import annotations

from ares_celery.errors.base import AresError, NotFoundError

__all__ = [
    "ApprovalTimeoutError",
    "InterruptLimitError",
    "InterruptNotFoundError",
    "InterruptOpenError",
    "InterruptResolvedError",
    "StepRejectedError",
]


class InterruptNotFoundError(NotFoundError):
    """The agent has asked nothing under this name; field ``open`` has the names of what it has asked."""

    code = "interrupt_not_found"
    template = "agent {agent_id!r} has asked nothing named {name!r} that is to be decided; open: {open}"


class InterruptResolvedError(AresError):
    """It is decided already: fields ``decision``, ``actor``, ``reason`` and ``decided_at`` say what, by whom and when.

    Field ``state`` is ``timeout`` when nobody decided in time, and ``abandoned`` when the agent no longer asks.
    """

    code = "interrupt_resolved"
    template = "{name!r} of agent {agent_id!r} is decided already: {decision!r} by {actor} at {decided_at}"


class InterruptOpenError(AresError):
    """Another execution or step of the agent has asked under this name, and is not answered yet."""

    code = "interrupt_open"
    template = (
        "agent {agent_id!r} has asked {name!r} in execution {other!r}, step {other_step!r}, already, and nobody has "
        "decided; give this one another name, such as f'{name}:{execution}'"
    )


class InterruptLimitError(AresError):
    """The agent has asked as many open questions as it may."""

    code = "interrupt_limit"
    template = "agent {agent_id!r} has {limit} questions open, the most it may; {name!r} was not asked"


class ApprovalTimeoutError(AresError, TimeoutError):
    """Nobody decided in time; later decisions are refused."""

    code = "approval_timeout"
    template = "nobody decided about {name!r} of agent {agent_id!r} within {timeout} s"


class StepRejectedError(AresError):
    """A person did not allow this step, so it did not run; fields ``decision``, ``actor`` and ``answer`` tell more.

    Uncaught in ``start`` it parks the agent with cause ``step_rejected``; in ``process`` it is the answer.
    """

    code = "step_rejected"
    template = "step {step!r} of agent {agent_id!r} was not allowed: {decision!r} by {actor}"
