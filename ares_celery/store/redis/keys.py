"""Names of keys and channels. All keys of one call share a slot: the hash tag is the namespace with a shard number."""

from __future__ import annotations

from binascii import crc_hqx
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from ares_celery.model.agent import AgentState
from ares_celery.model.command import Deadline

__all__ = ["CHAOS", "RUNTIME", "Keys", "deadline_member"]

#: Stands for the runtime itself where a deadline names an agent; no agent id has an ``@``.
RUNTIME: Final = "@runtime"
#: Stream that tells when faults are allowed, and what their deadline names; its shard keeps the truth about it.
CHAOS: Final = "@chaos"


def deadline_member(kind: Deadline, agent_id: str, name: str = "") -> str:
    """The member of a shard's ``deadlines``.

    Example:
        >>> deadline_member(Deadline.LEASE, "counter-1"), deadline_member(Deadline.TIMER, "counter-1", "tea")
        ('lease|counter-1', 'timer|counter-1|tea')
    """
    return f"{kind.value}|{agent_id}|{name}" if name else f"{kind.value}|{agent_id}"


def _shard(agent_id: str, shards: int) -> int:
    return crc_hqx(agent_id.encode(), 0) % shards


@lru_cache(maxsize=10_000)  # as many agents as one process may host, several times over
def _place(namespace: str, shards: int, agent_id: str) -> tuple[str, str]:
    """What the keys of an agent begin with, and its id as they carry it."""
    return f"{{{namespace}:{_shard(agent_id, shards)}}}:", quote(agent_id, safe="")


@lru_cache(maxsize=10_000)
def _appended(namespace: str, shards: int, agent_id: str) -> tuple[str, str, str]:
    prefix, name = _place(namespace, shards, agent_id)
    return f"{prefix}agent:{name}", f"{prefix}events:{name}", f"{prefix}feed"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one namespace.

    Example:
        >>> Keys("ares", 16).agent("counter-1")
        '{ares:1}:agent:counter-1'
    """

    namespace: str
    shards: int

    def shard_of(self, agent_id: str) -> int:
        """The shard of an agent: CRC16 as Redis Cluster computes it, modulo the number of shards."""
        return _shard(agent_id, self.shards)

    # -- one of each agent --------------------------------------------------------------------------------------------

    def agent(self, agent_id: str) -> str:
        """Hash: the record."""
        return self._of("agent", agent_id)

    def events(self, agent_id: str) -> str:
        """Stream: the events, entry id ``<version>-0``."""
        return self._of("events", agent_id)

    def appended(self, agent_id: str) -> tuple[str, str, str]:
        """What an append writes: the record, the events, the feed."""
        return _appended(self.namespace, self.shards, agent_id)

    def snapshots(self, agent_id: str) -> str:
        """List: the snapshots, newest first."""
        return self._of("snapshots", agent_id)

    def damaged(self, agent_id: str) -> str:
        """List: damaged snapshots that were set aside, newest first, bounded; delete_agent removes it."""
        return self._of("damaged", agent_id)

    def sessions(self, agent_id: str) -> str:
        """Sorted set: session ids by the microsecond they began, bounded; delete_agent removes it."""
        return self._of("sessions", agent_id)

    def memory(self, agent_id: str) -> str:
        """Hash: the messages of these sessions, bounded; delete_agent removes it."""
        return self._of("memory", agent_id)

    def summaries(self, agent_id: str) -> str:
        """List: what was summarised of the events, oldest first."""
        return self._of("summaries", agent_id)

    def inbox(self, agent_id: str) -> str:
        """Stream: messages that were not consumed yet."""
        return self._of("inbox", agent_id)

    def executions(self, agent_id: str) -> str:
        """Sorted set: ids of the executions, +inf while unfinished, else the microsecond they are forgotten at."""
        return self._of("executions", agent_id)

    def checkpoint(self, agent_id: str, execution_id: str) -> str:
        """Hash, with a TTL once finished: one execution, its envelope and a field for each recorded step."""
        return f"{self._of('checkpoint', agent_id)}:{quote(execution_id, safe='')}"

    def intents(self, agent_id: str) -> str:
        """Hash: ``<execution>|<step>`` of steps that were begun, must not be repeated, and have no outcome yet.

        Its outcome, or a person's word, removes a field; delete_agent removes the hash.
        """
        return self._of("intents", agent_id)

    def interrupts(self, agent_id: str) -> str:
        """Hash: what the agent asks people, and what they decided, by name; bounded; delete_agent removes it."""
        return self._of("interrupts", agent_id)

    def settled(self, agent_id: str) -> str:
        """List with a TTL: what people said of steps whose outcome was unknown, newest first; bounded in length."""
        return self._of("settled", agent_id)

    def recorded(self, agent_id: str, execution_id: str) -> tuple[str, str, str, str, str]:
        """What a recorded step writes: the record, the execution, the events, the feed, the intents."""
        agent, events, feed = self.appended(agent_id)
        return agent, self.checkpoint(agent_id, execution_id), events, feed, self.intents(agent_id)

    def budget(self, agent_id: str) -> str:
        """Hash: what each member of the tree below an agent has told of its spending; delete_agent removes it."""
        return self._of("budget", agent_id)

    def op(self, agent_id: str, op: str) -> str:
        """String with a TTL: the outcome of an operation id."""
        return f"{self._of('op', agent_id)}:{quote(op, safe='')}"

    def message(self, agent_id: str, message_id: str) -> str:
        """Hash with a TTL: what is known of a message id. Older versions wrote a string: that it was seen."""
        return f"{self._of('message', agent_id)}:{quote(message_id, safe='')}"

    def reply(self, agent_id: str, message_id: str) -> str:
        """Stream with a TTL: the answer to a message, one entry."""
        return f"{self._of('reply', agent_id)}:{quote(message_id, safe='')}"

    def chunks(self, agent_id: str, message_id: str) -> str:
        """Stream with a TTL: the pieces of a streamed answer, entry id ``<seq>-0``; bounded in number and bytes."""
        return f"{self._of('chunks', agent_id)}:{quote(message_id, safe='')}"

    def handling(self, agent_id: str) -> str:
        """Hash: how often the handling of an inbox entry began; the answer to it, and delete_agent, clear it."""
        return self._of("handling", agent_id)

    def rest(self, agent_id: str) -> str:
        """Stream with a TTL: the mark of an agent at rest, for those who wait for its answer; gone when it starts."""
        return self._of("rest", agent_id)

    def children(self, agent_id: str) -> str:
        """Hash: the agents that it spawned, each with its number and the key of the call; bounded; delete_agent."""
        return self._of("children", agent_id)

    def faults(self, agent_id: str) -> str:
        """Hash with a TTL behind the last end of one: the faults that disturb the agent, by id; bounded."""
        return self._of("faults", agent_id)

    def fault_call(self, agent_id: str, call: str) -> str:
        """String with a TTL: whether a fault has affected this call."""
        return f"{self._of('fault_call', agent_id)}:{quote(call, safe='')}"

    # -- one of each supervision group, in its home shard: that of its name -------------------------------------------

    def group(self, name: str) -> str:
        """Hash: the group, its members and how far a restart of it came."""
        return self._of("group", name)

    # -- one of each limit that agents share, in the shard of its name ------------------------------------------------

    def limit(self, name: str) -> str:
        """Hash with a TTL: how a limit stands, its next free turn and until when it is closed."""
        return self._of("limit", name)

    def limit_queue(self, name: str) -> tuple[str, str]:
        """Sorted sets with a TTL: who holds a place of a limit or waits, and who of them waits."""
        return self._of("limit-holders", name), self._of("limit-waiting", name)

    def limit_passed(self, name: str) -> str:
        """Sorted set with a TTL: calls that a limit has let through within a minute."""
        return self._of("limit-passed", name)

    def _of(self, kind: str, agent_id: str) -> str:
        prefix, name = _place(self.namespace, self.shards, agent_id)
        return f"{prefix}{kind}:{name}"

    # -- one of each shard --------------------------------------------------------------------------------------------

    def closings(self, shard: int) -> str:
        """Hash with a TTL: which limits of the shard are closed, until when, and by which fault, if by any."""
        return self._in(shard, "closings")

    def deadlines(self, shard: int) -> str:
        """Sorted set: ``<kind>|<agent id>[|name]`` by microseconds."""
        return self._in(shard, "deadlines")

    def state(self, shard: int, state: AgentState) -> str:
        """Sorted set: ids of the agents in a state, by the microsecond they entered it."""
        return self._in(shard, f"state:{state.value}")

    def feed(self, shard: int) -> str:
        """Stream: pointers to new events, bounded."""
        return self._in(shard, "feed")

    def hosts(self, shard: int) -> str:
        """Sorted set: ``<identity>|<agent id>``, all with score 0, so that one process's agents are one range."""
        return self._in(shard, "hosts")

    def counters(self, shard: int) -> str:
        """Hash: this shard's part of the namespace's counters."""
        return self._in(shard, "counters")

    def counted(self, op: str) -> str:
        """String with a TTL: what this operation id counts was counted, in the home shard."""
        return f"{self._in(0, 'counted')}:{quote(op, safe='')}"

    def runtime(self, shard: int) -> str:
        """Hash: the runtime's state; the truth in shard 0, copies elsewhere."""
        return self._in(shard, "runtime")

    def clock(self, shard: int) -> str:
        """Hash: up to which step of the server's clock this shard's deadlines were moved; the truth in shard 0."""
        return self._in(shard, "clock")

    def confirmed(self, shard: int) -> str:
        """String with a TTL: written to learn how far the writes before it have come."""
        return self._in(shard, "confirmed")

    def audit(self, shard: int) -> str:
        """Stream: who asked for what of this shard's agents, and why; bounded. The home shard has the runtime's too."""
        return self._in(shard, "audit")

    def dead(self, shard: int) -> str:
        """Stream: dead letters, bounded in number and age."""
        return self._in(shard, "dead")

    def streams(self, shard: int) -> str:
        """Hash: versions of streams that have no record."""
        return self._in(shard, "streams")

    def groups(self, shard: int) -> str:
        """Set: names of the supervision groups whose home this shard is."""
        return self._in(shard, "groups")

    def disturbed(self, shard: int) -> str:
        """Set: ids of the agents that have faults; the end of the last one removes an id, as delete_agent does."""
        return self._in(shard, "disturbed")

    def chaos(self, shard: int) -> str:
        """Hash with a TTL: until when faults are allowed; the truth in the shard of ``CHAOS``, copies elsewhere."""
        return self._in(shard, "chaos")

    def _in(self, shard: int, kind: str) -> str:
        return f"{{{self.namespace}:{shard}}}:{kind}"

    # -- one of each namespace ----------------------------------------------------------------------------------------

    @property
    def meta(self) -> str:
        """Hash: schema, shards, time of creation."""
        return f"{{{self.namespace}}}:meta"

    @property
    def config(self) -> str:
        """String: the settings as JSON."""
        return f"{{{self.namespace}}}:config"

    def settings_op(self, op: str) -> str:
        """String with a TTL: the outcome of an operation id that changed the settings."""
        return f"{{{self.namespace}}}:op:{quote(op, safe='')}"

    @property
    def settings_audit(self) -> str:
        """Stream: who changed which settings, and why; bounded. Beside the settings, so that both are one write."""
        return f"{{{self.namespace}}}:audit"

    @property
    def types(self) -> str:
        """Hash: the agent types that workers reported, each with its factory's parameters as JSON."""
        return f"{{{self.namespace}}}:types"

    @property
    def dags(self) -> str:
        """Hash: the registered DAGs as JSON, by key."""
        return f"{{{self.namespace}}}:dags"

    @property
    def views(self) -> str:
        """String: how many snapshots of the runtime were taken; numbers the next one."""
        return f"{{{self.namespace}}}:views"

    @property
    def sweeper(self) -> str:
        """String with a TTL: who sweeps."""
        return self._in(0, "sweeper")

    @property
    def postman(self) -> str:
        """String with a TTL: who takes dead letters to their handlers."""
        return self._in(0, "postman")

    @property
    def last_sweep(self) -> str:
        """String: when somebody has last swept."""
        return self._in(0, "last_sweep")

    @property
    def arena(self) -> str:
        """Hash with a TTL: the survival run that is under way, and whether it is to end."""
        return self._in(0, "arena")

    @property
    def process(self) -> str:
        """Sorted set with a TTL: ``<identity>|<worker>`` by the microsecond of the last report."""
        return self._in(0, "process")

    def background(self, identity: str) -> str:
        """String with a TTL: a process's detached work, label to count, as JSON."""
        return self._in(0, f"background:{quote(identity, safe='')}")

    @property
    def wake_prefix(self) -> str:
        """What the wake channels begin with; the identity of a process follows."""
        return f"{self.namespace}:wake:"

    @property
    def caller_prefix(self) -> str:
        """What the channels of waiting processes begin with; a name of their own follows."""
        return f"{self.namespace}:caller:"

    @property
    def resting(self) -> str:
        """The channel on which it is told that an agent came to rest, or is gone; the message is its id."""
        return f"{self.namespace}:rest"

    @property
    def patterns(self) -> tuple[str, str]:
        """Globs that match every key of the namespace and no other."""
        return f"{{{self.namespace}}}:*", f"{{{self.namespace}:*}}:*"
