"""One device: a thread in which one iteration runs at a time, and the models that take turns on it.

Knows neither what an iteration does nor the bus; turns.py says whose turn is next. A device that
hosts one model gives no turns, so nothing is asked of it before an iteration.
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from schemas.policy import Tier
from services.worker.turns import Replica, Turns

T = TypeVar("T")


class _Asking(NamedTuple):
    """One that waits for its turn."""

    tier: Callable[[], Tier]
    granted: "asyncio.Future[None]"


def alike(model: str, tier: Tier) -> int:
    """Return the same weight for every model."""
    del model, tier
    return 1


class Device:
    """A device and the replicas that it hosts. Used from one event loop.

    Args:
        replicas: that it hosts; each of them calls `leave` at its end.
        weight_of: a model, by the highest tier among its requests; asked at each turn.
    """

    def __init__(
        self, replicas: Iterable[Replica], weight_of: Callable[[str, Tier], int] = alike
    ) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._hosted = set(replicas)
        self._weight_of = weight_of
        self._unloaded = set(self._hosted)
        self._loaded = asyncio.Event()
        self._turns = Turns()
        self._asking: dict[Replica, _Asking] = {}
        # Whose turn it is: until it asks again, rests or leaves, so that one that only reports what
        # its iteration did does not lose its place to whoever waits.
        self._holder: Replica | None = None

    @property
    def shared(self) -> bool:
        """Whether there are turns to wait for."""
        return len(self._hosted) > 1

    @property
    def loaded(self) -> bool:
        """Whether everything that it hosts is loaded."""
        return not self._unloaded

    async def load(self, replica: Replica, load: Callable[[], T]) -> T:
        """Load a replica's engine in the thread; return once all that are hosted are loaded.

        So a model that cannot be loaded ends a worker that has not taken any work yet.
        """
        engine = await self.run(load)
        self._unloaded.discard(replica)
        if self.loaded:
            self._loaded.set()
        await self._loaded.wait()
        return engine

    async def turn(self, replica: Replica, tier: Callable[[], Tier]) -> None:
        """Return when it is this replica's turn; `tier` tells the highest among its requests.

        The turn lasts until it asks for another, rests or leaves.
        """
        granted = asyncio.get_running_loop().create_future()
        self._asking[replica] = _Asking(tier, granted)
        self._give_turn(replica)
        await granted

    def rest(self, replica: Replica) -> None:
        """Let the others go on: this replica has no work."""
        self._give_turn(replica)

    async def run(self, step: Callable[[], T]) -> T:
        """Run a step in the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, step)

    def leave(self, replica: Replica) -> None:
        """Host this replica no longer; the thread ends with the last."""
        self._hosted.discard(replica)
        self._asking.pop(replica, None)
        self._turns.forget(replica)
        self._give_turn(replica)
        if not self._hosted:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _give_turn(self, by: Replica) -> None:
        """Give the turn to the next, if nobody but `by` has it."""
        if self._holder not in {None, by}:
            return
        self._holder = None
        # One that is being cancelled has not left yet.
        weights = {
            replica: self._weight_of(replica.model, asking.tier())
            for replica, asking in self._asking.items()
            if not asking.granted.done()
        }
        if weights:
            self._holder = self._turns.next(weights)
            self._asking.pop(self._holder).granted.set_result(None)
