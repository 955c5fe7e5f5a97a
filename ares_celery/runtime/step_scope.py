"""Which execution, and which step around it, the code that runs right now belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import sha256
from typing import Final

from ares_celery.agents.guards import AROUND
from ares_celery.errors import InvalidExecutionIdError
from ares_celery.ids import Instant, check_execution_id
from ares_celery.model.step import StepRecord
from ares_celery.store.steps import OpenExecution

__all__ = ["HERE", "MAIN", "MESSAGE", "NEVER", "SCOPE", "Opening", "Scope", "execution_of"]

#: The execution of steps that belong to no other.
MAIN: Final = "main"
#: What the ids of the executions of messages begin with.
MESSAGE: Final = "msg:"


def execution_of(message_id: str) -> str:
    r"""The execution of a message. An id that none may have, as it is too long or not printable, stands as its digest.

    Example:
        >>> execution_of("order-7"), execution_of("two\nlines")
        ('msg:order-7', 'msg:sha256:edc8c1284585d703bec48f34f842bd91')
    """
    try:
        return check_execution_id(MESSAGE + message_id)
    except InvalidExecutionIdError:
        return f"{MESSAGE}sha256:{sha256(message_id.encode()).hexdigest()[:32]}"


class Opening:
    """One opening of an execution by one incarnation: what was recorded before, and which ids were used since.

    Implements :class:`~ares_celery.agents.steps.ExecutionScope`.
    """

    __slots__ = ("_counts", "_inner", "_lost", "_used", "created_at", "id", "is_finished", "recorded", "steps")

    def __init__(self, opened: OpenExecution) -> None:
        execution = opened.execution
        self.id = execution.id
        self.is_finished = execution.finished
        self.created_at: Instant = execution.created_at
        self.steps: Mapping[str, StepRecord] = opened.steps
        self.recorded = len(opened.steps)
        self._used: set[str] = set()
        #: What steps inside of one that has not come to its end have recorded: it may be tried again.
        self._inner: dict[str, StepRecord] = {}
        #: Those whose outcome nobody knows.
        self._lost: set[str] = set()
        self._counts: dict[str, int] = {}

    def use(self, path: str) -> bool:
        """Takes an id for a step; False when it is taken."""
        if path in self._used:
            return False
        self._used.add(path)
        return True

    def find(self, path: str) -> StepRecord | None:
        """What the step has recorded, before or inside of one that is tried again."""
        if path in self.steps:
            return self.steps[path]
        return self._inner.get(path) if self._inner else None

    def keep(self, record: StepRecord, path: str, *, is_inner: bool) -> None:
        """A step has recorded this: kept while the one around it, if there is one, may be tried again."""
        if self._inner:
            # The steps inside of this one will not be asked for again.
            within = f"{path}/"
            for inner in [known for known in self._inner if known.startswith(within)]:
                del self._inner[inner]
        if is_inner:
            self._inner[path] = record

    def free(self, path: str) -> None:
        """The step has failed and recorded nothing: its id, and those of the steps inside of it, may be used again."""
        within = f"{path}/"
        self._used.discard(path)
        self._used.difference_update([known for known in self._used if known.startswith(within)])
        self._used |= self._lost
        # Look for a free number from the beginning again.
        self._counts.clear()

    def retry(self, path: str) -> None:
        """The step is tried again: the steps inside of it come again, too."""
        self.free(path)
        self._used.add(path)

    def lose(self, path: str) -> None:
        """Nobody knows how the step came out: a person has to say."""
        self._lost.add(path)

    def is_lost(self, path: str) -> bool:
        """Nobody knows how the step came out."""
        return path in self._lost

    def has_lost(self, path: str) -> bool:
        """Nobody knows how some step inside of this one came out."""
        within = f"{path}/"
        return any(lost.startswith(within) for lost in self._lost)

    @property
    def is_unsettled(self) -> bool:
        """Of some step nobody knows how it came out."""
        return bool(self._lost)

    def numbered(self, call: str) -> str:
        """An id for one more call of this kind: the call itself, then ``#2``, ``#3`` … behind it.

        A call that failed and recorded nothing gives its id back, so that the next one of its kind is the same step.
        """
        number = self._counts.get(call, 1)
        while (path := call if number == 1 else f"{call}#{number}") in self._used:
            number += 1
        self._counts[call] = number
        return path


class Scope:
    """What a block or a step around the code says: steps in it belong to this execution, behind this beginning.

    Attributes:
        owner: The steps of the incarnation that it holds for; code of another one does not see it.
        opening: The execution.
        prefix: What the ids of steps in it begin with; empty outside of a step.
    """

    __slots__ = ("opening", "owner", "prefix")

    def __init__(self, owner: object, opening: Opening, prefix: str = "") -> None:
        self.owner = owner
        self.opening = opening
        self.prefix = prefix


#: None: what the message at hand, or else ``main``, says.
SCOPE: Final[ContextVar[Scope | None]] = AROUND
#: The step around the code that must not be repeated; empty: there is none.
NEVER: Final[ContextVar[str]] = ContextVar("ares_never_step", default="")
#: The incarnation whose code this is, where an agent's thread says so; a thread that the agent has begun with a context
#: of its own carries neither this nor any of the above.
HERE: Final[ContextVar[object]] = ContextVar("ares_here", default=None)
