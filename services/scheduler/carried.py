"""What a preempted request carries into its next attempt: its tokens and what they took. Pure.

The tokens themselves lie in the worker's report; here are their count and the report's offset. The
durations of attempts whose tokens are kept add up; those of a lost attempt are lost with it.
"""

from schemas import decisions as d
from schemas.facts import Usage
from services.scheduler.state import Request


def output_of(request: Request, usage: Usage | None, offset: int) -> tuple[int, int]:
    """Return how many output tokens are on record, and the offset of the report that holds them.

    `usage` and `offset` are of the last report. A report with fewer tokens than are kept already
    takes none of them away.
    """
    if usage is None or usage.output_tokens < request.kept_tokens:
        return request.kept_tokens, request.kept_offset
    return usage.output_tokens, offset


def keep(request: Request, usage: Usage, decision: d.RequestPreempted) -> None:
    """Remember what the attempt that ends now leaves to the next one; its run is still open."""
    if request.ttft_us is None:
        request.ttft_us = ttft_us(request, usage)
        request.first_token_us = usage.first_token_us
    queued_us, prefill_us, decode_us = request.used_us
    request.used_us = (
        queued_us + usage.queued_us,
        prefill_us + usage.prefill_us,
        decode_us + usage.decode_us,
    )
    request.output_tokens = request.kept_tokens = decision.output_tokens
    request.kept_offset = decision.output_offset
    request.preemptions = decision.preemptions
    # The deadline is for the start, and it has started.
    request.deadline_us = None


def ttft_us(request: Request, usage: Usage | None) -> int | None:
    """Return the time from the arrival to the first token, µs, or None if there was none.

    `usage` is of the attempt that ends now, if it said so.
    """
    if request.ttft_us is not None or usage is None or usage.first_token_us is None:
        return request.ttft_us
    before_us = request.since_us - request.arrived_us
    return before_us + usage.first_token_us


def whole_usage(request: Request, usage: Usage | None) -> Usage | None:
    """Return the usage over all attempts whose tokens are kept, and of the last one."""
    if not request.preemptions:
        return usage
    queued_us, prefill_us, decode_us = request.used_us
    if usage is None:
        return Usage(
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.kept_tokens,
            queued_us=queued_us,
            prefill_us=prefill_us,
            decode_us=decode_us,
            first_token_us=request.first_token_us,
        )
    first_token_us = request.first_token_us
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=max(usage.output_tokens, request.kept_tokens),
        queued_us=queued_us + usage.queued_us,
        prefill_us=prefill_us + usage.prefill_us,
        decode_us=decode_us + usage.decode_us,
        first_token_us=usage.first_token_us if first_token_us is None else first_token_us,
    )
