"""The demo itself, from its command line: a short one on real parts adds up and leaves nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.store]

REPOSITORY = Path(__file__).parents[2]


def run_demo(tmp_path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    named = {"HEADWAY_KAFKA", "HEADWAY_CLICKHOUSE", "HEADWAY_STATE"}
    environ = {name: value for name, value in os.environ.items() if name not in named}
    return subprocess.run(
        [sys.executable, "-m", "services.cli", "demo", *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=environ | {"TMPDIR": str(tmp_path)},
        check=False,
        timeout=170,
    )


def test_a_short_demo_exits_0_and_its_json_adds_up(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--seconds", "5", "--engine", "simulated", "--speed", "4", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["ok"] is True
    assert told["faults"] == []
    summary = told["summary"]
    assert summary["requests"] == told["setting"]["requests"] > 20
    assert sum(summary["outcomes"].values()) == summary["requests"]
    assert sum(tier["requests"] for tier in summary["tiers"]) == summary["requests"]
    assert summary["outcomes"]["completed"] == summary["e2e_ms"]["count"]
    slowest = told["slowest"]
    assert slowest["id"] == summary["slowest"]
    assert slowest["wait_us"] + slowest["run_us"] == slowest["e2e_us"]
    assert slowest["unexplained_us"] == 0
    assert sum(tenant["requests"] for tenant in summary["tenants"]) == summary["requests"]
    check_batches_and_job(told)
    assert told["replay"]["mismatches"] == 0
    assert told["replay"]["entries"] > summary["requests"]
    audit = told["audit"]
    everything = summary["requests"] + told["setting"]["texts"] + told["setting"]["job_items"]
    assert (audit["caught_up"], audit["requests"]) == (True, everything)
    assert audit["results"] == everything
    assert set(audit["problems"].values()) == {0}
    assert list(tmp_path.iterdir()) == [], "the demo's state is deleted at its end"


def check_batches_and_job(told: dict[str, Any]) -> None:
    """Check that every text rode in a batch, and every item of the job was done."""
    (batches,) = told["batches"].values()
    embeddings, texts = told["embeddings"], told["setting"]["texts"]
    assert (embeddings["sent"], embeddings["completed"]) == (texts, texts)
    assert batches["texts"] == sum(batches["sizes"]) == texts
    assert sum(batches["closed_by"].values()) == batches["batches"] < texts
    job = told["job"]
    report = job["report"]
    assert report["state"] == "completed"
    assert report["completed"] == report["items"] == told["setting"]["job_items"]
    assert sum(job["released"].values()) == report["items"]
    left = told["preemptions"]
    assert sum(pair["count"] for pair in left["by"]) == left["count"]


@pytest.mark.torch
def test_with_real_models_an_offline_job_gives_way_to_chats_and_texts_find_each_other(
    tmp_path: Path,
) -> None:
    done = run_demo(tmp_path, "--seconds", "6", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    check_batches_and_job(told)
    # By the demo's policy the job takes every slot, or all KV, before the first chat comes.
    assert told["job"]["items_left"] > 0
    offline = [one for one in told["preemptions"]["examples"] if one["line"] == "offline"]
    assert offline
    assert all(one["id"].startswith(f"batch/{told['setting']['job']}/") for one in offline)
    assert told["embeddings"]["nearest"] == "A queue grows when work arrives faster than it leaves."


def test_a_trace_that_cannot_be_used_ends_the_demo_before_anything_starts(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_ms,prompt_tokens,output_tokens\n0,many,1\n")
    done = run_demo(tmp_path, "--trace", str(trace))
    assert done.returncode == 1
    assert "line 2 of the trace" in done.stderr
    assert "prompt_tokens is 'many'" in done.stderr
    assert done.stdout == ""
