"""Decide and commit: the one loop through which every change of an agent's life goes."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from threading import Event as Flag

import msgspec

from ares_celery.clock import Clock, SystemClock, to_datetime
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.errors import OperationIdReusedError, StoreUnavailableError
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import AgentRecord
from ares_celery.model.audit import is_asked
from ares_celery.model.command import Command
from ares_celery.model.event import Event
from ares_celery.model.lifecycle import decide, operation_of
from ares_celery.model.plan import Plan, Situation, nudge_for
from ares_celery.runtime.ports import EventListener, Launcher, RecoveryJudge
from ares_celery.store.base import AgentRead, AgentStore, CommitConflict, Committed, DueDeadline

__all__ = ["Applied", "Committer"]

log = logging.getLogger(__name__)
#: A conflict means that somebody else got on, so many in a row mean a bug, not bad luck.
_MOST_CONFLICTS = 100
#: Pause between tries while the store does not answer.
_OUTAGE_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a command.

    Attributes:
        plan: The decision that was committed; ``plan.ignored`` says why nothing had to be.
        committed: None when nothing was written.
    """

    plan: Plan
    committed: Committed | None

    @property
    def record(self) -> AgentRecord | None:
        """The record afterwards, but for the store's own fields; None when it does not exist (any more)."""
        return self.plan.after

    @property
    def ignored(self) -> str:
        """Why nothing had to be done; empty when something was."""
        return self.plan.ignored


class Committer:
    """Applies commands to agents: read, decide, commit, then send what the plan asks for.

    A lost race is decided anew; a call whose reply was lost is repeated under the same op id, so it happens once.
    """

    def __init__(  # noqa: PLR0913 - what the loop works with
        self,
        store: AgentStore,
        config: RuntimeConfig | ConfigSource,
        launcher: Launcher,
        *,
        clock: Clock | None = None,
        judge: RecoveryJudge | None = None,
        listener: EventListener | None = None,
        most_patience: timedelta | None = None,
    ) -> None:
        """Binds the loop to a namespace and its settings, which may change meanwhile.

        Args:
            store: Where records live.
            config: The namespace's settings.
            launcher: Sends nudges.
            clock: Injected in tests.
            judge: Asked before an agent comes back after a failure; None = it always does.
            listener: Told of the lifecycle events that were stored.
            most_patience: No command is tried for longer, whatever its caller wants; None = as long as that says.
        """
        self._judge = judge
        self._most_patience = most_patience
        self._listener = listener
        self._store = store
        self._config = config_source(config)
        self._launcher = launcher
        self._clock = clock or SystemClock()
        self._never = Flag()

    @property
    def judge(self) -> RecoveryJudge | None:
        """Who is asked before what failed comes back."""
        return self._judge

    def bounded(self, patience: timedelta) -> timedelta:
        """How long something is tried here that would be tried for so long elsewhere."""
        return patience if self._most_patience is None else min(patience, self._most_patience)

    def apply(
        self,
        agent_id: AgentId,
        command: Command,
        *,
        op: str = "",
        guard: DueDeadline | None = None,
        patience: timedelta = timedelta(0),
    ) -> Applied:
        """Applies one command.

        Args:
            agent_id: To which agent.
            command: What is asked or was found out.
            op: Operation id; the same id again for the same operation changes nothing. Default: a fresh one.
            guard: The deadline behind the command; when it no longer stands, nothing is done.
            patience: How long to keep trying, with the same op id, while the store does not answer.

        Raises:
            AresError: The operation is refused.
            OperationIdReusedError: ``op`` was used for another operation on this agent.
            StoreUnavailableError: No answer within ``patience``; it may have happened.
            NotConfirmedError: It has happened, but not yet where the namespace wants it.
        """
        op = op or uuid.uuid4().hex
        until = self._clock.monotonic() + self.bounded(patience).total_seconds()
        while True:
            try:
                return self._confirmed(agent_id, command, self._apply(agent_id, command, op, guard))
            except StoreUnavailableError:
                if self._clock.monotonic() >= until:
                    raise
                log.warning("store unavailable; %s of agent %s is tried again", operation_of(command), agent_id)
                self._clock.wait(self._never, _OUTAGE_PAUSE)

    def waiting(self, queue: str | None) -> int | None:
        """How many messages wait in a queue; None when nobody can tell."""
        try:
            return self._launcher.waiting(queue)
        except Exception as error:  # noqa: BLE001 - any broker's; not to know is no reason to keep agents waiting
            log.warning("the length of queue %s is unknown: %s: %s", queue or "agents", type(error).__name__, error)
            return None

    def _confirmed(self, agent_id: AgentId, command: Command, applied: Applied) -> Applied:
        """What somebody asks for counts when it cannot be lost; also where nothing was to be done any more."""
        if is_asked(command):
            self._store.confirm(agent_id)
        return applied

    def _apply(self, agent_id: AgentId, command: Command, op: str, guard: DueDeadline | None) -> Applied:
        asked = False
        for _ in range(_MOST_CONFLICTS):
            read = self._store.read(agent_id, op=op)
            if read.outcome is not None:
                _check_repeat(agent_id, command, op, read.outcome)
                done = Plan(command, read.record, read.record, ignored="done before")
                return Applied(done, read.outcome)
            plan = self._decide(agent_id, read, command)
            if plan.failure is not None and self._judge is not None and not asked:
                # Asked once, before the commit; the answer is part of the command, so that deciding stays pure.
                asked, command = True, replace(command, refused_by=self._judge.refusal(plan.failure))
                plan = self._decide(agent_id, read, command)
            if plan.ignored:
                return Applied(plan, None)
            plan = self._with_ids(plan)
            try:
                committed = self._store.commit(plan, read, op=op, guard=guard)
            except CommitConflict:
                if guard is not None:
                    gone = Plan(command, read.record, read.record, ignored="deadline moved")
                    return Applied(gone, None)
                continue
            _check_repeat(agent_id, command, op, committed)
            self._announce(plan, committed)
            return Applied(plan, committed)
        raise CommitConflict(agent_id=agent_id)

    def _decide(self, agent_id: AgentId, read: AgentRead, command: Command) -> Plan:
        spec = read.record.spec if read.record else getattr(command, "spec", None)
        situation = Situation(
            record=read.record,
            now=read.now,
            policy=self._config().policy_for(spec),
            runtime=read.runtime,
            lease_until=read.lease_until,
            namespace=self._store.namespace,
        )
        return decide(situation, command, agent_id=agent_id)

    def _with_ids(self, plan: Plan) -> Plan:
        """Names the events before they are stored, where somebody wants to be told of them as they are."""
        if not plan.events or self._listener is None or not self._listener.wants_events:
            return plan
        named = tuple(msgspec.structs.replace(event, id=event.id or uuid.uuid4().hex) for event in plan.events)
        return replace(plan, events=named)

    def _tell(self, plan: Plan, committed: Committed) -> None:
        """Tells the listener of the events as they were stored: the newest is the stream's last."""
        if self._listener is None or plan.after is None or not plan.events or not plan.events[-1].id:
            return
        first, time = committed.version - len(plan.events) + 1, to_datetime(committed.now)
        self._listener.publish(
            [
                Event(
                    event.id, plan.after.id, Version(version), str(event.type), event.payload, time, 0, event.metadata
                )
                for version, event in enumerate(plan.events, first)
            ]
        )

    def _announce(self, plan: Plan, committed: Committed | None) -> None:
        """Sends the nudge; a failure is only logged, as its deadline stands in the store already."""
        if plan.after is None:
            return
        if committed is not None and not committed.repeated:
            log.info(
                "agent %s: %s -> %s (%s)",
                plan.after.spec.id,
                plan.before.state if plan.before else "-",
                plan.after.state,
                operation_of(plan.command),
                extra={"agent_id": plan.after.spec.id, "epoch": plan.after.epoch},
            )
            self._tell(plan, committed)
        if not plan.nudge:
            return
        fresh = plan.after.nudges > 0
        try:
            self._launcher.launch(nudge_for(plan.after, fresh=fresh))
        except Exception:
            log.exception(
                "agent %s: its message could not be sent; the sweep sends it again",
                plan.after.spec.id,
                extra={"agent_id": plan.after.spec.id, "epoch": plan.after.epoch},
            )


def _check_repeat(agent_id: AgentId, command: Command, op: str, outcome: Committed) -> None:
    """Refuses an operation id whose outcome is that of another operation: nothing would happen, without a word."""
    operation = operation_of(command)
    if outcome.repeated and outcome.operation not in ("", operation):
        raise OperationIdReusedError(
            op=op, subject=f"agent {agent_id!r}", used_for=outcome.operation, operation=str(operation)
        )
