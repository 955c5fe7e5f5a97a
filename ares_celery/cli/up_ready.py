"""When the fleet of ``ares up`` is ready, and what is said then: how to reach it, and what to try."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from ares_celery.cli.children import Child, Children
from ares_celery.cli.output import clean, say
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store

__all__ = ["all_ready", "path_export", "print_exports", "say_what_to_try"]

_COMMANDS: Final = ("ares", "celery")
#: The sample agent's type: it answers messages, and it has a state to lose.
_COUNTER: Final = "counter"


def all_ready(store: Store, children: Children, names: Sequence[str]) -> bool:
    """True when each of these workers has reported to the store that it hosts or watches; notes those that have."""
    me = ProcessIdentity.current()
    reported: set[int] = set()
    for identity in map(ProcessIdentity.decode, store.hosts()):
        # A shared Redis knows workers of other machines, too: their pids mean nothing here.
        if (identity.host, identity.boot_id, identity.pid_namespace) == (me.host, me.boot_id, me.pid_namespace):
            reported.add(identity.pid)
    workers: list[Child] = [children[name] for name in names]
    for child in workers:
        child.ready = child.ready or (child.is_running and child.pid in reported)
    return all(child.ready and child.is_running for child in workers)


def path_export(environ: Mapping[str, str] | None = None, python: str = sys.executable) -> str | None:
    """The line that puts this installation's commands on PATH; None when a fresh terminal finds them anyway.

    An activated environment counts as not found, as a second terminal has not activated it; so does what our own lines
    have put in front when they were pasted into this one.
    """
    source = os.environ if environ is None else environ
    folder = Path(python).parent
    commands = [name for name in _COMMANDS if (folder / name).is_file()]
    active = source.get("VIRTUAL_ENV")
    entries = [entry for entry in source.get("PATH", "").split(os.pathsep) if entry]
    if "ARES_APP" in source and entries[:1] == [str(folder)]:
        entries = [entry for entry in entries if entry != str(folder)]
    fresh = os.pathsep.join(entry for entry in entries if not active or Path(entry) != Path(active) / "bin")
    if all(_is_found(name, folder, fresh) for name in commands):
        return None
    quoted = str(folder).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$").replace("`", "\\`")
    return f'export PATH="{quoted}:$PATH"'


def _is_found(name: str, folder: Path, path: str) -> bool:
    found = shutil.which(name, path=path)
    return found is not None and Path(found).resolve() == (folder / name).resolve()


def print_exports(url: str, namespace: str, app: str) -> None:
    """What a second terminal needs, on stdout."""
    path = path_export()
    if path is not None:
        click.echo(path)
    for name, value in (("ARES_REDIS_URL", url), ("ARES_NAMESPACE", namespace), ("ARES_APP", app)):
        click.echo(f"export {name}={shlex.quote(value)}")


def say_what_to_try(types: Mapping[str, Mapping[str, Any]], agents_pid: int) -> None:
    """Commands that work as they stand.

    Args:
        types: The agent types that workers reported, as Registry.describe has them.
        agents_pid: Process of the agents worker.
    """
    say(f"ares up: ready; agent types: {', '.join(clean(name) for name in sorted(types)) or 'none'}")
    if not types:
        say("ares up: name your module of agents in ARES_AGENT_MODULES and start `ares up` again")
        return
    say("ares up: paste the lines above into a second terminal, then try:")
    easy = [name for name in sorted(types) if not types[name]["required"]]
    kind = _COUNTER if _COUNTER in easy else next(iter(easy), None)
    if kind is None:
        say("  ares agents types")
        say("ares up: each type needs a config: `ares agents start first-1 --type TYPE --config JSON --wait`")
    else:
        _say_tour(kind, agents_pid)
    say("ares up: Ctrl-C ends the fleet, a second one at once")


def _say_tour(kind: str, agents_pid: int) -> None:
    look = "ares agents ask first-1 '{}'" if kind == _COUNTER else "ares agents show first-1"
    say(f"  ares agents start first-1 --type {shlex.quote(kind)} --wait")
    say(f"  {look}")
    say(f"  kill -9 {agents_pid}")
    say(f"  {look}")
    say(f"ares up: {agents_pid} is the agents worker; first-1 dies with it and comes back with its state")
