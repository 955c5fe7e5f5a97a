"""What an agent's context offers for calls of language models: HTTP clients for their SDKs, and shared limits."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol

__all__ = ["ModelCalls", "SyncModelCalls"]


class ModelCalls(Protocol):
    """For agents whose methods are ``async``."""

    def llm_http_client(self, **options: Any) -> Any:  # noqa: ANN401 - of a library that may be absent
        """An HTTP client for the SDK of a language model: ``AsyncOpenAI(http_client=ctx.llm_http_client())``.

        An ``AsyncClient`` of httpx2, or of httpx where that is absent, with timeouts and connections as the SDKs have
        them by default. What it does for the agent:

        * Nothing is sent by an incarnation that is over, or whose budget is used up.
        * Inside of :meth:`limit` a refusal (429, 503, 529) closes that limit for everybody for as long as it asks, and
          the request is held and sent again, 5 times at most; the SDK does not repeat it as well.
        * Faults on purpose (``Manager.inject_llm_failure``) fail its requests as a provider would.

        All clients of a process share their connections; closing one closes nothing of the others.

        Args:
            **options: What the library's client takes: ``timeout``, ``headers``, ``transport`` … Options that are
                about connections (``verify``, ``cert``, ``proxy``, ``limits``, ``http1``, ``http2``, ``trust_env``)
                give it connections of its own, so keep it then, and close it.

        Raises:
            OperationNotSupportedError: Neither library is installed; ``pip install 'ares-celery[llm]'``.
            InvalidSettingError: The library knows no such option.

        From requests: BudgetExceededError, and StopSignal or FencedSignal (no Exceptions) when the agent is to end
        while a request is held.
        """
        ...

    def limit(
        self, name: str, /, rate: str | None = None, concurrency: int | None = None
    ) -> AbstractAsyncContextManager[None]:
        """A limit that all agents share: ``async with ctx.limit("anthropic", rate="600/min", concurrency=50): …``.

        Waits for a place, and for a turn by the rate, in the order in which agents came; gives the place back at the
        end of the block. Inside, each further request of :meth:`llm_http_client` takes a turn of its own. The place of
        a process that died is free after ``lease_ttl``.

        Args:
            name: Whoever says the same name shares it: a provider, an account, a model.
            rate: How many calls in which time, evenly spaced: ``600/min``, ``10/s``, ``5/30s``; None = no rate.
            concurrency: Blocks that may run at once; None = any number. Where agents ask for other values under one
                name, the last one that asks counts, and a warning is logged.

        Raises:
            InvalidSettingError: One of them cannot work.

        Entering raises StopSignal (no Exception) when the agent is asked to end while it would have to wait.
        """
        ...


class SyncModelCalls(Protocol):
    """For agents whose methods are plain; the same names, and calls wait."""

    def llm_http_client(self, **options: Any) -> Any:  # noqa: ANN401 - of a library that may be absent
        """See :meth:`ModelCalls.llm_http_client`; a ``Client``: ``OpenAI(http_client=ctx.llm_http_client())``."""
        ...

    def limit(
        self, name: str, /, rate: str | None = None, concurrency: int | None = None
    ) -> AbstractContextManager[None]:
        """See :meth:`ModelCalls.limit`: ``with ctx.limit("anthropic", rate="600/min"): …``."""
        ...
