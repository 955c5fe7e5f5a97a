"""Every key has an end: a TTL, or an owner that deletes it. These helpers find those that have neither."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from urllib.parse import quote

import redis

#: Kinds of keys without a TTL that somebody deletes, trims or bounds; the kind is what follows `{namespace:shard}:` or
#: `{namespace}:`. All other kinds must carry a TTL.
OWNED_KINDS: dict[str, str] = {
    "agent": "delete_agent removes it, last",
    "audit": "bounded by length and age",
    "budget": "a field for each member of the agent's tree; delete_agent removes it",
    "checkpoint": "ends by its TTL once finished; delete_agent removes the unfinished ones",
    "children": "bounded in length; delete_agent removes it",
    "clock": "the namespace itself",
    "config": "the namespace itself",
    "counters": "bounded by the kinds of counters",
    "dags": "the namespace itself; bounded in number",
    "disturbed": "its members are: one for each agent that has faults",
    "damaged": "bounded in length; delete_agent removes it",
    "dead": "bounded in number and age",
    "deadlines": "its members are: one for each thing that is due",
    "events": "delete_agent removes it",
    "executions": "bounded in number; delete_agent removes it",
    "feed": "bounded by length",
    "group": "delete_group removes it",
    "groups": "its members are: one for each group",
    "handling": "an answer removes its field; delete_agent removes it",
    "hosts": "its members are: one for each hosted agent",
    "intents": "an outcome removes its field; delete_agent removes it",
    "last_sweep": "the namespace itself",
    "interrupts": "bounded in number; delete_agent removes it",
    "inbox": "consumed by the agent; delete_agent removes it",
    "memory": "bounded in sessions and messages; delete_agent removes it",
    "meta": "the namespace itself",
    "runtime": "the namespace itself",
    "sessions": "bounded in number; delete_agent removes it",
    "snapshots": "the last few are kept; delete_agent removes it",
    "state": "its members are: each agent is in one of them",
    "streams": "delete_agent or a birth takes its field over",
    "summaries": "the last few are kept; delete_agent removes it",
    "types": "bounded by the agent types of the deployment",
    "views": "the namespace itself: a number",
}


def leaked_keys(client: redis.Redis, namespace: str, *, also_owned: Collection[str] = ()) -> list[str]:
    """Return the keys of a namespace that would stay for ever: no TTL, and of no kind that somebody owns.

    Args:
        client: Of the server that holds the namespace.
        namespace: Its name, without braces.
        also_owned: Kinds that this test owns itself.
    """
    owned = {*OWNED_KINDS, *also_owned}
    return sorted(
        key for key in namespace_keys(client, namespace) if kind_of(key) not in owned and client.ttl(key) == -1
    )


def keys_of_agent(client: redis.Redis, namespace: str, agent_id: str) -> list[str]:
    """Return the keys that carry an agent's id: none may be left after delete_agent."""
    wanted = quote(agent_id, safe="")
    return sorted(key for key in namespace_keys(client, namespace) if wanted in key.split(":"))


def namespace_keys(client: redis.Redis, namespace: str) -> Iterator[str]:
    """Yield each key of a namespace once, `{namespace:shard}:…` and `{namespace}:…`."""
    seen: set[str] = set()
    for raw in client.scan_iter(match="{*", count=1000):
        key = raw.decode() if isinstance(raw, bytes) else str(raw)
        tag = key[1:].partition("}")[0]
        if key not in seen and (tag == namespace or tag.startswith(f"{namespace}:")):
            seen.add(key)
            yield key


def kind_of(key: str) -> str:
    """Return the kind of a key: the first word behind its hash tag."""
    return key.partition("}:")[2].partition(":")[0]
