"""Process identities: what they hold, how they travel, when one process can watch another."""

from __future__ import annotations

import dataclasses
import os
import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.runtime import process_identity
from ares_celery.runtime.process_identity import ProcessIdentity, read_start_ticks, sanitise_host

BOOT_ID = "0b1f8a52-6f0e-4d0c-9a53-2f4f7c9e2b11"
SOME = ProcessIdentity(host="web-1", boot_id=BOOT_ID, pid_namespace=4026531836, pid=4711, start_ticks=98765)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@given(
    host=st.text(alphabet=string.ascii_letters + string.digits + "._-", min_size=1, max_size=255),
    boot_id=st.text(alphabet=string.ascii_letters + string.digits + "-", max_size=64),
    pid_namespace=st.integers(0, 2**63),
    pid=st.integers(1, 2**31),
    start_ticks=st.integers(0, 2**63),
)
def test_every_identity_survives_encoding(
    host: str, boot_id: str, pid_namespace: int, pid: int, start_ticks: int
) -> None:
    """decode(encode(x)) is x, and the text is made of key-safe characters alone."""
    identity = ProcessIdentity(host, boot_id, pid_namespace, pid, start_ticks)
    text = identity.encode()
    assert ProcessIdentity.decode(text) == identity
    assert re.fullmatch(r"[A-Za-z0-9._:-]+", text)


@given(st.text())
def test_any_host_name_can_be_made_acceptable(name: str) -> None:
    """A sanitised host is accepted by an identity, whatever the machine is called."""
    host = sanitise_host(name)
    assert dataclasses.replace(SOME, host=host).host == host


@pytest.mark.parametrize(
    "text",
    [
        "",
        "web-1",
        "web-1:boot:1:2",
        "web-1:boot:1:2:3:4",
        "web-1:boot:1:x:3",
        "web-1:boot:1:-2:3",
        "web-1:boot:1:02:3",
        "web-1:boot:1:2:3\n",
        "web-1:boot:1:²:3",
        "web 1:boot:1:2:3",
        ":boot:1:2:3",
        "web-1:bo_ot:1:2:3",
        "web-1:boot:1:0:3",
    ],
)
def test_what_encode_did_not_write_is_refused(text: str) -> None:
    """A malformed text is a ValueError, never another identity."""
    with pytest.raises(ValueError, match=r"must be"):
        ProcessIdentity.decode(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [("host", ""), ("host", "a:b"), ("boot_id", "a:b"), ("pid", 0), ("pid_namespace", -1), ("start_ticks", -1)],
)
def test_a_bad_field_is_named_with_its_value(field: str, value: object) -> None:
    """The error names the field and what it held."""
    change: dict[str, Any] = {field: value}
    with pytest.raises(ValueError, match=rf"{field} {value!r} must be .*: "):
        dataclasses.replace(SOME, **change)


def test_processes_of_one_boot_and_pid_namespace_can_watch_each_other() -> None:
    """Host name, pid and start time do not matter for that."""
    assert SOME.same_kernel(dataclasses.replace(SOME, host="other", pid=1, start_ticks=1))


@pytest.mark.parametrize("change", [{"boot_id": "another"}, {"pid_namespace": 1}])
def test_another_boot_or_pid_namespace_cannot_be_watched(change: dict[str, Any]) -> None:
    """A pid means another process there."""
    assert not SOME.same_kernel(dataclasses.replace(SOME, **change))


def test_unknown_kernels_are_never_the_same() -> None:
    """Two identities without boot id, or without pid namespace, prove nothing about each other."""
    without_boot = dataclasses.replace(SOME, boot_id="")
    without_namespace = dataclasses.replace(SOME, pid_namespace=0)
    assert not without_boot.same_kernel(without_boot)
    assert not without_namespace.same_kernel(without_namespace)


@linux_only
def test_the_current_identity_is_that_of_this_process() -> None:
    """It agrees with what the system says, and is read once."""
    current = ProcessIdentity.current()
    assert current.pid == os.getpid()
    assert current.start_ticks == read_start_ticks(os.getpid())
    assert current.pid_namespace == Path("/proc/self/ns/pid").stat().st_ino
    assert current.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    assert current is ProcessIdentity.current()
    assert current == ProcessIdentity.of_pid(os.getpid())


@linux_only
def test_a_forked_child_has_its_own_identity() -> None:
    """The cache does not follow a fork."""
    script = (
        "import os\n"
        "from ares_celery.runtime.process_identity import ProcessIdentity as P\n"
        "parent = P.current()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    own = P.current()\n"
        "    os._exit(0 if own.pid == os.getpid() != parent.pid and own.same_kernel(parent) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20, cwd=Path(__file__).parents[3])


@linux_only
def test_an_absent_process_has_neither_start_nor_identity() -> None:
    """No such pid is None, not an error."""
    above_every_pid = 2**22 + 1
    assert read_start_ticks(above_every_pid) is None
    assert ProcessIdentity.of_pid(above_every_pid) is None


def test_a_command_name_full_of_parentheses_does_not_shift_the_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start time is counted from the last closing parenthesis."""
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) S 1 2 ) (b) S {fields}\n", encoding="ascii")
    assert read_start_ticks(7) == 22


def test_a_foreign_stat_form_is_refused_with_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A /proc that is not Linux' own is said to be so."""
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) S 1\n", encoding="ascii")
    with pytest.raises(ValueError, match=r"7 \(a\) S 1.*Linux"):
        read_start_ticks(7)


def _forget_current() -> None:
    vars(process_identity)["_own_identity"].cache_clear()


def _assert_unwatchable(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget_current()
    try:
        current = ProcessIdentity.current()
        assert (current.boot_id, current.pid) == ("", os.getpid())
        assert not current.same_kernel(current)
        assert ProcessIdentity.of_pid(os.getpid()) is None
        assert ProcessIdentity.decode(current.encode()) == current
    finally:
        monkeypatch.undo()
        _forget_current()


def test_elsewhere_than_on_linux_nothing_is_watchable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The current identity works and has no boot id."""
    monkeypatch.setattr(sys, "platform", "darwin")
    _assert_unwatchable(monkeypatch)


@linux_only
def test_without_proc_nothing_is_watchable_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A missing /proc costs speed of detection, not the process."""
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    _assert_unwatchable(monkeypatch)
    assert "cannot be watched" in caplog.text


@linux_only
def test_the_proc_of_another_pid_namespace_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where /proc numbers processes differently, nothing is watchable."""
    stat = Path("/proc/self/stat").read_text(encoding="ascii")
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "stat").write_text(f"{os.getpid() + 1} {stat.partition(' ')[2]}", encoding="ascii")
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    _assert_unwatchable(monkeypatch)
    assert "another pid namespace" in caplog.text


@linux_only
def test_a_shifted_boot_clock_makes_a_process_unwatchable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a time namespace start ticks read differently, so they would prove a living process dead."""
    offsets = tmp_path / "timens_offsets"
    offsets.write_text("monotonic           0         0\nboottime         3600         0\n", encoding="ascii")
    monkeypatch.setattr(process_identity, "_TIME_OFFSETS", offsets)
    _assert_unwatchable(monkeypatch)
    assert "time namespace" in caplog.text
