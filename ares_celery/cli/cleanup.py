"""Leaves no trace of a namespace in a Redis that goes on."""

from __future__ import annotations

from ares_celery.cli.output import say
from ares_celery.errors import AresError

__all__ = ["made_up_namespace", "wipe_namespace"]


def made_up_namespace(prefix: str) -> str:
    """A name that nobody else has.

    Example:
        >>> made_up_namespace("demo").startswith("demo-")
        True
    """
    import secrets

    return f"{prefix}-{secrets.token_hex(4)}"


def wipe_namespace(redis_url: str, namespace: str) -> None:
    """Deletes the keys and the queues of a namespace whose processes have ended; failing is said, not raised."""
    from ares_celery.celery_app.factory import create_app
    from ares_celery.config import ProcessSettings
    from ares_celery.store.redis.open import open_store

    settings = ProcessSettings(redis_url=redis_url, namespace=namespace)
    try:
        store = open_store(settings)
        try:
            store.wipe()
        finally:
            store.close()
        with create_app(settings, set_as_current=False) as app, app.connection_for_write() as connection:
            for queue in app.conf.task_queues:
                bound = queue(connection.default_channel)
                # Deletes only the bindings that this connection knows.
                bound.declare()
                bound.delete()
    except (AresError, OSError) as error:
        say(f"namespace {namespace} could not be removed: {error}")
