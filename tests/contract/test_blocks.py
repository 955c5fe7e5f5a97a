"""The public contract's code, as printed, and the README's, run against a real fleet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ares_celery import AgentSpec
from tests.fleet import ROOT, Fleet

pytestmark = [pytest.mark.contract, pytest.mark.integration, pytest.mark.timeout(90)]
BLOCKS = Path(__file__).parent / "blocks"


def run(code: Path, fleet: Fleet) -> None:
    """Runs a script as another service would."""
    done = subprocess.run(
        [sys.executable, str(code)],
        env=fleet.env,
        cwd=fleet.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr + fleet.logs()


def test_the_sample_agent_and_the_sample_caller_work_as_printed(fleet: Fleet) -> None:
    """The counter is started, asked and stopped by a process of its own; its state is kept."""
    fleet.worker("all", env={"ARES_AGENT_MODULES": "tests.contract.blocks.counter"})

    run(BLOCKS / "manage.py", fleet)

    info = fleet.info("counter-1")
    assert (info.state, info.reason) == ("stopped", "done with it")
    ticks = len(fleet.events("counter-1", "counter.ticked"))
    fleet.manager.start_agent("counter-1", wait="running")
    assert fleet.manager.process("counter-1", "total")["total"] >= 2 * ticks


def test_the_code_of_the_readme_works_as_printed(fleet: Fleet) -> None:
    """Both blocks of the README: the agent as a module that a worker imports, the caller as a script."""
    agent, caller = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (fleet.folder / "readme_agents.py").write_text(agent)
    (fleet.folder / "readme_caller.py").write_text(caller)
    fleet.worker("all", env={"ARES_AGENT_MODULES": "readme_agents", "PYTHONPATH": f"{ROOT}:{fleet.folder}"})

    run(fleet.folder / "readme_caller.py", fleet)

    assert fleet.info("tally-1").state == "stopped"


def test_a_service_that_has_only_celery_starts_an_agent_by_task_name(fleet: Fleet) -> None:
    """The wire format: task name, kwargs and queue of the contract; an error arrives with its code."""
    fleet.worker("all")
    script = fleet.folder / "service.py"
    script.write_text(
        f"""
from celery import Celery
app = Celery(broker={fleet.redis.url!r}, backend={fleet.redis.url!r})
start = {{"kwargs": {{"agent": {{"id": "t1", "type": "ticker"}}}}, "queue": "{fleet.namespace}.control"}}
app.send_task("ares.start_agent", **start).get(timeout=20)
try:
    app.send_task("ares.start_agent", **start).get(timeout=20)
except Exception as error:
    assert error.args[0]["code"] == "agent_already_registered", error.args
else:
    raise SystemExit("it was started twice")
"""
    )

    run(script, fleet)

    fleet.until("t1", "running")
    assert fleet.info("t1").incarnation == 1
    fleet.manager.start_agent(AgentSpec(id="t1", type="ticker"), if_exists="return")
