"""Clients for SDKs: of the library that is there, with its options, over connections that a process shares."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from ares_celery.chaos.http_kit import HttpKit, find_kit
from ares_celery.chaos.llm_clients import Connections, make_client
from ares_celery.chaos.transports import AsyncFaultTransport, FaultTransport
from ares_celery.errors import InvalidSettingError, OperationNotSupportedError
from ares_celery.model.fault import Fault

LIBRARIES = [name for name in ("httpx2", "httpx") if importlib.util.find_spec(name)]
if not LIBRARIES:
    pytest.skip("neither httpx2 nor httpx is installed", allow_module_level=True)


class Gate:
    """Lets everything through."""

    def permit(self) -> None:
        """Nothing against it."""

    def take(self) -> Fault | None:
        """None."""

    def turns(self) -> None:
        """No limit."""


class AsyncGate:
    """The same, awaitable."""

    async def permit(self) -> None:
        """Nothing against it."""

    async def take(self) -> Fault | None:
        """None."""

    def turns(self) -> None:
        """No limit."""


@pytest.fixture(params=LIBRARIES)
def kit(request: pytest.FixtureRequest) -> HttpKit:
    """Each library that there is."""
    return HttpKit(importlib.import_module(request.param))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the machine has."""
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name}_proxy".upper(), raising=False)


@pytest.fixture
def forgets() -> Iterator[None]:
    """The library is looked for anew, before and after."""
    find_kit.cache_clear()
    yield
    find_kit.cache_clear()


def client(kit: HttpKit, connections: Connections | None = None, **options: Any) -> Any:
    """One of a plain agent."""

    def wrap(inner: Any) -> FaultTransport:
        return FaultTransport(inner, kit, Gate())

    return make_client(kit, connections or Connections(), wrap, options, is_async=False)


def teapot(kit: HttpKit) -> Any:
    """Somebody's own transport."""

    def answer(_: Any) -> Any:
        return kit.module.Response(418)

    return kit.module.MockTransport(answer)


def async_client(kit: HttpKit, connections: Connections, **options: Any) -> Any:
    """One of an async agent."""

    def wrap(inner: Any) -> AsyncFaultTransport:
        return AsyncFaultTransport(inner, kit, AsyncGate())

    return make_client(kit, connections, wrap, options, is_async=True)


def test_the_newer_library_comes_first_and_the_older_will_do(forgets: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either, the error says what to install."""
    assert find_kit().module.__name__ == LIBRARIES[0]
    find_kit.cache_clear()
    fake = importlib.import_module(LIBRARIES[0])
    monkeypatch.setattr(importlib, "import_module", _only("httpx", fake))
    assert find_kit().module is fake
    find_kit.cache_clear()
    monkeypatch.setattr(importlib, "import_module", _only("", fake))
    with pytest.raises(OperationNotSupportedError, match=r"pip install 'ares-celery\[llm\]'"):
        find_kit()


def _only(name: str, module: Any) -> Any:
    def find(wanted: str) -> Any:
        if wanted == name:
            return module
        raise ModuleNotFoundError(name=wanted)

    return find


def test_a_library_that_is_there_and_broken_is_not_passed_over(forgets: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks is named."""

    def find(wanted: str) -> Any:
        raise ModuleNotFoundError(name="httpcore2")

    monkeypatch.setattr(importlib, "import_module", find)
    with pytest.raises(ModuleNotFoundError):
        find_kit()


def test_options_are_those_of_the_library(kit: HttpKit) -> None:
    """With the timeouts of the SDKs where nobody says more; what it does not know is refused by name."""
    made = client(kit, headers={"x-team": "a"})
    assert isinstance(made, kit.module.Client)
    assert made.headers["x-team"] == "a"
    assert (made.timeout.connect, made.timeout.read, made.follow_redirects) == (5.0, 600.0, True)
    assert client(kit, timeout=3, follow_redirects=False).timeout.read == 3
    with pytest.raises(InvalidSettingError, match="colour") as caught:
        client(kit, colour="secret-value")
    assert "secret-value" not in str(caught.value.fields)


def test_clients_of_a_process_share_their_connections(kit: HttpKit) -> None:
    """Unless an option is about these; closing one client closes nothing of the others."""
    connections = Connections()
    routes = connections.routes(kit, is_async=False)
    seen: list[str] = []

    def answer(request: Any) -> Any:
        seen.append(request.url.host)
        return kit.module.Response(200)

    routes.default.handle_request = answer
    with client(kit, connections) as first:
        first.get("http://one/")
    client(kit, connections).get("http://two/")
    assert seen == ["one", "two"]
    own = client(kit, connections, transport=teapot(kit))
    assert own.get("http://three/").status_code == 418
    assert len(seen) == 2
    connections.close()
    assert connections.routes(kit, is_async=False) is not routes


def test_a_loop_has_connections_of_its_own(kit: HttpKit) -> None:
    """They cannot be used on another."""
    connections = Connections()

    async def look() -> Any:
        assert isinstance(async_client(kit, connections), kit.module.AsyncClient)
        assert connections.routes(kit, is_async=True) is connections.routes(kit, is_async=True)
        return connections.routes(kit, is_async=True)

    assert asyncio.run(look()) is not asyncio.run(look())
    connections.close()


def test_a_loop_that_runs_closes_its_connections(kit: HttpKit) -> None:
    """Asked from a thread."""
    connections = Connections()
    closed: list[str] = []

    async def look() -> None:
        routes = connections.routes(kit, is_async=True)

        async def aclose() -> None:
            closed.append("closed")

        routes.default.aclose = aclose
        await asyncio.to_thread(connections.close)

    asyncio.run(look())
    assert closed == ["closed"]


def test_requests_go_through_proxies_as_the_environment_says(kit: HttpKit, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of the SDKs' own clients; an option goes first, and trust_env=False is heard."""
    assert kit.proxies({}) == {}
    monkeypatch.setenv("https_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost, .internal,10.0.0.1,::1,[::2],http://x,example.org")
    assert kit.proxies({}) == {
        "https://": "http://proxy:3128",
        "all://localhost": None,
        "all://*.internal": None,
        "all://10.0.0.1": None,
        "all://[::1]": None,
        "all://[::2]": None,
        "http://x": None,
        "all://*example.org": None,
    }
    assert kit.proxies({"trust_env": False}) == {}
    assert kit.proxies({"proxy": "http://mine"}) == {"all://": "http://mine"}
    made = client(kit)
    passed = made._transport_for_url(kit.module.URL("https://api.example.com/"))
    direct = made._transport_for_url(kit.module.URL("https://localhost/"))
    assert passed is not direct
    assert all(isinstance(one, FaultTransport) for one in (passed, direct)), "both pass through ours"
    monkeypatch.setenv("no_proxy", "*")
    assert kit.proxies({}) == {}


def test_mounts_of_the_caller_pass_through_ours_as_well(kit: HttpKit) -> None:
    """A transport for one address."""
    made = client(kit, mounts={"http://teapot": teapot(kit), "http://plain": None})
    assert made.get("http://teapot/").status_code == 418
    assert isinstance(made._transport_for_url(kit.module.URL("http://teapot/")), FaultTransport)
