"""Whose fault an exception is: told by its class and by where it came from, without importing what may be absent. Pure.

A language model that refuses for now or does not answer, and an MCP server whose connection is lost, are nobody's
crash: such a death is never charged to the restart budget. Everything else is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, cast

from ares_celery.errors import LLMUnavailableError, MCPConnectionLostError
from ares_celery.model.restart import DeathCause

__all__ = ["cause_of", "is_session_gone"]

#: Clients of language models that share one family of exceptions. Others belong to it by inheriting from these
#: (LiteLLM), or by raising LLMUnavailableError.
_LLM_CLIENTS: Final = frozenset({"openai", "anthropic", "groq"})
#: No answer, 429, 5xx: the model may answer the next time.
_LLM_ERRORS: Final = frozenset({"APIConnectionError", "RateLimitError", "InternalServerError"})
_MCP_CLIENT: Final = "mcp"
_MCP_ERRORS: Final = frozenset({"MCPError", "McpError"})
#: JSON-RPC's "connection closed" and "request timed out" as the MCP client says them; 408 in its first version.
_MCP_LOST: Final = frozenset({-32000, -32001, 408})
#: What a server over HTTP, or its client, says of a session that it does not know: it was started anew.
_SESSION_GONE: Final = frozenset({"session not found", "session terminated"})
_INVALID_REQUEST: Final = frozenset({-32600, 32600})
#: What these clients let through from below; whose it is, the traceback tells.
_TRANSPORTS: Final = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "anyio"})
_TRANSPORT_ERRORS: Final = frozenset(
    {"TransportError", "ClosedResourceError", "BrokenResourceError", "EndOfStream", "NetworkError", "TimeoutException"}
)
#: What reads an answer for a client; an answer that is no JSON is the server's doing.
_READERS: Final = _TRANSPORTS | {"json"}
#: Kinds of errors that a model tells of in the middle of an answer that began well.
_LLM_WORDS: Final = frozenset({"overloaded_error", "rate_limit_error", "api_error", "timeout_error"})
_TOO_MANY: Final = 429
_TIMED_OUT: Final = 408
_SERVER_ERRORS: Final = 500
#: Exceptions of one group, and of one chain, that are looked at.
_MOST_LEAVES: Final = 1_000
_LONGEST_CHAIN: Final = 32


def cause_of(error: BaseException) -> DeathCause:
    """Which cause of death an exception is, by itself or by the one that it was raised ``from``.

    ``llm`` and ``mcp`` are never charged; a group of exceptions is one of them only if every one in it is. Whatever the
    exception does when it is looked at, there is an answer: ``crash``.

    Example:
        >>> cause_of(LLMUnavailableError(reason="429")), cause_of(ValueError("x"))
        (<DeathCause.LLM: 'llm'>, <DeathCause.CRASH: 'crash'>)
    """
    try:
        causes = {_cause_of_one(leaf) for leaf in _leaves(error)}
    except Exception:  # noqa: BLE001 - an exception of user code may raise at any look; then it is a crash
        return DeathCause.CRASH
    return causes.pop() if len(causes) == 1 else DeathCause.CRASH if DeathCause.CRASH in causes else DeathCause.LLM


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, of groups in it too; the exception itself when it is no group."""
    waiting, seen = [error], 0
    while waiting and seen < _MOST_LEAVES:
        one = waiting.pop()
        seen += 1
        if isinstance(one, BaseExceptionGroup):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", one).exceptions)
        else:
            yield one
    if waiting:
        yield RuntimeError("more than anybody looks at")


def _cause_of_one(error: BaseException) -> DeathCause:
    """Follows ``raise … from …``, as that says in so many words what the cause was."""
    one: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if one is None:
            break
        found = _by_class(one) or _by_origin(one) or _by_answer(one)
        if found is not None:
            return found
        one = one.__cause__
        if isinstance(one, BaseExceptionGroup):
            return cause_of(cast("BaseException", one))
    return DeathCause.CRASH


def _by_class(error: BaseException) -> DeathCause | None:
    if isinstance(error, LLMUnavailableError):
        return DeathCause.LLM
    if isinstance(error, MCPConnectionLostError):
        return DeathCause.MCP
    for cls in type(error).__mro__:
        root, name = _root(cls.__module__), cls.__name__
        if root in _LLM_CLIENTS and (name in _LLM_ERRORS or _is_passing(error, name)):
            return DeathCause.LLM
        if root == _MCP_CLIENT and name in _MCP_ERRORS:
            code = getattr(getattr(error, "error", None), "code", None)
            return DeathCause.MCP if code in _MCP_LOST or is_session_gone(error) else None
    return None


def is_session_gone(error: BaseException) -> bool:
    """An MCP server does not know the session of a call any more; it has not run the call.

    Example:
        >>> is_session_gone(ConnectionResetError())
        False
    """
    told = getattr(error, "error", None)
    words = str(getattr(told, "message", "")).strip().rstrip(".").lower()
    return getattr(told, "code", None) in _INVALID_REQUEST and words in _SESSION_GONE


def _is_passing(error: BaseException, name: str) -> bool:
    """The status, or what was told in the middle of an answer, says that the next try may go well."""
    if name not in {"APIStatusError", "APIError"}:
        return False
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and (status in {_TOO_MANY, _TIMED_OUT} or status >= _SERVER_ERRORS):
        return True
    told = _table(getattr(error, "body", None))
    return _table(told.get("error", told)).get("type") in _LLM_WORDS


def _table(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _by_origin(error: BaseException) -> DeathCause | None:
    """A lost connection or a timeout that came up inside one of the clients."""
    is_builtin = isinstance(error, (ConnectionError, TimeoutError))
    is_transports = any(
        _root(cls.__module__) in _TRANSPORTS and cls.__name__ in _TRANSPORT_ERRORS for cls in type(error).__mro__
    )
    if not is_builtin and not is_transports:
        return None
    roots = set(_roots_of(error.__traceback__))
    if _MCP_CLIENT in roots:
        return DeathCause.MCP
    return DeathCause.LLM if roots & _LLM_CLIENTS else None


def _by_answer(error: BaseException) -> DeathCause | None:
    """An answer of a model that its client cannot read: no code of anybody else's was under way."""
    if not any(cls.__name__ == "JSONDecodeError" and _root(cls.__module__) == "json" for cls in type(error).__mro__):
        return None
    callers = [root for root in _roots_of(error.__traceback__) if root not in _READERS]
    return DeathCause.LLM if callers and callers[-1] in _LLM_CLIENTS else None


def _roots_of(trace: TracebackType | None) -> Iterator[str]:
    """The top packages of the code that the exception passed through."""
    while trace is not None:
        yield _root(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next


def _root(module: str) -> str:
    return module.partition(".")[0]
