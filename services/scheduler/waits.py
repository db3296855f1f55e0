"""Why a request waited, so that the causes of each wait add up to it. Pure; reads only.

Each model has, at every moment at which something waits, exactly one blocking cause. It keeps the
total time under each cause, so the causes of one request's wait are the difference between the
totals at its end and at its beginning: no request is touched while it waits.
"""

from schemas.decisions import CAUSES, Waits
from services.scheduler.state import CAUSE_INDEX, Model, Request

BACKOFF = CAUSE_INDEX["backoff"]
TRANSIT = CAUSE_INDEX["transit"]


def waited_us(request: Request, model: Model, now_us: int) -> list[int]:
    """Return the µs that the request waited for each cause (index in CAUSES) up to `now_us`."""
    if request.stage == "waiting":
        totals_us = zip(request.waited_us, model.cause_totals_us, request.mark, strict=True)
        waited = [before + total - mark for before, total, mark in totals_us]
        if model.cause is not None:
            waited[CAUSE_INDEX[model.cause]] += now_us - model.cause_since_us
        return waited
    waited = request.waited_us.copy()
    if request.stage == "backoff":
        waited[BACKOFF] += now_us - request.since_us
    return waited


def as_waits(waited: list[int]) -> Waits:
    """Return the causes above zero with their µs, in the order of CAUSES."""
    return tuple([(cause, us) for cause, us in zip(CAUSES, waited, strict=True) if us])
