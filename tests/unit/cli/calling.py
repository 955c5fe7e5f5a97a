"""Calls the command line inside the test's own process, and stands in for the Manager behind it."""

from __future__ import annotations

import inspect
from typing import Any

import click
from click.testing import CliRunner

from ares_celery.cli.main import cli
from ares_celery.errors import AresError
from ares_celery.model.agent import AgentInfo, AgentState, Desired


class RecordingManager:
    """Takes calls instead of a Manager; answers or raises as it was told."""

    def __init__(self, answer: object = None, error: AresError | None = None) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._answer = answer
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            if self._error is not None:
                raise self._error
            return self._answer

        return call


def agent(agent_id: str, state: AgentState, **more: Any) -> AgentInfo:
    """What a Manager tells of an agent."""
    values: dict[str, Any] = {
        "type": "counter",
        "status": "ready",
        "desired": Desired.RUNNING,
        "paused": False,
        "restarts": 0,
        "charged": 0,
        "manual_restarts": 0,
        "incarnation": 1,
        "epoch": 1,
        "worker": None,
        "queue": None,
        "reason": "",
        "actor": "",
        "cause": "",
    }
    return AgentInfo(id=agent_id, state=state, **{**values, **more})


def runner() -> CliRunner:
    """Keeps stdout and stderr apart, which older versions of click have to be told."""
    options: Any = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**options)


def run(*arguments: str) -> Any:
    """Run the command line in this process."""
    return runner().invoke(cli, arguments, catch_exceptions=False)


def commands_of(group: click.Group, prefix: str = "") -> dict[str, click.Command]:
    """All commands that are no groups, by their whole name."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= commands_of(command, f"{prefix}{name} ")
        else:
            found[prefix + name] = command
    return found
