"""What the runtime's own events say: the catalogue from which the reference is made.

Whoever adds an :class:`~ares_celery.model.event.EventType` adds its line here; a test compares both, and finds the code
that emits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ares_celery.model.event import EventType
from ares_celery.model.event_catalogue_faults import FAULTS
from ares_celery.model.event_facts import EventFacts

__all__ = ["CATALOGUE", "EventFacts"]

_AGENT_ID: Final = {"agent_id": "whose stream it is"}
_EXECUTION: Final = {"execution": "its id"}
_STEP: Final = {
    "execution": "the execution it belongs to",
    "step": "its id, behind those of the steps around it",
    "function": "the function that was called",
    "replay": "how it may be repeated: `safe`, `keyed` or `never`",
}
_INCARNATION: Final = {"incarnation": "which life of the agent, from 1"}
_TYPE: Final = {"type": "the agent's type"}
_PLUGIN: Final = {"plugin_name": "its name", "worker": "Celery's node name of the worker; absent outside of one"}


CATALOGUE: Final[Mapping[EventType, EventFacts]] = {
    EventType.AGENT_STARTED: EventFacts(
        "The agent's code runs, for the first time or after an ordered end.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_TYPE,
            **_INCARNATION,
            "reason": "why it starts: `start`, `restart`, `resume`, `drain`, `group`, `spawn`, `timer`, `approval`, "
            "`reconciled` …",
        },
    ),
    EventType.AGENT_STOPPED: EventFacts(
        "An incarnation is over, in order or by death.",
        "whoever found its end: the hosting process, the sweep, a manager",
        {
            **_AGENT_ID,
            "reason": "`explicit_stop`, `pause`, `restart`, `restore`, `shutdown`, `drain`, `group`, `parent_stopped`, "
            "`wait`, or what a death was like",
            "detail": "which death its group restarts for; only with reason `group`",
            "auto_restore": "it died and, when true, is brought back; absent after an end in order",
            "cause": "the class of a death: crash, lost, hung …; absent after an end in order",
        },
    ),
    EventType.AGENT_COMPLETED: EventFacts(
        "The agent is done, for good.", "the hosting process", {**_AGENT_ID, **_TYPE, **_INCARNATION}
    ),
    EventType.AGENT_EXHAUSTED: EventFacts(
        "Given up on and parked: its restarts or the tries of a recovery are used up.",
        "whoever found the last death or failure",
        {
            **_AGENT_ID,
            "reason": "the same as cause",
            "cause": "`cap`, `attempts` or `group_cap`",
            "detail": "what the last death or failure was like",
            "charged": "how many deaths counted",
        },
    ),
    EventType.AGENT_PARKED: EventFacts(
        "Parked for a person to look at, for another reason than used-up restarts.",
        "the hosting process",
        {
            **_AGENT_ID,
            "reason": "the same as cause",
            "cause": "`integrity`, `budget`, `reconcile` …",
            "detail": "what was found",
            "charged": "how many deaths counted",
        },
    ),
    EventType.BUDGET_EXCEEDED: EventFacts(
        "A budget is used up, and the agent wanted to go on; it is parked, unless it completes itself.",
        "the hosting process",
        {
            **_AGENT_ID,
            "budget": "`tokens`, `usd` or `steps`",
            "spent": "how much of it; dollars for usd",
            "limit": "how much of it there is",
            "whose": "the agent whose budget it is: itself, or the one at the top of its tree",
        },
    ),
    EventType.CHILD_SPAWNED: EventFacts(
        "The agent has spawned another one, which is listed as its child from now on.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_INCARNATION,
            "child": "id of the other one",
            "type": "its type",
        },
    ),
    EventType.CHILD_REPORT_DROPPED: EventFacts(
        "What became of this agent could not be told to the parent that spawned it, which is gone or at rest.",
        "the sweep",
        {
            **_AGENT_ID,
            "parent": "id of the parent",
            "state": "where this agent came to: completed, parked or stopped",
            "reason": "why the parent was not told",
        },
    ),
    EventType.FAILOVER_TRIGGERED: EventFacts(
        "An agent is to be brought back, from a death or for a restore; completed, failed or aborted closes it.",
        "whoever found its death, or the hosting process after a restore",
        {
            **_AGENT_ID,
            **_INCARNATION,
            "reason": "what the death was like; `restore` when somebody asked for it",
            "cause": "its class; `restore` when somebody asked for it",
            "charged": "it counts against the restart budget",
            "restarts": "resurrections so far, this one included; a restore is none",
            "delay_ms": "milliseconds until the first try",
        },
    ),
    EventType.FAILOVER_COMPLETED: EventFacts(
        "The agent's code runs again, with its state.",
        "the hosting process",
        {**_AGENT_ID, **_TYPE, **_INCARNATION, "attempts": "tries it took"},
    ),
    EventType.FAILOVER_FAILED: EventFacts(
        "The last try failed; the agent is parked.",
        "the hosting process or the sweep",
        {**_AGENT_ID, "reason": "what the last failure was like", "attempts": "tries it took", "cause": "why parked"},
    ),
    EventType.FAILOVER_ABORTED: EventFacts(
        "Somebody decided otherwise before the agent was back.",
        "whoever decided",
        {**_AGENT_ID, "reason": "what came in between: a stop, a restart, another death …"},
    ),
    EventType.AGENT_FORKED: EventFacts(
        "The history before this event is a copy of another agent's; what follows is this agent's own.",
        "the manager that forked it",
        {**_AGENT_ID, "from": "the agent whose history it is", "at": "the last version that both have"},
    ),
    EventType.EXECUTION_COMPLETED: EventFacts(
        "An execution of the agent ended well, for good.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_EXECUTION,
            "input_tokens": "tokens that its steps sent to models; absent when none",
            "output_tokens": "tokens that they received; absent when none",
        },
    ),
    EventType.EXECUTION_FAILED: EventFacts(
        "An attempt of an execution failed: it is tried again, or has failed for good.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_EXECUTION,
            "cause": "what the failure was like",
            "retryable": "it is tried again",
            "attempts": "failed ones so far, this one included",
            "retry_in": "seconds until it may be tried again; absent when it is not",
        },
    ),
    EventType.EXECUTION_EXPIRED: EventFacts(
        "An incarnation was lost while it held an execution, which is ready for the next one, with its checkpoint.",
        "the hosting process of the next incarnation",
        {
            **_AGENT_ID,
            **_EXECUTION,
            "epoch": "of the incarnation that held it",
            "state": "what it did then: `leased`, `running` or `suspended`",
            "attempts": "failed ones so far; this is none",
        },
    ),
    EventType.STEP_STARTED: EventFacts(
        "A step is begun that must not be repeated; without completed or failed its outcome is not known.",
        "the hosting process",
        {**_AGENT_ID, **_STEP},
    ),
    EventType.STEP_COMPLETED: EventFacts(
        "The result of a step was recorded; it will not run again. With `step_events` off only of steps that are never "
        "repeated.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_STEP,
            "attempts": "tries it took",
            "took_ms": "milliseconds, all tries included",
        },
    ),
    EventType.STEP_FAILED: EventFacts(
        "A try of a step failed.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_STEP,
            "attempts": "tries so far, this one included",
            "took_ms": "milliseconds, all tries included",
            "problem": "what the failure was like",
            "will_retry": "it is tried again",
        },
    ),
    EventType.STEP_RECOVERY_STARTED: EventFacts(
        "A step failed for the first time and is tried again; completed or failed follows.",
        "the hosting process",
        {**_AGENT_ID, **_STEP},
    ),
    EventType.STEP_RECOVERY_COMPLETED: EventFacts(
        "A step that had failed came to its result.",
        "the hosting process",
        {**_AGENT_ID, **_STEP, "attempts": "tries it took"},
    ),
    EventType.STEP_RECOVERY_FAILED: EventFacts(
        "A step that may be tried again is not: its retries are used up, or a plug-in refuses one more.",
        "the hosting process",
        {**_AGENT_ID, **_STEP, "attempts": "tries it took", "reason": "what ended it"},
    ),
    EventType.STEP_REFUSED: EventFacts(
        "The code calls another function for a step than the one that recorded it; neither was run.",
        "the hosting process",
        {**_AGENT_ID, **_STEP, "recorded": "the function that recorded it"},
    ),
    EventType.STEP_MIGRATED: EventFacts(
        "A step that another function had recorded was taken over, as the code says that its result still holds.",
        "the hosting process",
        {**_AGENT_ID, **_STEP, "recorded": "the function that recorded it"},
    ),
    EventType.INTERRUPT_CREATED: EventFacts(
        "The agent asks people something, and waits for their decision.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_EXECUTION,
            "interrupt_id": "of this very question",
            "name": "what is asked, as the agent named it",
            "payload": "what the agent says about it",
            "timeout": "seconds until it is too late to decide; absent without a limit",
        },
    ),
    EventType.INTERRUPT_RESOLVED: EventFacts(
        "A question is no longer open: somebody decided, nobody did in time, or the execution that asked is over.",
        "whoever decided; the hosting process for the others",
        {
            **_AGENT_ID,
            "interrupt_id": "of which question",
            "name": "its name",
            "state": "`resolved`, `timeout` or `abandoned`",
            "decision": "what was decided; absent when nobody did",
            "approved": "it is a yes; absent when nobody decided",
            "payload": "what came with the decision; absent when nothing did",
            "actor": "who decided; absent when nobody did",
            "reason": "why; absent when nobody decided",
        },
    ),
    EventType.STEP_RECONCILED: EventFacts(
        "A person has said what became of a step whose outcome nobody knew.",
        "a manager",
        {
            **_AGENT_ID,
            **_STEP,
            "outcome": "`done`: it happened, and its result is recorded; `retry`: it runs again",
            "actor": "who said so",
            "reason": "why",
        },
    ),
    EventType.SNAPSHOT_FAILED: EventFacts(
        "A snapshot could not be taken; the previous one stays. Said once for each problem.",
        "the hosting process",
        {
            **_AGENT_ID,
            **_INCARNATION,
            "problem": "what went wrong",
            "kept_in": "where the state was kept instead, when a snapshot store of your own failed",
        },
    ),
    EventType.SNAPSHOT_DAMAGED: EventFacts(
        "Recovery found a damaged snapshot, kept it aside, and used an older one or the events.",
        "the hosting process",
        {
            **_AGENT_ID,
            "problem": "what is wrong with it",
            "bytes": "how large it is",
            "place": "`namespace`, or the name of a snapshot store of your own",
        },
    ),
    EventType.AGENT_CONFIG_CHANGED: EventFacts(
        "The snapshot that recovery used was taken by other code or for another config.",
        "the hosting process",
        {
            **_AGENT_ID,
            "changed": "what is different: `type`, `config`, `schema` …",
            "snapshot_version": "the last event that the snapshot covers",
            "from_schema": "schema of the snapshot, when it was brought to another",
            "to_schema": "schema of the code",
        },
    ),
    EventType.INTEGRITY_VIOLATED: EventFacts(
        "Events or the only state are missing or damaged, and recovery went on without (`integrity` = `warn`, or the "
        "loss was accepted).",
        "the hosting process",
        {
            **_AGENT_ID,
            "count": "how many",
            "violations": "the first of them: `kind` (gap, damaged, truncated; state: it began from nothing), "
            "`from_version`, `to_version`",
        },
    ),
    EventType.REPLAY_TRUNCATED: EventFacts(
        "Only the newest events were replayed (`replay_overflow` = `newest`).",
        "the hosting process",
        {
            **_AGENT_ID,
            "skipped": "how many were not",
            "kept": "how many were",
            "from_version": "the first that was",
        },
    ),
    EventType.RECOVERY_DEGRADED: EventFacts(
        "A part that recovery asks (a memory manager, a snapshot store of your own) failed; it went on without.",
        "the hosting process",
        {
            **_AGENT_ID,
            "part": "`memory` or `snapshot_store`",
            "name": "of the user's class",
            "operation": "what was asked",
            "problem": "what went wrong",
        },
    ),
    EventType.STORE_ROLLED_BACK: EventFacts(
        "The store came back older than what the agent had seen stored; it begins anew from what is there.",
        "the hosting process",
        {**_AGENT_ID, **_INCARNATION, "version": "the last version that is there"},
    ),
    EventType.PLUGIN_STARTED: EventFacts(
        "A plug-in has started in a process; in the stream `@plugin:<name>`, as the two that follow.",
        "the process's bus",
        {**_PLUGIN, "plugin_capabilities": "what it declares, sorted"},
    ),
    EventType.PLUGIN_STOPPED: EventFacts("A plug-in has stopped in a process.", "the process's bus", {**_PLUGIN}),
    EventType.PLUGIN_FAILED: EventFacts(
        "A call of a plug-in raised, answered rubbish or took too long; of hooks and `should_recover` the first one.",
        "the process's bus",
        {**_PLUGIN, "call": "`register`, `start`, `stop`, `before_step` …", "error": "the sentence for people"},
    ),
    EventType.MESSAGE_DEAD_LETTERED: EventFacts(
        "A message will not be handled to its end; it is kept as a dead letter.",
        "the hosting process",
        {
            **_AGENT_ID,
            "message_id": "its id",
            "kind": "how it was sent: `send`, `process` or `stream`",
            "reason": "`caller_left`, `poison` or `failed`",
            "problem": "the sentence for people",
        },
    ),
    **FAULTS,
    EventType.EVENT_SUMMARY: EventFacts(
        "Stands for events that were trimmed. Not stored: reading a stream gives it when all its events are gone.",
        "the event store, on reading",
        {
            "id": "of the summary",
            "stream_id": "whose events",
            "text": "what they said, in a few sentences",
            "event_count": "how many",
            "start_version": "the first of them",
            "end_version": "the last of them",
            "start_time": "when the first was stored",
            "end_time": "when the last was stored",
            "counts": "how many of each type",
            "outcome": "`completed`, `failed`, `partial` or `active`",
            "errors": "the first ten",
            "tasks_created": "ids of tasks",
            "tools_called": "how often each",
            "request": "the first one, 200 characters at most",
            **_AGENT_ID,
            "task_id": "the last task named",
            "session_id": "the last session named",
            "user_id": "the last user named",
            "metadata": "`summariser_error`, when a summariser of your own failed",
            "created_at": "when the summary was made",
        },
    ),
}
