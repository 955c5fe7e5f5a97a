"""Sees the exit of processes on this machine within milliseconds, through pidfds."""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from ares_celery.runtime.process_identity import ProcessIdentity, read_start_ticks

__all__ = ["DEFAULT_CLOSE_TIMEOUT", "DEFAULT_MAX_WATCHES", "ExitWatcher", "kill"]

_log: Final = logging.getLogger(__name__)

#: Most processes watched at once. Half of the usual limit of 1024 open files; a watch costs one.
DEFAULT_MAX_WATCHES: Final = 512

#: How long `close` waits for a callback that is still running.
DEFAULT_CLOSE_TIMEOUT: Final = timedelta(seconds=5)


class ExitWatcher:
    """Calls `on_exit` once for each watched process that exits, single-digit milliseconds after the exit.

    One daemon thread waits for all of them. A stopped process (SIGSTOP) has not exited; a zombie has. All methods may
    be called from any thread, also from `on_exit`. In a forked child the inherited watcher is closed: make a new one.

    An exit reported here is proof: the process is identified by its start time as well as its pid, so another process
    with the same pid is neither watched nor taken for it.

    Args:
        on_exit: Called in the watcher's thread, one exit after the other, so it should only hand the word on. What it
            raises is logged.
        max_watches: Most processes watched at once; `watch` returns False above it.

    Example:
        >>> import queue, subprocess
        >>> exits: queue.Queue[ProcessIdentity] = queue.Queue()
        >>> watcher = ExitWatcher(exits.put)
        >>> watcher.start()
        >>> child = subprocess.Popen(["sleep", "60"])
        >>> identity = watcher.watch_pid(child.pid)
        >>> child.kill()
        >>> exits.get(timeout=5) == identity
        True
        >>> watcher.close(); _ = child.wait()
    """

    def __init__(self, on_exit: Callable[[ProcessIdentity], None], *, max_watches: int = DEFAULT_MAX_WATCHES) -> None:
        if max_watches < 1:
            raise ValueError(f"max_watches {max_watches} must be at least 1: leave it out for {DEFAULT_MAX_WATCHES}")
        self._on_exit = on_exit
        self._max_watches = max_watches
        self._lock = threading.Lock()
        self._pidfds: dict[ProcessIdentity, int] = {}
        self._identities: dict[int, ProcessIdentity] = {}
        # Exited and not yet reported, in order. A dict, so that a second watch in between adds nothing.
        self._exited: dict[ProcessIdentity, None] = {}
        self._warned: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._poller = _Poller() if _is_supported() else None
        if self._poller is not None:
            _call_in_forked_child(weakref.WeakMethod(self._abandon))

    def start(self) -> None:
        """Start reporting; a second call changes nothing. Where exits cannot be watched, this only logs a warning.

        Raises:
            RuntimeError: The watcher was closed, or inherited through a fork.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError(
                    "this ExitWatcher is closed or was inherited through a fork: make a new one in this process"
                )
            if self._thread is None and self._poller is not None:
                self._thread = threading.Thread(
                    target=self._run, args=(self._poller,), name="ares-exit-watcher", daemon=True
                )
                self._thread.start()
        if self._poller is None:
            _log.warning("exits cannot be watched here (no pidfd or epoll): deaths are seen by the lease alone")

    def watch(self, identity: ProcessIdentity) -> bool:
        """Report the exit of this process once; at once when it is over already. Watching twice is watching once.

        Returns:
            True: `on_exit` will be called (after `start`, unless `forget` or `close` come first). False: it will never
            be, since the process cannot be seen from here (another kernel or pid namespace, no Linux, refused by the
            system, too many watches, watcher closed). False says nothing about whether the process lives.
        """
        if not identity.same_kernel(ProcessIdentity.current()):
            return False
        with self._lock:
            if self._closed or self._poller is None:
                return False
            if identity in self._pidfds or identity in self._exited:
                return True
            refusal = self._add(self._poller, identity)
        if refusal is not None:
            self._warn_once(refusal, identity)
        return refusal is None

    def watch_pid(self, pid: int) -> ProcessIdentity | None:
        """Report the exit of the process that holds `pid` now, like `watch`.

        Returns:
            The identity `on_exit` will be called with. None when there is no such process or it cannot be watched.
        """
        identity = ProcessIdentity.of_pid(pid)
        if identity is None or not self.watch(identity):
            return None
        return identity

    def forget(self, identity: ProcessIdentity) -> None:
        """Stop watching: no call of `on_exit` for it begins after this returns. Unknown identities are ignored."""
        with self._lock:
            self._exited.pop(identity, None)
            if self._poller is not None:
                self._remove(self._poller, identity)

    def watched(self) -> frozenset[ProcessIdentity]:
        """Return the processes whose exit is still to be reported."""
        with self._lock:
            return frozenset((*self._pidfds, *self._exited))

    def close(self, timeout: timedelta = DEFAULT_CLOSE_TIMEOUT) -> None:
        """Forget everything and end the thread; waits up to `timeout` for a callback that is running."""
        with self._lock:
            self._closed = True
            thread = self._thread
            if self._poller is not None:
                self._remove_all(self._poller)
                if thread is None:
                    self._poller.close()
                else:
                    self._poller.wake()
        if thread is None or thread is threading.current_thread():
            return
        thread.join(timeout.total_seconds())
        if thread.is_alive():
            _log.warning("the exit watcher's callback still runs %s after close; its thread ends after it", timeout)

    def _add(self, poller: _Poller, identity: ProcessIdentity) -> str | None:
        """Watch or queue the identity, under the lock; return why not, or None."""
        if len(self._pidfds) >= self._max_watches:
            return f"{self._max_watches} processes are watched already"
        try:
            pidfd = _open_process(identity)
        except ProcessLookupError:
            self._exited[identity] = None
            poller.wake()
            return None
        except OSError as error:
            return f"the system refuses: {error}"
        try:
            poller.add(pidfd)
        except OSError as error:
            os.close(pidfd)
            return f"the system refuses: {error}"
        self._pidfds[identity] = pidfd
        self._identities[pidfd] = identity
        return None

    def _remove(self, poller: _Poller, identity: ProcessIdentity) -> None:
        """Close the identity's pidfd, under the lock."""
        pidfd = self._pidfds.pop(identity, None)
        if pidfd is not None:
            del self._identities[pidfd]
            # Closing alone is not enough: while a forked child holds a copy, epoll goes on reporting a closed pidfd.
            poller.remove(pidfd)
            os.close(pidfd)

    def _remove_all(self, poller: _Poller) -> None:
        """Close all pidfds and drop what is unreported, under the lock."""
        self._exited.clear()
        for identity in list(self._pidfds):
            self._remove(poller, identity)

    def _abandon(self) -> None:
        """Close our copies of the parent's files, in a forked child."""
        # The thread that held the lock is not in this process; and epoll is shared with the parent, so nothing may be
        # removed from it: closing the copies is all.
        self._lock = threading.Lock()
        self._closed = True
        self._thread = None
        self._exited.clear()
        self._pidfds.clear()
        pidfds = list(self._identities)
        self._identities.clear()
        for pidfd in pidfds:
            os.close(pidfd)
        if self._poller is not None:
            self._poller.close()

    def _warn_once(self, refusal: str, identity: ProcessIdentity) -> None:
        """Log the refusal, as a warning the first time only: sweeps ask again and again."""
        level = logging.DEBUG if refusal in self._warned else logging.WARNING
        self._warned.add(refusal)
        _log.log(level, "exit of %s is not watched, its lease alone shows its death: %s", identity.encode(), refusal)

    def _run(self, poller: _Poller) -> None:
        """Wait and report until closed: the body of the thread."""
        try:
            while self._collect(poller, poller.wait()):
                self._report()
        except Exception:  # noqa: BLE001 - whatever it is, the loss of the watcher must be loud
            _log.exception("the exit watcher failed and is closed: from now on deaths are seen by the lease alone")
        finally:
            with self._lock:
                self._closed = True
                self._remove_all(poller)
                poller.close()

    def _collect(self, poller: _Poller, ready: list[int]) -> bool:
        """Move exited processes from watched to unreported; False when closed."""
        with self._lock:
            for pidfd in ready:
                identity = self._identities.get(pidfd)
                # Since `wait` returned, another thread may have closed this pidfd and got its number for a new watch.
                if identity is not None and _has_exited(pidfd):
                    self._remove(poller, identity)
                    self._exited[identity] = None
            return not self._closed

    def _report(self) -> None:
        """Call `on_exit` for all that is unreported, without the lock."""
        while True:
            with self._lock:
                identity = next(iter(self._exited), None)
                if identity is None:
                    return
                del self._exited[identity]
            try:
                self._on_exit(identity)
            except BaseException:  # noqa: BLE001 - stop signals are no Exceptions; the thread outlives any callback
                _log.exception("callback for the exit of %s raised; watching goes on", identity.encode())


class _Poller:
    """An epoll of pidfds that another thread can wake. Only `add`, `remove`, `wake` and `wait` at the same time."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake_fd, select.EPOLLIN)

    def add(self, pidfd: int) -> None:
        self._epoll.register(pidfd, select.EPOLLIN)

    def remove(self, pidfd: int) -> None:
        self._epoll.unregister(pidfd)

    def wake(self) -> None:
        """Make `wait` return; nothing after `close`."""
        if not self._epoll.closed:
            os.eventfd_write(self._wake_fd, 1)

    def wait(self) -> list[int]:
        """Wait for exits or `wake`; return the pidfds that may be ready."""
        ready = [fd for fd, _ in self._epoll.poll()]
        if self._wake_fd not in ready:
            return ready
        os.eventfd_read(self._wake_fd)
        return [fd for fd in ready if fd != self._wake_fd]

    def close(self) -> None:
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)


def kill(identity: ProcessIdentity) -> bool:
    """Send SIGKILL to exactly this process, never to another one that has got its pid since.

    Returns:
        True when the signal was sent. False when the process is over, cannot be seen from here or may not be signalled.
    """
    if not _is_supported() or not identity.same_kernel(ProcessIdentity.current()):
        return False
    try:
        pidfd = _open_process(identity)
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        return False
    except OSError as error:
        _log.warning("process %s was not killed: %s", identity.encode(), error)
        return False
    return True


def _is_supported() -> bool:
    """Tell whether this Python and system have what watching takes; gevent, for one, takes epoll away."""
    return all((hasattr(os, "pidfd_open"), hasattr(os, "eventfd"), hasattr(select, "epoll")))


def _open_process(identity: ProcessIdentity) -> int:
    """Return a pidfd that is surely this living process of our own pid namespace; the caller closes it.

    Raises:
        ProcessLookupError: The process is over: that is certain.
        OSError: It cannot be told from here.
    """
    try:
        pidfd = os.pidfd_open(identity.pid)
    except OSError as error:
        if error.errno in {errno.EINVAL, errno.ENOENT} and _is_held_by_another(identity):
            raise ProcessLookupError(errno.ESRCH, "the pid is now that of a thread") from error
        raise
    try:
        _check_process(pidfd, identity)
    except BaseException:
        os.close(pidfd)
        raise
    return pidfd


def _check_process(pidfd: int, identity: ProcessIdentity) -> None:
    """Raise ProcessLookupError unless the pidfd is the identity's process and it lives."""
    start_ticks = read_start_ticks(identity.pid)
    # Asked after the reading: a process that still lives held its pid all the while, so the start time is its own.
    if _has_exited(pidfd):
        raise ProcessLookupError(errno.ESRCH, "the process has exited")
    if start_ticks is None:
        raise PermissionError(errno.EACCES, "the process lives but /proc hides it (hidepid?)")
    if start_ticks != identity.start_ticks:
        raise ProcessLookupError(errno.ESRCH, "the pid was given to another process")


def _is_held_by_another(identity: ProcessIdentity) -> bool:
    """Tell whether the pid is visibly held by something that started at another time."""
    start_ticks = read_start_ticks(identity.pid)
    return start_ticks is not None and start_ticks != identity.start_ticks


def _has_exited(pidfd: int) -> bool:
    """Tell whether the process has ended, all threads of it; a zombie has."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _call_in_forked_child(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Call the method in every child forked from now on, for as long as its object lives."""

    def call() -> None:
        alive = method()
        if alive is not None:
            alive()

    os.register_at_fork(after_in_child=call)
