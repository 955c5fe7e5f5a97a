"""What a language model's provider answers when it refuses, and how long to wait when it does. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

__all__ = ["ANTHROPIC", "OPENAI", "Answer", "is_refusal", "may_repeat", "provider_of", "refused", "wait_asked"]

ANTHROPIC: Final = "anthropic"
OPENAI: Final = "openai"
#: Too many requests, service unavailable, overloaded: they mean everybody who calls this model.
_REFUSALS: Final = frozenset({429, 503, 529})
#: What both SDKs would send again by themselves: these, and all errors of a server.
_PASSING: Final = frozenset({408, 409, 429})
_SERVER_ERRORS: Final = 500
_NUMBER: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})?")
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_WORDS: Final[Mapping[str, Mapping[str, tuple[int, str, str | None, str]]]] = {
    OPENAI: {
        "rate_limit": (429, "requests", "rate_limit_exceeded", "Rate limit reached for requests"),
        "server_error": (500, "server_error", None, "The server had an error while processing your request"),
        "overloaded": (503, "server_error", None, "The engine is currently overloaded, please try again later"),
        "auth": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided"),
    },
    ANTHROPIC: {
        "rate_limit": (429, "rate_limit_error", None, "This request would exceed your account's rate limit"),
        "server_error": (500, "api_error", None, "Internal server error"),
        "overloaded": (529, "overloaded_error", None, "Overloaded"),
        "auth": (401, "authentication_error", None, "invalid x-api-key"),
    },
}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer.

    Attributes:
        status: Of HTTP.
        headers: As a provider sends them.
        body: Likewise.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def provider_of(path: str, headers: Mapping[str, str]) -> str:
    """Whose API a request is for.

    Example:
        >>> provider_of("/v1/messages", {}), provider_of("/v1/chat/completions", {"authorization": "Bearer x"})
        ('anthropic', 'openai')
    """
    is_anthropic = "anthropic-version" in headers or "x-api-key" in headers or path.rstrip("/").endswith("/v1/messages")
    return ANTHROPIC if is_anthropic else OPENAI


def refused(error_type: str, provider: str, *, fault_id: str, retry_after: float | None, streams: bool) -> Answer:
    """How a provider says that it failed.

    Args:
        error_type: One of LLM_ERRORS that are answers: rate_limit, server_error, overloaded, auth, malformed.
        provider: Whose words.
        fault_id: Shown in a header, so that nobody searches for a real failure.
        retry_after: Seconds that it asks to wait; None: it does not say.
        streams: The answer was to be a stream of events.
    """
    headers = {"x-ares-fault": fault_id, "request-id": f"req_{fault_id}", "x-request-id": f"req_{fault_id}"}
    if error_type == "malformed":
        broken = b'event: message_start\ndata: {"id": "broken", \n\n' if streams else b'{"id": "broken", "content": ['
        return Answer(200, {**headers, "content-type": _EVENTS if streams else _JSON}, broken)
    status, kind, code, message = _WORDS[provider][error_type]
    if retry_after is not None and error_type in {"rate_limit", "overloaded"}:
        headers["retry-after"] = f"{retry_after:.6f}".rstrip("0").rstrip(".")
    told: dict[str, Any] = {"message": message, "type": kind}
    body: dict[str, Any] = {"error": {**told, "param": None, "code": code}}
    if provider == ANTHROPIC:
        body = {"type": "error", "error": told, "request_id": headers["request-id"]}
    return Answer(status, {**headers, "content-type": _JSON}, json.dumps(body).encode())


def is_refusal(status: int) -> bool:
    """Everybody who calls this model is to wait."""
    return status in _REFUSALS


def may_repeat(status: int, headers: Mapping[str, str]) -> bool:
    """The same request may go well later; the provider's own word on it counts more than the status."""
    word = headers.get("x-should-retry", "")
    if word in {"true", "false"}:
        return word == "true"
    return status in _PASSING or status >= _SERVER_ERRORS


def wait_asked(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait; None when it does not say, or says nonsense.

    A date is compared with the answer's own, so that no clock of ours is in it.

    Example:
        >>> wait_asked({"retry-after": "7"}), wait_asked({"retry-after-ms": "1500", "retry-after": "2"})
        (7.0, 1.5)
        >>> wait_asked({"retry-after": "Wed, 21 Oct 2026 07:28:09 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"})
        9.0
    """
    for name, part in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        if _NUMBER.fullmatch(text):
            return float(text) / part
    try:
        then, now = (parsedate_to_datetime(headers[name]) for name in ("retry-after", "date"))
        seconds = (then - now).total_seconds()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
