"""Errors about steps whose outcome nobody knows, and about settling them."""

from __future__ import annotations

from ares_celery.errors.base import AresError, NotFoundError

__all__ = ["StepIntentNotFoundError", "StepSettledError", "StepsUnsettledError"]


class StepIntentNotFoundError(NotFoundError):
    """No step of this name has an unknown outcome; field ``open`` lists those that have."""

    code = "step_intent_not_found"
    template = "agent {agent_id!r} has no {what} whose outcome is unknown; {listed}"


class StepSettledError(AresError):
    """Somebody has settled the step already; it is settled once, and nothing was changed."""

    code = "step_settled"
    template = (
        "step {step!r} of execution {execution!r} of agent {agent_id!r} was settled already, as {outcome}, by {actor} "
        "at {time}; nothing was changed"
    )


class StepsUnsettledError(AresError):
    """The incarnation may not end as it wants to: outcomes of steps are unknown, so that it has to be parked."""

    code = "steps_unsettled"
    template = "agent {agent_id!r} has {intents} steps whose outcome is unknown; they have to be settled first"
