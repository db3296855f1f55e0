"""`headway worker`: one replica of a model, in the slot that it is given."""

import sys
from collections.abc import Callable
from dataclasses import replace

import click

from schemas.profile import SMOLLM2_135M, kv_bytes_per_token
from services.bus import BusError
from services.cli._process import (
    broker_of,
    collect_seldom,
    log_to_stderr,
    run_until_stopped,
    settings_of_part,
)
from services.cli._worker_oneshot import ONESHOT, oneshot_loader
from services.worker.engine import Engine
from services.worker.outbox import UnwritableError
from services.worker.plan import Bounds
from services.worker.service import LoadError, TurnedAwayError, WorkerService

EXIT_TURNED_AWAY = 3


@click.command(
    epilog="Example: HEADWAY_KAFKA=127.0.0.1:9092 headway worker --model smollm2-135m --slot 0"
)
@click.option("--model", required=True, help="The model's name, as in its profile.")
@click.option("--slot", type=click.IntRange(0, 1023), required=True, help="The replica's slot.")
@click.option(
    "--engine",
    type=click.Choice(["torch", "simulated", *ONESHOT]),
    default="torch",
    show_default=True,
    help="torch runs SmolLM2-135M; simulated takes its time and makes up the words. minilm runs the"
    " sentence encoder all-MiniLM-L6-v2 in torch; simulated-oneshot makes up the vectors.",
)
@click.option(
    "--dtype",
    type=click.Choice(["f32", "bf16"]),
    default="f32",
    show_default=True,
    help="Of weights and KV (torch). f32 gives the same text at every batch size.",
)
@click.option(
    "--kv-pool-bytes",
    type=click.IntRange(min=1),
    default=512 * 2**20,
    show_default=True,
    help="Memory for KV blocks, or for a one-shot model's activations.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(1, 4096),
    default=16,
    show_default=True,
    help="Requests that run at once, or texts of one pass of a one-shot model.",
)
@click.option(
    "--prefill-tokens",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Prompt tokens of one iteration: a long prompt is taken in pieces.",
)
@click.option("--threads", type=click.IntRange(min=1), help="CPU threads (torch).")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="How many times faster than Llama-3.1-8B on an H100 (simulated).",
)
@click.option("--instant", is_flag=True, help="Take no time at all (simulated).")
@click.option(
    "--pass-ms",
    type=click.FloatRange(min=0),
    default=5.0,
    show_default=True,
    help="What one pass takes, whatever its size (simulated-oneshot).",
)
@click.option(
    "--kv-bytes-per-token",
    type=click.IntRange(min=1),
    default=kv_bytes_per_token(SMOLLM2_135M),
    show_default=True,
    help="Of the model that is simulated.",
)
@click.option(
    "--max-sequence-tokens",
    type=click.IntRange(min=2),
    default=8192,
    show_default=True,
    help="Prompt and output of one request, together.",
)
def command(*, model: str, slot: int, **options: object) -> None:
    """Run a worker for one replica slot: one part of a deployment.

    Loads and warms the model up, reports ready with its KV budget, and runs what the cell
    dispatches to it. On SIGTERM it finishes what runs and takes nothing more. Exits with 3 when the
    cell has no place for it.
    """
    log_to_stderr()
    collect_seldom()
    load = _loader(model, options)
    service = WorkerService(broker_of(settings_of_part()), model, slot, load)
    try:
        run_until_stopped(service.run(), service.stop)
    except TurnedAwayError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_TURNED_AWAY)
    except (BusError, LoadError, UnwritableError) as error:
        raise click.ClickException(str(error)) from error


def _loader(model: str, options: dict[str, object]) -> Callable[[], Engine]:
    if options["engine"] in ONESHOT:
        return oneshot_loader(model, options)
    bounds = Bounds(_number(options, "max_batch"), _number(options, "prefill_tokens"))
    pool_bytes = _number(options, "kv_pool_bytes")
    tokens_max = _number(options, "max_sequence_tokens")

    def torch_engine() -> Engine:
        from services.worker.smollm2_engine import (  # noqa: PLC0415 - torch takes seconds to import
            SmolLM2Config,
            SmolLM2Engine,
        )

        threads = options["threads"]
        config = SmolLM2Config(
            kv_pool_bytes=pool_bytes,
            bounds=bounds,
            max_sequence_tokens=tokens_max,
            dtype="bfloat16" if options["dtype"] == "bf16" else "float32",
            threads=threads if isinstance(threads, int) else None,
        )
        return SmolLM2Engine(config)

    def simulated_engine() -> Engine:
        from services.worker.simulated import (  # noqa: PLC0415 - only what is asked for
            SimulatedEngine,
            instant,
            llama_on_h100,
        )

        per_token = _number(options, "kv_bytes_per_token")
        if options["instant"]:
            return SimulatedEngine(instant(model, per_token))
        speed = options["speed"]
        config = llama_on_h100(model, speed if isinstance(speed, float) else 1.0)
        return SimulatedEngine(
            replace(
                config,
                kv_pool_bytes=pool_bytes,
                kv_bytes_per_token=per_token,
                max_sequence_tokens=tokens_max,
                bounds=bounds,
            )
        )

    return torch_engine if options["engine"] == "torch" else simulated_engine


def _number(options: dict[str, object], name: str) -> int:
    value = options[name]
    assert isinstance(value, int)  # noqa: S101 - click has checked it
    return value
