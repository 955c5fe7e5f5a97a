"""Errors about durable steps."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = [
    "AwaitMissingError",
    "InvalidStepIdError",
    "SecretsHookError",
    "StepChangedError",
    "StepFailedError",
    "StepIdReusedError",
    "StepLimitError",
    "StepOutcomeUnknownError",
    "StepResultTooLargeError",
    "StepSignatureError",
    "StepThreadError",
    "StepTimeoutError",
]


class InvalidStepIdError(AresError, ValueError):
    """The step id is not acceptable; nothing ran."""

    code = "invalid_step_id"
    template = "step id {step!r} is not valid: 1 to 400 printable characters, with those of the steps around it"


class StepIdReusedError(AresError, ValueError):
    """The id was used for another step of this execution already; nothing ran."""

    code = "step_id_reused"
    template = (
        "step {step!r} of execution {execution!r} of agent {agent_id!r} was used already; an id names one step: in a "
        "loop put the index in the id, like f'fetch:{{i}}'"
    )


class StepChangedError(AresError):
    """The step was recorded by another function; neither was run, and what is recorded stays."""

    code = "step_changed"
    template = (
        "step {step!r} of execution {execution!r} of agent {agent_id!r} was recorded by function {recorded!r}, the "
        "code now calls {function!r}; give the step another id, or say formerly=[{recorded!r}] where its result holds"
    )


class StepFailedError(AresError):
    """A step that is never repeated has failed, in this life or in an earlier one; what is recorded is its failure."""

    code = "step_failed"
    template = (
        "step {step!r} of execution {execution!r} of agent {agent_id!r} has failed and is not repeated: "
        "{error_type}: {problem}"
    )


class AwaitMissingError(AresError, TypeError):
    """A call of an async context was taken for its result, or dropped, before it was awaited; nothing was done."""

    code = "await_missing"
    template = "await is missing: await {call}"


class StepSignatureError(AresError, TypeError):
    """The function of a step lacks a parameter that its way of replaying needs; it did not run."""

    code = "step_signature"
    template = "function {function!r} of step {step!r} has no parameter {parameter!r}: {problem}"


class StepTimeoutError(AresError, TimeoutError):
    """A step did not return in time; whether it took effect is unknown."""

    code = "step_timeout"
    template = "step {step!r} of execution {execution!r} of agent {agent_id!r} did not return within {timeout} s"


class StepThreadError(AresError, RuntimeError):
    """A step was made on a thread that does not say to which execution it belongs; it did not run."""

    code = "step_thread"
    template = (
        "step {step!r} of agent {agent_id!r} is made on a thread of its own while the agent is in {at}, and nobody can "
        "tell whether it belongs there; give the thread the context of the code that begins it: "
        "pool.submit(contextvars.copy_context().run, work)"
    )


class StepOutcomeUnknownError(AresError):
    """The step was begun and must not be repeated, and nobody knows what came of it; a person has to say."""

    code = "step_outcome_unknown"
    template = (
        "step {step!r} of execution {execution!r} of agent {agent_id!r} was begun, is not to be repeated, and nobody "
        "knows what came of it; look what it did, then reconcile the agent"
    )


class StepLimitError(AresError):
    """The execution has as many recorded steps as it may; nothing was recorded."""

    code = "step_limit"
    template = (
        "execution {execution!r} of agent {agent_id!r} has {limit} recorded steps, the most it may, so {step!r} was "
        "not recorded; use an execution for each round, like ctx.execution(f'round:{{n}}')"
    )


class StepResultTooLargeError(AresError, ValueError):
    """What a step returned is larger than the namespace allows; nothing was recorded."""

    code = "step_result_too_large"
    template = (
        "{what} of step {step!r} of execution {execution!r} of agent {agent_id!r} has {size} bytes, the limit is "
        "{limit} (max_event_bytes); store it elsewhere and return a reference"
    )


class SecretsHookError(AresError):
    """The hook that keeps secrets out of the store raised; what it was asked about was not stored."""

    code = "secrets_hook"
    template = (
        "{what} of step {step!r} of execution {execution!r} of agent {agent_id!r} was not stored: the secrets hook "
        "failed: {problem}"
    )
