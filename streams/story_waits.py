"""The causes of a wait as the core recorded them, where the queue alone does not tell. Pure.

A story's waits are put together from what held the model's queue back. A request below a higher
tier, or of a tenant that was held back, waited for its turn or its quota in part of that time: how
long in all is on record with its dispatch or its end, and then that is what the story tells.
"""

from dataclasses import replace

from schemas.decisions import Waits
from streams.story_parts import Segment

AS_RECORDED = "as it adds up on record; it may have come in turns with the others"


def as_recorded(segments: list[Segment], waits: Waits) -> list[Segment]:
    """Return the segments with the last wait parted by the recorded causes of all waits so far.

    They are returned as they are where they say the same already, or where the record does not
    cover the time that they take.
    """
    begin = len(segments)
    while begin and segments[begin - 1].kind == "wait":
        begin -= 1
    wait = segments[begin:]
    told: dict[str, int] = {}
    for segment in segments:
        if segment.kind == "wait":
            told[segment.label] = told.get(segment.label, 0) + segment.us
    if not wait or told == dict(waits):
        return segments
    parts: dict[str, int] = dict[str, int](waits)
    for segment in segments[:begin]:
        if segment.kind == "wait":
            parts[segment.label] = parts.get(segment.label, 0) - segment.us
    if min(parts.values(), default=0) < 0 or sum(parts.values()) != sum(one.us for one in wait):
        return segments
    why = {one.label: (one.why, one.decision) for one in wait}
    at_us = wait[0].from_us
    parted: list[Segment] = []
    for cause, us in parts.items():
        if us:
            text, decision = why.get(cause, (AS_RECORDED, None))
            parted.append(
                replace(
                    wait[-1],
                    label=cause,
                    from_us=at_us,
                    to_us=at_us + us,
                    why=text,
                    decision=decision,
                )
            )
            at_us += us
    return [*segments[:begin], *parted]
