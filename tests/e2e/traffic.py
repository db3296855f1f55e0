"""Steady traffic beside a test, as a patient producer sends it: through outages, until taken.

A request that the broker does not take is sent again under the same id, which never runs twice.
"""

import asyncio
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from schemas.bus import Result
from schemas.requests import InferenceRequest
from services import bus
from services.gateway.client import Client
from tests.e2e.deployment import Deployment


@dataclass(slots=True)
class Traffic:
    """Sends `rate_per_s` requests a second while its context lasts, under names `PREFIX-n`.

    Attributes:
        ids: sent or about to be, in order. results: the outcomes so far.
        longest_send_s: the longest time that one call of the client took to take or refuse one.
    """

    deployment: Deployment
    rate_per_s: float
    prefix: str = "t"
    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    ids: list[str] = field(default_factory=list[str])
    results: dict[str, Result] = field(default_factory=dict[str, Result])
    longest_send_s: float = 0.0
    _client: Client = field(init=False)
    _sending: "asyncio.Task[None] | None" = None
    _waiting: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"])

    async def __aenter__(self) -> Self:
        """Start to send."""
        self._client = await Client(self.deployment.bootstrap).__aenter__()
        self._sending = asyncio.create_task(self._send_on())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop at once; `finish` first to have all outcomes."""
        tasks = [*self._waiting] + ([self._sending] if self._sending else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.__aexit__(kind, error, trace)

    @property
    def under_way(self) -> int:
        """How many requests have no outcome yet."""
        return len(self.ids) - len(self.results)

    async def finish(self, seconds: float) -> dict[str, Result]:
        """Send no more, and wait until every request has its outcome."""
        assert self._sending is not None
        self._sending.cancel()
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=seconds)
        missing = sorted(set(self.ids) - self.results.keys())
        logs = self.deployment.log_tails() if missing else {}
        assert not missing, f"{len(missing)} without an outcome: {missing[:5]}; {logs}"
        return self.results

    async def settled(self, seconds: float) -> None:
        """Wait until all that was sent up to now has its outcome; sending goes on."""
        sent = set(self.ids)
        async with asyncio.timeout(seconds):
            while sent - self.results.keys():  # noqa: ASYNC110 - many outcomes, in any order
                await asyncio.sleep(0.05)

    async def _send_on(self) -> None:
        began_s = time.monotonic()
        while True:
            number = len(self.ids)
            await asyncio.sleep(max(0.0, began_s + number / self.rate_per_s - time.monotonic()))
            request_id = f"{self.prefix}-{number}"
            self.ids.append(request_id)
            task = asyncio.create_task(self._one(request_id))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _one(self, request_id: str) -> None:
        body = self.deployment.request(request_id, **self.fields)
        request = InferenceRequest.model_validate(body)
        while True:
            began_s = time.monotonic()
            try:
                await self._client.submit(request)
                break
            except bus.BusError:
                await asyncio.sleep(0.2)
            finally:
                self.longest_send_s = max(self.longest_send_s, time.monotonic() - began_s)
        self.results[request_id] = await self._client.outcome(request_id)
