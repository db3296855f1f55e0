"""What is remembered of a one-shot model: what waits, its load, its open window. Pure.

Plain data, changed only by services/scheduler/gathering.py (a part of evolve). What waits and the
deadlines follow from the requests; the rest is stored in snapshots.
"""

from collections import deque
from dataclasses import dataclass, field

# Service times are kept by batch size: one for each power of two up to the largest batch.
SIZE_CLASSES = 12


@dataclass(slots=True)
class Batching:
    """One one-shot model's batching.

    Attributes:
        requests_waiting, texts_waiting: of the tenants that are not held back.
        of_tenant: by tenant, held ones too, how many requests and texts wait.
        deadlines: a heap of (deadline µs, order, id) of those that wait; dead items are dropped
            when they come to the top.
        next_batch: the number of the next batch.
        due_us, opened_us: of the open window, or None.
        window_ms: as it was tuned, from the policy's `base_ms`, at `tuned_at_us`; 0 before.
        gap_us_x32: 32 times the average time between two texts; 0 before the second.
        last_arrival_us: of a text; -1 before the first.
        service_us: by size class (the bit length of the number of texts), the average time from
            dispatch to the end of a batch that had not to wait at the replica; 0 if not measured.
    """

    requests_waiting: int = 0
    texts_waiting: int = 0
    of_tenant: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    deadlines: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    next_batch: int = 0
    due_us: int | None = None
    opened_us: int | None = None
    window_ms: int = 0
    base_ms: int = 0
    tuned_at_us: int = 0
    gap_us_x32: int = 0
    last_arrival_us: int = -1
    service_us: list[int] = field(default_factory=lambda: [0] * SIZE_CLASSES)


# What a snapshot holds of a Batching.
STORED_FIELDS = (
    "next_batch",
    "due_us",
    "opened_us",
    "window_ms",
    "base_ms",
    "tuned_at_us",
    "gap_us_x32",
    "last_arrival_us",
    "service_us",
)


@dataclass(slots=True)
class Forming:
    """A batch that was formed and whose members are being dispatched; gone before a step ends.

    Attributes:
        members: not dispatched yet. size: of all of them. texts: of all of them.
        longest_tokens: to which every text is padded. texts_max: of one pass.
        starved: whether the first member goes before requests of a higher tier.
    """

    model: str
    batch: int
    slot: int
    size: int
    texts: int
    longest_tokens: int
    texts_max: int
    members: deque[str]
    starved: bool


def size_class(texts: int) -> int:
    """Return the size class of a batch: 1, 2–3, 4–7, … texts."""
    return min(texts.bit_length(), SIZE_CLASSES - 1)


def service_us(batching: Batching, texts: int) -> int:
    """Return how long a batch of `texts` texts takes, from dispatch to end, or 0 if unknown.

    Measured of the next larger size where this one is not, else of the next smaller one.
    """
    at = size_class(texts)
    measured = batching.service_us
    larger = next((us for us in measured[at:] if us), 0)
    return larger or next((us for us in reversed(measured[:at]) if us), 0)
