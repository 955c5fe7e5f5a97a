"""The part of a Manager that defines supervision groups, and tells how they are."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from ares_celery.errors import (
    GroupNotFoundError,
    InvalidSettingError,
    OperationNotSupportedError,
    StoreUnavailableError,
    UnreadableGroupError,
)
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentSpec
from ares_celery.model.audit import AuditNote
from ares_celery.model.durations import parse_duration
from ares_celery.model.group import Group, GroupInfo, Strategy, StrategyName, group_info
from ares_celery.runtime.callers import as_shown, check_texts, me
from ares_celery.runtime.queries import AgentQueries
from ares_celery.store.groups import GroupConflict, GroupRead

__all__ = ["Groups"]

log: Final = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z0-9._\-]{1,100}")
_NAME_RULE: Final = "use 1 to 100 ASCII letters, digits, dots, hyphens and underscores"
_COUNT_RULE: Final = "use a whole number; 0 = unlimited"
_MOST_CONFLICTS: Final = 100
_TRIES: Final = 3
_NOTHING: Final = timedelta(0)


class Groups(AgentQueries):
    """Supervision groups: agents that are restarted together, in order."""

    def define_group(  # noqa: PLR0913 - the public name
        self,
        name: str,
        strategy: Strategy | StrategyName = "one_for_one",
        max_restarts: int = 10,
        period: timedelta | float | str = 60.0,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> GroupInfo:
        """Defines a group, or defines it anew; agents belong to it by ``group`` of their spec.

        A new definition keeps members, order and counted restarts, and holds from the next death on.

        Args:
            name: Of the group.
            strategy: Whom the death of a member takes along: ``one_for_one`` nobody, ``one_for_all`` every other
                member, ``rest_for_one`` those that were started after it.
            max_restarts: Charged restarts of the group in ``period`` after which all its members are stopped and parked
                (cause ``group_cap``); 0 = unlimited.
            period: The window of the above.
            reason: Kept in the audit stream.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            InvalidSettingError: A value cannot work; the error names the field.

        Example:
            ``manager.define_group("pipeline", "rest_for_one", max_restarts=3, period="1m")``
        """
        wanted = _definition(name, strategy, max_restarts, period)
        check_texts(reason=reason, actor=actor, op=op)

        def redefined(known: Group | None) -> Group:
            if known is None:
                return wanted
            return replace(known, strategy=wanted.strategy, max_restarts=wanted.max_restarts, period=wanted.period)

        note = AuditNote(operation="group.define", actor=actor or me(), reason=reason, op=op, changed=(name,))
        self._change_group(name, redefined, op or uuid.uuid4().hex, note)
        return self._group(name)

    def get_group(self, name: str) -> GroupInfo | None:
        """What is known of a group: members in start order, and where a restart stands; None when it does not exist.

        Raises:
            UnreadableGroupError: What is stored is no group that this version can read.
        """
        check_texts(name=name)
        read = self._ports.store.read_group(name)
        return group_info(read.group, read.steady) if read.group else None

    def list_groups(self) -> list[GroupInfo]:
        """All groups, sorted by name; one that cannot be read is logged and left out."""
        found: list[GroupInfo] = []
        for name in self._ports.store.group_names():
            read = self._ports.store.read_group(name, damaged_too=True)
            if read.problem:
                log.error("%s; it is left out", UnreadableGroupError(name=name, problem=read.problem))
            elif read.group is not None:
                found.append(group_info(read.group, read.steady))
        return found

    def delete_group(self, name: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Forgets a group that no agent belongs to any longer, or whose record cannot be read.

        Raises:
            GroupNotFoundError: There is none of this name.
            OperationNotSupportedError: Agents belong to it; field ``members`` has their ids.
        """
        check_texts(name=name, reason=reason, actor=actor, op=op)

        def emptied(known: Group | None) -> None:
            if known is None:
                raise GroupNotFoundError(name=name)
            members = self._members(known)
            if members:
                raise OperationNotSupportedError(
                    operation=f"delete group {name!r}",
                    reason=f"agents belong to it: {', '.join(members[:10])}; delete them, or move each: "
                    'start_agent(<its spec without the group>, if_exists="update")',
                    members=members,
                )

        note = AuditNote(operation="group.delete", actor=actor or me(), reason=reason, op=op, changed=(name,))
        self._change_group(name, emptied, op or uuid.uuid4().hex, note)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _check_group(self, spec: AgentSpec) -> None:
        """Refuses a group that nobody has defined: a slip of the pen would supervise nobody together."""
        if spec.group is not None and self._ports.store.read_group(spec.group).group is None:
            raise GroupNotFoundError(name=spec.group)

    def _group(self, name: str) -> GroupInfo:
        found = self.get_group(name)
        if found is None:
            raise GroupNotFoundError(name=name)
        return found

    def _members(self, group: Group) -> list[str]:
        reads = self._ports.store.read_many([AgentId(agent_id) for agent_id in group.order])
        found = (read.record.spec for read in reads if read.record)
        return [spec.id for spec in found if spec.group == group.name]

    def _change_group(
        self, name: str, change: Callable[[Group | None], Group | None], op: str, note: AuditNote
    ) -> None:
        """Reads, changes, writes; a lost race is run again, and a lost reply asked for again under the same op id."""
        tries = 0
        for _ in range(_MOST_CONFLICTS):
            is_end = note.operation == "group.delete"
            read: GroupRead = self._ports.store.read_group(name, damaged_too=is_end)
            # Of what cannot be read nothing is kept.
            after = None if read.problem else change(read.group)
            if after is not None and after == read.group:
                return
            try:
                self._ports.store.commit_group(name, after, read, op=op, note=note)
            except GroupConflict:
                continue
            except StoreUnavailableError:
                tries += 1
                if tries == _TRIES:
                    raise
                continue
            return
        raise GroupConflict(name=name)


def _definition(name: object, strategy: object, max_restarts: object, period: timedelta | float | str) -> Group:
    """The definition, checked: from afar any of it may be anything."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSettingError(field="name", value=as_shown(name), problem=_NAME_RULE)
    known: Sequence[object] = [one.value for one in Strategy]
    if strategy not in known:
        problem = f"use one of {', '.join(Strategy)}"
        raise InvalidSettingError(field="strategy", value=as_shown(strategy), problem=problem)
    if isinstance(max_restarts, bool) or not isinstance(max_restarts, int) or max_restarts < 0:
        raise InvalidSettingError(field="max_restarts", value=as_shown(max_restarts), problem=_COUNT_RULE)
    try:
        window = parse_duration(period)
    except (TypeError, ValueError) as error:
        raise InvalidSettingError(field="period", value=as_shown(period), problem=str(error)) from error
    if window <= _NOTHING:
        raise InvalidSettingError(field="period", value=as_shown(period), problem="must be longer than zero")
    return Group(name, Strategy(str(strategy)), max_restarts, window)
