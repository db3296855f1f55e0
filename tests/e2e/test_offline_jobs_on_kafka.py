"""An offline job on the real broker: whatever is killed, each item ends once, in its place."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from schemas.batch import ENDED, BatchControl, BatchStatus
from schemas.policy import Override, Policy
from services.gateway import batch
from services.gateway.batch_file import check
from services.gateway.batch_results import result_lines
from tests.e2e.deployment import Deployment, decision_kinds


def _file(directory: Path, count: int, model: str, **body: Any) -> Path:
    path = directory / f"job-{count}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": model, "prompt": f"line {number} ✓", "max_tokens": 8} | body,
            }
            file.write(json.dumps(line) + "\n")
    return path


async def _submit(
    deployment: Deployment, path: Path, job: str, tenant: str | None = None
) -> BatchStatus:
    checked = check(path)
    header = checked.header(job, tenant)
    return await batch.submit(deployment.bootstrap, checked, header, lambda _: None)


async def _ended(deployment: Deployment, job: str, seconds: float = 120.0) -> BatchStatus:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        status = (await batch.standing(deployment.bootstrap)).jobs.get(job)
        if status is not None and status.report.state in ENDED:
            return status
        await asyncio.sleep(0.3)
    raise AssertionError(f"{job} has not ended; logs: {deployment.log_tails()}")


async def _progress(deployment: Deployment, job: str, completed: int) -> None:
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        status = (await batch.standing(deployment.bootstrap)).jobs.get(job)
        if status is not None and status.report.completed >= completed:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{job} does not get on; logs: {deployment.log_tails()}")


async def test_a_job_survives_kills_of_all_parts_and_each_item_ends_once_in_its_place(
    deployment: Deployment, tmp_path: Path
) -> None:
    count = 400
    path = _file(tmp_path, count, deployment.profile.model)
    deployment.start_cell()
    deployment.start_worker(0, "--speed", "4", "--max-batch", "8")
    await deployment.wait_for_replicas()
    # The submitting command is killed in its midst, and repeated.
    deployment.spawn("submit", "batch", "submit", str(path), "--job", "night")
    await asyncio.sleep(1.5)
    deployment.kill("submit")
    await _submit(deployment, path, "night")
    await _progress(deployment, "night", 30)
    deployment.kill("cell")
    deployment.start_cell()
    await _progress(deployment, "night", 90)
    deployment.kill("worker-0")
    deployment.start_worker(0, "--speed", "4", "--max-batch", "8")
    await _progress(deployment, "night", 150)
    assert deployment.broker is not None
    deployment.kill("cell")
    deployment.broker.kill()
    deployment.broker.start()
    deployment.start_cell()
    status = await _ended(deployment, "night")
    assert (status.report.state, status.report.completed) == ("completed", count)
    lines = [line async for line in result_lines(deployment.bootstrap, status)]
    assert [line["custom_id"] for line in lines] == [f"row-{number}" for number in range(count)]
    assert all(line["response"]["status_code"] == 200 for line in lines)
    await deployment.check_record([f"batch/night/{number}" for number in range(count)])


async def test_a_job_waits_for_online_work_is_steered_and_tells_which_items_failed(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.start_cell()
    path = _file(tmp_path, 20, deployment.profile.model)
    with path.open("a", encoding="utf-8") as file:
        body = {"model": deployment.profile.model, "prompt": "x", "temperature": 9}
        line = {"custom_id": "hot", "method": "POST", "url": "/v1/completions", "body": body}
        file.write(json.dumps(line) + "\n")
    status = await _submit(deployment, path, "day")
    assert (status.report.state, status.report.released) == ("running", 0)
    standing = await batch.standing(deployment.bootstrap)
    hold = standing.hold_of(standing.jobs["day"])
    assert hold is not None
    assert hold.cause == "no-replica"
    pause = BatchControl(job="day", model=status.model, action="pause", who="ops")
    await batch.steer(deployment.bootstrap, pause)
    async for seen in batch.follow(deployment.bootstrap, "day", 20):
        if seen.report.state == "paused":
            break
    deployment.start_worker()
    await deployment.wait_for_replicas()
    resume = BatchControl(job="day", model=status.model, action="resume", who="ops")
    await batch.steer(deployment.bootstrap, resume)
    done = await _ended(deployment, "day")
    assert (done.report.completed, done.report.rejected) == (20, 1)
    assert dict(done.report.held)["paused"] > 0
    lines = [line async for line in result_lines(deployment.bootstrap, done)]
    assert [line["custom_id"] for line in lines if line["error"]] == ["hot"]
    assert "temperature" in lines[-1]["error"]["message"]
    # The same submit again is the same job: nothing of it runs twice.
    again = await _submit(deployment, path, "day")
    assert again.seq == done.seq
    await deployment.check_record([f"batch/day/{number}" for number in range(21)])


async def test_a_job_whose_tenant_used_its_minute_up_waits_says_so_and_goes_on_when_it_may(
    deployment: Deployment, tmp_path: Path
) -> None:
    minute = Override(tenant="acme", key="quota_tokens_per_minute", value=100)
    await deployment.set_policy(Policy(version=2, overrides=(minute,)))
    deployment.start_cell()
    deployment.start_worker()
    await deployment.wait_for_replicas()
    path = _file(tmp_path, 20, deployment.profile.model)
    await _submit(deployment, path, "metered", "acme")
    await deployment.until_recorded(
        "job was held", lambda entries: decision_kinds(entries)["job-held.v1"] > 0
    )
    waiting = (await batch.standing(deployment.bootstrap)).jobs["metered"]
    assert waiting.report.state == "running"
    assert "acme may use 100 a minute" in waiting.report.detail
    # An item asks for some 20 tokens.
    assert waiting.report.released < 8
    await deployment.set_policy(Policy(version=3))
    done = await _ended(deployment, "metered")
    assert (done.report.state, done.report.completed, done.report.rejected) == ("completed", 20, 0)
    assert dict(done.report.held)["quota"] > 0
    await deployment.check_record([f"batch/metered/{number}" for number in range(20)])
