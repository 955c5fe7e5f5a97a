"""Whose line it is: agent, incarnation and task id behind every log line that concerns an agent."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Mapping
from contextvars import ContextVar
from typing import Any, Final, cast

from typing_extensions import override

from ares_celery.celery_app.names import RESURRECT_AGENT, RUN_AGENT

__all__ = ["AgentLogFilter", "agent_lines", "tag_handlers"]

_FIELDS: Final = (("agent_id", "agent"), ("incarnation", "incarnation"), ("epoch", "epoch"), ("task_id", "task"))
_HOSTING: Final = frozenset({RUN_AGENT, RESURRECT_AGENT})
_NOTHING: Final[Mapping[str, object]] = {}
_current: ContextVar[Mapping[str, object]] = ContextVar("ares_agent_lines", default=_NOTHING)


@contextlib.contextmanager
def agent_lines(**fields: object) -> Generator[None]:
    """While inside, lines of this thread belong to an agent.

    Example:
        with agent_lines(agent_id="counter-1", epoch=17, task_id="4f"):
            log.info("hello")   # hello [agent=counter-1 epoch=17 task=4f]
    """
    token = _current.set({name: value for name, value in fields.items() if value})
    try:
        yield
    finally:
        _current.reset(token)


class AgentLogFilter(logging.Filter):
    """Puts agent, incarnation, epoch and task id behind the message of a record that has them; drops nothing."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        """Changes the record in place, once, whichever of several handlers sees it first."""
        if getattr(record, "ares_tagged", False):
            return True
        found = self._fields_of(record)
        if found:
            tag = " ".join(f"{shown}={found[name]}" for name, shown in _FIELDS if found.get(name))
            record.msg, record.args = f"{record.getMessage()} [{tag}]", ()
        record.ares_tagged = True
        return True

    @staticmethod
    def _fields_of(record: logging.LogRecord) -> Mapping[str, object]:
        own = {name: getattr(record, name) for name, _ in _FIELDS if getattr(record, name, None)}
        if "agent_id" in own:
            around = _current.get()
            return {**around, **own} if around.get("agent_id") == own["agent_id"] else own
        data: object = getattr(record, "data", None)
        task = cast("Mapping[str, Any]", data) if isinstance(data, dict) else _NOTHING
        if task.get("name") in _HOSTING and "args" in task:
            # Celery's own line names task and id; args and kwargs are the safe texts: agent, epoch and incarnation.
            return {"agent_id": f"{task['args']} {task.get('kwargs')}"}
        return _current.get()


def tag_handlers(logger: logging.Logger) -> None:
    """Adds the filter to each handler of a logger that has none yet."""
    for handler in logger.handlers:
        if not any(isinstance(one, AgentLogFilter) for one in handler.filters):
            handler.addFilter(AgentLogFilter())
