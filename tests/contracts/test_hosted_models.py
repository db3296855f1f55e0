"""What a device promises to the models that it hosts, over the worker's own loop and real engines.

No bus: commands are put where the reader puts them, and what is reported waits in the outbox. The
torch engines run on a real bus in tests/e2e/test_hosted_models_on_kafka.py.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from schemas.bus import Work, WorkLeave
from schemas.policy import Override, Policy, Tier
from schemas.policy_scope import Settings
from services.worker.device import Device
from services.worker.engine import Engine, StepResult
from services.worker.host import check_hosted
from services.worker.latency import INSTANT, LatencyModel, VirtualClock
from services.worker.oneshot_engines import SimulatedOneShot, simulated
from services.worker.plan import Bounds
from services.worker.service import WorkerService
from services.worker.simulated import SimulatedConfig, SimulatedEngine
from services.worker.turn_weights import TurnWeights, turn_weight
from services.worker.turns import Replica

NOBODY = "127.0.0.1:1"
KV_BLOCKS = 8
# A prompt of a block and its output.
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 40
BLOCKS = 4


def settings_of(policy: Policy) -> Callable[[str, Tier], int]:
    settings = Settings(policy)
    return lambda model, tier: turn_weight(settings, model, tier)


def generative(model: str, latency: LatencyModel = INSTANT) -> SimulatedEngine:
    """Return an engine of `KV_BLOCKS` blocks, which gives a token an iteration."""
    config = SimulatedConfig(
        model=model,
        kv_pool_bytes=KV_BLOCKS * 16,
        kv_bytes_per_token=1,
        max_sequence_tokens=KV_BLOCKS * 16,
        bounds=Bounds(max_batch=4, prefill_tokens=64),
        latency=latency,
    )
    return SimulatedEngine(config, VirtualClock())


class Stage:
    """A device, its models with the worker's loop, and in which order their iterations ran."""

    def __init__(self, *models: str, weight_of: Callable[[str, Tier], int] | None = None) -> None:
        self.replicas = [Replica(model, 0) for model in models]
        self.device = Device(self.replicas, weight_of or TurnWeights(NOBODY).of)
        self.services = {
            replica.model: WorkerService(
                NOBODY, replica.model, 0, lambda: generative("unused"), self.device
            )
            for replica in self.replicas
        }
        self.order: list[str] = []
        self.results: dict[str, list[StepResult]] = {model: [] for model in models}
        self.inside = 0
        self.threads: set[str] = set()
        self.loops: list[asyncio.Task[None]] = []
        self.sent = 0

    def start(self, **engines: Engine) -> None:
        """Begin the loops, in the order of the engines."""
        for model, engine in engines.items():
            self._watch(model, engine)
            loop: Awaitable[None] = self.services[model]._step(engine)  # pyright: ignore[reportPrivateUsage]
            self.loops.append(asyncio.ensure_future(loop))

    def _watch(self, model: str, engine: Engine) -> None:
        step = engine.step

        def watched() -> StepResult:
            assert self.inside == 0, "two iterations ran at once on one device"
            self.inside += 1
            self.threads.add(threading.current_thread().name)
            self.order.append(model)
            result = step()
            engine.check_integrity()
            self.results[model].append(result)
            self.inside -= 1
            return result

        setattr(engine, "step", watched)  # noqa: B010 - the type is the contract's

    def send(self, model: str, count: int = 1, tier: Tier = "normal", **fields: Any) -> None:
        """Put work into a model's inbox, as its reader does."""
        service = self.services[model]
        for _ in range(count):
            self.sent += 1
            values: dict[str, Any] = {
                "prompt": "x" * 4 * PROMPT_TOKENS,
                "max_output_tokens": OUTPUT_TOKENS,
                "blocks": BLOCKS,
            } | fields
            service._inbox.append(  # pyright: ignore[reportPrivateUsage]
                Work(
                    id=f"{model}-{self.sent}",
                    attempt=1,
                    incarnation="i",
                    model=model,
                    tenant="t",
                    tier=tier,
                    messages=None,
                    prompt_tokens=PROMPT_TOKENS,
                    temperature=0.0,
                    seed=self.sent,
                    stream=False,
                    **values,
                )
            )
        service._wake.set()  # pyright: ignore[reportPrivateUsage]

    def finished(self, model: str) -> int:
        return sum(len(result.finished) for result in list(self.results[model]))

    async def until(self, enough: Callable[[], bool]) -> None:
        """Wait until it is so; the loops must not end meanwhile."""
        async with asyncio.timeout(60):
            while not enough():
                assert not any(loop.done() for loop in self.loops), self.loops
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)
        for replica in self.replicas:
            self.device.leave(replica)


async def test_two_hosted_models_alternate_and_never_run_at_once() -> None:
    stage = Stage("a", "b")
    stage.send("a", 2)
    stage.send("b", 2)
    stage.start(a=generative("a"), b=generative("b"))
    await stage.until(lambda: stage.finished("a") == stage.finished("b") == 2)
    # Each request takes an iteration for each of its tokens.
    assert stage.order == ["a", "b"] * OUTPUT_TOKENS
    assert len(stage.threads) == 1
    await stage.close()


async def test_a_turn_is_an_iteration_however_long_it_takes() -> None:
    stage = Stage("slow", "quick")
    stage.send("slow", 2)
    stage.send("quick", 2)
    slow = generative("slow", LatencyModel(90.0, 0.0, 0.0))
    stage.start(slow=slow, quick=generative("quick", LatencyModel(1.0, 0.0, 0.0)))
    await stage.until(lambda: stage.finished("slow") == stage.finished("quick") == 2)
    assert stage.order == ["slow", "quick"] * OUTPUT_TOKENS
    await stage.close()


async def test_weights_of_models_and_tiers_decide_how_many_iterations_each_has() -> None:
    policy = Policy(
        iteration_tier_weights=(6, 4, 2, 1),
        overrides=(Override(model="a", key="iteration_weight", value=2),),
    )
    stage = Stage("a", "b", weight_of=settings_of(policy))
    stage.send("a", 2, "batch")
    stage.send("b", 2, "realtime")
    stage.start(a=generative("a"), b=generative("b"))
    await stage.until(lambda: stage.finished("b") == 2)
    # 2 x 1 beside 1 x 6.
    assert stage.order[:12].count("b") == 9
    assert stage.order.index("a", 1) <= 4
    await stage.until(lambda: stage.finished("a") == 2)
    await stage.close()


async def test_a_cold_model_goes_on_while_a_hot_one_is_saturated() -> None:
    stage = Stage("hot", "cold")
    stage.send("hot", 100, "realtime")
    stage.start(hot=generative("hot"), cold=generative("cold"))
    await stage.until(lambda: stage.finished("hot") >= 2)
    before = len(stage.order)
    stage.send("cold", 1, "batch", max_output_tokens=5)
    await stage.until(lambda: stage.finished("cold") == 1)
    assert stage.finished("hot") < 100, "it is still saturated"
    # A turn in nine (8 : 1) for each of its five tokens, and one more while it joins.
    took = stage.order[before:]
    waits = [len(wait.split()) for wait in " ".join(took).split("cold")[1:-1]]
    assert max(waits) <= 9
    await stage.close()


async def test_each_model_stays_within_its_own_kv_pool() -> None:
    stage = Stage("a", "b", "c")
    for model in ("a", "b", "c"):
        stage.send(model, 6)
    stage.start(a=generative("a"), b=generative("b"), c=generative("c"))
    await stage.until(lambda: all(stage.finished(model) == 6 for model in "abc"))
    for model in "abc":
        used = [result.kv_blocks_used for result in stage.results[model]]
        # Two requests of four blocks fill a pool of eight; the others wait.
        assert max(used) == KV_BLOCKS
        assert max(result.batch for result in stage.results[model]) == KV_BLOCKS // BLOCKS
    await stage.close()


async def test_a_request_of_a_higher_tier_is_noticed_while_its_model_waits_for_its_turn() -> None:
    stage = Stage("a", "b")
    stage.send("a", 4, "realtime")
    stage.send("b", 1, "batch")
    stage.start(a=generative("a"), b=generative("b"))
    await stage.until(lambda: stage.order.count("b") >= 2)
    stage.send("b", 1, "realtime")
    at = len(stage.order)
    await stage.until(lambda: stage.finished("b") == 2)
    # From then on both have the weight of their highest tier, so they alternate.
    assert "a a a a" not in " ".join(stage.order[at + 3 :][: 2 * OUTPUT_TOKENS])
    await stage.close()


async def test_what_comes_while_a_model_waits_is_in_time_for_its_next_iteration() -> None:
    stage = Stage("a", "b")
    stage.send("a", 1)
    stage.send("b", 1)
    stage.start(a=generative("a"), b=generative("b"))
    await stage.until(lambda: len(stage.order) >= 4)
    cancel = WorkLeave(id="b-2", attempt=1, incarnation="i", cause="cancelled")
    stage.services["b"]._inbox.append(cancel)  # pyright: ignore[reportPrivateUsage]
    at = len(stage.results["b"])
    await stage.until(lambda: any(result.left for result in stage.results["b"]))
    # One iteration may have been on its way already.
    assert any(result.left for result in stage.results["b"][at : at + 2])
    await stage.close()


async def test_a_one_shot_and_a_generative_model_share_a_device() -> None:
    stage = Stage("text", "vectors")
    stage.send("text", 2)
    for _ in range(3):
        stage.send("vectors", 1, prompt=None, texts=("some words",), max_output_tokens=0)
    encoder = simulated(SimulatedOneShot(model="vectors", pass_us=0))
    stage.start(text=generative("text"), vectors=encoder)
    await stage.until(lambda: stage.finished("text") == 2 and stage.finished("vectors") == 3)
    assert stage.order[:6] == ["text", "vectors"] * 3
    assert stage.order[6:] == ["text"] * (OUTPUT_TOKENS - 3)
    await stage.close()


async def test_a_model_that_leaves_in_the_middle_leaves_the_device_to_the_others() -> None:
    stage = Stage("a", "b")
    stage.send("a", 2)
    stage.send("b", 2)
    stage.start(a=generative("a"), b=generative("b"))
    await stage.until(lambda: len(stage.order) >= 6)
    stage.loops[0].cancel()
    await asyncio.gather(stage.loops.pop(0), return_exceptions=True)
    stage.device.leave(Replica("a", 0))
    assert not stage.device.shared
    await stage.until(lambda: stage.finished("b") == 2)
    stage.send("b", 2)
    await stage.until(lambda: stage.finished("b") == 4)
    await stage.close()


async def test_a_model_alone_waits_for_no_turn() -> None:
    stage = Stage("a")
    stage.send("a", 2)
    stage.start(a=generative("a"))
    await stage.until(lambda: stage.finished("a") == 2)
    assert stage.order == ["a"] * OUTPUT_TOKENS
    assert not stage.device.shared
    assert stage.device._turns._last == {}  # pyright: ignore[reportPrivateUsage]
    await stage.close()


async def test_all_models_are_loaded_before_any_of_them_goes_on() -> None:
    a, b = Replica("a", 0), Replica("b", 0)
    device = Device([a, b])
    gate = threading.Event()
    order: list[str] = []

    def load_b() -> str:
        gate.wait(30)
        order.append("b is loaded")
        return "b"

    async def hosted(replica: Replica, load: Callable[[], str]) -> None:
        await device.load(replica, load)
        order.append(f"{replica.model} goes on")

    loading = asyncio.gather(hosted(a, lambda: "a"), hosted(b, load_b))
    assert not device.loaded
    gate.set()
    await loading
    assert order[0] == "b is loaded"
    assert sorted(order[1:]) == ["a goes on", "b goes on"]
    assert device.loaded
    for replica in (a, b):
        device.leave(replica)


async def test_a_model_that_cannot_be_loaded_lets_no_other_go_on() -> None:
    a, b = Replica("a", 0), Replica("b", 0)
    device = Device([a, b])

    def fails() -> str:
        raise ValueError("no such file")

    waiting = asyncio.create_task(device.load(a, lambda: "a"))
    with pytest.raises(ValueError, match="no such file"):
        await device.load(b, fails)
    device.leave(b)
    assert not device.loaded
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    device.leave(a)


def test_a_device_takes_four_replicas_and_each_once() -> None:
    four = [Replica("m", 0), Replica("m", 1), Replica("n", 0), Replica("o", 0)]
    check_hosted(four)
    with pytest.raises(ValueError, match="5 models are to be hosted, and a device takes 4 at most"):
        check_hosted([*four, Replica("p", 0)])
    with pytest.raises(ValueError, match="n/0 is named twice"):
        check_hosted([*four[:3], Replica("n", 0)])
