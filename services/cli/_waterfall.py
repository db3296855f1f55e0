"""Draws a request's story for the terminal: a bar a segment, the waits added up, what happened.

Presentation only; `render_waterfall` is what `explain` and `demo` show.
"""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from schemas.decisions import CAUSES
from streams.story_parts import DecisionId, Present, Segment, Story

# The bars give way where the terminal is narrow: the why of a wait matters more.
BAR_CHARS_MIN = 16
BAR_CHARS_MAX = 44
OTHER_CHARS = 86
_WAIT_STYLES = {
    "transit": "cyan",
    "kv": "red",
    "slots": "magenta",
    "no-replica": "bright_red",
    "cold-start": "blue",
    "backoff": "yellow",
    "window": "bright_blue",
    "turn": "bright_magenta",
    "quota": "bright_yellow",
}
_RUN_STYLES = {"prefill": "green", "decode": "bright_green", "encode": "bright_green"}


def render_waterfall(story: Story, width_chars: int) -> RenderableType:
    """Return the story's waterfall: the segments as bars on one time axis, and their totals."""
    bar_chars = min(max(width_chars - OTHER_CHARS, BAR_CHARS_MIN), BAR_CHARS_MAX)
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    table.add_column("segment", no_wrap=True)
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column(_axis(story, bar_chars), no_wrap=True, min_width=bar_chars)
    table.add_column("why", overflow="fold")
    for segment in story.segments:
        style = _style(segment)
        table.add_row(
            Text(f"{segment.kind}: {segment.label}", style=style),
            _ms(segment.us),
            Text(_bar(story, segment, bar_chars), style=style),
            Text(_why(segment), style="dim"),
        )
    return Group(Text(headline(story), style="bold"), table, Text(totals(story)))


def render_events(story: Story) -> RenderableType:
    """Return what happened, in order: when after the arrival, which entry says so, and what."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("cell, seq, index", no_wrap=True, style="dim")
    table.add_column("what", no_wrap=True)
    table.add_column("with", overflow="fold")
    for event in story.events:
        place = f"{event.cell}, {event.seq}" + ("" if event.index is None else f", {event.index}")
        table.add_row(
            _ms(event.at_us - story.arrived_us), place, Text(event.what), Text(event.detail)
        )
    return table


def headline(story: Story) -> str:
    """Return the story in one line."""
    which = f"{story.id} to {story.model or 'an unnamed model'}"
    if story.present is not None:
        return (
            f"{which}: not over, {_stands(story.present)} {_ms(story.e2e_us)} ms after its arrival"
        )
    text = f"{which}: {story.outcome} after {_ms(story.e2e_us)} ms: {story.detail}"
    return text if story.replica is None else f"{text} (replica {story.replica})"


def _stands(present: Present) -> str:
    match present.stage:
        case "waiting":
            return f"waiting ({present.cause})"
        case "backoff":
            return "waiting (backoff)"
        case "routed":
            return "sent on to another cell"
        case stage:
            return stage


def present_words(story: Story) -> list[str]:
    """Return where a request that is not over stands, with the numbers; nothing once it is over."""
    present = story.present
    if present is None:
        return []
    age_ms = _ms(max(0, story.until_us - story.newest_entry_us))
    for_ms = _ms(story.until_us - present.since_us)
    why = f"{present.why}{_id(present.decision)}".strip() or "no word of it"
    words = [
        f"now    {present.cause or present.stage} for {for_ms} ms: {why}",
        f"       it goes on; the newest entry of its cell is {age_ms} ms old",
    ]
    if story.standing_fault is not None:
        # The cause above is its queue's; it may be another one that keeps this request from it.
        words.append(
            f"       what holds this very request back could not be read: {story.standing_fault}"
        )
    return words


def totals(story: Story) -> str:
    """Return the totals by cause, which add up to the wait, and the policies."""
    waits = " + ".join(f"{cause} {_ms(us)}" for cause, us in story.waits()) or "nothing"
    runs = " + ".join(f"{label} {_ms(us)}" for label, us in story.runs()) or "nothing"
    policies = ", ".join(f"version {version} ({digest})" for version, digest in story.policies)
    lines = [
        *present_words(story),
        f"waited {_ms(story.wait_us)} ms = {waits}; unexplained {story.unexplained_us} µs",
        f"ran    {_ms(story.run_us)} ms = {runs}",
    ]
    if story.ttft_us is not None:
        lines.append(f"first token {_ms(story.ttft_us)} ms after the arrival")
    if story.passed_over:
        lines.append(f"passed over {story.passed_over} times for requests that did fit")
    lines.append(f"decided under policy {policies}")
    return "\n".join(lines)


def _bar(story: Story, segment: Segment, chars: int) -> str:
    whole = max(1, story.e2e_us)
    first = (segment.from_us - story.arrived_us) * chars // whole
    last = -(-(segment.to_us - story.arrived_us) * chars // whole)
    first = min(max(first, 0), chars - 1)
    return " " * first + "█" * max(1, min(last, chars) - first)


def _axis(story: Story, chars: int) -> str:
    end = f"{_ms(story.e2e_us)} ms"
    return "0" + end.rjust(chars - 1)


def _style(segment: Segment) -> str:
    if segment.kind == "wait":
        return _WAIT_STYLES.get(segment.label, "yellow" if segment.label in CAUSES else "white")
    return _RUN_STYLES.get(segment.label, "dim green")


def _why(segment: Segment) -> str:
    return f"{segment.why}{_id(segment.decision)}"


def _id(decision: DecisionId | None) -> str:
    return "" if decision is None else " [{}, {}, {}]".format(*decision)


def _ms(us: int) -> str:
    return f"{us / 1000:.1f}"
