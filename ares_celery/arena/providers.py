"""Calls what an activity names: a function, a request, a program; each within its time."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Awaitable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from http.client import HTTPResponse
from typing import IO, Any, Final, cast

from ares_celery.arena.calls import find_function
from ares_celery.arena.ring import Ring
from ares_celery.arena.scenario import NOTHING, Activity, HttpProvider, ProcessProvider, PythonProvider
from ares_celery.arena.values import as_list, as_mapping
from ares_celery.errors import ActivityFailedError

__all__ = ["call_provider"]

#: Bytes of an answer or of an output that a report keeps.
_KEPT: Final = 64 << 10
_PIECE: Final = 4096
#: Seconds between two looks at a program.
_LOOK: Final = 0.02
#: The first status that says that a request was refused.
_REFUSED: Final = 400


def call_provider(activity: Activity, ring: Ring, allowed: Collection[str]) -> Any:  # noqa: ANN401 - whatever it gives
    """What the activity's provider gives.

    Raises:
        ActivityFailedError: The request was refused, the program failed or took too long.
        Exception: Whatever the function raises.
    """
    match activity.provider:
        case PythonProvider(module, func, arguments):
            gave = find_function(module, func, allowed)(**arguments)
            return _awaited(gave) if inspect.isawaitable(gave) else gave
        case HttpProvider():
            return _request(activity, activity.provider, ring)
        case ProcessProvider():
            return _program(activity, activity.provider, ring)


def _awaited(given: Awaitable[Any]) -> Any:  # noqa: ANN401 - whatever it gives
    """What an ``async def`` function gives, in a loop of its own on this thread; on another where one runs already."""

    async def whole() -> Any:  # noqa: ANN401 - as above
        return await given

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())
    with ThreadPoolExecutor(1, thread_name_prefix="ares-arena-await") as pool:
        return pool.submit(copy_context().run, asyncio.run, whole()).result()


def _request(activity: Activity, provider: HttpProvider, ring: Ring) -> Mapping[str, Any]:
    url, body, headers = provider.url, None, {**provider.headers}
    is_get = provider.method.upper() in {"GET", "HEAD"}
    if provider.arguments and is_get:
        joint = "&" if urllib.parse.urlsplit(url).query else "?"
        url += joint + urllib.parse.urlencode(cast("Mapping[str, Any]", provider.arguments), doseq=True)
    elif provider.arguments is not None and not is_get:
        body = json.dumps(provider.arguments).encode()
        headers.setdefault("Content-Type", "application/json")
    # Only http and https pass the check of a scenario.
    request = urllib.request.Request(url, body, headers, method=provider.method.upper())  # noqa: S310
    context = None if provider.verify_tls else _unverified()
    limit = provider.timeout.total_seconds()
    until = ring.clock.monotonic() + limit
    try:
        with urllib.request.urlopen(request, timeout=limit, context=context) as answer:  # noqa: S310
            status, told = answer.status, dict(answer.headers.items())
            text = _read(answer, until, ring, activity)
    except urllib.error.HTTPError as error:
        status, told = error.code, dict(error.headers.items())
        with error:
            text = error.read(_KEPT).decode(errors="replace")
    except (OSError, ValueError) as error:
        raise ActivityFailedError(name=activity.name, problem=f"{provider.url}: {error}") from error
    if status >= _REFUSED and activity.tolerance is NOTHING:
        raise ActivityFailedError(name=activity.name, problem=f"{provider.url} answers {status}: {text[:200]}")
    return {"status": status, "headers": told, "body": _parsed(text)}


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _read(answer: HTTPResponse, until: float, ring: Ring, activity: Activity) -> str:
    """The body, up to what a report keeps; a server that drips must not hold the run for ever."""
    found = b""
    while len(found) < _KEPT and (piece := answer.read1(_PIECE)):
        found += piece
        if ring.clock.monotonic() >= until:
            raise ActivityFailedError(name=activity.name, problem="the answer did not end in time")
    return found.decode(errors="replace")


def _parsed(text: str) -> Any:  # noqa: ANN401 - JSON
    try:
        return json.loads(text)
    except ValueError:
        return text


def _program(activity: Activity, provider: ProcessProvider, ring: Ring) -> Mapping[str, Any]:
    path = shutil.which(os.path.expanduser(provider.path))  # noqa: PTH111 - which takes a text
    if path is None:
        raise ActivityFailedError(name=activity.name, problem=f"there is no program {provider.path!r}")
    limit = provider.timeout.total_seconds()
    until = ring.clock.monotonic() + limit
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        # Of a session of its own: whatever it started ends with it.
        process = subprocess.Popen(  # noqa: S603 - what the file names, without a shell
            [path, *_words(provider.arguments)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            while process.poll() is None and ring.clock.monotonic() < until and not ring.pause(_LOOK):
                pass
            code = process.poll()
        finally:
            # Its group outlives it where it left children behind.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said, failed = _text(out), _text(err)
    told = {"status": code, "stdout": said, "stderr": failed}
    if code is None:
        raise ActivityFailedError(
            name=activity.name, problem=f"{provider.path} did not end within {limit:g} s", output=told
        )
    if code != 0 and activity.kind == "action":
        last = (failed or said).strip()[-200:]
        raise ActivityFailedError(
            name=activity.name, problem=f"{provider.path} exited with {code}: {last}", output=told
        )
    return told


def _words(arguments: Any) -> list[str]:  # noqa: ANN401 - as a file has them
    if isinstance(arguments, Mapping):
        pairs = as_mapping(cast("object", arguments)).items()
        return [str(word) for pair in pairs for word in pair if word not in (None, "")]
    return [str(word) for word in as_list(cast("object", arguments))]


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(_KEPT).decode(errors="replace")
