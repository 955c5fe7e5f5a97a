"""The exit codes of the command line, and the one mapping from errors to them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from ares_celery.errors import AresError, NotFoundError

__all__ = ["ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """Stable: scripts branch on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    TIMED_OUT = 4
    PRECONDITION = 5
    STORE_UNREACHABLE = 6


_BY_CODE: Final[Mapping[str, ExitCode]] = {
    **dict.fromkeys(
        (
            "agent_type",
            "event_too_large",
            "fork_version",
            "invalid_agent_id",
            "invalid_config",
            "invalid_scenario",
            "invalid_setting",
            "nil_agent",
            "nil_factory",
            "step_result_too_large",
            "unknown_agent_type",
            "unserialisable",
        ),
        ExitCode.USAGE,
    ),
    **dict.fromkeys(("process_timeout", "wait_timeout"), ExitCode.TIMED_OUT),
    **dict.fromkeys(
        (
            "agent_already_registered",
            "agent_forking",
            "agent_not_parked",
            "agent_not_running",
            "agent_parked",
            "arena_busy",
            "budget_exceeded",
            "chaos_disabled",
            "fault_limit",
            "interrupt_resolved",
            "mailbox_full",
            "namespace_mismatch",
            "operation_not_supported",
            "runtime_already_started",
            "runtime_permission",
            "runtime_stopped",
            "step_settled",
            "too_few_reports",
            "unsupported_server",
            "version_conflict",
        ),
        ExitCode.PRECONDITION,
    ),
    "store_unavailable": ExitCode.STORE_UNREACHABLE,
}


def exit_code_of(error: AresError) -> ExitCode:
    """The exit code of an error; one that is not in the table is a plain failure.

    Example:
        >>> from ares_celery.errors import AgentNotFoundError
        >>> exit_code_of(AgentNotFoundError(agent_id="a")).name
        'NOT_FOUND'
    """
    if isinstance(error, NotFoundError):
        return ExitCode.NOT_FOUND
    return _BY_CODE.get(error.code, ExitCode.FAILED)
