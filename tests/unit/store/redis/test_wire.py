"""The bytes of the protocol: the driver's own packing is what ours is compared with."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import Connection as _Connection
from redis.exceptions import NoScriptError, ResponseError

from ares_celery.store.redis.wire import DONE, Incomplete, pack, unpack

Connection: Any = _Connection
WORDS = st.one_of(st.text(), st.binary(), st.integers())
COMMANDS = st.lists(st.lists(WORDS), min_size=1, max_size=4)
ANSWERS = st.recursive(
    st.one_of(st.none(), st.binary(), st.integers()), lambda answers: st.lists(answers, max_size=5), max_leaves=20
)


def encoded(answer: Any) -> bytes:
    """An answer as a server sends it."""
    if answer is None:
        return b"$-1\r\n"
    if isinstance(answer, list):
        return b"*%d\r\n" % len(answer) + b"".join(encoded(item) for item in answer)
    return b":%d\r\n" % answer if isinstance(answer, int) else b"$%d\r\n%b\r\n" % (len(answer), answer)


@given(COMMANDS)
def test_commands_are_packed_as_the_driver_packs_them(commands: list[list[str | bytes | int]]) -> None:
    """Byte for byte, whatever the words; its packer takes the name of the command apart, so here it has one."""
    named = [["EVALSHA", *words] for words in commands]
    driver: Any = Connection()
    assert pack(*named) == b"".join(bytes(part) for words in named for part in driver.pack_command(*words))


def test_half_of_a_surrogate_pair_is_refused() -> None:
    """As the driver does, before anything is sent."""
    with pytest.raises(UnicodeEncodeError):
        pack(["GET", "\ud800"])


@given(st.lists(ANSWERS, min_size=1, max_size=3))
def test_answers_are_read_one_behind_the_other_and_never_too_early(answers: list[Any]) -> None:
    """Wherever the bytes end, what is not whole is not taken for an answer."""
    sent = [encoded(answer) for answer in answers]
    whole, at, found = b"".join(sent), 0, list[Any]()
    while at < len(whole):
        answer, at = unpack(whole, at)
        found.append(answer)
    assert found == answers
    for cut in range(len(sent[0])):
        with pytest.raises(Incomplete):
            unpack(whole[:cut])


def test_errors_are_answers_that_keep_their_code() -> None:
    """A script that is not there is told apart, as it is loaded then; a list without end is none."""
    for line, kind in ((b"NOSCRIPT No matching script.", NoScriptError), (b"OOM command not allowed", ResponseError)):
        error, end = unpack(b"-" + line + b"\r\n")
        assert (type(error), str(error), end) == (kind, line.decode(), len(line) + 3)
    assert unpack(b"+OK\r\n*-1\r\n", 5) == (None, 10)
    assert unpack(b"+OK\r\n") == (b"OK", 5)
    assert unpack(DONE) == ([b"done"], len(DONE))
    with pytest.raises(ValueError, match="no answer of a server"):
        unpack(b"HTTP/1.1 400 Bad Request\r\n")
