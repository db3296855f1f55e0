"""An engine without a model: real batching and KV accounts, step times from a latency model.

It batches, reserves and reports exactly as the torch engine does (both are batching.py); only the
time of a step and the words are made up. The words depend on the request's seed and on nothing
else. For runs at sizes that no small machine can serve, and for benches of what is around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.worker.batching import BatchingEngine, Executor, Fault, Slice
from services.worker.blocks import BlockPool
from services.worker.engine import BLOCK_TOKENS, EngineInfo, Turn, WorkKey
from services.worker.latency import INSTANT, LLAMA_3_1_8B_ON_H100, Clock, LatencyModel, RealClock
from services.worker.plan import Bounds
from services.worker.tokenizer import TextDecoder

_WORDS: Final = (
    *("the", "a", "one", "each", "of", "to", "in", "on", "and", "or", "is", "was", "has", "with"),
    *("from", "this", "that", "slow", "quick", "long", "short", "warm", "late", "early", "queue"),
    *("batch", "block", "token", "cache", "model", "turn", "wait", "run", "step", "sum", "größe"),
    *("naïve", "日本", "✓"),
)
_BYTES_PER_TOKEN: Final = 4
"""How prompts without a given token count are measured: English text is about 4 bytes a token."""


@dataclass(frozen=True, slots=True)
class SimulatedConfig:
    """What the simulated engine pretends to be.

    Attributes:
        model: The name it serves under.
        kv_pool_bytes: The KV pool's budget.
        kv_bytes_per_token: 2 x layers x KV heads x head size x dtype bytes of the model.
        max_sequence_tokens: The most tokens of prompt and output together.
        bounds: What one iteration may hold.
        latency: How long an iteration takes.
        finish_in_one_step: Produce a request's whole output in the iteration that completes its
            prompt: for benches of everything around the engine.
        weights_bytes: What the model's weights would take.
    """

    model: str
    kv_pool_bytes: int
    kv_bytes_per_token: int
    max_sequence_tokens: int
    bounds: Bounds
    latency: LatencyModel
    finish_in_one_step: bool = False
    weights_bytes: int = 0


def llama_on_h100(model: str, speed: float = 1.0) -> SimulatedConfig:
    """Llama-3.1-8B in bf16 on one H100 of 80 GB: 32 layers, 8 KV heads of 128."""
    return SimulatedConfig(
        model=model,
        kv_pool_bytes=50 * 1024**3,
        kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
        max_sequence_tokens=131_072,
        bounds=Bounds(max_batch=256, prefill_tokens=2048),
        latency=LatencyModel(
            LLAMA_3_1_8B_ON_H100.base_ms,
            LLAMA_3_1_8B_ON_H100.per_sequence_ms,
            LLAMA_3_1_8B_ON_H100.per_prefill_token_ms,
            speed,
        ),
        weights_bytes=16 * 10**9,
    )


def instant(model: str, kv_bytes_per_token: int, kv_blocks: int = 65_536) -> SimulatedConfig:
    """No time at all, and every request done in one iteration."""
    return SimulatedConfig(
        model=model,
        kv_pool_bytes=kv_blocks * BLOCK_TOKENS * kv_bytes_per_token,
        kv_bytes_per_token=kv_bytes_per_token,
        max_sequence_tokens=131_072,
        bounds=Bounds(max_batch=4096, prefill_tokens=1 << 40),
        latency=INSTANT,
        finish_in_one_step=True,
    )


class SimulatedEngine(BatchingEngine):
    """The contract of engine.py over a latency model. `clock` may be virtual."""

    def __init__(self, config: SimulatedConfig, clock: Clock | None = None) -> None:
        clock = clock or RealClock()
        pool = BlockPool[WorkKey](config.kv_pool_bytes, config.kv_bytes_per_token, BLOCK_TOKENS)
        info = EngineInfo(
            model=config.model,
            engine="simulated",
            dtype="none",
            device="none",
            kv_pool_bytes=config.kv_pool_bytes,
            kv_bytes_per_token=config.kv_bytes_per_token,
            kv_blocks=pool.blocks,
            block_tokens=BLOCK_TOKENS,
            max_batch=config.bounds.max_batch,
            max_sequence_tokens=config.max_sequence_tokens,
            weights_bytes=config.weights_bytes,
        )
        executor: Executor = _LatencyExecutor(config, clock)
        super().__init__(
            info,
            executor=executor,
            tokenizer=_Words(),
            pool=pool,
            bounds=config.bounds,
            clock=clock,
        )


class _LatencyExecutor:
    """Lets the step's time pass and makes up the tokens."""

    def __init__(self, config: SimulatedConfig, clock: Clock) -> None:
        self._latency = config.latency
        self._whole = config.finish_in_one_step
        self._clock = clock

    def run(self, slices: Sequence[Slice]) -> Sequence[Sequence[int] | Fault]:
        """Sleep one iteration; each slice that yields gives one token, or all that are left."""
        prefill_tokens = sum(piece.tokens for piece in slices if piece.text.prefill_left)
        self._clock.sleep_us(self._latency.step_us(len(slices), prefill_tokens))
        outcomes: list[list[int]] = []
        for text, _, yields in slices:
            count = 0
            if yields:
                count = 1
                if self._whole:
                    # The last of them is not in the pool yet.
                    room = text.blocks * BLOCK_TOKENS + 1 - len(text.ids)
                    count = min(text.limit - text.output_tokens, room)
            first = _mixed(text.work.seed) + text.output_tokens
            outcomes.append([_RING[place % len(_RING)] for place in range(first, first + count)])
        return outcomes

    def warm_up(self) -> None:
        """Nothing is cold here."""


def _mixed(number: int) -> int:
    """A well-spread number of 24 bits: a multiplicative hash (after splitmix64)."""
    mixed = (number + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return mixed >> 40


_RING: Final = tuple(_mixed(place) % len(_WORDS) for place in range(4099))
"""The text that every request reads from, each from its own seed's place on."""


class _Words:
    """The made-up words, as a tokenizer."""

    stop_ids: frozenset[int] = frozenset()
    vocabulary = len(_WORDS)
    counts_suffice = True

    def prompt_ids(
        self, prompt: str | None = None, messages: Sequence[Turn] | None = None
    ) -> list[int]:
        """As many ids as the text has fours of bytes; raises ValueError as a real tokenizer."""
        if (prompt is None) == (messages is None):
            raise ValueError("A request has either a prompt or messages, and exactly one of them.")
        text = prompt if prompt is not None else "".join(turn.content for turn in messages or ())
        if not text:
            raise ValueError("The prompt is empty; give at least one character.")
        return [0] * -(-len(text.encode()) // _BYTES_PER_TOKEN)

    def decoder(self) -> TextDecoder:
        """A decoder for one request."""
        return _WordDecoder()


class _WordDecoder:
    """Each id is a word."""

    def add(self, token_id: int) -> str:
        """The word and a space."""
        return _WORDS[token_id] + " "

    def finish(self) -> str:
        """Nothing is ever held back."""
        return ""
