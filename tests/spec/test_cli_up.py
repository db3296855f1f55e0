"""`headway up` starts workers by command lines that `headway worker` takes."""

import pytest
from click.testing import CliRunner

from services.cli import up
from services.cli._stack import Beside, WorkerPlan
from services.cli.worker import command


def test_a_worker_of_one_model_is_named_by_model_and_slot() -> None:
    plan = WorkerPlan(2, ("--engine", "simulated"))
    assert plan.command("m") == ("worker", "--model", "m", "--slot", "2", "--engine", "simulated")


def test_what_shares_a_worker_s_device_is_hosted_by_it() -> None:
    plan = WorkerPlan(0, ("--max-batch", "4"), (Beside("e", 1, "engine=minilm"),))
    assert plan.command("m") == (
        "worker",
        *("--host", "model=m,slot=0"),
        *("--host", "model=e,slot=1,engine=minilm"),
        *("--max-batch", "4"),
    )


@pytest.mark.parametrize("engine", ["torch", "simulated"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_encoder_runs_once_on_the_first_worker_s_device_or_alone(
    count: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWAY_KAFKA", raising=False)
    plans = up._workers(count, engine, embeddings=True)  # pyright: ignore[reportPrivateUsage]
    commands = [plan.command(model) for model, those in plans.items() for plan in those]
    assert len(commands) == max(count, 1)
    assert sum("all-minilm-l6-v2" in " ".join(one) for one in commands) == 1
    for one in commands:
        got = CliRunner().invoke(command, list(one[1:]))
        assert (got.exit_code, "HEADWAY_KAFKA names no broker" in got.output) == (1, True)


def test_without_embeddings_only_text_is_served() -> None:
    plans = up._workers(2, "torch", embeddings=False)  # pyright: ignore[reportPrivateUsage]
    assert [plan.beside for plan in plans["smollm2-135m"]] == [(), ()]
    assert list(plans) == ["smollm2-135m"]
