"""Runs that were asked for over HTTP: each on a thread of its own, and what it did set right at its end."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ares_celery.arena.verdict.judge import judged, unjudged
from ares_celery.clock import Clock, to_datetime
from ares_celery.errors import OperationNotSupportedError
from ares_celery.errors.wording import describe_error

if TYPE_CHECKING:
    from ares_celery.arena.runner import ScenarioRun
    from ares_celery.arena.survival import SurvivalRun
    from ares_celery.arena.verdict.journal import ScenarioReport
    from ares_celery.manager import CoreManager

__all__ = ["Run", "Runs"]

log: Final = logging.getLogger(__name__)

#: Runs at a time, and runs that are over and still told of.
_MOST_AT_ONCE: Final = 4
_KEPT: Final = 20


@dataclass(slots=True)
class Run:
    """One run.

    Attributes:
        id: To ask for it.
        kind: ``scenario`` or ``survival``.
        title: What it is called.
        actor: Who asked.
        runner: What runs.
        agents: Whom to judge; empty: all.
        started: When, by this machine's clock.
        done: Its report, or what went wrong.
    """

    id: str
    kind: str
    title: str
    actor: str
    runner: ScenarioRun | SurvivalRun
    agents: Sequence[str]
    started: datetime
    done: Future[ScenarioReport] = field(default_factory=Future["ScenarioReport"])

    def to_json(self, *, whole: bool = False) -> dict[str, Any]:
        """What is known of it now; ``whole``: with the report."""
        told: dict[str, Any] = {
            "id": self.id,
            "kind": self.kind,
            "title": self.title,
            "actor": self.actor,
            "started": self.started.isoformat(),
        }
        if not self.done.done():
            return {**told, "status": "running"}
        error = self.done.exception()
        if error is not None:
            return {**told, "status": "failed", "problem": describe_error(error)}
        report = self.done.result()
        return {**told, "status": report.status.value, **({"report": report.to_json()} if whole else {})}


class Runs:
    """The runs of this process, the newest ones also when they are over."""

    def __init__(self, manager: CoreManager, clock: Clock) -> None:
        """Binds them to a namespace."""
        self._manager = manager
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[str, Run] = {}
        self._is_watched = False

    def start(
        self, kind: str, runner: ScenarioRun | SurvivalRun, *, title: str, actor: str, agents: Sequence[str] = ()
    ) -> Run:
        """Lets a run begin on its own thread.

        Raises:
            OperationNotSupportedError: As many as may be are under way.
        """
        run = Run(uuid.uuid4().hex, kind, title, actor, runner, agents, to_datetime(self._clock.wall()))
        with self._lock:
            going = [one for one in self._runs.values() if not one.done.done()]
            if len(going) >= _MOST_AT_ONCE:
                reason = f"{len(going)} runs are under way in this Flower, and more would disturb each other's verdicts"
                raise OperationNotSupportedError(operation="another run", reason=reason)
            over = [one for one in self._runs.values() if one.done.done()]
            for old in over[: max(0, len(over) - _KEPT + 1)]:
                del self._runs[old.id]
            self._runs[run.id] = run
            self._watch_the_end()
        # Not a daemon: whoever ends this process waits until the run has healed what it did.
        threading.Thread(target=self._go, args=(run,), name=f"ares-arena-{kind}").start()
        return run

    def _go(self, run: Run) -> None:
        try:
            report = run.runner.run()
            try:
                report = judged(self._manager, report, run.agents)
            except Exception as error:
                log.exception("run %s of %r could not be judged; its report has no verdict", run.id, run.title)
                report = unjudged(report, describe_error(error))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the run learns of it
            log.warning("run %s of %r failed: %s", run.id, run.title, describe_error(error))
            run.done.set_exception(error)
        else:
            run.done.set_result(report)

    def _watch_the_end(self) -> None:
        """Threads that are no daemons outlive the main one: theirs is then to end in order, at once."""
        if self._is_watched:
            return
        self._is_watched = True

        def watch() -> None:
            threading.main_thread().join()
            self.close()

        threading.Thread(target=watch, name="ares-arena-end", daemon=True).start()

    def find(self, run_id: str) -> Run | None:
        """A run by its id."""
        return self._runs.get(run_id)

    def all(self) -> list[Run]:
        """Those that are known, the newest first."""
        with self._lock:
            return list(reversed(self._runs.values()))

    def close(self) -> None:
        """Asks every run to end; each heals what it did first."""
        for run in self.all():
            if not run.done.done():
                run.runner.stop("Flower ends")
