"""What a worker's main process does with a message for a task of ours before it believes it.

Celery takes a message apart in the loop that reads from the broker: one that is not built as expected ends the worker,
and with it every agent that it hosts; a milder fault is logged with the whole body. Whoever speaks to us from another
language may get any of it wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Final, cast

from celery import Celery
from celery.utils.time import maybe_iso8601
from celery.worker import strategy as celerys

from ares_celery.errors import OperationNotSupportedError

__all__ = ["fault_of", "guarded"]

log: Final = logging.getLogger(__name__)

Handler = Callable[..., Any]
#: How a field, and its value, are to be given.
_ARGS: Final = "send an array"
_KWARGS: Final = "send an object of names and values"
_LONGEST_ID: Final = 255


def guarded(task: Any, app: Celery, consumer: Any, **options: Any) -> Handler:  # noqa: ANN401 - Celery's signature
    """Celery's own way with messages, for those that are built as Celery's protocol says; the others are dropped.

    The sender of such a message gets an error as its result, as far as the message says which; the log names field and
    cure, and nothing that the message carries.
    """
    make: Any = celerys.default
    handle: Handler = make(task, app, consumer, **options)

    def take(message: Any, body: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Celery's own
        fault = fault_of(message, body)
        if fault is None:
            return handle(message, body, *args, **kwargs)
        _refuse(task, consumer, message, body, fault)
        return None

    return take


def fault_of(message: Any, body: Any) -> tuple[str, str] | None:  # noqa: ANN401 - Kombu's message, decoded JSON
    """What is wrong with a message: the field, and how it is to be; None when Celery can take it apart.

    Args:
        message: As it came.
        body: Decoded, where the message speaks Celery's first protocol.
    """
    headers: Mapping[str, Any] = message.headers or {}
    try:
        payload: Any = message.payload if body is None else body
    except Exception as error:  # noqa: BLE001 - of any decoder
        problem = type(error).__name__
        return "body", f"it cannot be read as {message.content_type}, {message.content_encoding} ({problem}); send JSON"
    if isinstance(payload, dict):
        fields = cast("dict[str, Any]", payload)
        if body is None and "args" not in fields:
            return "body", "send an array: [args, kwargs, {}]"
        headers = {**fields, **headers}
        return _of_arguments(fields.get("args", ()), fields.get("kwargs", {})) or _of_headers(headers)
    parts = cast("list[Any]", payload)
    if not isinstance(payload, (list, tuple)) or len(parts) != 3:  # noqa: PLR2004 - args, kwargs, embedded
        return "body", "send an array: [args, kwargs, {}]"
    return _of_arguments(parts[0], parts[1]) or _of_headers(headers)


def _of_arguments(args: object, kwargs: object) -> tuple[str, str] | None:
    if not isinstance(args, (list, tuple)):
        return "args", _ARGS
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in cast("dict[object, object]", kwargs)):
        return "kwargs", _KWARGS
    return None


def _of_headers(headers: Mapping[str, Any]) -> tuple[str, str] | None:
    if not _is_id(headers.get("id")):
        return "id", "send a text, a UUID for example"
    limits = headers.get("timelimit")
    if limits is not None and not _are_limits(limits):
        return "timelimit", "send [null, null], or leave it out"
    retries = headers.get("retries")
    if retries is not None and not isinstance(retries, int):
        return "retries", "send a whole number, or leave it out"
    for name in ("eta", "expires"):
        if not _is_time(headers.get(name)):
            return name, "send an ISO 8601 text, or leave it out"
    return None


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID


def _are_limits(value: object) -> bool:
    parts = cast("list[object]", value)
    if not isinstance(value, (list, tuple)) or len(parts) != 2:  # noqa: PLR2004 - soft and hard
        return False
    return all(one is None or isinstance(one, (int, float)) for one in parts)


def _is_time(value: object) -> bool:
    try:
        maybe_iso8601(cast("str | None", value))
    except (AttributeError, OverflowError, TypeError, ValueError):
        return False
    return value is None or isinstance(value, str)


def _refuse(task: Any, consumer: Any, message: Any, body: Any, fault: tuple[str, str]) -> None:  # noqa: ANN401 - Celery's own
    """Drops the message, and tells its sender."""
    field, cure = fault
    headers: Mapping[str, Any] = message.headers or {}
    named: Any = headers.get("id")
    if named is None and isinstance(body, dict):
        named = cast("dict[str, Any]", body).get("id")
    name: str = task.name
    log.warning("message %.100r for task %s is dropped: its %s is wrong: %s", named, name, field, cure)
    message.reject_log_error(log, consumer.connection_errors)
    if not _is_id(named):
        return
    error = OperationNotSupportedError(operation=f"task {name}", reason=f"its {field} is wrong: {cure}", field=field)
    request = SimpleNamespace(name=name, chord=None, root_id=None, correlation_id=named, reply_to=None, errbacks=None)
    try:
        task.backend.mark_as_failure(str(named), error, request=request)
    except Exception as problem:  # noqa: BLE001 - any backend's
        log.warning("the sender of message %.100r is not told: %s: %s", named, type(problem).__name__, problem)
