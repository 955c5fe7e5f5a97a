"""Carries news of members to their group, and walks a group through its restart; whoever sweeps may go on with it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.command import Command, Deadline, DeadlineDue, GroupGo
from ares_celery.model.group import (
    Group,
    Limits,
    Report,
    Reported,
    Strategy,
    View,
    report_of,
    take_report,
    view_of,
    walk,
)
from ares_celery.runtime.commits import Committer
from ares_celery.store.base import DueDeadline, Store
from ares_celery.store.groups import GroupConflict, GroupRead, NextStep

__all__ = ["GROUP_MARK", "LOOK", "GroupKeeper"]

log: Final = logging.getLogger(__name__)

#: Stands before a group's name where a deadline names an agent.
GROUP_MARK: Final = "@"
#: How often a restart looks whether the member it waits for has come as far.
LOOK: Final = timedelta(milliseconds=100)
#: Longer than a member's own deadlines take to end it.
_SLACK: Final = timedelta(seconds=5)
#: A conflict means that somebody else got on, so many in a row mean a bug.
_MOST_CONFLICTS: Final = 100


class GroupKeeper:
    """Acts on the deadlines of groups. Two at once do no harm, and one that dies at any point leaves a deadline.

    Args:
        store: The namespace.
        committer: Through which every decision about a member goes.
        config: The namespace's settings.
    """

    def __init__(self, store: Store, committer: Committer, config: RuntimeConfig | ConfigSource) -> None:
        self._store = store
        self._committer = committer
        self._config = config_source(config)

    @property
    def _limits(self) -> Limits:
        config = self._config()
        return Limits(
            stop=config.agent_stop_timeout + config.lease_ttl + _SLACK,
            start=config.start_timeout + _SLACK,
        )

    def handle(self, deadline: DueDeadline) -> None:
        """Acts on a deadline of kind group: that of a member, or ``group|@<name>``, the group's own.

        Raises:
            StoreUnavailableError: The store did not answer; the deadline stands.
        """
        if deadline.agent_id.startswith(GROUP_MARK):
            self._walk(deadline.agent_id.removeprefix(GROUP_MARK))
        else:
            self._carry(deadline)

    # -- from the members to the group ------------------------------------------------------------------------------

    def _carry(self, deadline: DueDeadline) -> None:
        """Tells the group first; only then the member's deadline is cleared or put off, so that nothing is lost."""
        record = self._store.read(deadline.agent_id).record
        waits = False
        if deadline.name and (record is None or record.spec.group != deadline.name):
            # It was deleted, or belongs elsewhere now, and the deadline says which group it has left.
            self._tell(deadline.name, Report(deadline.agent_id, since=0))
        if record is not None and record.spec.group is not None:
            waits = self._tell(record.spec.group, report_of(record)).waits
        if record is not None and record.held and not waits:
            command: GroupGo | DeadlineDue = GroupGo(record.reason, epoch=record.epoch)
        else:
            command = DeadlineDue(kind=Deadline.GROUP, score=deadline.score)
        self._committer.apply(deadline.agent_id, command, guard=deadline)

    def _tell(self, name: str, report: Report) -> Reported:
        """Commits what a report leads to; a group that nobody defined restarts nobody but the one that died."""
        for _ in range(_MOST_CONFLICTS):
            read = self._store.read_group(name)
            if read.group is None:
                return Reported(Group(name, Strategy.ONE_FOR_ONE, 0, timedelta(0)))
            reported = take_report(read.group, report, read.steady)
            if reported.after == read.group:
                return reported
            step = timedelta(0) if reported.begins else NextStep.KEEP
            try:
                self._commit(name, reported.after, read, step, reported.counters)
            except GroupConflict:
                continue
            if reported.begins:
                log.warning(
                    "group %s: %s, as %s; it concerns %s",
                    name,
                    reported.after.phase,
                    reported.after.reason,
                    ", ".join(reported.after.victims),
                )
            return reported
        raise GroupConflict(name=name)

    # -- from the group to its members ------------------------------------------------------------------------------

    def _walk(self, name: str) -> None:
        """Asks the next member, then writes how far it came: a repeat asks the same again, which changes nothing."""
        read = self._store.read_group(name)
        after: Group | None = None
        following: timedelta | NextStep = NextStep.NONE
        if read.group is not None:
            step = walk(read.group, self._views(read.group), read.steady, self._limits)
            for agent_id in step.late:
                log.warning("group %s no longer waits for agent %s in its restart", name, agent_id)
            if step.command is not None:
                self._ask(step.agent_id, step.command, read.group)
            after = step.after
            if step.goes_on or step.agent_id:
                following = timedelta(0) if step.goes_on else LOOK
        # One that was deleted in the middle leaves nobody waiting: they ask, and go on.
        try:
            self._commit(name, after, read, following, {})
        except GroupConflict:
            log.debug("group %s changed meanwhile; it is looked at again", name)

    def _views(self, group: Group) -> Mapping[str, View]:
        agent_ids = [AgentId(agent_id) for agent_id in dict.fromkeys((*group.left, *group.victims))]
        views: dict[str, View] = {}
        for agent_id, read in zip(agent_ids, self._store.read_many(agent_ids), strict=True):
            view = view_of(read.record, group.name, read.runtime, read.now) if read.record else None
            if view is not None:
                views[agent_id] = view
        return views

    def _ask(self, agent_id: str, command: Command, group: Group) -> None:
        try:
            self._committer.apply(AgentId(agent_id), command)
        except StoreUnavailableError:
            raise
        except AresError:
            # It was deleted, or cannot be read: the walk passes it over, at the latest when its time is up.
            log.exception("group %s: agent %s could not be asked to %s", group.name, agent_id, command.operation)

    def _commit(
        self, name: str, after: Group | None, read: GroupRead, step: timedelta | NextStep, counters: Mapping[str, int]
    ) -> None:
        self._store.commit_group(name, after, read, op=uuid.uuid4().hex, next_step=step, counters=counters)
