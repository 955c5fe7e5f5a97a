"""What every route of ours has in common: login, where a request came from, and answers in JSON."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from tornado.web import HTTPError
from typing_extensions import override

from ares_celery.errors import AresError
from ares_celery.web.flower_extension.answers import as_json, error_answer, status_of
from ares_celery.web.flower_extension.desk import Desk
from ares_celery.web.flower_extension.reading import demand_known, demand_one_of_each, read_body

if TYPE_CHECKING:
    from tornado.web import RequestHandler as FlowersHandler
else:
    from flower.api import BaseApiHandler as FlowersHandler

__all__ = ["ApiHandler", "Asked", "Getter", "Nowhere", "Poster"]

log: Final = logging.getLogger(__name__)

_DESK: Final = "ares_desk"
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, checked.

    Attributes:
        desk: What the routes share.
        actor: Who asks, as the audit stream shall say.
        path: What the path names: an agent's id, say.
        body: Fields of the JSON body.
        query: Parameters.
        gone: Called when the client goes away before it is answered.
    """

    desk: Desk
    actor: str
    path: tuple[str, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    gone: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])


class ApiHandler(FlowersHandler):
    """A route with Flower's login; without one that is configured it is closed, as Flower's own API is."""

    #: Called when the client has gone.
    gone: list[Callable[[], object]]

    @override
    def set_default_headers(self) -> None:
        """Never for other sites, whatever Flower allows them for its own API, and never from a cache."""
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "application/json; charset=UTF-8")

    @override
    def prepare(self) -> None:
        """Refuses whoever has no login, comes from another site, or wants to change what is read-only."""
        self.gone = []
        # Flower's own: 401 unless a login is configured, or its API is open on purpose.
        super().prepare()
        try:
            user: object = self.current_user
        except TypeError as error:
            # Some versions cannot compare a login that is not ASCII.
            raise HTTPError(401, "the login is wrong") from error
        if not user:
            raise HTTPError(401, "log in first")
        if self.request.method in _READING:
            return
        self._demand_own_site()
        if getattr(self._options, "read_only", False):
            raise HTTPError(403, "this Flower is read-only")

    def _demand_own_site(self) -> None:
        """Not every version of Flower looks, and none does while its API is open."""
        site, origin = self.request.headers.get("Sec-Fetch-Site"), self.request.headers.get("Origin")
        is_foreign = origin is not None and urlsplit(origin).netloc != self.request.host
        if is_foreign or site not in {None, "same-origin", "none"}:
            raise HTTPError(403, "requests of other sites are refused")

    @property
    def _options(self) -> Any:  # noqa: ANN401 - of Flower, which has no types
        return cast("Any", self.application).options

    @property
    def desk(self) -> Desk:
        """What the routes of this Flower share; made for the first request."""
        shared = self.application.settings
        if _DESK not in shared:
            shared[_DESK] = Desk(cast("Any", self.application).capp)
        return cast("Desk", shared[_DESK])

    @property
    def actor(self) -> str:
        """Who asks: the name of the login."""
        user: object = self.current_user
        if isinstance(user, str):
            return f"{user} (flower)"
        # Flower keeps no name of a basic login, and has checked it.
        scheme, _, credentials = self.request.headers.get("Authorization", "").partition(" ")
        name = _name_of(credentials) if scheme == "Basic" else ""
        return f"{name} (flower)" if name else "flower"

    @override
    def on_connection_close(self) -> None:
        """The client went away."""
        for call in self.gone:
            call()

    def asked(self, path: tuple[str | None, ...], known: tuple[str, ...] = ()) -> Asked:
        """The request, checked; ``known``: its parameters, or the fields of its body.

        Raises:
            InvalidSettingError.
        """
        is_reading = self.request.method in _READING
        query = demand_one_of_each(self.request.query_arguments, known if is_reading else ())
        body = {} if is_reading else read_body(self.request.body)
        demand_known(body, known)
        named = tuple(part or "" for part in path)
        return Asked(self.desk, self.actor, named, body, query, self.gone)

    def refuse(self, error: AresError) -> None:
        """Answers with an error of ours."""
        self.set_status(status_of(error))
        self.answer({"error": error.fields})

    def answer(self, value: object) -> None:
        """Answers with JSON."""
        cast("Any", self).finish(as_json(value))

    @override
    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """A refusal as JSON, without a traceback."""
        error = (kwargs.get("exc_info") or (None, None))[1]
        said = error.log_message if isinstance(error, HTTPError) else None
        phrase = HTTPStatus(status_code).phrase
        if status_code == HTTPStatus.UNAUTHORIZED and getattr(self._options, "basic_auth", None):
            self.set_header("WWW-Authenticate", 'Basic realm="flower"')
        code = phrase.lower().replace(" ", "_")
        self.answer(error_answer(code, said or phrase))


def _name_of(credentials: str) -> str:
    from base64 import b64decode  # noqa: PLC0415 - of this one line

    try:
        return b64decode(credentials).decode().partition(":")[0]
    except ValueError:
        return ""


#: What a route does.
Call = Callable[[Asked], Awaitable[object]]


class _Caller(ApiHandler):
    @override
    def initialize(self, call: Call, known: tuple[str, ...] = (), status: int = HTTPStatus.OK) -> None:
        """Binds the route to what it does."""
        self._call, self._known, self._status = call, known, status

    async def serve(self, path: tuple[str | None, ...]) -> None:
        """Does it, and answers."""
        try:
            answer = await self._call(self.asked(path, self._known))
        except AresError as error:
            self.refuse(error)
            return
        self.set_status(self._status)
        self.answer(answer)


class Getter(_Caller):
    """A route that only looks."""

    @override
    async def get(self, *path: str | None) -> None:
        """Looks."""
        await self.serve(path)


class Poster(_Caller):
    """A route that does something."""

    @override
    async def post(self, *path: str | None) -> None:
        """Does it."""
        await self.serve(path)


class Nowhere(ApiHandler):
    """Whatever else is asked of our part of the paths."""

    @override
    def prepare(self) -> None:
        """Refuses, behind the login like all else."""
        super().prepare()
        raise HTTPError(404, "there is no such route")
