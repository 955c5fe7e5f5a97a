"""The HTTP library that clients of language models use: httpx2 or httpx, whichever is there; imported at first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.request import getproxies

from ares_celery.chaos.broken_streams import async_broken_stream, broken_stream
from ares_celery.errors import InvalidSettingError, OperationNotSupportedError

__all__ = ["HttpKit", "find_kit"]

_LIBRARIES: Final = ("httpx2", "httpx")
#: Options of a client that are about its connections: whoever gives one gets connections of its own.
_OF_CONNECTIONS: Final = frozenset({"verify", "cert", "http1", "http2", "limits", "trust_env", "proxy"})
#: What the clients of both SDKs are made with: answers of models take minutes, and many are under way.
_READ_TIMEOUT: Final = 600.0
_CONNECT_TIMEOUT: Final = 5.0
_MOST_CONNECTIONS: Final = 1000
_KEPT_CONNECTIONS: Final = 100


class HttpKit:
    """One of the two libraries, as far as we need it; both have the same names."""

    def __init__(self, module: Any) -> None:  # noqa: ANN401 - a module that may be absent
        self.module = module
        #: Its stream that breaks off, for threads and for a loop; responses demand these bases.
        self.broken, self.async_broken = broken_stream(module), async_broken_stream(module)

    # -- connections --------------------------------------------------------------------------------------------------

    def transport(self, *, is_async: bool, **options: Any) -> Any:  # noqa: ANN401 - the library's
        """Connections to wherever requests go."""
        options.setdefault(
            "limits", self.module.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_KEPT_CONNECTIONS)
        )
        kind = self.module.AsyncHTTPTransport if is_async else self.module.HTTPTransport
        return kind(**options)

    def proxies(self, options: Mapping[str, Any]) -> dict[str, str | None]:
        """Which proxy serves which addresses, by pattern; None: none. As the environment says, as clients do."""
        if options.get("proxy") is not None:
            return {"all://": options["proxy"]}
        if not options.get("trust_env", True):
            return {}
        found = getproxies()
        named = {f"{scheme}://": _with_scheme(found[scheme]) for scheme in ("http", "https", "all") if scheme in found}
        hosts = [host.strip() for host in found.get("no", "").split(",") if host.strip()] if named else []
        if "*" in hosts:
            return {}
        return {**named, **{_pattern(host): None for host in hosts}}

    def split(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The options of a client, and those of its connections among them."""
        of_connections = {name: value for name, value in options.items() if name in _OF_CONNECTIONS}
        return {name: value for name, value in options.items() if name not in of_connections}, of_connections

    def client(self, options: Mapping[str, Any], *, is_async: bool) -> Any:  # noqa: ANN401 - the library's
        """A client with these options.

        Raises:
            InvalidSettingError: The library knows no such option, or the value does not fit.
        """
        kind = self.module.AsyncClient if is_async else self.module.Client
        chosen = {"timeout": self.module.Timeout(_READ_TIMEOUT, connect=_CONNECT_TIMEOUT), "follow_redirects": True}
        try:
            return kind(**{**chosen, **options})
        except (TypeError, ValueError) as error:
            shown = ", ".join(sorted(options)) or "none"
            raise InvalidSettingError(field="options", value=shown, problem=str(error)) from error

    # -- answers ------------------------------------------------------------------------------------------------------

    def answer(self, request: Any, status: int, headers: Mapping[str, str], body: bytes) -> Any:  # noqa: ANN401 - as above
        """A whole answer that no server gave."""
        return self.module.Response(status, headers=dict(headers), content=body, request=request)

    def cut(self, response: Any, *, is_async: bool) -> Any:  # noqa: ANN401 - as above
        """The same answer, whose body breaks off after its first piece."""
        kind = self.async_broken if is_async else self.broken
        is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        is_plain = "content-encoding" not in response.headers
        stream = kind(response.stream, self.module.RemoteProtocolError, by_event=is_events and is_plain)
        return self.module.Response(
            response.status_code, headers=response.headers.raw, stream=stream, extensions=response.extensions
        )

    def can_repeat(self, request: Any) -> bool:  # noqa: ANN401 - as above
        """The body of a request is there to be sent again."""
        try:
            request.content  # noqa: B018 - raises when it is a stream
        except self.module.RequestNotRead:
            return False
        return True


@cache
def find_kit() -> HttpKit:
    """The library that is there; httpx2 before httpx, as the current SDKs use it.

    Raises:
        OperationNotSupportedError: Neither is.
    """
    for name in _LIBRARIES:
        try:
            return HttpKit(importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    reason = "neither httpx2 nor httpx is installed; pip install 'ares-celery[llm]'"
    raise OperationNotSupportedError(operation="ctx.llm_http_client()", reason=reason)


def _with_scheme(proxy: str) -> str:
    return proxy if "://" in proxy else f"http://{proxy}"


def _pattern(host: str) -> str:
    """The addresses that an entry of NO_PROXY means."""
    if "://" in host:
        return host
    if host.replace(".", "").isdigit() or host == "localhost" or ":" in host:
        return f"all://[{host}]" if host.count(":") > 1 and not host.startswith("[") else f"all://{host}"
    return f"all://*{host}"
