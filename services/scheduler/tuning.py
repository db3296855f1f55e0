"""How long the batch window of a model should be, by its load. Pure; reads only, integers only.

A window is worth the time in which a batch fills: at a peak that is short, and when it is quiet
the policy's longest window ends it. A window shorter than the work itself only makes batches
smaller: the next batch waits for the replica all the same. So

    window = max(time between texts × texts of a batch, service time ÷ replicas), within bounds.

It changes only by more than `window_tune_step_pct`, and at most once in `window_tune_pause_ms`:
the average wanders by some percent all the time, and a window that follows it tells nobody
anything.
"""

from schemas.batches import WindowTuned
from schemas.policy import Policy
from services.scheduler.batching import Batching, service_us
from services.scheduler.state import Model

_US_PER_MS = 1000
# The average time between texts is kept 32-fold.
_GAP_SCALE = 32


def window_ms(keys: Policy, batching: Batching) -> int:
    """Return the window that holds now: as tuned, or the policy's where that was changed since."""
    tuned = keys.window_tunes and batching.base_ms == keys.window_ms
    return batching.window_ms if tuned else keys.window_ms


def change(
    keys: Policy, model: Model, batching: Batching, replicas_ready: int, now_us: int
) -> WindowTuned | None:
    """Return the change of the window that the load asks for now, or None."""
    gap_us = batching.gap_us_x32 // _GAP_SCALE
    if not keys.window_tunes or not batching.gap_us_x32:
        return None
    old_ms = window_ms(keys, batching)
    tuned_before = batching.base_ms == keys.window_ms
    if tuned_before and now_us < batching.tuned_at_us + keys.window_tune_pause_ms * _US_PER_MS:
        return None
    fill_us = gap_us * keys.batch_texts_max
    taken_us = service_us(batching, keys.batch_texts_max)
    wanted_us = max(fill_us, taken_us // replicas_ready)
    wanted_ms = -(-wanted_us // _US_PER_MS)
    new_ms = max(keys.window_min_ms, min(keys.window_max_ms, wanted_ms))
    if abs(new_ms - old_ms) * 100 <= keys.window_tune_step_pct * old_ms:
        return None
    return WindowTuned(
        model=model.profile.model,
        base_ms=keys.window_ms,
        old_ms=old_ms,
        new_ms=new_ms,
        gap_us=gap_us,
        fill_us=fill_us,
        service_us=taken_us,
        batch_texts_max=keys.batch_texts_max,
        replicas_ready=replicas_ready,
        min_ms=keys.window_min_ms,
        max_ms=keys.window_max_ms,
    )
