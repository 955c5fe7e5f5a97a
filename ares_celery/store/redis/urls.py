"""Our Redis URL forms as one frozen value, and masking of the secrets in them. Pure: no sockets, no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from typing_extensions import override

from ares_celery.errors import InvalidSettingError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What stands in place of a secret.
MASK: Final = "***"
#: Ports used where a URL names none: the servers' own defaults.
DEFAULT_REDIS_PORT: Final = 6379
DEFAULT_SENTINEL_PORT: Final = 26379
HIGHEST_PORT: Final = 65535

#: The forms, as every error message shows them.
URL_FORMS: Final = (
    "redis://[user:password@]host:6379/0, rediss://..., unix:///path/to/redis.sock?db=0, "
    "sentinel://[user:password@]host1:26379,host2:26379/mymaster/0 or cluster://host1:7000,host2:7000"
)

#: Where one URL of a `;` list ends and the next begins; a bare `;` may be part of a password.
NEXT_URL_IN_LIST: Final = re.compile(r";(?=[A-Za-z][A-Za-z0-9+.\-]*://)")

_SECRET_IN_QUERY: Final = re.compile(r"(?i)([?&;][^=&;]*(?:pass|secret|token)[^=&;]*=)[^&;]*")
_ENCODING: Final = "in names and passwords write @ as %40, : as %3A, / as %2F, ? as %3F, # as %23"
_TLS_OPTIONS: Final = frozenset(
    {"ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"},
)
_CERT_REQS: Final = {
    "required": "required",
    "optional": "optional",
    "none": "none",
    "cert_required": "required",
    "cert_optional": "optional",
    "cert_none": "none",
}
_BOOLEANS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Topology(StrEnum):
    """How the servers behind a URL are reached."""

    SINGLE = "single"
    SOCKET = "socket"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Address:
    """One server's host and port. An IPv6 host is kept without its brackets."""

    host: str
    port: int

    @override
    def __str__(self) -> str:
        """Render as it stands in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How a TLS connection proves who it talks to; safe unless the URL says otherwise."""

    cert_reqs: str = "required"
    check_hostname: bool = True
    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    def redis_options(self) -> dict[str, object]:
        """Return the options under the names that redis-py, Kombu and Celery share."""
        options: dict[str, object] = {"ssl_cert_reqs": self.cert_reqs, "ssl_check_hostname": self.check_hostname}
        files = {"ssl_ca_certs": self.ca_certs, "ssl_certfile": self.certfile, "ssl_keyfile": self.keyfile}
        return options | {name: path for name, path in files.items() if path is not None}


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store URL taken apart. Its repr holds no password.

    Attributes:
        topology: How the servers are reached.
        nodes: Redis servers, or the sentinels of a sentinel URL; empty for a socket.
        path: The socket's file, else empty.
        master: The name that the sentinels know the master by, else empty.
        db: Number of the logical database; 0 in a cluster.
        username: User of the Redis server (not of the sentinels).
        password: Password of the Redis server (not of the sentinels).
        sentinel_username: User of the sentinels themselves.
        sentinel_password: Password of the sentinels themselves.
        tls: None means plain text.
    """

    topology: Topology
    nodes: tuple[Address, ...] = ()
    path: str = ""
    master: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None


def redact(url: str) -> str:
    """Return `url` fit for logs and errors: no password of it is left.

    Works on malformed URLs too, and there it rather hides too much than too little.

    Example:
        >>> redact("redis://ann:s3cret@db:6379/0")
        'redis://ann:***@db:6379/0'
    """
    return ";".join(_redact_one(part) for part in NEXT_URL_IN_LIST.split(url))


def parse_store_url(url: str, *, setting: str = "ARES_REDIS_URL") -> StoreUrl:
    """Take one of our store URLs apart.

    Args:
        url: The URL. Percent-encode `@ : / ? # %` in names and passwords.
        setting: The name of the setting it came from, for the error's text.

    Returns:
        The frozen value.

    Raises:
        InvalidSettingError: The URL has none of our forms; it names the setting, the value (redacted) and the cure.

    Example:
        >>> parse_store_url("sentinel://a:26379,b:26379/mymaster/2").master
        'mymaster'
    """
    source = _Source(setting, url)
    if not url or re.search(r"\s", url):
        raise source.error("it is empty or has blanks in it", f"write one of {URL_FORMS}")
    parts = source.split()
    match parts.scheme:
        case "redis" | "rediss":
            return _parse_single(source, parts)
        case "unix":
            return _parse_socket(source, parts)
        case "sentinel":
            return _parse_sentinel(source, parts)
        case "cluster":
            return _parse_cluster(source, parts)
        case _:
            raise source.error(f"its scheme {parts.scheme!r} is unknown", f"write one of {URL_FORMS}")


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a URL came from: makes its errors, none of which shows a password."""

    setting: str
    url: str = field(repr=False)

    def error(self, problem: str, cure: str) -> InvalidSettingError:
        return InvalidSettingError(field=self.setting, value=redact(self.url), problem=f"{problem}; {cure}")

    def split(self) -> SplitResult:
        if "://" not in self.url:
            raise self.error("it has no '://'", f"write one of {URL_FORMS}")
        parts = _urlsplit(self.url)
        if parts is None:
            raise self.error("its brackets are malformed", f"use them for IPv6 hosts only; {_ENCODING}")
        if "#" in self.url or "@" in parts.path:
            raise self.error("it has a stray '#' or '@'", _ENCODING)
        return parts

    def credentials(self, parts: SplitResult) -> tuple[str | None, str | None]:
        """Return user and password, decoded; an empty one is None."""
        userinfo, _, _ = parts.netloc.rpartition("@")
        user, _, password = userinfo.partition(":")
        return unquote(user) or None, unquote(password) or None

    def nodes(self, parts: SplitResult, default_port: int) -> tuple[Address, ...]:
        """Return the servers of a `host:port,host:port` authority."""
        _, _, hosts = parts.netloc.rpartition("@")
        return tuple(self._address(text, default_port) for text in hosts.split(","))

    def _address(self, text: str, default_port: int) -> Address:
        found = re.fullmatch(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]]+))(?::(?P<port>[0-9]+))?", text)
        if found is None:
            raise self.error(
                "it has a server that is not host or host:port",
                f"write host:port, IPv6 hosts in brackets; {_ENCODING}",
            )
        port = int(found["port"] or default_port)
        if not 0 < port <= HIGHEST_PORT:
            raise self.error("it has an impossible port", f"write a port from 1 to {HIGHEST_PORT}")
        return Address(found["ipv6"] or found["name"], port)

    def db(self, text: str) -> int:
        """Return the number of the logical database; nothing means 0."""
        if not re.fullmatch(r"[0-9]{0,9}", text):
            raise self.error("its database is not a whole number of at least 0", "write the number, such as /0")
        return int(text or 0)

    def options(self, parts: SplitResult, allowed: frozenset[str]) -> dict[str, str]:
        """Return the query as a mapping and refuse a name that the form does not know."""
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if not options.keys() <= allowed:  # not named in the error: behind a stray '?' it may be part of a password
            known = ", ".join(sorted(allowed)) or "none"
            raise self.error("it has an unknown option", f"known for {parts.scheme}: {known}; {_ENCODING}")
        return options

    def tls(self, options: Mapping[str, str]) -> TlsOptions:
        cert_reqs = _CERT_REQS.get(options.get("ssl_cert_reqs", "required").lower())
        if cert_reqs is None:
            raise self.error("its ssl_cert_reqs is unknown", "write required, optional or none")
        check_hostname = _BOOLEANS.get(options.get("ssl_check_hostname", "true").lower())
        if check_hostname is None:
            raise self.error("its ssl_check_hostname is unknown", "write true or false")
        return TlsOptions(
            cert_reqs=cert_reqs,
            check_hostname=check_hostname,
            ca_certs=options.get("ssl_ca_certs"),
            certfile=options.get("ssl_certfile"),
            keyfile=options.get("ssl_keyfile"),
        )

    def tls_if_asked(self, options: Mapping[str, str]) -> TlsOptions | None:
        """Sentinel and cluster have no `s` form: any ssl_ option turns TLS on."""
        return self.tls(options) if options.keys() & _TLS_OPTIONS else None


def _urlsplit(url: str) -> SplitResult | None:
    """Split a URL; None instead of an error, whose text may quote a piece of a password."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _parse_single(source: _Source, parts: SplitResult) -> StoreUrl:
    secure = parts.scheme == "rediss"
    options = source.options(parts, _TLS_OPTIONS if secure else frozenset())
    nodes = source.nodes(parts, DEFAULT_REDIS_PORT)
    if len(nodes) != 1:
        raise source.error("it names several servers", "use sentinel:// or cluster:// for these")
    username, password = source.credentials(parts)
    return StoreUrl(
        topology=Topology.SINGLE,
        nodes=nodes,
        db=source.db(parts.path.removeprefix("/")),
        username=username,
        password=password,
        tls=source.tls(options) if secure else None,
    )


def _parse_socket(source: _Source, parts: SplitResult) -> StoreUrl:
    _, _, host = parts.netloc.rpartition("@")
    if host or not parts.path.strip("/"):
        raise source.error("its socket file is not an absolute path", "write unix:///path/to/redis.sock?db=0")
    options = source.options(parts, frozenset({"db"}))
    username, password = source.credentials(parts)
    return StoreUrl(
        topology=Topology.SOCKET,
        path=unquote(parts.path),
        db=source.db(options.get("db", "")),
        username=username,
        password=password,
    )


def _parse_sentinel(source: _Source, parts: SplitResult) -> StoreUrl:
    master, _, db = parts.path.removeprefix("/").partition("/")
    if not master:
        raise source.error("it does not name the master", "write sentinel://host1:26379,host2:26379/mymaster/0")
    options = source.options(parts, _TLS_OPTIONS | {"sentinel_username", "sentinel_password"})
    username, password = source.credentials(parts)
    return StoreUrl(
        topology=Topology.SENTINEL,
        nodes=source.nodes(parts, DEFAULT_SENTINEL_PORT),
        master=unquote(master),
        db=source.db(db),
        username=username,
        password=password,
        sentinel_username=options.get("sentinel_username") or None,
        sentinel_password=options.get("sentinel_password") or None,
        tls=source.tls_if_asked(options),
    )


def _parse_cluster(source: _Source, parts: SplitResult) -> StoreUrl:
    if source.db(parts.path.removeprefix("/")) != 0:
        raise source.error("a cluster has database 0 only", "remove the path")
    options = source.options(parts, _TLS_OPTIONS)
    username, password = source.credentials(parts)
    return StoreUrl(
        topology=Topology.CLUSTER,
        nodes=source.nodes(parts, DEFAULT_REDIS_PORT),
        username=username,
        password=password,
        tls=source.tls_if_asked(options),
    )


def _redact_one(url: str) -> str:
    head, separator, rest = url.partition("://")
    if not separator:
        head, rest = "", url
    userinfo, at, tail = rest.rpartition("@")
    if at:
        # Only what surely is a user name may show: a password may hold any character, and a lone word may be one.
        user, colon, _ = userinfo.partition(":")
        shown = user if colon and not re.search(r"[/?#@;=&]", user) else ""
        userinfo = f"{shown}:{MASK}" if shown or userinfo.startswith(":") else MASK
    tail = _SECRET_IN_QUERY.sub(rf"\g<1>{MASK}", tail)
    return f"{head}{separator}{userinfo}{at}{tail}"
