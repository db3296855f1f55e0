"""What a demo says of preemptions, batches and its job, while it goes on and at its end. Pure."""

from collections import Counter

from schemas.batch import ENDED, item_of
from services.lab.scheduling import ONLINE_HOLDS, JobSeen, Left, Windows

SIZES_SHOWN = 6


def left(one: Left) -> str:
    """Return who left for whom, and what it keeps."""
    asked = one.asked
    lacked = "a slot" if asked.lacks == "slots" else f"{asked.blocks_needed} KV blocks"
    for_whom = f"{_name(asked.for_id)} ({asked.for_tier})"
    return (
        f"{_name(one.id)} ({_line(one)}) left {one.replica} for {for_whom}, which lacked {lacked};"
        f" {one.tokens_kept} tokens kept"
    )


def left_shortly(one: Left) -> str:
    """Return who left for whom, short enough for a line."""
    for_whom = f"{_name(one.asked.for_id)} ({one.asked.for_tier})"
    return f"{_name(one.id)} left for {for_whom}, {one.tokens_kept} tokens kept"


def progress(name: str, job: JobSeen) -> str:
    """Return how far a job is, in a few words."""
    report = job.report
    state = "" if report.state in {"running", *ENDED} else f", {report.state}"
    return f"{_short(name)} {report.completed}/{report.items}{state}, gave way {job.yields} ×"


def job_sentence(name: str, job: JobSeen) -> str:
    """Return what became of a job."""
    report = job.report
    took_us = (report.ended_us or report.submitted_us) - report.submitted_us
    other = report.items - report.completed
    rest = f", {other} were not" if other else ""
    idle, spare = job.released["idle"], job.released["spare"]
    return (
        f"{name}: {report.state} after {took_us / 1e6:.1f} s; {report.completed} of {report.items}"
        f" items done{rest}, {job.output_tokens:,} tokens generated; {idle} items were released"
        f" while online work was idle, {spare} beside it"
    )


def yields_sentence(job: JobSeen) -> str:
    """Return how often and for what the job gave way."""
    if not job.yields:
        return "never: no online request lacked the room that it took"
    held_us = {cause: us for cause, us in job.report.held if cause in ONLINE_HOLDS}
    held = sum(job.holds[cause] for cause in ONLINE_HOLDS)
    causes = ", ".join(f"{cause} {us / 1e6:.1f} s" for cause, us in held_us.items())
    return (
        f"{job.yields} ×: {job.items_left} × a running item left after its iteration,"
        f" {held} × the release of more was held ({causes or 'for a moment'})"
    )


def batches(windows: Windows) -> str:
    """Return which batches were formed, and why each left."""
    if not windows.batches:
        return f"none yet, a window of {windows.window_ms} ms is open"
    why = Counter(windows.closed_by).most_common()
    closed = ", ".join(f"{count} {cause}" for cause, count in why)
    window = "" if windows.window_ms is None else f"; window {windows.window_ms} ms"
    return f"{windows.texts} texts in {windows.batches} batches, closed by {closed}{window}"


def batches_sentence(windows: Windows) -> str:
    """Return which batches were formed and of how many texts, in a sentence."""
    sizes = ", ".join(map(str, windows.sizes[-SIZES_SHOWN:]))
    more = "the last ones " if windows.batches > SIZES_SHOWN else ""
    tuned = f"; the window was tuned {windows.tuned} ×" if windows.tuned else ""
    padding = f"; padding at most {windows.padding_pct_max}%"
    return f"{batches(windows)}{tuned}; {more}of {sizes} texts{padding}"


def _line(one: Left) -> str:
    return "offline" if one.line == "offline" else f"{one.line}, {one.tenant}"


def _name(request: str) -> str:
    item = item_of(request)
    return request if item is None else f"item {item[1]} of {_short(item[0])}"


def _short(job: str) -> str:
    """Return a job's name without the run that it is of."""
    return job.rpartition("-")[2]
