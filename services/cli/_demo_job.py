"""The demo's offline job: a file in OpenAI's batch format, sent as `headway batch submit` does.

It is there before the first request, and takes the machine while nobody asks; then it gives way.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.batch import ENDED, BatchControl, JobReport, items_prefix, request_id
from schemas.profile import Profile
from services.cli._demo_run import Watch
from services.cli._demo_traffic import TEMPLATE_TOKENS, request_s
from services.gateway import batch, batch_file
from services.lab import prompts

TENANT = "archive"
# What a small machine is given: so much of the time of the traffic, but enough items that some wait
# behind those that fill its slots.
TIME_SHARE = 0.15
ITEM_PROMPT_TOKENS = 10
ITEM_OUTPUT_TOKENS = 16
ITEMS_MIN = 24
# What a simulated replica at full size is given.
ITEMS_AT_FULL_SIZE = 400
# It has begun when this long has passed, or the traffic begins without it.
BEGIN_S_MAX = 15.0
# Once everything else has ended, what is left of it gets so long; then it is cancelled.
END_S_MAX = 30.0
CANCEL_S_MAX = 20.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """A job to submit: its id, its model, and the lines of its file."""

    id: str
    model: str
    lines: tuple[str, ...]

    def path(self, directory: Path) -> Path:
        """Return its file, written to `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.id}.jsonl"
        path.write_text("".join(f"{line}\n" for line in self.lines), encoding="utf-8")
        return path


def items_for(seconds: float, speed: float) -> int:
    """Return how many items a small machine gets that is `speed` times as fast as it should be."""
    each_s = request_s(ITEM_PROMPT_TOKENS, ITEM_OUTPUT_TOKENS) / speed
    return max(ITEMS_MIN, round(TIME_SHARE * seconds / each_s))


def new_job(run: str, profile: Profile, items: int, seed: int) -> Job:
    """Return a job of so many questions to the profile's model, made up from the seed alone."""
    chance = random.Random(f"{seed}/job")  # noqa: S311 - traffic, not secrets
    lines = tuple(_line(number, profile, chance) for number in range(items))
    return Job(f"{run}-night", profile.model, lines)


def _line(number: int, profile: Profile, chance: random.Random) -> str:
    body: dict[str, Any] = {"model": profile.model, "max_tokens": ITEM_OUTPUT_TOKENS}
    if profile.tokenizer == "bytes":
        url = "/v1/completions"
        body["prompt"] = prompts.exactly(ITEM_PROMPT_TOKENS + TEMPLATE_TOKENS, chance)
    else:
        url = "/v1/chat/completions"
        text = prompts.question(ITEM_PROMPT_TOKENS, chance)
        body["messages"] = [{"role": "user", "content": text}]
    return json.dumps({"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body})


async def begin(job: Job, kafka: str, directory: Path, watch: Watch) -> None:
    """Submit the job, and return once its items run.

    Raises:
        bus.BusError, batch.JobError: it could not be submitted.
    """
    checked = batch_file.check(job.path(directory))
    await batch.submit(kafka, checked, checked.header(job.id, TENANT), lambda _: None)
    await _until(lambda: _running(job, watch) > 0, BEGIN_S_MAX)


async def end(job: Job, kafka: str, watch: Watch) -> JobReport | None:
    """Wait for the job's end, cancel it if it takes too long, and return its last report.

    Raises:
        bus.BusError: it could not be cancelled.
    """
    if not await _until(lambda: _over(job, watch), END_S_MAX):
        why = "the demo ends"
        control = BatchControl(job=job.id, model=job.model, action="cancel", who="demo", why=why)
        await batch.steer(kafka, control)
        await _until(lambda: _over(job, watch), CANCEL_S_MAX)
    seen = watch.scheduling.jobs.get(job.id)
    return None if seen is None else seen.report


def faults(job: Job, watch: Watch) -> list[str]:
    """Say what is wrong with the job: it has not ended, or an item has not exactly one outcome."""
    seen = watch.scheduling.jobs.get(job.id)
    if seen is None:
        return [f"the ledger says nothing of the job {job.id}"]
    report = seen.report
    found: list[str] = []
    if report.state not in ENDED:
        found.append(f"the job {job.id} has not ended: it is {report.state}")
    items = [request_id(job.id, number) for number in range(report.released)]
    wrong = [one for one in items if watch.occupancy.ended.get(one, 0) != 1]
    if wrong:
        found.append(f"{len(wrong)} items of {job.id} have no outcome, or two: {wrong[0]}")
    return found


def _running(job: Job, watch: Watch) -> int:
    return sum(one.startswith(items_prefix(job.id)) for one in watch.occupancy.running)


def _over(job: Job, watch: Watch) -> bool:
    seen = watch.scheduling.jobs.get(job.id)
    return seen is not None and seen.report.state in ENDED


async def _until(reached: Callable[[], bool], seconds: float) -> bool:
    until_s = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > until_s:
            return False
        await asyncio.sleep(POLL_S)
    return True
