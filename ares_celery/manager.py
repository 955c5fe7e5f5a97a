"""The seed's façade: what people and services ask of agents. No truth and no decision of its own.

Every method reads and writes Redis only, so it works from any process; the one that hosts an agent notices by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Self, cast, get_args

from typing_extensions import override

from ares_celery.agents.registry import REGISTRY, Registry
from ares_celery.agents.specs import check_type, out_of_reach, parse_spec, spec_of, takes_id
from ares_celery.clock import Clock, SystemClock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentParkedError,
    InvalidAgentIdError,
    InvalidSettingError,
    NilAgentError,
    NilFactoryError,
    RuntimeAlreadyStartedError,
    RuntimePermissionError,
    WaitTimeoutError,
)
from ares_celery.ids import AgentId, Epoch, check_agent_id
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentSpec, AgentState
from ares_celery.model.arguments import as_shown, check_choice, check_flags, check_span, check_timeout
from ares_celery.model.command import Command, IfExists
from ares_celery.model.stats import RuntimeStats
from ares_celery.runtime.administration import Administration
from ares_celery.runtime.arena_holds import ArenaHolds
from ares_celery.runtime.callers import apply_asked, me
from ares_celery.runtime.commits import Applied
from ares_celery.runtime.forking import Forks
from ares_celery.runtime.groups import Groups
from ares_celery.runtime.handle import AgentHandle
from ares_celery.runtime.messages import AgentMessages
from ares_celery.runtime.outside_events import OutsideEvents
from ares_celery.runtime.queries import AgentQueries, Ports
from ares_celery.runtime.settling import Settling
from ares_celery.runtime.state_access import StateAccess
from ares_celery.runtime.stream_care import StreamCare
from ares_celery.runtime.waiting import RESTING, STARTED, Wait
from ares_celery.store.base import EventStore, SnapshotStore
from ares_celery.supervision.chaos import Chaos
from ares_celery.supervision.children import Children
from ares_celery.supervision.overview import NamespaceOverview
from ares_celery.supervision.runtime_switch import runtime_stats, start_runtime, stop_runtime

__all__ = ["AgentHandle", "CoreManager", "Ports"]

log: Final = logging.getLogger(__name__)


class CoreManager(
    StreamCare,
    Forks,
    Settling,
    Chaos,
    Administration,
    Groups,
    StateAccess,
    NamespaceOverview,
    Children,
    AgentMessages,
    ArenaHolds,
    AgentQueries,
):
    """Asks for agents to be started, stopped, restarted; thread-safe. ``reason=`` and ``actor=`` are kept."""

    def __init__(
        self,
        ports: Ports,
        *,
        registry: Registry = REGISTRY,
        clock: Clock | None = None,
        may_run: bool = True,
        hosts_here: bool = False,
    ) -> None:
        """Binds the façade; opens nothing.

        Args:
            ports: Store and committer.
            registry: Agent types that this process knows.
            clock: Injected in tests.
            may_run: start() and stop() of the whole runtime are allowed.
            hosts_here: This process hosts the agents, so factories of its own are of use.
        """
        super().__init__(ports, clock or SystemClock())
        self._registry = registry
        self._may_run = may_run
        self._hosts_here = hosts_here
        self._started = False

    def __enter__(self) -> Self:
        """A handle: leaving the block closes it and touches no agent."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes the handle."""
        self.close()

    def close(self) -> None:
        """Closes connections; agents go on."""
        self._ports.close()

    # -- ports ------------------------------------------------------------------------------------------------------

    @property
    def events(self) -> EventStore:
        """The streams of events; what is appended here is from outside: the runtime's own types are refused."""
        return OutsideEvents(self._ports.store.events)

    @property
    def snapshots(self) -> SnapshotStore:
        """The newest states."""
        return self.state_sources.snapshots or self._ports.store.snapshots

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings, as they are now."""
        return self._ports.store.refresh_config()

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._ports.store.namespace

    # -- the runtime ------------------------------------------------------------------------------------------------

    def start(self, *, reason: str = "", actor: str = "") -> None:
        """Makes the namespace's runtime run; agents that should run are launched. On a running one a no-op.

        Raises:
            RuntimeAlreadyStartedError: Called twice on this handle without stop() between.
            RuntimePermissionError: The handle was made by connect().
        """
        self._demand_permission("start")
        if self._started:
            raise RuntimeAlreadyStartedError
        start_runtime(self._ports.store, self._ports.committer, reason=reason, actor=actor or me())
        self._hand_over_events()
        self._started = True

    def stop(self, *, reason: str = "", actor: str = "") -> None:
        """Ends every agent in order, and keeps all from starting until start(). What is desired of them stays.

        Returns within overall_stop_timeout (and at most a second): an agent that does not end by then is fenced. Before
        start() or a second time: no effect.
        """
        self._demand_permission("stop")
        self._started = False
        stop_runtime(
            self._ports.store,
            self._ports.committer,
            self._clock,
            limit=self.config.overall_stop_timeout,
            reason=reason,
            actor=actor or me(),
        )

    def _demand_permission(self, operation: str) -> None:
        if not self._may_run:
            raise RuntimePermissionError(operation=operation)

    def stats(self) -> RuntimeStats:
        """The namespace in numbers."""
        return runtime_stats(self._ports.store)

    # -- agents -----------------------------------------------------------------------------------------------------

    def register_agent(
        self,
        agent: AgentSpec | object,
        factory: Callable[..., Any] | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentHandle:
        """Makes an agent known. Before the runtime runs it is launched by start(); afterwards by start_agent.

        Args:
            agent: A spec, or (the seed's form) an instance with ``agent_id`` or ``id``.
            factory: For an instance: makes its next incarnations; put into this process's registry.
            reason: Kept with the agent.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            NilAgentError, NilFactoryError, InvalidAgentIdError, UnknownAgentTypeError, InvalidConfigError.
        """
        spec = self._spec_of(agent, factory)
        self._check_type(spec)
        self._apply(spec.id, commands.Register(reason=reason, actor=actor or me(), spec=spec), op)
        return AgentHandle(self, AgentId(spec.id))

    def start_agent(  # noqa: PLR0913 - the public name
        self,
        agent: AgentSpec | object | str,
        *,
        if_exists: IfExists = "error",
        wait: Wait = "durable",
        timeout: timedelta | float | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentHandle:
        """Wants an agent to run: made if it does not exist, started with its state kept if it rests.

        Args:
            agent: A spec, the id of a known agent, or a registered instance.
            if_exists: For one that is meant to run already: ``error``, ``return`` it, ``restart`` it, or ``update`` its
                spec for the next incarnation.
            wait: ``durable``: return when Redis has it; ``running``: when its code runs.
            timeout: Longest wait for running; default start_timeout.
            reason: Kept with the agent.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            AgentAlreadyRegisteredError, AgentParkedError, RuntimeStoppedError, NilAgentError, AgentNotFoundError,
            UnknownAgentTypeError, InvalidConfigError, WaitTimeoutError.
            InvalidSettingError: ``if_exists``, ``wait`` or ``timeout`` cannot be.

        Example:
            ``manager.start_agent(AgentSpec(id="counter-1", type="counter"), if_exists="return", wait="running")``
        """
        check_choice("if_exists", if_exists, get_args(IfExists))
        check_choice("wait", wait, get_args(Wait))
        limit = None if timeout is None else check_timeout(timeout)
        spec = None if isinstance(agent, str) else self._spec_of(agent, None, known=True)
        agent_id = check_agent_id(agent) if spec is None else AgentId(spec.id)
        if spec is not None:
            self._check_type(spec)
        command = commands.Start(reason=reason, actor=actor or me(), spec=spec, if_exists=if_exists)
        self._apply(agent_id, command, op)
        handle = AgentHandle(self, agent_id)
        if wait == "running":
            info = self.wait_for(agent_id, STARTED, timeout=self.config.start_timeout if limit is None else limit)
            if info.state is AgentState.PARKED:
                raise AgentParkedError(agent_id=agent_id, cause=info.cause, reason=info.last_error)
        return handle

    def stop_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        *,
        wait: bool = True,
        force: bool = False,
        timeout: timedelta | float | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> None:
        """Wants an agent not to run, whatever restarts, nor any that it has spawned. A stopped one: no effect.

        Args:
            agent_id: Which agent.
            wait: Return when it has ended. One that does not end within agent_stop_timeout is fenced and counts as
                stopped: the call returns at most a second later.
            force: Fence it at once instead of asking first.
            timeout: Instead of agent_stop_timeout.
            reason: Kept with the agent.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            AgentNotFoundError. InvalidSettingError: ``force`` is neither True nor False.
        """
        check_flags(wait=wait, force=force)
        checked = check_agent_id(agent_id)
        limit = None if timeout is None else check_timeout(timeout)
        who = actor or me()
        self._take_along(self._apply(checked, commands.Stop(reason=reason, actor=who, force=force), op))
        if not wait:
            return
        try:
            self.wait_for(checked, RESTING, timeout=self.config.agent_stop_timeout if limit is None else limit)
        except WaitTimeoutError:
            self._apply(checked, commands.Stop(reason=reason, actor=who, force=True), "")

    def restart_agent(self, agent_id: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Ends the incarnation in order and begins a new one; un-parks. Not charged to the restart budget.

        Raises:
            AgentNotFoundError, RuntimeStoppedError.
            UnknownAgentTypeError, InvalidConfigError: No worker could make the new incarnation; the old one goes on.
            AgentParkedError: Its cause has to be settled first.
        """
        checked = check_agent_id(agent_id)
        # Its values were taken once; what an annotation says of them now must not keep it from coming back.
        self._check_type(self._record(checked).spec, values=False)
        self._apply(checked, commands.Restart(reason=reason, actor=actor or me()), op)

    def restore_agent(
        self,
        agent_id: str,
        factory: Callable[..., Any] | str | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> None:
        """Fails over on purpose: ends the incarnation in order and recovers in a new one.

        Args:
            agent_id: Which agent.
            factory: From afar the name of a registered type; in this process a callable, put into its registry. None:
                the agent's own type.
            reason: Kept with the agent.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            NilFactoryError: None, and nobody registered the agent's type.
            AgentNotRunningError: It is not meant to run. VersionConflictError: A restore is under way already.
        """
        checked = check_agent_id(agent_id)
        record = self._record(checked)
        if factory is not None and not isinstance(factory, str) and not callable(factory):
            raise InvalidSettingError(
                field="factory", value=as_shown(factory), problem="name a registered type, or leave it out"
            )
        kind = factory if isinstance(factory, str) else ""
        if callable(factory) and self._hosts_here:
            self._registry.replace(record.spec.type, takes_id(factory))
        elif callable(factory):
            # From afar a class means the type that it is registered under.
            kind = self._registry.name_of(factory) or ""
            if not kind:
                raise out_of_reach(record.spec.type, self._ports.store.known_types())
        elif not kind and not self._type_known(record.spec.type):
            log.warning("agent %s is not restored: nobody registered its type %r", checked, record.spec.type)
            raise NilFactoryError(agent_id=checked)
        if kind:
            # Read like any other spec: what is written unchecked could never be read again.
            self._check_type(parse_spec({**record.spec.model_dump(mode="json"), "type": kind}), values=False)
        self._apply(checked, commands.Restore(reason=reason, actor=actor or me(), type=kind), op)

    def notify_agent_dead(
        self, agent_id: str, reason: str, *, epoch: int | None = None, actor: str = "", op: str = ""
    ) -> None:
        """Reports a death: the incarnation of ``epoch`` (None: the one now alive) is asked to end, then resurrected.

        Late and doubled reports, and those about an agent that should not run, have no effect.
        """
        known = Epoch(epoch) if epoch is not None else None
        died = commands.Die(reason=reason, actor=actor or me(), epoch=known)
        ignored = self._apply(check_agent_id(agent_id), died, op).ignored
        if ignored:
            # With an epoch it is one of several that told the same; without one somebody expects something of it.
            level = logging.WARNING if known is None else logging.INFO
            log.log(level, "agent %s: the report of its death changes nothing: %s", agent_id, ignored)

    def pause_agent(
        self,
        agent_id: str,
        *,
        duration: timedelta | float | str | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> None:
        """Lets an agent end in order and rest; its state and messages are kept.

        Args:
            agent_id: Which agent.
            duration: It runs again by itself after so long, at most a year; None: when it is resumed. One that is
                paused already rests as long as it was told to, but without ``duration`` it rests until it is resumed.
            reason: Kept in the record and in the audit stream.
            actor: Who asks; default user@host.
            op: Operation id.
        """
        lasts = None if duration is None else check_span(duration, "duration")
        self._apply(check_agent_id(agent_id), commands.Pause(reason=reason, actor=actor or me(), lasts=lasts), op)

    def resume_agent(self, agent_id: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Lets a paused agent run again; not a restart. One that is not paused: no effect."""
        self._apply(check_agent_id(agent_id), commands.Resume(reason=reason, actor=actor or me()), op)

    def unpark_agent(
        self, agent_id: str, *, accept_loss: bool = False, reason: str = "", actor: str = "", op: str = ""
    ) -> None:
        """Starts a parked agent again with a full restart budget.

        Args:
            agent_id: Which agent.
            accept_loss: The way out of cause ``integrity``: whatever is missing or damaged up to the agent's present
                version counts as lost from now on, in later recoveries too. New damage parks again.
            reason: Kept with the agent.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            AgentNotParkedError: It is not parked. AgentParkedError: Its cause has to be settled first.
            OperationNotSupportedError: ``accept_loss`` for another cause. InvalidSettingError: It is neither True nor
                False.
        """
        check_flags(accept_loss=accept_loss)
        command = commands.Unpark(reason=reason or "unpark", actor=actor or me(), accept_loss=accept_loss)
        self._apply(check_agent_id(agent_id), command, op)

    def delete_agent(self, agent_id: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Forgets a resting agent and every key of it. A late claim or write of it is refused.

        Raises:
            OperationNotSupportedError: It may be hosted; stop it first.
        """
        self._apply(check_agent_id(agent_id), commands.Delete(reason=reason, actor=actor or me()), op)

    def get_agent(self, agent_id: str) -> AgentHandle | None:
        """A handle of the agent, or None when it does not exist."""
        checked = check_agent_id(agent_id)
        return AgentHandle(self, checked) if self._ports.store.read(checked).record else None

    # -- inside -----------------------------------------------------------------------------------------------------

    def _apply(self, agent_id: str, command: Command, op: str) -> Applied:
        return apply_asked(self._ports.committer, AgentId(agent_id), command, op)

    def _spec_of(self, agent: object, factory: Callable[..., Any] | None, *, known: bool = False) -> AgentSpec:
        """The spec of what a caller gave; a refusal is logged, as the seed does."""
        is_instance = not isinstance(agent, (AgentSpec, Mapping, type(None)))
        if is_instance and factory is not None and not self._hosts_here:
            kind = self._registry.name_of(cast("object", type(agent)))
            if kind is None:
                raise out_of_reach(type(agent).__qualname__, self._ports.store.known_types())
        try:
            return spec_of(agent, factory, self._registry, known=known)
        except (NilAgentError, NilFactoryError, InvalidAgentIdError) as error:
            log.warning("no agent is made: %s", error)
            raise

    def _type_known(self, name: str) -> bool:
        return self._registry.find(name) is not None or name in self._ports.store.known_types()

    @override
    def _check_type(self, spec: AgentSpec, *, values: bool = True) -> None:
        """Refuses a type that neither this process nor any worker knows, and a config that cannot fit."""
        self._check_group(spec)
        check_type(spec, self._registry, self._ports.store.known_types, values=values)
