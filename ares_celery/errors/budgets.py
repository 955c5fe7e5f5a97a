"""Errors about what agents may spend."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = ["BudgetExceededError"]


class BudgetExceededError(AresError):
    """The agent has used up what its spec, or that of the agent at the top of its tree, allows.

    Fields: ``budget`` (tokens, usd or steps), ``spent``, ``limit`` and ``whose``, the agent whose budget it is.
    """

    code = "budget_exceeded"
    template = (
        "agent {agent_id!r} may do no more: the {budget} of agent {whose!r} are used up ({spent} of {limit}); allow "
        "more with `ares agents update {whose} --budget {budget}=…`, then `ares agents unpark {agent_id}`"
    )

    @property
    def finding(self) -> str:
        """What is used up, without what to do about it: why its agent is parked."""
        return "the {budget} of agent {whose!r} are used up ({spent} of {limit})".format_map(self.fields)
