"""Latency models: how long one iteration of a real engine takes. Pure arithmetic, and a clock.

The simulated engine waits this long per step, on a real clock or a virtual one.
"""

import time
from dataclasses import dataclass
from typing import Protocol

US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class LatencyModel:
    """step_ms = base_ms + per_sequence_ms x batch + per_prefill_token_ms x prefill tokens.

    A step of nothing takes nothing. `speed` divides every step: 10 runs ten times as fast.
    """

    base_ms: float
    per_sequence_ms: float
    per_prefill_token_ms: float
    speed: float = 1.0

    def __post_init__(self) -> None:
        """Reject a model under which time would stand still or run backwards."""
        parts = (self.base_ms, self.per_sequence_ms, self.per_prefill_token_ms)
        if min(parts) < 0 or not self.speed > 0:
            raise ValueError(
                f"The latency model {self} has a negative part or a speed of 0 or less;"
                " give times of 0 or more and a speed above 0."
            )

    def step_us(self, batch: int, prefill_tokens: int) -> int:
        """Microseconds that one iteration takes."""
        if not batch:
            return 0
        step_ms = (
            self.base_ms + self.per_sequence_ms * batch + self.per_prefill_token_ms * prefill_tokens
        )
        return round(step_ms * US_PER_MS / self.speed)


INSTANT = LatencyModel(0.0, 0.0, 0.0)
"""No time at all: for benches of everything around the engine."""

LLAMA_3_1_8B_ON_H100 = LatencyModel(6.37, 0.0798, 0.06)
"""Llama-3.1-8B on one H100 under vLLM.

Base and slope are a fit of inter-token time to public measurements at batch 8 to 384. The prefill
part is arithmetic, not a measurement: 16 GFLOP a token at about 270 TFLOP/s, a third of the card's
dense bf16 peak.
"""


class Clock(Protocol):
    """Time as an engine sees it: a reading that never goes back, and a way to let it pass."""

    def now_us(self) -> int:
        """Microseconds since an arbitrary point."""
        ...

    def sleep_us(self, us: int) -> None:
        """Return once `us` microseconds have passed on this clock."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now_us(self) -> int:
        """Microseconds since an arbitrary point."""
        return time.monotonic_ns() // 1000

    def sleep_us(self, us: int) -> None:
        """Block this thread for `us` microseconds."""
        if us > 0:
            time.sleep(us / 1_000_000)


class VirtualClock:
    """A clock that moves only when it is slept on: hours of simulated time cost nothing."""

    def __init__(self, start_us: int = 0) -> None:
        self._now_us = start_us

    def now_us(self) -> int:
        """Microseconds slept so far, plus the start."""
        return self._now_us

    def sleep_us(self, us: int) -> None:
        """Move the clock."""
        self._now_us += max(0, us)
