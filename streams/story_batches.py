"""Windows and batches of one-shot models in words, for a request's story. Pure."""

from collections.abc import Iterable

from schemas.batches import BatchFormed, WindowOpened
from schemas.facts import Usage
from streams.story_parts import Event, counted

# What the event is called that a request left in a batch.
BATCHED = "batch formed"
_WHY = {
    "full": "as many texts wait as a batch holds",
    "due": "the window is over",
    "backlog": "more wait than are held back",
    "deadline": "the nearest deadline demands it",
    "free": "no window is kept, and the replica is free",
}


def parts_of(usage: Usage, events: Iterable[Event]) -> tuple[tuple[str, int, str], ...]:
    """Return what the worker did in a run, how long each took in µs, and with how much.

    The pass over the texts of a batch is called by its name: no tokens come of it.
    """
    batched = any(event.what == BATCHED for event in events)
    return (
        ("queued at the worker", usage.queued_us, "until it joined the batch"),
        (
            "encode" if batched else "prefill",
            usage.prefill_us,
            counted(usage.prompt_tokens, "token"),
        ),
        ("decode", usage.decode_us, counted(usage.output_tokens, "token")),
    )


def due_numbers(window: WindowOpened, now_us: int) -> str:
    """Return when the window is due, and what set it."""
    return f"due in {(window.due_us - now_us) / 1000:g} ms{window_numbers(window)}"


def window_numbers(window: WindowOpened | None) -> str:
    """Return what set the window: its length, the tier's target, and the nearest deadline."""
    if window is None:
        return ""
    text = (
        f"; a window of {window.allowed_us / 1000:g} ms (set to {window.window_ms} ms, at most"
        f" {window.share_pct}% of the {window.target_ms} ms that tier {window.tier} aims at)"
    )
    if window.deadline_us is None or window.due_us == window.opened_us + window.allowed_us:
        return text
    return (
        f"{text}, cut to {(window.due_us - window.opened_us) / 1000:g} ms by a deadline and"
        f" {window.service_us / 1000:g} ms of work"
    )


def batch_numbers(formed: BatchFormed) -> str:
    """Return why the batch left, what is in it, and what it takes."""
    text = (
        f"batch {formed.batch} of {len(formed.members)} requests and {formed.texts} of at most"
        f" {formed.texts_max} texts left: {_WHY[formed.why]}; padded to"
        f" {formed.longest_tokens} tokens ({formed.padding_pct}% padding), {formed.blocks} of"
        f" {formed.blocks_allowed} blocks; {formed.waiting} waited"
    )
    if formed.passed_over:
        text += f", {formed.passed_over} were passed over for their length or size"
    if formed.ahead:
        text += f"; {formed.ahead} batches stand before it at the replica"
    return text
