"""Kombu's Redis and Sentinel transports, made to survive an outage while messages are unacknowledged.

Two holes of the stock classes leave a worker alive but deaf once Redis was away for some seconds:

* closing the dead channel wants to put its unacknowledged messages back and raises on a connection that is gone;
* a task that ends after the reconnect acknowledges on the channel of the old connection, which raises too, and Celery
  takes that for an unrecoverable error of its consumer.

Here both only log a warning. Nothing is lost by it: the message is still in Redis' `unacked` hash and is delivered
again after the broker's visibility timeout. Every other error passes through.

A third hole ends the consumer: a server that refuses a command for some time (see `refusals`). Here that is a lost
connection, made anew until the server is well.

How the classes are chosen: by scheme aliases (`ares-redis`, `ares-rediss`, `ares-sentinel`), not by Celery's
`broker_transport`. A connection that fails over to the next URL of a `;` list takes its transport from that URL's
scheme: with `broker_transport` it falls back to the stock classes in silence at the first outage, which is exactly when
ours are needed, and unix sockets ignore that setting altogether. The price of aliases is that `register_transports()`
must have run in a process before its first connection; without it Kombu says "No such transport". Connections show
themselves under the plain scheme, so that logs and Flower read `redis://...`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast

import redis
from kombu import Connection
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual import QoS as VirtualQoS
from typing_extensions import override

from ares_celery.celery_app.refusals import REFUSALS, pause_after, refusing
from ares_celery.celery_app.urls import ALIAS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

_TRANSPORTS: Final = {
    "redis": f"{__name__}:RedisTransport",
    "rediss": f"{__name__}:RedisTransport",
    "sentinel": f"{__name__}:SentinelTransport",
}

#: What a Redis that is away, or not ready again, raises while messages are put back.
_SERVER_ERRORS: Final = (redis.RedisError, OSError)


def register_transports() -> None:
    """Make `ares-redis://`, `ares-rediss://` and `ares-sentinel://` known to Kombu in this process.

    May be called any number of times. Stock `redis://` connections of the same process stay as they are.

    Example:
        >>> register_transports()
        >>> from kombu import Connection
        >>> Connection("ares-redis://:secret@localhost:6379/0").as_uri()
        'redis://:**@localhost:6379/0'
    """
    # Only how a connection shows itself; Kombu's type stubs do not know the table.
    shown_as: dict[str, str] = vars(Connection)["resolve_aliases"]
    for scheme, path in _TRANSPORTS.items():
        TRANSPORT_ALIASES[ALIAS_PREFIX + scheme] = path
        shown_as[ALIAS_PREFIX + scheme] = scheme


class OutageTolerantQoS(kombu_redis.QoS):
    """Acknowledgement bookkeeping that outlives the connection it belongs to."""

    @override
    def append(self, message: Any, delivery_tag: str) -> None:
        """Note a message as delivered; one that was taken out of its queue must not be lost as it cannot be noted."""
        try:
            super().append(message, delivery_tag)
        except REFUSALS as error:
            logger.warning(
                "The broker refuses to note message %s as delivered (%s: %s): it is lost if this worker dies before it "
                "has acknowledged it",
                *(delivery_tag, type(error).__name__, error),
            )
            VirtualQoS.append(self, message, delivery_tag)

    @override
    def restore_unacked(self, client: Any | None = None) -> None:
        """Put unacknowledged messages back into their queues, or leave them in Redis if it cannot be asked any more."""
        try:
            super().restore_unacked(client)
        except Exception as error:
            closing = self.channel.closed and isinstance(error, _SERVER_ERRORS)
            if not (closing or self._is_detached()):
                raise
            self._warn("could not be put back into their queues", list(self._delivered or ()), error)
            if self._delivered is not None:
                self._delivered.clear()

    @override
    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message; one of a connection that is gone stays in Redis and is delivered again."""
        try:
            super().ack(delivery_tag)
        except Exception as error:  # noqa: BLE001 - raised again there unless the connection is gone
            self._forget_if_detached(delivery_tag, "could not be acknowledged", error)

    @override
    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a message; one of a connection that is gone stays in Redis and is delivered again."""
        try:
            super().reject(delivery_tag, requeue)
        except Exception as error:  # noqa: BLE001 - raised again there unless the connection is gone
            self._forget_if_detached(delivery_tag, "could not be rejected", error)

    def _forget_if_detached(self, delivery_tag: str, what: str, error: Exception) -> None:
        """Drop the local trace of a message of a dead connection; else let the error that is being handled go on."""
        if not self._is_detached():
            raise error
        self._warn(what, [delivery_tag], error)
        VirtualQoS.ack(self, delivery_tag)

    def _is_detached(self) -> bool:
        """True once Kombu has taken the channel off its connection, or the connection off its transport."""
        # Kombu sets both to None when it lets go of a connection, whatever their annotations say.
        transport: Any = self.channel.connection
        return transport is None or getattr(transport, "client", None) is None

    def _warn(self, what: str, delivery_tags: Iterable[str], error: Exception) -> None:
        logger.warning(
            "Messages of a lost broker connection %s (%s: %s); they stay in Redis and are delivered again after the "
            "visibility timeout. Delivery tags: %s",
            what,
            type(error).__name__,
            error,
            ", ".join(delivery_tags) or "none",
        )


class _RefusalsMixin:
    """What both transports share: see `refusals`."""

    def register_with_event_loop(self, connection: object, loop: object) -> None:
        """Begin to read; Kombu's first command to a new connection is a write, so that a refusal is met here."""
        stock: Any = super()
        try:
            stock.register_with_event_loop(connection, loop)
        except REFUSALS as error:
            # Celery does not know this connection yet and would leave it open.
            stock.close_connection(connection)
            pause_after(error)
            raise


class RedisChannel(kombu_redis.Channel):
    """Kombu's Redis channel with the tolerant bookkeeping and typed refusals."""

    QoS = OutageTolerantQoS

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - Kombu's signature
        return _with_typed_refusals(super(), asynchronous)


class RedisTransport(_RefusalsMixin, kombu_redis.Transport):
    """Kombu's Redis transport with the tolerant bookkeeping; a refusal is a lost connection."""

    Channel = RedisChannel
    connection_errors = (*kombu_redis.Transport.connection_errors, *REFUSALS)


class SentinelChannel(kombu_redis.SentinelChannel):
    """Kombu's Sentinel channel with the tolerant bookkeeping and the sentinels as a transport option.

    Kombu finds further sentinels only in a list of URLs that begin with `sentinel://`, which would also make it fail
    over to the stock transport. So one URL names the first sentinel, and the option `other_sentinels` the others, as
    (host, port) pairs.
    """

    QoS = OutageTolerantQoS
    from_transport_options = (*kombu_redis.SentinelChannel.from_transport_options, "other_sentinels")
    other_sentinels: Iterable[tuple[str, int]] = ()

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - Kombu's signature
        return _with_typed_refusals(super(), asynchronous)

    def _sentinel_managed_pool(self, asynchronous: bool = False) -> object:  # noqa: FBT001, FBT002 - Kombu's signature
        stock: Any = super()  # its type stubs do not know this method
        pool = stock._sentinel_managed_pool(asynchronous)  # noqa: SLF001 - the one place where Kombu makes sentinels
        sentinels = pool.sentinel_manager
        sentinels.sentinels.extend(
            redis.Redis(host=host, port=port, **sentinels.sentinel_kwargs) for host, port in self.other_sentinels
        )
        return cast("object", pool)


class SentinelTransport(_RefusalsMixin, kombu_redis.SentinelTransport):
    """Kombu's Sentinel transport with the tolerant bookkeeping; a refusal is a lost connection."""

    Channel = SentinelChannel
    connection_errors = (*kombu_redis.SentinelTransport.connection_errors, *REFUSALS)


def _with_typed_refusals(stock: Any, asynchronous: bool) -> dict[str, Any]:  # noqa: ANN401, FBT001 - Kombu's channel
    """Return the parameters of a channel's connections, with a class of connections that types refusals."""
    parameters: dict[str, Any] = stock._connparams(asynchronous)  # noqa: SLF001 - the one place where Kombu chooses it
    return {**parameters, "connection_class": refusing(parameters["connection_class"])}
