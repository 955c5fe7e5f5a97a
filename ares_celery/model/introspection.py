"""A snapshot of the runtime: everything that is known of a namespace, at one moment, for people and tools."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

__all__ = ["Activity", "RuntimeSnapshot"]


class Activity(BaseModel):
    """One thing that happened: an event without its payload.

    Attributes:
        time: When Redis stored it, aware UTC, in milliseconds.
        agent_id: In whose stream.
        version: At which place there.
        type: What happened.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    time: datetime
    agent_id: str
    version: int
    type: str


class RuntimeSnapshot(BaseModel):
    """A namespace at one moment. A part whose source does not exist is empty.

    Attributes:
        seq: Greater than that of every snapshot taken before, by whomever.
        time: When it was taken, by the clock of Redis, aware UTC.
        runtime: State and numbers of the whole: ``state``, ``reason``, ``actor``, ``since`` and those of RuntimeStats.
        agents: ``total``, ``by_state`` and ``listed``: the first agents by id, as AgentInfo.
        supervision: ``last_sweep_ms``, milliseconds since somebody has swept, and ``clock_steps``.
        hosts: Worker's name of each process that has reported within a minute.
        chaos: ``faults`` that are active, as their ``to_json``, their ``total``, and ``allowed_until`` when faults are
            allowed for a time.
        dags: ``keys`` of the registered DAGs.
        activity: What happened last, newest first, at most 300.
        problems: Parts that could not be read, each with why; such a part is empty.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int
    time: datetime
    runtime: Mapping[str, Any] = {}
    agents: Mapping[str, Any] = {}
    supervision: Mapping[str, Any] = {}
    hosts: Mapping[str, str] = {}
    chaos: Mapping[str, Any] = {}
    dags: Mapping[str, Any] = {}
    activity: tuple[Activity, ...] = ()
    problems: Mapping[str, str] = {}
