"""Forking agents: the part of a Manager that makes a new one out of the history of another."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from typing import Final, cast

from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentForkingError,
    AgentNotFoundError,
    EventIntegrityError,
    InvalidSettingError,
)
from ares_celery.ids import AgentId, Version, check_agent_id
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentRecord, AgentSpec
from ares_celery.model.fork import ForkMark, ForkOrigin, demand_restorable, first_restorable, snapshot_for
from ares_celery.model.plan import Plan
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.administration import Administration
from ares_celery.runtime.callers import apply_asked, as_shown, check_flags, check_texts, me
from ares_celery.runtime.elsewhere import saved_elsewhere
from ares_celery.runtime.handle import AgentHandle, AgentOperations
from ares_celery.store.base import CommitConflict
from ares_celery.store.forks import ForkCopy

__all__ = ["Forks"]

log: Final = logging.getLogger(__name__)
#: What the operation ids of a fork's later steps end in.
_DONE, _UNDONE = ":done", ":undone"
#: Tries to copy a snapshot while the source, which runs, drops it for newer ones.
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class _Asked:
    """One call."""

    source: AgentId
    target: AgentId
    at: int | None
    start: bool
    reason: str
    actor: str
    op: str


class Forks(Administration):
    """Makes agents that begin where another one was."""

    def fork_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        new_id: str,
        *,
        at: int | None = None,
        start: bool = True,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentHandle:
        """Makes a new agent that recovers to exactly the state that another one had at some version.

        The new agent gets the other's spec, without its group and its parent, and a copy of its history: its events up
        to that version, with their versions and times, and the newest snapshot that covers no later one. An event
        ``agent.forked`` follows, then its own. The other agent is only read; it may run on meanwhile. Executions with
        their steps, messages and conversations are not copied. Takes as long as the copying: some 4 s for 100,000
        events. Whoever dies over it leaves an agent that cannot be started; the same call goes on with it.

        Args:
            agent_id: Whose history.
            new_id: Of the new agent.
            at: The last version of that history; None = the newest.
            start: The new agent runs as soon as it is whole; else it is registered.
            reason: Kept with the new agent.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            AgentNotFoundError: There is no agent of the id ``agent_id``.
            AgentAlreadyRegisteredError: There is one of the id ``new_id``, or a stream of events.
            AgentForkingError: One of both is itself a fork that is not whole.
            ForkVersionError: The agent has not got to ``at``, or its state there cannot be brought back any more;
                fields ``lowest`` and ``newest`` say which versions are possible.
            EventIntegrityError: The history that is needed is damaged; no agent is left behind.
            RuntimeStoppedError: It is to be started, and nothing starts now. UnknownAgentTypeError.
            InvalidSettingError: ``at`` or ``start`` cannot be. StoreUnavailableError: The same call again goes on.

        Example:
            ``manager.fork_agent("counter-1", "what-if", at=42, reason="another continuation")``
        """
        check_flags(start=start)
        asked = _Asked(
            check_agent_id(agent_id),
            check_agent_id(new_id),
            _check_version(at),
            start,
            reason,
            actor or me(),
            op or uuid.uuid4().hex,
        )
        check_texts(reason=reason, actor=actor, op=f"{asked.op}{_DONE}")
        record = self._begin_fork(asked)
        if record.forking:
            self._copy_history(asked, record)
            done = commands.ForkDone(reason=reason, actor=asked.actor, start=start)
            apply_asked(self._ports.committer, asked.target, done, asked.op + _DONE)
        # The whole manager, of which this is a part.
        return AgentHandle(cast("AgentOperations", self), asked.target)

    # -- the record -------------------------------------------------------------------------------------------------

    def _begin_fork(self, asked: _Asked) -> AgentRecord:
        """The fork's record: one that this call makes, or that an earlier one has left."""
        found = self._ports.store.read(asked.target, op=asked.op)
        if found.record is not None and _is_same(found.record, asked) and (found.outcome or found.record.forking):
            return found.record
        if found.outcome is not None and found.record is None:
            raise AgentNotFoundError(agent_id=asked.target)
        source = self._record(asked.source)
        if found.record is None:
            command = self._fork_of(source, asked)
        else:
            # Refused, in the words of the lifecycle.
            origin = ForkOrigin(asked.source, Version(asked.at or source.version), source.created_at)
            command = commands.Fork(spec=_spec_of(source, asked), origin=origin)
        apply_asked(self._ports.committer, asked.target, command, asked.op)
        return self._record(asked.target)

    def _fork_of(self, source: AgentRecord, asked: _Asked) -> commands.Fork:
        """What is to be made, after everything that can be known now was checked."""
        store, at = self._ports.store, source.version if asked.at is None else asked.at
        if source.forking:
            origin = ForkOrigin.parse(source.forked_from)
            raise AgentForkingError(agent_id=source.id, source=origin.source, at=origin.at, operation="fork")
        first = first_restorable(store.first_version(source.id), source.version, self._intact(source.id))
        demand_restorable(source.id, at, source.version, first)
        version = store.events.stream_version(asked.target)
        if version:
            raise AgentAlreadyRegisteredError(
                agent_id=asked.target,
                state="none",
                desired="none",
                message=f"stream {asked.target!r} holds {version} events already; choose another id for the fork",
            )
        spec = _spec_of(source, asked)
        if asked.start:
            self._check_type(spec, values=False)
        return commands.Fork(
            reason=asked.reason,
            actor=asked.actor,
            spec=spec,
            origin=ForkOrigin(source.id, Version(at), source.created_at),
            start=asked.start,
            accepted_version=source.accepted_version,
        )

    def _intact(self, agent_id: AgentId) -> list[Snapshot]:
        return [one for one in self._ports.store.stored_snapshots(agent_id) if isinstance(one, Snapshot)]

    # -- the history ------------------------------------------------------------------------------------------------

    def _copy_history(self, asked: _Asked, record: AgentRecord) -> None:
        """Copies what is not there yet; a history that turns out to be damaged leaves no fork behind."""
        try:
            self._copy(record)
            self._demand_same_source(ForkOrigin.parse(record.forked_from))
        except EventIntegrityError as error:
            self._give_up(asked, record, error)
            raise

    def _copy(self, record: AgentRecord) -> None:
        store, origin, mark = self._ports.store, ForkOrigin.parse(record.forked_from), ForkMark.parse(record.forking)
        elsewhere = Version(min(saved_elsewhere(self._record(origin.source))[0], origin.at))
        copy = ForkCopy(origin.source, record.id, record.epoch, elsewhere=elsewhere, accepted=record.accepted_version)
        for _ in range(_TRIES):
            begins_with = snapshot_for(origin.at, self._intact(origin.source))
            if begins_with is None or snapshot_for(origin.at, self._intact(record.id)) is not None:
                break
            store.copy_snapshot(copy, mark, begins_with)
        copied = snapshot_for(origin.at, self._intact(record.id))
        copy = replace(copy, needed_after=copied.version if copied else Version(0))
        while mark.copied < mark.at:
            mark = store.copy_events(copy, mark)

    def _demand_same_source(self, origin: ForkOrigin) -> None:
        """What was read belongs together only if the source is still the one that it was."""
        source = self._ports.store.read(origin.source).record
        if source is not None and source.created_at == origin.born and source.version >= origin.at:
            return
        raise EventIntegrityError(
            agent_id=origin.source,
            version=origin.at,
            problem="it was deleted, or the store came back older, while its history was copied",
        )

    def _give_up(self, asked: _Asked, record: AgentRecord, why: EventIntegrityError) -> None:
        """Deletes the fork, unless it is another one by now."""
        read = self._ports.store.read(record.id)
        if read.record is None or not read.record.forking or read.record.epoch != record.epoch:
            return
        delete = commands.Delete(reason=f"forking failed: {why}", actor=asked.actor)
        try:
            self._ports.store.commit(Plan(delete, read.record, None, free_host=True), read, op=asked.op + _UNDONE)
        except CommitConflict as error:
            log.warning("the fork %s of agent %s is left unfinished: %s", record.id, asked.source, error)


def _check_version(at: object) -> int | None:
    if at is None or (isinstance(at, int) and not isinstance(at, bool) and at >= 0):
        return at
    problem = "give a version of the agent's stream, 0 or more; leave it out for the newest"
    raise InvalidSettingError(field="at", value=as_shown(at), problem=problem)


def _spec_of(source: AgentRecord, asked: _Asked) -> AgentSpec:
    """The fork's spec: nobody restarts it, or stops it, along with others that it has nothing to do with."""
    return source.spec.model_copy(update={"id": asked.target, "group": None, "parent": None})


def _is_same(record: AgentRecord, asked: _Asked) -> bool:
    """The record is that of the fork that is asked for."""
    if not record.forked_from:
        return False
    origin = ForkOrigin.parse(record.forked_from)
    return origin.source == asked.source and asked.at in (None, origin.at)
