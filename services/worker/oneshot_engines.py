"""The one-shot engines that a worker can run: the sentence encoder, and a simulated one.

Both are services/worker/oneshot.py over another encoder, so they batch and report alike.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from services.worker.engine import BLOCK_TOKENS, EngineInfo
from services.worker.latency import Clock, RealClock
from services.worker.oneshot import OneShotEngine

_BYTES_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class SimulatedOneShot:
    """What the simulated encoder pretends to be.

    Attributes:
        model: the name it serves under.
        pass_us: of one pass over a batch, whatever its size. max_batch: texts of one pass.
        pool_bytes: for activations. bytes_per_token: of them.
    """

    model: str
    pass_us: int = 5_000
    max_batch: int = 16
    dimension: int = 384
    pool_bytes: int = 512 * 2**20
    bytes_per_token: int = 32 * 1024
    max_sequence_tokens: int = 256


class _SimulatedEncoder:
    """Takes its time, and makes up a vector from the length of a text."""

    def __init__(self, config: SimulatedOneShot, clock: Clock) -> None:
        self._config = config
        self._clock = clock

    @property
    def dimension(self) -> int:
        return self._config.dimension

    def ids(self, text: str) -> list[int]:
        raw = text.encode()
        count = -(-len(raw) // _BYTES_PER_TOKEN)
        return [crc32(raw)] * count

    def encode(self, rows: Sequence[Sequence[int]]) -> list[bytes]:
        self._clock.sleep_us(self._config.pass_us)
        return [self._vector(row) for row in rows]

    def _vector(self, row: Sequence[int]) -> bytes:
        """Return a unit vector along an axis that the text decides."""
        axis = row[0] % self._config.dimension
        numbers = bytearray(4 * self._config.dimension)
        struct.pack_into("<f", numbers, 4 * axis, 1.0)
        return bytes(numbers)


def simulated(config: SimulatedOneShot, clock: Clock | None = None) -> OneShotEngine:
    """Return a one-shot engine without a model; `clock` may be virtual."""
    clock = clock or RealClock()
    info = EngineInfo(
        model=config.model,
        engine="simulated",
        dtype="none",
        device="none",
        kv_pool_bytes=config.pool_bytes,
        kv_bytes_per_token=config.bytes_per_token,
        kv_blocks=config.pool_bytes // (BLOCK_TOKENS * config.bytes_per_token),
        block_tokens=BLOCK_TOKENS,
        max_batch=config.max_batch,
        max_sequence_tokens=config.max_sequence_tokens,
        weights_bytes=0,
    )
    return OneShotEngine(info, _SimulatedEncoder(config, clock), clock)


def minilm(
    *,
    model: str = "all-minilm-l6-v2",
    pool_bytes: int = 512 * 2**20,
    max_batch: int = 16,
    threads: int | None = None,
    device: str | None = None,
    clock: Clock | None = None,
) -> OneShotEngine:
    """Return the sentence encoder; also sets torch's thread count for this process.

    Raises:
        MiniLMFilesError, SafetensorsError: its files are missing or not understood.
    """
    import torch  # noqa: PLC0415 - it takes seconds to import, and the other engine needs none

    from services.worker.minilm import (  # noqa: PLC0415 - as above
        CONTEXT,
        MiniLM,
        activation_bytes_per_token,
    )

    if threads is not None:
        torch.set_num_threads(threads)
    encoder = MiniLM(device)
    per_token = activation_bytes_per_token()
    info = EngineInfo(
        model=model,
        engine="torch",
        dtype="float32",
        device=str(encoder.device),
        kv_pool_bytes=pool_bytes,
        kv_bytes_per_token=per_token,
        kv_blocks=pool_bytes // (BLOCK_TOKENS * per_token),
        block_tokens=BLOCK_TOKENS,
        max_batch=max_batch,
        max_sequence_tokens=CONTEXT,
        weights_bytes=encoder.weights_bytes,
    )
    return OneShotEngine(info, encoder, clock or RealClock())
