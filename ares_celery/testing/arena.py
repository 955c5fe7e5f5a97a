"""Scenarios and survival runs inside a test: real workers are killed and started again, and the events judged."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ares_celery.arena.loading import load_scenario, parse_scenario
from ares_celery.arena.runner import ScenarioRun
from ares_celery.arena.survival import DRAWN_FAULTS, SurvivalRun
from ares_celery.arena.verdict.files import write_report
from ares_celery.arena.verdict.journal import ScenarioReport
from ares_celery.arena.verdict.judge import judged
from ares_celery.testing.runtime import AresRuntime

__all__ = ["Arena"]

_NO_VARIABLES: Final[Mapping[str, Any]] = {}
#: Characters of a report's name; file systems allow 255 with the rest of it.
_LONGEST_NAME: Final = 200
#: Seconds between two looks at the workers.
_LOOK: Final = 0.05


class Arena:
    """What the fixture ``arena`` gives: runs faults against the agents of ``ares_runtime``.

    Workers that die meanwhile are started again, as whatever watches them in production does.

    Attributes:
        runtime: Of the test.
        reports: Of each run so far. ``pytest --ares-reports DIR`` writes them there.
    """

    def __init__(self, runtime: AresRuntime) -> None:
        """Binds it to the test's runtime."""
        self.runtime: AresRuntime = runtime
        self.reports: list[ScenarioReport] = []

    def write_reports(self, folder: str | Path, name: str) -> None:
        """Writes each report as ``<name>.json`` and ``<name>.html``, the second one of them as ``<name>-2``.

        Args:
            folder: Made if it is not there.
            name: Of the test, say; what does not belong into a file's name becomes a ``-``.

        Raises:
            OSError: A file cannot be written.
        """
        there = Path(folder)
        there.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-")[-_LONGEST_NAME:]
        for number, report in enumerate(self.reports, 1):
            path = there / (stem if number == 1 else f"{stem}-{number}")
            write_report(report, json=path.with_name(f"{path.name}.json"), html=path.with_name(f"{path.name}.html"))

    def run(
        self,
        scenario: str | Path | Mapping[str, Any],
        *,
        variables: Mapping[str, Any] = _NO_VARIABLES,
        allow_modules: Sequence[str] = (),
    ) -> ScenarioReport:
        """Runs a scenario to its end and judges it by the events of the agents.

        Args:
            scenario: A file, the name of a ready one, or its values.
            variables: Values for ``${name}``.
            allow_modules: More modules that it may call.

        Returns:
            Its report, with a verdict. A run that deviates is no error until its ``raise_for_status()`` makes it one.

        Raises:
            InvalidScenarioError: Names everything that is wrong with it. ScenarioNotFoundError.
        """
        options: dict[str, Any] = {"variables": variables, "allow_modules": allow_modules}
        if isinstance(scenario, Mapping):
            loaded = parse_scenario(scenario, **options)
        else:
            loaded = load_scenario(scenario, **options)
        going = ScenarioRun(self.runtime.manager, loaded, allow_modules=allow_modules)
        return self._judged(going, loaded.agents)

    def survive(  # noqa: PLR0913 - one parameter for each thing that may be said of a run
        self,
        *,
        seed: int | None = None,
        duration: float | str = "10s",
        interval: float | str = "1s",
        agents: Sequence[str] = (),
        faults: Sequence[str] = DRAWN_FAULTS,
        force: bool = True,
        settle: float | str = "30s",
        steady: float | str = "2s",
    ) -> ScenarioReport:
        """Injects faults by chance for a time, waits until the agents are back, and judges.

        Args:
            seed: Draws the same faults and targets again; None: drawn, and in the report.
            duration: How long faults come.
            interval: Between two.
            agents: Whom they may hit; empty: all that run.
            faults: Which may come; all but ``tool_timeout`` unless you say, as that may park an agent.
            force: A kill takes along the other agents of a process.
            settle: How long the agents may take to come back.
            steady: How long each of them has to stay up then, else it has not come back.

        Raises:
            InvalidSettingError: Names what cannot be.
        """
        going = SurvivalRun(
            self.runtime.manager,
            seed=seed,
            duration=duration,
            interval=interval,
            agents=agents,
            faults=faults,
            force=force,
            settle=settle,
            steady=steady,
        )
        return self._judged(going, agents)

    def _judged(self, going: ScenarioRun | SurvivalRun, agents: Sequence[str]) -> ScenarioReport:
        report = judged(self.runtime.manager, self._meanwhile(going.run, going.stop), agents)
        self.reports.append(report)
        return report

    def _meanwhile(self, run: Callable[[], ScenarioReport], stop: Callable[[str], None]) -> ScenarioReport:
        """Runs it on a thread, while this one, to which worker processes are bound, looks after them."""
        reports: list[ScenarioReport] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                reports.append(run())
            except BaseException as error:  # noqa: BLE001 - raised again where the test waits
                errors.append(error)

        thread = threading.Thread(target=work, name="ares-arena-run", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                self.runtime.restart_dead_workers()
                thread.join(_LOOK)
        finally:
            # The test is interrupted: what was done is set right first.
            stop("the test is over")
            thread.join()
        if errors:
            raise errors[0]
        self.runtime.restore_workers()
        return reports[0]
