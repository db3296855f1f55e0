"""What the next iteration does: who leaves, who joins, which prompts advance, who decodes. Pure.

Continuous batching, planned anew before every step from plain data: no clock, no tensors, no
state of its own. Four rules. Leavers go first, so that their blocks are free for joiners of the
same step. Waiting requests join strictly in order: the cell has already decided it, and the blocks
a request needs were reserved by the cell, so looking past the first could only starve it. Prompts
advance by a bounded number of tokens per step, the oldest first, so that running streams get their
next token after a bounded time however long a prompt comes in. Patient work (of the batch tier,
and so of offline jobs) gives way: its prompts come last and advance by a small share of that,
because a step cannot be cut short, and a request that has to be fast may come at any moment and
would wait for its end; and while the prompt of such a request advances, patient work rests, so that
its first token comes as soon as without it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.worker.engine import WorkKey


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one iteration may hold.

    Attributes:
        max_batch: The most sequences in the batch.
        prefill_tokens: The most prompt tokens processed in one step, over all sequences.
        patient_part: Patient prompts take one in so many of them at most, and one token at least.
        rests_max: The most steps in a row in which patient work rests: a long prompt takes many,
            and more may come behind it.
    """

    max_batch: int
    prefill_tokens: int
    patient_part: int = 8
    rests_max: int = 3

    def __post_init__(self) -> None:
        """Reject bounds under which something would never advance."""
        if min(self.max_batch, self.prefill_tokens, self.patient_part) < 1 or self.rests_max < 0:
            raise ValueError(
                f"max_batch is {self.max_batch}, prefill_tokens is {self.prefill_tokens} and"
                f" patient_part is {self.patient_part}, which must be at least 1, and rests_max is"
                f" {self.rests_max}, which must be at least 0, or no request would ever advance."
            )


class Waiting(NamedTuple):
    """A request that has not joined."""

    key: WorkKey
    blocks: int
    prefill_tokens: int
    leaving: bool = False
    patient: bool = False


class Running(NamedTuple):
    """A request in the batch; `prefill_left` is 0 once it decodes.

    It pauses while `full`: no token more goes into its blocks.
    """

    key: WorkKey
    blocks: int
    prefill_left: int
    leaving: bool = False
    full: bool = False
    patient: bool = False


class Chunk(NamedTuple):
    """Process the next `tokens` prompt tokens of `key`; `last` if its prompt is then complete."""

    key: WorkKey
    tokens: int
    last: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One iteration. Every sequence in `decode`, and every chunk with `last`, yields a token.

    `rests` is whether patient work of the batch sat out.
    """

    leave: tuple[WorkKey, ...]
    join: tuple[WorkKey, ...]
    prefill: tuple[Chunk, ...]
    decode: tuple[WorkKey, ...]
    rests: bool = False


def plan_step(
    bounds: Bounds,
    waiting: Sequence[Waiting],
    running: Sequence[Running],
    free_blocks: int,
    rests: int = 0,
) -> StepPlan:
    """Plan one iteration; both sequences are in the order of adding, and are not changed.

    `free_blocks` counts the blocks that no request has reserved before this step, `rests` the steps
    in a row, up to this one, in which patient work sat out.
    """
    leave: list[WorkKey] = []
    decode: list[WorkKey] = []
    patient_decode: list[WorkKey] = []
    prefilling: list[tuple[WorkKey, int]] = []
    patient: list[tuple[WorkKey, int]] = []
    batch = 0
    for key, blocks, prefill_left, leaving, full, is_patient in running:
        if leaving:
            leave.append(key)
            free_blocks += blocks
            continue
        batch += 1
        if prefill_left:
            (patient if is_patient else prefilling).append((key, prefill_left))
        elif not full:
            (patient_decode if is_patient else decode).append(key)
    join: list[WorkKey] = []
    blocked = False
    for key, blocks, prefill_tokens, leaving, is_patient in waiting:
        if leaving:
            leave.append(key)
        elif not blocked:
            blocked = batch >= bounds.max_batch or blocks > free_blocks
            if not blocked:
                join.append(key)
                batch += 1
                free_blocks -= blocks
                (patient if is_patient else prefilling).append((key, prefill_tokens))
    if prefilling and rests < bounds.rests_max and (patient or patient_decode):
        chunks = tuple(_chunks(bounds.prefill_tokens, prefilling))
        return StepPlan(tuple(leave), tuple(join), chunks, tuple(decode), rests=True)
    chunks = tuple(_shared(bounds, prefilling, patient))
    return StepPlan(tuple(leave), tuple(join), chunks, (*decode, *patient_decode))


def _shared(
    bounds: Bounds, prefilling: list[tuple[WorkKey, int]], patient: list[tuple[WorkKey, int]]
) -> Iterator[Chunk]:
    """Yield how far each prompt advances, the patient ones last, within the bounds together."""
    share = max(1, bounds.prefill_tokens // bounds.patient_part) if patient else 0
    # A budget of one token is theirs for once: it was the others' in the steps before.
    yield from _chunks(bounds.prefill_tokens - share, prefilling)
    yield from _chunks(share, patient)


def _chunks(budget: int, prefilling: list[tuple[WorkKey, int]]) -> Iterator[Chunk]:
    """Yield how far each prompt advances, the oldest first, within so many tokens together."""
    for key, left in prefilling:
        if not budget:
            return
        tokens = min(left, budget)
        budget -= tokens
        yield Chunk(key, tokens, tokens == left)
