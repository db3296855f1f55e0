"""What the tests of batch windows share: an encoder, texts for it, and what it reports.

One encoder, "m": a text has 16 tokens unless said otherwise, so one block, and a replica has 100
blocks, of which 85 may be used, and runs 16 texts at once. The tier is batch, whose target of 60 s
leaves a window of 150 ms as it is.
"""

from dataclasses import replace
from typing import Any

from schemas import facts as f
from schemas.batches import BatchFormed
from schemas.policy import Policy
from tests.spec.scheduler_story import PROFILE, Story, arrived, given, ready, us

ENCODER = replace(PROFILE, serves="one-shot")
STILL = Policy(name="still", default_tier="batch", window_tunes=False)
FREE = replace(STILL, window_mode="when_free")


def texts(request_id: str, *lengths: int, at: float = 0, **more: Any) -> f.RequestArrived:
    """Return the arrival of an embedding request with texts of these lengths."""
    lengths = lengths or (16,)
    fact = arrived(request_id, at=at, prompt=sum(lengths), output=None, **more)
    size = f.EmbeddingSize(texts=len(lengths), longest_tokens=max(lengths))
    return replace(fact, embedding=size)


def encoder(policy: Policy = STILL, *, blocks: int = 100, batch: int = 16) -> Story:
    return given(ready(blocks=blocks, batch=batch), policy=policy, profile=ENCODER)


def embedded(*ids: str, at: float, took: float = 80, attempt: int = 1) -> f.WorkFinished:
    usage = f.Usage(
        prompt_tokens=16, output_tokens=0, queued_us=0, prefill_us=us(took), decode_us=0
    )
    items = tuple(
        f.WorkDone(
            id=item, attempt=attempt, finish_reason="embedded", usage=usage, output_digest="0d"
        )
        for item in ids
    )
    return f.WorkFinished(
        at_us=us(at), model="m", slot=0, incarnation="L1", offset=500, items=items
    )


def batch_of(story: Story) -> BatchFormed:
    (formed,) = [item for item in story.decisions if isinstance(item, BatchFormed)]
    return formed
