"""Names one operating system process so that no other process, past or future, is taken for it."""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["ProcessIdentity", "read_start_ticks", "sanitise_host"]

_log: Final = logging.getLogger(__name__)

_PROC: Final = Path("/proc")
_BOOT_ID: Final = _PROC / "sys/kernel/random/boot_id"
_PID_NAMESPACE: Final = _PROC / "self/ns/pid"
_TIME_OFFSETS: Final = _PROC / "self/timens_offsets"

#: Index of `starttime` (field 22 of proc(5) stat) among the fields after the command name, which are numbered from 3.
_START_TICKS_INDEX: Final = 22 - 3

#: Longest host name kept, in characters: that of a DNS name.
_MAX_HOST: Final = 255

_HOST: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{_MAX_HOST}}}")
_NOT_HOST: Final = re.compile(r"[^A-Za-z0-9._-]")
_BOOT: Final = re.compile(r"[A-Za-z0-9-]{0,64}")
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,19}")

_FORM: Final = "host:boot_id:pid_namespace:pid:start_ticks"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process: equal identities are the same process, even after its pid was given to another.

    An identity without boot id names a process that can never be watched from another one (no Linux `/proc`).

    Attributes:
        host: Host name, for people; letters, digits, dot, underscore and dash only.
        boot_id: Random id of this boot of the kernel; empty when unknown.
        pid_namespace: Inode of the pid namespace in which `pid` counts; 0 when unknown.
        pid: Process id, above 0.
        start_ticks: Start of the process in clock ticks (10 ms as a rule) since boot; 0 when unknown.

    Raises:
        ValueError: A field is out of its range; the message names field, value and cure.

    Example:
        >>> identity = ProcessIdentity("web-1", "5f0c", 4026531836, 4711, 98765)
        >>> identity.encode()
        'web-1:5f0c:4026531836:4711:98765'
        >>> ProcessIdentity.decode(identity.encode()) == identity
        True
    """

    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int

    def __post_init__(self) -> None:
        """Refuse what `encode` could not carry."""
        if not _HOST.fullmatch(self.host):
            message = (
                f"host {self.host!r} must be 1 to {_MAX_HOST} letters, digits, '.', '_' or '-': use sanitise_host()"
            )
            raise ValueError(message)
        if not _BOOT.fullmatch(self.boot_id):
            raise ValueError(
                f"boot_id {self.boot_id!r} must be at most 64 letters, digits or '-': use the kernel's boot id"
            )
        for field, value, least in (
            ("pid_namespace", self.pid_namespace, 0),
            ("pid", self.pid, 1),
            ("start_ticks", self.start_ticks, 0),
        ):
            if value < least:
                raise ValueError(f"{field} {value} must be at least {least}: read it from the running process")

    @classmethod
    def current(cls) -> ProcessIdentity:
        """Return the identity of the calling process; read once a process, so a forked child gets its own."""
        return _own_identity(os.getpid())

    @classmethod
    def of_pid(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of the process that holds `pid` in our pid namespace now.

        Returns:
            None when no such process is visible, or when processes cannot be told apart here (no Linux `/proc`).
        """
        own = cls.current()
        if not own.boot_id:
            return None
        start_ticks = read_start_ticks(pid)
        if start_ticks is None:
            return None
        return cls(own.host, own.boot_id, own.pid_namespace, pid, start_ticks)

    def encode(self) -> str:
        """Return the identity as one line of `[A-Za-z0-9._:-]`, fit to be part of a Redis key or channel."""
        return f"{self.host}:{self.boot_id}:{self.pid_namespace}:{self.pid}:{self.start_ticks}"

    @classmethod
    def decode(cls, text: str) -> ProcessIdentity:
        """Return the identity that `encode` wrote as `text`.

        Raises:
            ValueError: `text` was not written by `encode`.
        """
        parts = text.split(":")
        if len(parts) != len(_FORM.split(":")) or not all(_NUMBER.fullmatch(part) for part in parts[2:]):
            raise ValueError(f"process identity {text[:100]!r} must be {_FORM}, as ProcessIdentity.encode() writes it")
        host, boot_id, pid_namespace, pid, start_ticks = parts
        return cls(host, boot_id, int(pid_namespace), int(pid), int(start_ticks))

    def same_kernel(self, other: ProcessIdentity) -> bool:
        """Tell whether both pids count in one pid namespace of one running kernel, so that one can watch the other."""
        return (
            self.boot_id != ""
            and self.pid_namespace != 0
            and (self.boot_id, self.pid_namespace) == (other.boot_id, other.pid_namespace)
        )


def sanitise_host(name: str) -> str:
    """Return `name` as a host that an identity accepts: other characters become '-', no name becomes 'unknown'."""
    return _NOT_HOST.sub("-", name)[:_MAX_HOST] or "unknown"


def read_start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; a zombie still has its start.

    Returns:
        None when `/proc` shows us no such process. It may be gone or hidden (hidepid): this is no proof of death.

    Raises:
        ValueError: `/proc/<pid>/stat` has a form that Linux does not write.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return _parse_stat(stat)[1]


def _parse_stat(stat: bytes) -> tuple[int, int]:
    """Return pid and start ticks of a `/proc/<pid>/stat` line."""
    pid = stat.partition(b" ")[0]
    # The command name is in parentheses and may itself hold spaces and parentheses: only the last one ends it.
    fields = stat.rpartition(b")")[2].split()
    if len(fields) <= _START_TICKS_INDEX:
        raise ValueError(f"/proc stat line {stat[:100]!r} has no start time: is /proc a Linux proc file system?")
    return int(pid), int(fields[_START_TICKS_INDEX])


@lru_cache(maxsize=1)
def _own_identity(pid: int) -> ProcessIdentity:
    """Read the identity of the calling process, whose pid is the cache key."""
    host = sanitise_host(platform.node())
    if sys.platform == "linux":
        try:
            return _watchable_identity(host, pid)
        except (OSError, ValueError) as error:
            _log.warning("process %d cannot be watched by others, its lease alone shows its death: %s", pid, error)
    return ProcessIdentity(host, "", 0, pid, 0)


def _watchable_identity(host: str, pid: int) -> ProcessIdentity:
    """Read our identity from `/proc`; raises OSError or ValueError when others could not judge us by it."""
    stat_pid, start_ticks = _parse_stat((_PROC / "self/stat").read_bytes())
    if stat_pid != pid:
        raise ValueError(f"/proc belongs to another pid namespace (there we are {stat_pid}): mount our own /proc")
    _refuse_shifted_boot_clock()
    boot_id = _BOOT_ID.read_text(encoding="ascii").strip()
    return ProcessIdentity(host, boot_id, _PID_NAMESPACE.stat().st_ino, pid, start_ticks)


def _refuse_shifted_boot_clock() -> None:
    """Raise ValueError in a time namespace with its own boot clock: start ticks differ there for the same process."""
    if not _TIME_OFFSETS.exists():
        return
    for line in _TIME_OFFSETS.read_text(encoding="ascii").splitlines():
        clock, *offsets = line.split()
        if clock == "boottime" and any(int(offset) for offset in offsets):
            raise ValueError(f"the time namespace shifts the boot clock ({line!r}): run in the host's time namespace")


# The pid alone would not do: a descendant may be given the pid that an ancestor had when it filled the cache.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_identity.cache_clear)
