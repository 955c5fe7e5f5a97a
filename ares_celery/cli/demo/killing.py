"""Carries out the demo's kills, each by pid, and follows who comes back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from ares_celery.cli.children import Children
from ares_celery.cli.demo.checker import Kill, Victim
from ares_celery.cli.demo.scenario import STEPS, Step, choose_victim, choose_worker
from ares_celery.cli.demo.watch import View, Watch
from ares_celery.clock import micros, to_datetime
from ares_celery.errors import AgentNotRunningError, OperationNotSupportedError
from ares_celery.manager import CoreManager
from ares_celery.store.base import Store

__all__ = ["BEAT", "Killer"]

BEAT: Final = "beat"


class Killer:
    """Does the steps one after the other, each when the agents are far enough and nobody is between two lives.

    Args:
        manager: Of the demo's namespace.
        store: The same namespace; its clock tells when a kill was.
        children: The demo's processes.
        note: Says what happens.
        seed: Of the choice whom to kill.
    """

    def __init__(
        self, manager: CoreManager, store: Store, children: Children, note: Callable[[str], None], *, seed: int
    ) -> None:
        self._manager = manager
        self._store = store
        self._children = children
        self._note = note
        self._chance = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
        self._left: list[Step] = list(STEPS)
        self._awaited: list[Kill] = []
        self.kills: list[Kill] = []

    @property
    def missed(self) -> list[str]:
        """What it did not come to."""
        return [f"the demo did not come to kill a {step.what}" for step in self._left]

    def look(self, view: View, watch: Watch) -> None:
        """Tells who came back, and does the next step when its moment has come."""
        self._awaited = [kill for kill in self._awaited if not self._tell_recovered(kill, view)]
        if not self._left or self._awaited or not view.is_quiet or view.progress < self._left[0].at:
            return
        kill = self._do(self._left[0], view, watch)
        if kill is not None:
            self.kills.append(kill)
            self._awaited.append(kill)
            del self._left[0]

    def _do(self, step: Step, view: View, watch: Watch) -> Kill | None:
        match step.what:
            case "process":
                return self._kill_process(view)
            case "worker":
                return self._kill_worker(view, watch)
            case "beat":
                return self._kill_beat()

    def _kill_process(self, view: View) -> Kill | None:
        spared = {victim.agent_id for kill in self.kills for victim in kill.victims}
        row = choose_victim(view, spared, self._chance)
        if row is None:
            return None
        at = self._store.server_time()
        try:
            killed = self._manager.kill_agent(row.agent_id)
        except (AgentNotRunningError, OperationNotSupportedError):
            # It came to its end since the look: another moment, another victim.
            return None
        pid = int(killed["pid"])
        self._note(
            f"SIGKILL: process {pid} of worker {row.worker}, which hosts {row.agent_id} "
            f"({row.done} of {row.files} files done)"
        )
        return Kill("process", row.worker, pid, at, (Victim(row.agent_id, row.incarnation),))

    def _kill_worker(self, view: View, watch: Watch) -> Kill | None:
        name = choose_worker(view)
        if name is None:
            return None
        command = self._children[name].command
        before, at = _hosted_by(name, watch.look()), self._store.server_time()
        pid = self._children.kill(name)
        # Whoever is still on record as its guest got there between the look and the kill.
        victims = tuple(dict.fromkeys([*before, *_hosted_by(name, watch.look())]))
        self._note(f"SIGKILL: the whole worker {name} (pid {pid}) with {len(victims)} agents; a replacement starts")
        self._children.start(name, command)
        return Kill("worker", name, pid, at, victims)

    def _kill_beat(self) -> Kill:
        command, at = self._children[BEAT].command, self._store.server_time()
        pid = self._children.kill(BEAT)
        self._note(f"SIGKILL: beat (pid {pid}); agents do not depend on it; it is started again")
        self._children.start(BEAT, command)
        return Kill("beat", BEAT, pid, at, ())

    def _tell_recovered(self, kill: Kill, view: View) -> bool:
        """True when all victims run again or are done; says so."""
        rows = [(victim, view.row(victim.agent_id)) for victim in kill.victims]
        if any(row.incarnation <= victim.incarnation or row.ran_since is None for victim, row in rows):
            return all(row.state.value == "completed" for _, row in rows)
        waits = [micros(row.ran_since - to_datetime(kill.at)) // 1000 for _, row in rows if row.ran_since]
        if waits and any(wait < 0 for wait in waits):
            return False
        if len(rows) == 1:
            row = rows[0][1]
            self._note(f"  {row.agent_id} runs again on worker {row.worker}, {waits[0]} ms after the kill")
        elif rows:
            self._note(f"  all {len(rows)} run again, the last one {max(waits)} ms after the kill")
        return True


def _hosted_by(worker: str, view: View) -> Sequence[Victim]:
    return [Victim(row.agent_id, row.incarnation) for row in view.rows if row.worker == worker]
