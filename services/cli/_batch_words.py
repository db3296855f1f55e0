"""How `headway batch` speaks of a job: sentences for people, one flat object for programs. Pure."""

from typing import Any

from schemas.batch import ENDED, BatchHold, BatchStatus, HoldCause, JobReport, QuotaReason
from services.cli import _output

_HOLDS: dict[HoldCause, str] = {
    "receiving": "not all of its items are here yet",
    "paused": "it is paused",
    "no-replica": "no replica of its model is ready",
    "online-waits": "online requests wait for the room",
    "online-busy": "online requests leave too little room",
    "in-flight": "as many of its model's items are under way as may be",
    "window": "its oldest item under way has to end first",
    "quota": "its next item would be refused at the door now",
}
_RULES: dict[QuotaReason, str] = {
    "queue-full": "as many requests of its model wait as may, whoever's they are",
    "quota-queued-requests": "as many requests of its tenant wait for the model as may",
    "quota-queued-tokens": "requests of its tenant with as many tokens wait for the model as may",
    "quota-running-requests": "as many requests of its tenant are served by the model as may",
    "quota-tokens-per-minute": "its tenant's tokens of this minute are used up",
}


def counts(report: JobReport) -> tuple[int, int, int]:
    """Return how many items completed, ended otherwise, and are under way."""
    failed = failures(report)
    return report.completed, failed, report.released - report.completed - failed


def failures(report: JobReport) -> int:
    """Return how many released items ended, but did not complete."""
    return report.rejected + report.expired + report.failed + report.cancelled


def state_sentence(status: BatchStatus) -> str:
    """Return how far a job is, in a sentence."""
    report = status.report
    done, _, in_flight = counts(report)
    parts = [f"{report.state}, {done:,} of {report.items:,} items completed"]
    for name in ("rejected", "expired", "failed", "cancelled"):
        number = getattr(report, name)
        if number:
            parts.append(f"{number:,} {name}")
    if in_flight:
        parts.append(f"{in_flight:,} under way")
    if report.not_run:
        parts.append(f"{report.not_run:,} never ran")
    if report.state == "receiving":
        parts.append(f"{report.arrived:,} items are here")
    if report.ended_us is not None:
        parts.append(f"took {(report.ended_us - report.submitted_us) / 1e6:.1f} s")
    sentence = "; ".join(parts)
    held = ", ".join(f"{cause} {us / 1e6:.1f} s" for cause, us in report.held)
    if held:
        sentence += f" (held: {held})"
    # What it waits for while it runs is told apart; see `hold_sentence`.
    final = report.detail if report.state in ENDED else ""
    return f"{sentence}: {final}" if final else sentence


def held_by(status: BatchStatus, hold: BatchHold | None) -> str:
    """Return what holds a job back now, a rule of the door or a cause, or "" when nothing does."""
    return status.report.waits_for or (hold and hold.cause) or ""


def hold_sentence(status: BatchStatus, hold: BatchHold | None) -> str | None:
    """Return what holds a job back now, with the numbers compared, or None when nothing does."""
    report = status.report
    if report.waits_for is not None:
        return f"it waits because {_RULES[report.waits_for]}: {report.detail}"
    if hold is None or hold.cause is None:
        return None
    return (
        f"it waits because {_HOLDS[hold.cause]}: {hold.online} online requests,"
        f" {hold.online_waiting} of them waiting; {hold.slots_free} of {hold.slots} slots and"
        f" {hold.blocks_free} of {hold.blocks} KV blocks free"
    )


def status_json(status: BatchStatus, hold: BatchHold | None) -> dict[str, Any]:
    """Return a job as one object: its report beside its id, and what holds it back, or null."""
    report: dict[str, Any] = _output.plain(status.report)
    report["held_us"] = dict(status.report.held)
    del report["held"]
    holds: dict[str, Any] | None = None if hold is None else _output.plain(hold)
    rule = status.report.waits_for
    if rule is not None:
        holds = {"cause": "quota", "reason": rule, "detail": status.report.detail}
    return {"job": status.job, "model": status.model, **report, "held_by": holds}
