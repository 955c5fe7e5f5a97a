"""The part of a Manager by which a person says what became of a step whose outcome nobody knows."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from ares_celery.errors import (
    AgentNotFoundError,
    AresError,
    InvalidSettingError,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId, check_agent_id, check_execution_id, check_step_id
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.command import Reconcile
from ares_celery.model.info import agent_info
from ares_celery.model.settlement import Done, Settlement, intent_not_found, named, not_parked, settled_already
from ares_celery.model.step import StepIntent
from ares_celery.runtime.callers import check_flags, check_texts, me
from ares_celery.runtime.queries import AgentQueries

__all__ = ["Settling"]

log: Final = logging.getLogger(__name__)

#: How long a lost reply is asked for again under the same op id, and seconds between two tries.
_PATIENCE: Final = timedelta(seconds=5)
_PAUSE: Final = 0.2


class Settling(AgentQueries):
    """Settles steps that were begun, must not be repeated, and have no outcome."""

    def reconcile_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        *,
        execution: str | None = None,
        step: str | None = None,
        done: Any = ...,  # noqa: ANN401 - a JSON value
        retry: bool = False,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentInfo:
        """Says what became of a step of a parked agent (cause ``reconcile``); the last one lets the agent go on.

        Exactly once for each step: whoever comes second is told who was first, and what was said. The agent goes on
        within a second, also when this process dies before the call returns. Nothing is charged.

        Args:
            agent_id: Which agent.
            execution: Of which execution; needed where the agent has several such steps.
            step: Which step; likewise.
            done: It happened, and this is its result, a JSON value (None is one): the agent gets it as if the step had
                returned it.
            retry: It did not happen: the step runs again.
            reason: Kept in the event ``step.reconciled`` and in the audit stream.
            actor: Who says so; default user@host.
            op: Operation id; default a fresh one. A repeat changes nothing more.

        Returns:
            What is known of the agent afterwards.

        Raises:
            AgentNotFoundError. AgentNotParkedError: Nobody waits for a word.
            StepIntentNotFoundError: There is no such step; its field ``open`` lists those that are to be settled.
            StepSettledError: Somebody has settled it already.
            InvalidSettingError: Neither or both of ``done`` and ``retry``; or several steps are open and none is named:
                the error lists them.
            UnserialisableError, StepResultTooLargeError: The result cannot be recorded.

        Example:
            ``manager.reconcile_agent("order-7", done={"paid": True}, reason="found in the bank's statement")``
        """
        checked = check_agent_id(agent_id)
        check_texts(reason=reason, actor=actor, op=op)
        said = _said(done, retry)
        op = op or uuid.uuid4().hex
        until = self._clock.monotonic() + self._ports.committer.bounded(_PATIENCE).total_seconds()
        while True:
            try:
                settled = self._settle(checked, execution, step, said, reason=reason, actor=actor or me(), op=op)
            except StoreUnavailableError:
                if self._clock.monotonic() >= until:
                    raise
                self._clock.wait(self._never, _PAUSE)
                continue
            self._let_go_on(checked, settled)
            return agent_info(self._record(checked))

    def _settle(  # noqa: PLR0913 - the parts of one word
        self,
        agent_id: AgentId,
        execution: str | None,
        step: str | None,
        said: Done | None,
        *,
        reason: str,
        actor: str,
        op: str,
    ) -> Settlement:
        chosen = self._choose(agent_id, execution, step, op)
        return self._ports.store.settle_intent(
            agent_id, chosen[0], chosen[1], done=said, actor=actor, reason=reason, op=op
        )

    def _choose(self, agent_id: AgentId, execution: str | None, step: str | None, op: str) -> tuple[str, str]:
        """Which step is meant: the one that is named, or the only one that is open."""
        execution_id = None if execution is None else check_execution_id(execution)
        step_id = None if step is None else check_step_id(step)
        if execution_id is not None and step_id is not None:
            return execution_id, step_id

        def is_meant(one: StepIntent | Settlement) -> bool:
            return execution_id in (None, one.execution) and step_id in (None, one.step)

        earlier = [one for one in self._ports.store.settlements(agent_id) if is_meant(one)]
        repeated = next((one for one in earlier if one.op == op), None)
        if repeated is not None:
            return repeated.execution, repeated.step
        open_ = self._ports.store.checkpoints.intents(agent_id)
        meant = [intent for intent in open_ if is_meant(intent)]
        if len(meant) > 1:
            raise _ambiguous(meant)
        if meant:
            return meant[0].execution, meant[0].step
        raise self._nothing_open(agent_id, step_id or execution_id, earlier, open_)

    def _nothing_open(
        self, agent_id: AgentId, name: str | None, earlier: Sequence[Settlement], open_: Sequence[StepIntent]
    ) -> AresError:
        record = self._ports.store.read(agent_id).record
        if record is None:
            return AgentNotFoundError(agent_id=agent_id)
        if earlier:
            return settled_already(agent_id, earlier[0])
        if record.state is not AgentState.PARKED:
            return not_parked(agent_id, record.state.value)
        return intent_not_found(agent_id, "step" if name is None else f"step of {name!r}", open_)

    def _let_go_on(self, agent_id: AgentId, settled: Settlement) -> None:
        """Does at once what the sweep would do in a moment."""
        try:
            self._ports.committer.apply(agent_id, Reconcile(f"step {settled.step}: {settled.outcome}"))
        except AresError as error:
            log.warning("agent %s goes on by the next sweep: %s", agent_id, error, extra={"agent_id": agent_id})


def _said(done: object, retry: object) -> Done | None:
    check_flags(retry=retry)
    if (done is not ...) is bool(retry):
        problem = "say either done=, with the result of the step, or retry=True; not both"
        raise InvalidSettingError(field="retry", value=retry, problem=problem)
    return None if retry else Done(done)


def _ambiguous(meant: Sequence[StepIntent]) -> InvalidSettingError:
    return InvalidSettingError(
        field="step",
        value=None,
        problem=f"name one with execution and step, as {len(meant)} wait for a word: {named(meant)}",
        open=[{"execution": intent.execution, "step": intent.step} for intent in meant],
    )
