"""Errors about the runtime of a whole namespace."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = ["RuntimeAlreadyStartedError", "RuntimePermissionError", "RuntimeStoppedError"]


class RuntimeStoppedError(AresError):
    """The namespace's runtime is stopped; nothing starts until `start()`."""

    code = "runtime_stopped"
    template = "the runtime of namespace {namespace!r} is {state}; call start() or `ares runtime start` first"


class RuntimePermissionError(AresError):
    """This handle may not start or stop the whole runtime."""

    code = "runtime_permission"
    template = "a handle made by connect() may not {operation} the runtime; use Manager.from_env() for that"


class RuntimeAlreadyStartedError(AresError):
    """`start()` was called a second time on one handle."""

    code = "runtime_already_started"
    template = "this handle has started the runtime already; call stop() before start()"
