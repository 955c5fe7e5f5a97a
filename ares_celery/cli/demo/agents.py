"""The demo's agents: each tokenizes its share of the library's sources, one durable event a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ares_celery.agents.context import SyncAgentContext
from ares_celery.agents.registry import agent
from ares_celery.cli.demo.counting import Counts, count_names, library, share_of, source_files
from ares_celery.model.event import Event

__all__ = ["FILE_COUNTED", "TOKENIZER", "Tokenizer"]

TOKENIZER: Final = "demo-tokenizer"
FILE_COUNTED: Final = "file.counted"


@agent(TOKENIZER)
class Tokenizer:
    """Counts names in its share of the files; plain methods, as the work is pure computing.

    Nothing but its state says where to go on: the files whose events were applied are done.
    """

    def __init__(self, agent_id: str, index: int, of: int, pace: float = 0.0) -> None:
        """Takes the spec's config: agent ``index`` of ``of``; ``pace`` seconds of rest after each file."""
        self.agent_id = agent_id
        self.index = index
        self.of = of
        self.pace = pace
        self.files_done = 0
        self.counts = Counts()

    def start(self, ctx: SyncAgentContext) -> None:
        """Counts what is not counted yet; a return is completion, unless a stop was asked for."""
        for name in share_of(source_files(), self.index, self.of)[self.files_done :]:
            if ctx.stop_requested:
                return
            ctx.emit(FILE_COUNTED, {"file": name, **count_names(library() / name).to_json()})
            ctx.sleep(self.pace)

    def apply(self, event: Event) -> None:
        """Folds one file's counts into the state."""
        if event.type == FILE_COUNTED:
            self.files_done += 1
            self.counts.add(event.payload)

    def snapshot(self) -> dict[str, Any]:
        """The state."""
        return {"files_done": self.files_done, **self.counts.to_json()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Takes the state back."""
        self.files_done = int(state["files_done"])
        self.counts = Counts()
        self.counts.add(state)
