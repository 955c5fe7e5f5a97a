"""A deployment that brings its own stores along; workers import this module by name."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ares_celery import AgentContext, ConversationMessage, Event, agent, worker_memory, worker_snapshot_store

#: Where these stores keep their files.
FOLDER = Path(os.environ.get("OWN_STORES_FOLDER", "."))


class FileSnapshots:
    """One file an agent."""

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None:
        written = FOLDER / f"{agent_id}.{os.getpid()}.tmp"
        written.write_text(json.dumps(dict(state)))
        written.replace(FOLDER / f"{agent_id}.json")

    def load(self, agent_id: str) -> Mapping[str, Any] | None:
        path = FOLDER / f"{agent_id}.json"
        loaded: Mapping[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return loaded

    def delete(self, agent_id: str) -> None:
        (FOLDER / f"{agent_id}.json").unlink(missing_ok=True)


class OneConversation:
    """Everybody is in the same session."""

    def set_event_store(self, events: object) -> None:
        (FOLDER / f"events-{os.getpid()}").write_text(type(events).__name__)

    def open_session(self, agent_id: str, session_id: str | None = None) -> str:
        return "s"

    def latest_session(self, agent_id: str) -> str | None:
        return "s"

    def add_message(
        self, agent_id: str, session_id: str, message: ConversationMessage, *, message_id: str = ""
    ) -> None:
        raise NotImplementedError

    def messages(self, agent_id: str, session_id: str) -> Sequence[ConversationMessage]:
        return [ConversationMessage("user", f"hello {agent_id}")]


@worker_snapshot_store
def snapshots() -> FileSnapshots:
    """This worker's snapshot store."""
    return FileSnapshots()


@worker_memory
def memory() -> OneConversation:
    """This worker's memory manager."""
    return OneConversation()


@agent("stopwatch")
class Stopwatch:
    """Its only state is its snapshots; it writes down what it was given."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id, self.count = agent_id, 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            self.count += 1
            await ctx.sleep(0.02)

    def snapshot(self) -> dict[str, object]:
        return {"count": self.count, "at": time.monotonic()}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.count = int(state.get("count", 0))
        with (FOLDER / "restored").open("a") as journal:
            journal.write(json.dumps(state) + "\n")


@agent("listener")
class Listener:
    """Folds its events; writes down the conversation that it was given."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: object) -> object:
        return None

    def apply(self, event: Event) -> None: ...

    def snapshot(self) -> dict[str, object]:
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        (FOLDER / f"heard-{self.agent_id}").write_text(json.dumps(state))
