"""The demo's offline job: a file in OpenAI's batch format, sent as `headway batch submit` does.

It is there before the first request and takes the whole machine while nobody asks, because the
demo's policy lets it take every slot at once (see WHOLE_MACHINE); then it gives way. The policy
that was in force before is set again at the end, for the deployment may not be the demo's own.
"""

import contextlib
import json
import random
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.batch import ENDED, BatchControl, JobReport, items_prefix, request_id
from schemas.policy_check import policy_values
from schemas.policy_history import changes
from schemas.profile import Profile
from services.cli import _config_edit as edit
from services.cli._demo_run import Watch, until
from services.cli._demo_traffic import TEMPLATE_TOKENS, request_s
from services.gateway import batch, batch_file
from services.lab import prompts
from streams.policies import read_standing, set_policy

TENANT = "archive"
# What a small machine is given: so much of the time of the traffic, but enough items that some wait
# behind those that fill its slots.
TIME_SHARE = 0.15
ITEM_PROMPT_TOKENS = 10
ITEM_OUTPUT_TOKENS = 16
ITEMS_MIN = 24
# What a simulated replica at full size is given.
ITEMS_AT_FULL_SIZE = 400
# By default a job takes half the slots until online work has been gone for 10 s. Nobody would wait
# for that to see a job give way.
WHOLE_MACHINE: dict[str, Any] = {"offline_slots_max_pct": 100, "offline_alone_ms": 0}
POLICY_S_MAX = 15.0
# It has begun when this long has passed, or the traffic begins without it.
BEGIN_S_MAX = 15.0
# Once everything else has ended, what is left of it goes on; if no item ends for so long, the rest
# is cancelled.
STALL_S_MAX = 30.0
CANCEL_S_MAX = 20.0


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


@contextlib.asynccontextmanager
async def whole_machine(kafka: str, model: str) -> AsyncGenerator[None]:
    """Let jobs of the model take every slot that is idle, and give the policy back afterwards.

    Raises:
        bus.BusError: a policy could not be set.
        batch.JobError: it was refused, or another one was set at the same moment.
    """
    before = (await read_standing(kafka)).history.active.policy
    values = edit.with_values(before, (model, None, None), WHOLE_MACHINE)
    why = "its offline job takes the whole idle machine at once, to be seen giving way"
    changed = await _set(kafka, values, before.version, why)
    try:
        yield
    finally:
        if changed is not None:
            await _set(kafka, policy_values(before), changed, "the demo is over")


async def _set(kafka: str, values: dict[str, Any], based_on: int, why: str) -> int | None:
    """Set the policy of these values; return its version, or None where nothing differs."""
    standing = await read_standing(kafka)
    policy = edit.checked(values, standing.next_version)
    if not changes(standing.history.active.policy, policy):
        return None
    became = await set_policy(
        kafka, policy, based_on=based_on, who="headway demo", why=why, wait_s=POLICY_S_MAX
    )
    if became.refused is not None or became.lost_to is not None:
        reason = became.refused or "another one was set at the same moment"
        raise batch.JobError(f"the policy of the demo did not come into force: {reason}")
    return policy.version


async def begin(job: Job, kafka: str, directory: Path, watch: Watch) -> None:
    """Submit the job, and return once its items take all the room that there is for them.

    Raises:
        bus.BusError, batch.JobError: it could not be submitted.
    """
    checked = batch_file.check(job.path(directory))
    await batch.submit(kafka, checked, checked.header(job.id, TENANT), lambda _: None)
    await until(lambda: _fills(job, watch), BEGIN_S_MAX)


async def end(job: Job, kafka: str, watch: Watch) -> JobReport | None:
    """Wait for the job's end, cancel it if it does not get on, and return its last report.

    Raises:
        bus.BusError: it could not be cancelled.
    """
    if not await until(lambda: _over(job, watch), STALL_S_MAX, lambda: _ended(job, watch)):
        why = f"the demo ends: none of its items has ended for {STALL_S_MAX:g} s"
        control = BatchControl(job=job.id, model=job.model, action="cancel", who="demo", why=why)
        await batch.steer(kafka, control)
        await until(lambda: _over(job, watch), CANCEL_S_MAX)
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


def _fills(job: Job, watch: Watch) -> bool:
    """Return whether an item waits for those that run, or all of them have had their turn."""
    seen = watch.scheduling.jobs.get(job.id)
    released = 0 if seen is None else seen.report.released
    prefix = items_prefix(job.id)
    waits = any(one.startswith(prefix) for one in watch.occupancy.waiting)
    return waits or released == len(job.lines)


def _ended(job: Job, watch: Watch) -> int:
    """Return how many items have ended."""
    prefix = items_prefix(job.id)
    return sum(one.startswith(prefix) for one in watch.occupancy.ended)


def _over(job: Job, watch: Watch) -> bool:
    seen = watch.scheduling.jobs.get(job.id)
    return seen is not None and seen.report.state in ENDED
