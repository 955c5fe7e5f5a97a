"""``import ares_celery`` costs next to nothing: what is heavy is loaded by whoever uses it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

#: What costs tens of milliseconds each, or drags such along.
HEAVY = {"asyncio", "celery", "kombu", "msgspec", "multiprocessing", "pydantic", "redis", "rich", "socket", "ssl"}


def loaded_after(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter has loaded after running this."""
    shown = textwrap.dedent(code) + "\nimport sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    # Isolated: what the test's own environment loads at start does not count.
    ran = subprocess.run([sys.executable, "-I", "-c", shown], capture_output=True, text=True, timeout=60, check=True)
    return set(ran.stdout.split())


def test_the_import_loads_nothing_heavy() -> None:
    """Neither Celery, Kombu, Redis, pydantic nor asyncio: an API server that never calls us pays for none of them."""
    before = loaded_after("")
    assert "ares_celery" not in before
    after = loaded_after("import ares_celery; ares_celery.__all__; dir(ares_celery)")
    assert "ares_celery" in after
    assert HEAVY & (after - before) == set()


def test_names_are_loaded_one_by_one() -> None:
    """An error class costs no Celery, an agent's decorator no Redis; a Manager costs Celery at its first call only."""
    assert not {"celery", "kombu", "redis", "pydantic"} & loaded_after("from ares_celery import AgentNotFoundError")
    assert not {"celery", "kombu", "redis"} & loaded_after("from ares_celery import agent, AgentContext, Event")
    made = "import ares_celery as a; m, n = a.connect(), a.AsyncManager.connect()"
    assert not {"celery", "kombu"} & loaded_after(made)


def test_a_manager_that_is_made_starts_no_thread_and_is_nobodys_app() -> None:
    """Neither of the two, opened or not; the process's own current app stays what it is, or is chosen later."""
    code = """
        import threading
        from celery import Celery, _state
        import ares_celery as a
        made = [a.connect(redis_url="redis://127.0.0.1:1/0"), a.AsyncManager.connect(redis_url="redis://127.0.0.1:1/0")]
        assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
        try:
            made[0].stats()
        except a.StoreUnavailableError:
            pass
        assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
        assert _state.default_app is None and _state._tls.current_app is None
        own = Celery("own", set_as_current=True)
        assert own is not None
        from celery import current_app
        assert current_app.main == "own"
    """
    loaded_after(code)
