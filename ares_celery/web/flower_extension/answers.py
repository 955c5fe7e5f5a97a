"""What goes out: plain JSON, and errors with the status that says whose they are."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from pydantic_core import to_jsonable_python

from ares_celery.errors import AresError, NotFoundError

__all__ = ["as_json", "error_answer", "status_of"]

_STATUS: Final = {
    "chaos_disabled": HTTPStatus.FORBIDDEN,
    "runtime_permission": HTTPStatus.FORBIDDEN,
    "store_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "event_store_closed": HTTPStatus.SERVICE_UNAVAILABLE,
    **dict.fromkeys(
        (
            "agent_forking",
            "agent_not_running",
            "agent_parked",
            "arena_busy",
            "fault_limit",
            "namespace_mismatch",
            "operation_id_reused",
            "operation_not_supported",
            "runtime_stopped",
            "version_conflict",
        ),
        HTTPStatus.CONFLICT,
    ),
}


def status_of(error: AresError) -> HTTPStatus:
    """The status that an error is answered with.

    Example:
        >>> from ares_celery.errors import AgentNotFoundError, InvalidAgentIdError
        >>> [int(status_of(one)) for one in (AgentNotFoundError(agent_id="a"), InvalidAgentIdError(agent_id=""))]
        [404, 400]
    """
    if isinstance(error, NotFoundError):
        return HTTPStatus.NOT_FOUND
    if error.code in _STATUS:
        return _STATUS[error.code]
    if isinstance(error, TimeoutError):
        return HTTPStatus.GATEWAY_TIMEOUT
    # What somebody gave is wrong: those errors are ValueErrors and TypeErrors too.
    return HTTPStatus.BAD_REQUEST if isinstance(error, (ValueError, TypeError)) else HTTPStatus.INTERNAL_SERVER_ERROR


def as_json(value: object) -> str:
    r"""The value as one line of JSON: instants as ISO 8601, durations as seconds.

    Example:
        >>> from datetime import timedelta
        >>> as_json({"for": timedelta(seconds=2)})
        '{"for": 2.0}'
    """
    told: Any = to_jsonable_python(value, timedelta_mode="float", inf_nan_mode="strings", fallback=repr)
    return json.dumps(told, ensure_ascii=False)


def error_answer(code: str, message: str, **fields: object) -> dict[str, Any]:
    """How every refusal looks: ``error`` with ``code``, a sentence, and what else the error has."""
    return {"error": {**fields, "code": code, "message": message}}
