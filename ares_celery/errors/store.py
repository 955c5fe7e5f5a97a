"""Errors about the store itself: its server, a namespace, a record."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = [
    "NamespaceMismatchError",
    "NotConfirmedError",
    "OperationIdReusedError",
    "StoreUnavailableError",
    "UnreadableGroupError",
    "UnreadableRecordError",
    "UnsupportedServerError",
]


class StoreUnavailableError(AresError, ConnectionError):
    """The store did not answer in time; whether the call took effect is unknown, and repeating it is safe."""

    code = "store_unavailable"
    template = "the store at {url} did not answer: {problem}; is it up? set ARES_REDIS_URL to the right one"


class NotConfirmedError(StoreUnavailableError):
    """The store has it, but not yet where the namespace wants it before it counts; asking again is safe.

    Such a write may be lost with the server that has it: a step that is never repeated is not begun behind it.
    """

    code = "not_confirmed"
    template = (
        "written, but not confirmed within {seconds} s: {problem}; the same call again confirms it. Are the replicas "
        "connected? the settings are confirm_replicas, confirm_fsync and confirm_timeout"
    )


class OperationIdReusedError(AresError, ValueError):
    """The operation id was used for another operation within the last hour; nothing was done."""

    code = "operation_id_reused"
    template = (
        "op {op!r} was used for {used_for} of {subject} already, so {operation} was not done; give each operation an "
        "id of its own, or leave op out"
    )


class UnreadableRecordError(AresError):
    """What is stored for the agent is not a record that this version can read; other agents are not touched by it."""

    code = "unreadable_record"
    template = (
        "the record of agent {agent_id!r} cannot be read: {problem}; was it written by a newer version? then upgrade "
        "this process, else somebody else has written to its key"
    )


class UnreadableGroupError(AresError):
    """What is stored for the supervision group is not one that this version can read; other groups go on."""

    code = "unreadable_group"
    template = (
        "supervision group {name!r} cannot be read: {problem}; was it written by a newer version? then upgrade this "
        "process, else call delete_group({name!r}) and define it again: its members wait no longer then"
    )


class UnsupportedServerError(AresError):
    """The server lacks what the product needs."""

    code = "unsupported_server"
    template = "the server at {url} is version {version}; Redis 6.2 or newer (or Valkey 7.2) is needed"


class NamespaceMismatchError(AresError):
    """The namespace was made with another layout."""

    code = "namespace_mismatch"
    template = "namespace {namespace!r} was made with {field}={found}, this process wants {wanted}; {cure}"
