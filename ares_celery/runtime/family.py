"""Making agents on behalf of an agent: the parent's list first, then the child, each in its own shard."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from ares_celery.agents.registry import Registry
from ares_celery.agents.specs import check_type, spec_of
from ares_celery.errors import AresError, GroupNotFoundError, InvalidConfigError, StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord, AgentSpec
from ares_celery.model.birth import Birth
from ares_celery.model.command import Spawn
from ares_celery.model.event import EventType
from ares_celery.model.rules_family import is_spawned
from ares_celery.model.transitions import lifecycle_event
from ares_celery.runtime.commits import Committer
from ares_celery.store.base import Store

__all__ = ["Family"]

#: A lost reply is asked for again under the same op id, for so long; then the agent's own call repeats it.
_PATIENCE: Final = timedelta(seconds=2)


class Family:
    """Spawns children for the incarnations of one process; safe to use from many threads.

    Args:
        store: The namespace.
        committer: Through which children are made.
        registry: The agent types of this process.
    """

    def __init__(self, store: Store, committer: Committer, registry: Registry) -> None:
        self._store = store
        self._committer = committer
        self._registry = registry

    def read_spec(self, spec: object) -> AgentSpec:
        """What an agent's code gave, as a spec; asks nobody. Raises NilAgentError, InvalidAgentIdError and others."""
        return spec_of(spec, None, self._registry)

    def checked(self, parent: AgentRecord, read: AgentSpec) -> AgentSpec:
        """The child's spec, checked as any other and with its parent.

        Raises:
            InvalidConfigError: It names another parent, or does not fit its type.
            UnknownAgentTypeError, GroupNotFoundError.
        """
        if read.parent not in (None, parent.id):
            problem = f"parent: it is spawned by {parent.id!r}, so leave parent={read.parent!r} out"
            raise InvalidConfigError(agent_id=read.id, type=read.type, problem=problem, field="parent")
        check_type(read, self._registry, self._store.known_types)
        if read.group is not None and self._store.read_group(read.group).group is None:
            raise GroupNotFoundError(name=read.group)
        return read if read.parent is not None else read.model_copy(update={"parent": parent.id})

    def spawn(self, parent: AgentRecord, spec: AgentSpec, *, key: str, reports: bool) -> None:
        """Makes a child, once for each key: whatever dies in between, the same call again goes on where it was.

        Args:
            parent: Who spawns, as it was claimed; its fence is demanded.
            spec: As :meth:`checked` gave it.
            key: Names the call.
            reports: The child's end is told to the parent.

        Raises:
            FencedError: The parent's incarnation is over.
            AgentAlreadyRegisteredError, AgentParkedError, ChildLimitError, RuntimeStoppedError: Nothing is made.
            StoreUnavailableError: It may have happened; to be repeated with the same key.
        """
        child = AgentId(spec.id)
        birth = Birth(key, 0, 0, parent.starts, reports)
        known = self._store.read_record(child)
        if known is not None:
            # Refused before the parent lists it.
            is_spawned(known, spec, birth)
        told = lifecycle_event(
            parent,
            EventType.CHILD_SPAWNED,
            incarnation=parent.incarnation,
            child=child,
            type=spec.type,
        )
        adopted = self._store.adopt(parent.id, parent.fence, child, key=f"{key}|{birth.starts}", event=told)
        birth = Birth(key, adopted.number, adopted.stops, birth.starts, reports)
        command = Spawn(
            actor=f"agent {parent.id}",
            spec=spec,
            birth=birth,
            root=parent.root or parent.id,
            stillborn=adopted.stopping,
        )
        try:
            self._committer.apply(child, command, op=f"{key}|{birth.starts}", patience=_PATIENCE)
        except StoreUnavailableError:
            raise
        except AresError:
            self._give_up(parent, child, adopted.number)
            raise

    def _give_up(self, parent: AgentRecord, child: AgentId, number: int) -> None:
        """Takes a child that was refused off the list, unless the parent has one of this id."""
        known = self._store.read_record(child)
        if known is None or known.spec.parent != parent.id:
            self._store.forget_child(parent.id, child, number=number)
