"""Which exceptions are nobody's crash: told by the class and the origin of what the clients really raise."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from ares_celery.errors import AgentFailedError, LLMUnavailableError, MCPConnectionLostError
from ares_celery.model.causes import cause_of
from ares_celery.model.restart import CHARGED, DeathCause

Raiser = Callable[[BaseException], None]


def family(package: str) -> dict[str, type[Exception]]:
    """The classes of a client, as its package has them: name, module and bases."""
    made: dict[str, type[Exception]] = {}
    for name, base in (
        ("ClientError", "Exception"),
        ("APIError", "ClientError"),
        ("APIConnectionError", "APIError"),
        ("APITimeoutError", "APIConnectionError"),
        ("APIStatusError", "APIError"),
        ("RateLimitError", "APIStatusError"),
        ("InternalServerError", "APIStatusError"),
        ("OverloadedError", "InternalServerError"),
        ("AuthenticationError", "APIStatusError"),
        ("BadRequestError", "APIStatusError"),
    ):
        made[name] = type(name, (made.get(base, Exception),), {"__module__": package})
    return made


def raised_in(module: str, error: BaseException) -> BaseException:
    """The exception after it passed through a function of this module."""
    namespace: dict[str, Any] = {"__name__": module}
    exec("def raiser(error):\n    raise error", namespace)  # noqa: S102 - a frame whose module the test chooses
    try:
        namespace["raiser"](error)
    except BaseException as caught:  # noqa: BLE001 - given back
        return caught
    raise AssertionError


@pytest.mark.parametrize("package", ["openai", "anthropic", "groq"])
@pytest.mark.parametrize(
    "name", ["APIConnectionError", "APITimeoutError", "RateLimitError", "InternalServerError", "OverloadedError"]
)
def test_a_model_that_refuses_for_now_or_does_not_answer_is_no_crash(package: str, name: str) -> None:
    """429, 5xx, timeouts and lost connections of the clients."""
    assert cause_of(family(package)[name]("x")) is DeathCause.LLM


@pytest.mark.parametrize("name", ["AuthenticationError", "BadRequestError", "APIStatusError", "ClientError"])
def test_what_the_agent_did_wrong_is_a_crash(name: str) -> None:
    """A wrong key or a bad request will not go away by itself."""
    error = family("openai")[name]("x")
    error.status_code = 400  # type: ignore[attr-defined]
    assert cause_of(error) is DeathCause.CRASH


@pytest.mark.parametrize(("status", "cause"), [(429, "llm"), (408, "llm"), (503, "llm"), (529, "llm"), (404, "crash")])
def test_the_status_decides_where_the_class_does_not(status: int, cause: str) -> None:
    """A client that has no class of its own for it."""
    error = family("anthropic")["APIStatusError"]("x")
    error.status_code = status  # type: ignore[attr-defined]
    assert cause_of(error) == cause


@pytest.mark.parametrize(("kind", "cause"), [("overloaded_error", "llm"), ("invalid_request_error", "crash")])
def test_what_is_told_in_the_middle_of_an_answer_counts(kind: str, cause: str) -> None:
    """The answer began with status 200."""
    error = family("anthropic")["APIStatusError"]("x")
    error.status_code, error.body = 200, {"error": {"type": kind}}  # type: ignore[attr-defined]
    assert cause_of(error) == cause


def test_a_class_of_the_same_name_from_elsewhere_is_a_crash() -> None:
    """The agent's own RateLimitError says nothing of a model."""
    assert cause_of(family("shop")["RateLimitError"]("x")) is DeathCause.CRASH


def test_a_client_that_inherits_from_a_known_one_is_known() -> None:
    """As LiteLLM's exceptions do."""
    inherited = type("RateLimitError", (family("openai")["RateLimitError"],), {"__module__": "litellm.exceptions"})
    assert cause_of(inherited("x")) is DeathCause.LLM


@pytest.mark.parametrize("name", ["MCPError", "McpError"])
@pytest.mark.parametrize(("code", "cause"), [(-32000, "mcp"), (-32001, "mcp"), (408, "mcp"), (-32602, "crash")])
def test_a_lost_mcp_connection_is_no_crash(name: str, code: int, cause: str) -> None:
    """Closed or silent; a refusal of the server is the agent's affair."""
    error: Any = type(name, (Exception,), {"__module__": "mcp.shared.exceptions"})("x")
    error.error = SimpleNamespace(code=code)
    assert cause_of(error) == cause


@pytest.mark.parametrize(
    ("module", "cause"),
    [("openai._streaming", "llm"), ("anthropic", "llm"), ("mcp.client.session", "mcp"), ("shop.database", "crash")],
)
@pytest.mark.parametrize("transport", ["httpx", "httpx2", "anyio", ""])
def test_a_lost_connection_belongs_to_the_client_it_passed_through(module: str, cause: str, transport: str) -> None:
    """A stream that breaks off raises what the transport raises; the traceback tells whose connection it was."""
    name = "ClosedResourceError" if transport == "anyio" else "TransportError"
    base = type(name, (Exception,), {"__module__": f"{transport}._exceptions"})
    error = type("ReadError", (base,), {"__module__": base.__module__})("x") if transport else TimeoutError("x")
    assert cause_of(error) is DeathCause.CRASH, "raised nowhere"
    assert cause_of(raised_in(module, error)) == cause


def test_any_other_error_that_passes_through_a_client_is_a_crash() -> None:
    """A callback of the agent that fails inside the client."""
    assert cause_of(raised_in("openai._streaming", KeyError("x"))) is DeathCause.CRASH


@pytest.mark.parametrize(("modules", "cause"), [(["openai._response", "httpx2"], "llm"), (["openai", "shop"], "crash")])
def test_an_answer_that_is_no_json_is_the_servers_doing(modules: list[str], cause: str) -> None:
    """Where the client itself reads it; a callback of the agent's that fails to is the agent's."""
    assert cause_of(json.JSONDecodeError("Expecting value", "{", 1)) is DeathCause.CRASH, "raised nowhere"
    read: Any = json.loads
    for module in reversed(modules):
        namespace: dict[str, Any] = {"__name__": module, "read": read}
        exec("def reads(text):\n    read(text)", namespace)  # noqa: S102 - a frame whose module the test chooses
        read = namespace["reads"]
    with pytest.raises(json.JSONDecodeError) as caught:
        read("{")
    assert cause_of(caught.value) == cause


def test_agents_may_say_so_themselves() -> None:
    """With the public exceptions, for any client."""
    assert cause_of(LLMUnavailableError(reason="429")) is DeathCause.LLM
    assert cause_of(MCPConnectionLostError(server="github")) is DeathCause.MCP
    assert cause_of(AgentFailedError(agent_id="a", type="T", error="x", traceback="")) is DeathCause.CRASH


def test_an_error_raised_from_one_of_these_is_one_of_these() -> None:
    """`raise … from …` says what the cause was; an error that only came up meanwhile does not."""
    wrapped = RuntimeError("step 3 failed")
    wrapped.__cause__ = ValueError("inner")
    wrapped.__cause__.__cause__ = LLMUnavailableError(reason="429")
    assert cause_of(wrapped) is DeathCause.LLM
    meanwhile = RuntimeError("bug")
    meanwhile.__context__ = LLMUnavailableError(reason="429")
    assert cause_of(meanwhile) is DeathCause.CRASH


def test_a_group_is_no_crash_only_if_nothing_in_it_is_one() -> None:
    """A task group hides nothing behind a timeout."""
    refused, lost, bug = LLMUnavailableError(reason="429"), MCPConnectionLostError(server="s"), KeyError("x")
    assert cause_of(ExceptionGroup("g", [refused, ExceptionGroup("h", [refused])])) is DeathCause.LLM
    assert cause_of(ExceptionGroup("g", [refused, lost])) not in CHARGED
    assert cause_of(ExceptionGroup("g", [refused, bug])) is DeathCause.CRASH


class Hostile(Exception):
    """Raises whenever somebody looks."""

    @override
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_an_exception_that_raises_when_looked_at_is_a_crash() -> None:
    """So is one whose causes go in circles, and one of millions."""
    assert cause_of(Hostile()) is DeathCause.CRASH
    round_trip = ValueError("a")
    round_trip.__cause__ = KeyError("b")
    round_trip.__cause__.__cause__ = round_trip
    assert cause_of(round_trip) is DeathCause.CRASH
    many = ExceptionGroup("many", [LLMUnavailableError(reason="429")] * 2_000)
    assert cause_of(many) is DeathCause.CRASH


def test_telling_causes_imports_no_client() -> None:
    """The agent's host has what it has."""
    code = "import sys, ares_celery.model.causes; print(*{'openai', 'anthropic', 'groq', 'mcp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=25, check=True)
    assert not done.stdout.strip()
