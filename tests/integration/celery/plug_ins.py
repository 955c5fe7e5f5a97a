"""Plug-ins that a worker of these tests runs: good ones, and each kind of bad one."""

from __future__ import annotations

import os
import threading
from typing import cast

from typing_extensions import override

from ares_celery import (
    BasicRecoveryPlugin,
    Failure,
    ObserverPlugin,
    PluginContext,
    register_plugin,
)
from ares_celery.plugins.contract import Capability, EventBus


class Quiet:
    """Does nothing, in order."""

    name = "quiet"
    capabilities: tuple[Capability, ...] = ()

    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to end."""


@register_plugin
class Teller(Quiet):
    """Says where it runs."""

    name = "teller"

    @override
    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        ctx.logger.warning("teller %d hosts=%s supervises=%s", os.getpid(), ctx.hosts_agents, ctx.supervises)


@register_plugin
class Raising(Quiet):
    """Raises what nobody expects."""

    name = "raising"

    @override
    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        raise SystemExit(5)


@register_plugin
class Unsure(Quiet):
    """Answers neither yes nor no."""

    name = "unsure"
    capabilities = (Capability.RECOVERY,)

    def should_recover(self, failure: Failure) -> bool:
        return cast("bool", "perhaps")


@register_plugin
def only_counters() -> BasicRecoveryPlugin:
    """Counters come back, others do not."""
    return BasicRecoveryPlugin(allow=["counter", "fragile"])


@register_plugin
def journal() -> ObserverPlugin:
    """One stream of what happens to agents."""
    return ObserverPlugin(["agent.*", "failover.*", "counter.ticked"], stream="@journal")


@register_plugin
class Stuck(Quiet):
    """Never comes back from its stop."""

    name = "stuck"

    @override
    def stop(self) -> None:
        threading.Event().wait(600)
