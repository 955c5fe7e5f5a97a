"""Errors about bringing state back."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = ["NewerStateError", "SnapshotStoreError", "StateUpcastError", "WorkerHookError"]


class NewerStateError(AresError):
    """The stored state was written by newer code than this worker's; it is left for a worker that can read it."""

    code = "newer_state"
    template = (
        "agent {agent_id!r} has state of schema {found}, this worker's code of type {type!r} knows {known}; it waits "
        "for a worker with newer code"
    )


class StateUpcastError(AresError):
    """An old state could not be brought to the schema of the code at hand; it stays as it is stored."""

    code = "state_upcast"
    template = (
        "the state of agent {agent_id!r} (type {type!r}) cannot be brought from schema {from_version} to "
        "{to_version}: {problem}"
    )


class SnapshotStoreError(AresError):
    """A snapshot store that a user brought along failed; the namespace's own snapshots and events are used."""

    code = "snapshot_store"
    template = "{operation} of snapshot store {store} failed for agent {agent_id!r}: {problem}"


class WorkerHookError(AresError):
    """A worker hook is registered twice, or what it gives cannot be used."""

    code = "worker_hook"
    template = "worker hook {hook!r}: {problem}"
