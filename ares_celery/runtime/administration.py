"""The half of a Manager that looks after agents and the namespace over time: new configs, and who asked for what."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal, cast, get_args

from ares_celery.agents.specs import parse_spec
from ares_celery.clock import instant_from, micros
from ares_celery.config import RuntimeConfig
from ares_celery.errors import InvalidSettingError
from ares_celery.ids import Instant, check_agent_id
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentInfo, AgentSpec
from ares_celery.model.audit import AuditEntry
from ares_celery.model.budget import check_changes
from ares_celery.model.info import agent_info
from ares_celery.runtime.approvals import Approvals
from ares_celery.runtime.callers import apply_asked, as_shown, check_choice, check_flags, check_texts, check_timeout, me

__all__ = ["Administration", "Apply"]

Apply = Literal["next", "restart"]
#: More than a namespace keeps, unless it has very many shards.
_MOST_ENTRIES: Final = 1_000_000


class Administration(Approvals):
    """Changes what agents are configured with, and tells who changed what."""

    def update_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        *,
        config: Mapping[str, Any] | None = None,
        budget: Mapping[str, float | None] | None = None,
        apply: Apply = "next",
        merge: bool = False,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentInfo:
        """Gives an agent another config or budget, in one step: all of it, or none when it does not fit.

        Args:
            agent_id: Which agent.
            config: The whole new config; replaces the old one. None: it stays as it is.
            budget: Limits to change: ``tokens``, ``usd``, ``steps``; None takes one away, and those that are not named
                stay. A running incarnation goes by them within a second of its next step, whatever ``apply`` says.
            merge: Only the keys that ``config`` names are changed.
            apply: ``next``: from its next incarnation on, whenever that is. ``restart``: now; an incarnation that runs
                ends in order and the next one begins. One that does not run is not started by it.
            reason: Kept with the agent.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Returns:
            What is known of the agent afterwards.

        Raises:
            AgentNotFoundError.
            InvalidConfigError: The config does not fit the type, or is no JSON.
            InvalidSettingError: A limit that cannot be, neither config nor budget, another ``apply``, or a ``merge``
                that is neither True nor False.

        Example:
            ``manager.update_agent("counter-1", config={"step": 5}, apply="restart", reason="faster")``
            ``manager.update_agent("counter-1", budget={"usd": 20}, reason="worth it")``
        """
        checked = check_agent_id(agent_id)
        check_choice("apply", apply, get_args(Apply))
        check_flags(merge=merge)
        known = self._record(checked).spec
        if config is None and budget is None:
            raise InvalidSettingError(field="config", value=None, problem="give a config, a budget, or both")
        limits = None if budget is None else check_changes(budget)
        if config is not None:
            new = parse_spec({"id": checked, "type": known.type, "config": config})
            config = new.config
            whole = {**known.config, **config} if merge else config
            self._check_type(new.model_copy(update={"config": whole}))
        command = commands.Update(
            reason=reason, actor=actor or me(), config=config, merge=merge, restart=apply == "restart", budget=limits
        )
        apply_asked(self._ports.committer, checked, command, op)
        return agent_info(self._record(checked))

    def set_config(
        self, settings: Mapping[str, Any], *, reason: str = "", actor: str = "", op: str = ""
    ) -> RuntimeConfig:
        """Changes settings of the namespace, all that are named or none; every process follows within a second.

        Args:
            settings: Names and values, as ``RuntimeConfig`` takes them or as text: ``{"lease_ttl": "10s"}``.
            reason: Kept in the audit stream, with the names of what changed.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Returns:
            All settings afterwards.

        Raises:
            InvalidSettingError: A name is unknown, a value is wrong, or the whole does not fit together; ``shards`` is
                fixed when the namespace is made.

        Example:
            ``manager.set_config({"lease_ttl": "20s", "heartbeat_interval": "5s"}, reason="slow network")``
        """
        check_texts(reason=reason, actor=actor, op=op)
        if not isinstance(cast("object", settings), Mapping):
            problem = 'must be a mapping of names to values: {"lease_ttl": "10s"}'
            raise InvalidSettingError(field="settings", value=as_shown(settings), problem=problem)
        return self._ports.store.set_config(settings, reason=reason, actor=actor or me(), op=op)

    def audit(
        self, agent_id: str | None = None, *, since: datetime | timedelta | str | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Who asked for what and why, oldest first: the newest ``limit`` entries.

        Whatever changed something is in it, written in the same step as the change; what was refused or changed nothing
        is not. Entries of deleted agents stay; each part of the namespace keeps some 10,000.

        Args:
            agent_id: Only of this agent; None = of all, and of the runtime and its settings.
            since: Only from this instant on: aware, the same as ISO text, or a duration back from now, such as ``2h``.
            limit: Most entries; 1 to 1,000,000.

        Raises:
            InvalidSettingError: ``limit`` or ``since`` cannot be.
        """
        given = cast("object", limit)
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= _MOST_ENTRIES:
            problem = f"must be a whole number from 1 to {_MOST_ENTRIES}"
            raise InvalidSettingError(field="limit", value=as_shown(given), problem=problem)
        checked = None if agent_id is None else check_agent_id(agent_id)
        start = Instant(0) if since is None else self._instant(since)
        return list(self._ports.store.audit(agent_id=checked, since=start, limit=limit))

    def _instant(self, since: datetime | timedelta | str) -> Instant:
        """The moment that is meant; a duration counts back from now by the clock of Redis."""
        if isinstance(since, timedelta) or (isinstance(since, str) and not _is_bare_number(since)):
            try:
                return Instant(max(self._ports.store.server_time() - micros(check_timeout(since, "since")), 0))
            except InvalidSettingError:
                if isinstance(since, timedelta):
                    raise
        return _moment(since)

    def _check_type(self, spec: AgentSpec, *, values: bool = True) -> None:
        """Refuses a type that nobody knows, and a config that cannot fit; without ``values`` by its names alone."""
        raise NotImplementedError


def _moment(since: datetime | str) -> Instant:
    problem = "must say its time zone: 2026-07-01T12:00:00+00:00"
    try:
        moment = datetime.fromisoformat(since) if isinstance(since, str) else since
    except ValueError as error:
        told = "give an instant, such as 2026-07-01T12:00:00+00:00, or a duration back from now, such as 2h"
        raise InvalidSettingError(field="since", value=as_shown(since), problem=told) from error
    if not isinstance(cast("object", moment), datetime):
        raise InvalidSettingError(
            field="since", value=as_shown(since), problem=f"must be an instant, as ISO text: {problem}"
        )
    if moment.tzinfo is None:
        raise InvalidSettingError(field="since", value=str(since), problem=problem)
    return instant_from(moment)


def _is_bare_number(text: str) -> bool:
    """A year would look like seconds."""
    return text.strip().replace(".", "", 1).isdigit()
