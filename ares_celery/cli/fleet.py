"""The command lines of a small fleet, and the environment that its processes run in."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ares_celery.cli.flower import flower_config

__all__ = ["Fleet", "fleet_environment"]

#: Would lead the processes to another Redis or app than the command's own.
_MISLEADING = frozenset(
    {
        "ARES_APP",
        "ARES_BROKER_URL",
        "ARES_NAMESPACE",
        "ARES_REDIS_URL",
        "ARES_RESULT_URL",
        "APP",
        "BROKER_URL",
        "RESULT_BACKEND",
    }
)


def fleet_environment(
    redis_url: str,
    namespace: str,
    folder: Path,
    *,
    agent_modules: Sequence[str] = (),
    keep_settings: bool = True,
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of the fleet's processes: the caller's, without what would lead them elsewhere.

    Args:
        redis_url: Their Redis.
        namespace: Their namespace.
        folder: Private to them; temporary files that a killed one leaves behind go with it.
        agent_modules: Modules with agent types; empty = as the caller has it.
        keep_settings: The caller's other ``ARES_*`` hold.
        environ: Instead of this process's.
    """
    source = os.environ if environ is None else environ
    kept = {
        name: value
        for name, value in source.items()
        if name not in _MISLEADING
        and not name.startswith("CELERY_")
        and (keep_settings or not name.startswith("ARES_"))
    }
    kept |= {"ARES_REDIS_URL": redis_url, "ARES_NAMESPACE": namespace, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    if agent_modules:
        kept["ARES_AGENT_MODULES"] = ",".join(agent_modules)
    return kept


@dataclass(frozen=True, slots=True)
class Fleet:
    """The commands of one fleet: real ``celery -A APP …`` processes.

    Attributes:
        app: What follows ``-A``.
        namespace: Whose queues the workers read.
        folder: Private; beat's schedule lies there.
        log_level: Of all of them.
        task_events: Workers tell what their tasks do, for Flower.
    """

    app: str
    namespace: str
    folder: Path
    log_level: str = "INFO"
    task_events: bool = False

    def agents_worker(self, node: str, *, pool: str, slots: int) -> list[str]:
        """A worker that hosts agents; ``slots`` is the most it holds."""
        return self._worker(node, ["agents"], pool, slots)

    def supervision_worker(self, node: str = "supervisor") -> list[str]:
        """A worker for supervision and control: agents never take its slots."""
        return self._worker(node, ["supervision", "control"], "threads", 4)

    def worker(self, node: str, *, pool: str, slots: int) -> list[str]:
        """A worker that does everything: for a fleet that is meant to be cheap."""
        return self._worker(node, ["agents", "supervision", "control"], pool, slots)

    def beat(self) -> list[str]:
        """The scheduler, with its schedule in the private folder."""
        return self._celery("beat", "-s", str(self.folder / "beat-schedule"), "--pidfile=", "-l", self.log_level)

    def flower(self, port: int) -> list[str]:
        """The web page of the fleet, for this machine only, with our routes."""
        options = (f"--conf={flower_config()}", "--address=127.0.0.1", f"--port={port}")
        return self._celery("flower", *options, f"--logging={self.log_level.lower()}")

    def _worker(self, node: str, queues: Sequence[str], pool: str, slots: int) -> list[str]:
        return self._celery(
            "worker",
            "-n",
            f"{node}@%h",
            "-Q",
            ",".join(f"{self.namespace}.{queue}" for queue in queues),
            "-P",
            pool,
            "-c",
            str(slots),
            # Workers of a small fleet have nothing to tell each other; agents are found in Redis.
            "--without-gossip",
            "--without-mingle",
            "-l",
            self.log_level,
            *(["-E"] if self.task_events else []),
        )

    def _celery(self, command: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", self.app, command, *arguments]
