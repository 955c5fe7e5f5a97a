"""What providers answer when they refuse, in their own words, and what is read from it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ares_celery.chaos.llm_answers import is_refusal, may_repeat, provider_of, refused, wait_asked


def told(kind: str, provider: str, retry_after: float | None = 7.0) -> tuple[int, Any, dict[str, str]]:
    """Status, body and headers."""
    answer = refused(kind, provider, fault_id="f-1", retry_after=retry_after, streams=False)
    return answer.status, json.loads(answer.body), dict(answer.headers)


@pytest.mark.parametrize(
    ("path", "headers", "provider"),
    [
        ("/v1/messages", {}, "anthropic"),
        ("/proxy/v1/messages/", {}, "anthropic"),
        ("/v1/complete", {"x-api-key": "k"}, "anthropic"),
        ("/v1/models", {"anthropic-version": "2023-06-01"}, "anthropic"),
        ("/v1/chat/completions", {"authorization": "Bearer k"}, "openai"),
        ("/openai/deployments/x", {"api-key": "k"}, "openai"),
    ],
)
def test_the_provider_is_told_from_the_request(path: str, headers: dict[str, str], provider: str) -> None:
    """By path and headers, as the address may be anybody's."""
    assert provider_of(path, headers) == provider


@pytest.mark.parametrize(
    ("kind", "openai", "anthropic"),
    [("rate_limit", 429, 429), ("server_error", 500, 500), ("overloaded", 503, 529), ("auth", 401, 401)],
)
def test_each_provider_refuses_in_its_own_shape(kind: str, openai: int, anthropic: int) -> None:
    """Status and body; the fault is named in a header, so that nobody looks for a real failure."""
    status, body, headers = told(kind, "openai")
    assert (status, sorted(body), sorted(body["error"])) == (openai, ["error"], ["code", "message", "param", "type"])
    assert headers["x-ares-fault"] == "f-1"
    assert headers["content-type"] == "application/json"
    status, body, headers = told(kind, "anthropic")
    assert (status, body["type"], sorted(body["error"])) == (anthropic, "error", ["message", "type"])
    assert body["request_id"] == headers["request-id"]


def test_only_refusals_ask_to_wait_and_only_when_they_are_to() -> None:
    """A wrong key is not better in 7 s."""
    assert [told(kind, "openai")[2].get("retry-after") for kind in ("rate_limit", "overloaded")] == ["7", "7"]
    assert [told(kind, "openai")[2].get("retry-after") for kind in ("server_error", "auth")] == [None, None]
    assert told("rate_limit", "anthropic", 0.25)[2]["retry-after"] == "0.25"
    assert "retry-after" not in told("rate_limit", "anthropic", None)[2]
    # Every length reads as it was written.
    for seconds in (0.0, 1e-6, 7.123456, 86_400.0, 1_234_567.0):
        assert wait_asked(told("rate_limit", "anthropic", seconds)[2]) == seconds


@pytest.mark.parametrize("streams", [False, True])
def test_a_malformed_answer_is_a_success_that_nobody_can_read(streams: bool) -> None:  # noqa: FBT001 - a parameter
    """As a stream where one was asked for."""
    answer = refused("malformed", "openai", fault_id="f-1", retry_after=None, streams=streams)
    assert answer.status == 200
    assert answer.headers["content-type"] == ("text/event-stream" if streams else "application/json")
    text = answer.body.decode()
    with pytest.raises(json.JSONDecodeError):
        json.loads(text.partition("data: ")[2] if streams else text)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.5 "}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:09 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 9.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:09 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "7 s"}, None),
        ({}, None),
    ],
)
def test_what_an_answer_asks_to_wait_is_read(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, milliseconds, a date beside the answer's own; nonsense is nothing."""
    assert wait_asked(headers) == seconds


def test_what_may_be_sent_again_is_what_both_sdks_would_repeat() -> None:
    """Unless the provider says so itself."""
    assert [status for status in range(400, 600) if may_repeat(status, {})] == [408, 409, 429, *range(500, 600)]
    assert not may_repeat(429, {"x-should-retry": "false"})
    assert may_repeat(400, {"x-should-retry": "true"})
    assert [status for status in range(100, 600) if is_refusal(status)] == [429, 503, 529]
