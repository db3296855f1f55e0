"""`headway worker`: a replica of a model in the slot that it is given, or several on one device."""

import sys
from collections.abc import Callable
from dataclasses import replace

import click
from click.core import ParameterSource

from schemas.ids import model_name_fault
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
from services.worker.host import Hosted, WorkerHost, check_hosted
from services.worker.outbox import UnwritableError
from services.worker.plan import Bounds
from services.worker.service import LoadError, TurnedAwayError
from services.worker.turns import Replica

EXIT_TURNED_AWAY = 3


@click.command(
    epilog="Example: HEADWAY_KAFKA=127.0.0.1:9092 headway worker --model smollm2-135m --slot 0"
)
@click.option("--model", help="The model's name, as in its profile.")
@click.option("--slot", type=click.IntRange(0, 1023), help="The replica's slot.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="model=M,slot=N,…",
    help="In place of --model and --slot, once for each of several models that share the device."
    " The other options stand there too, by their names: engine=minilm,max-batch=8; those beside"
    " hold for every model that does not say otherwise.",
)
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
@click.option(
    "--patient-part",
    type=click.IntRange(min=1),
    default=8,
    show_default=True,
    help="The batch tier's prompts get one in so many of these tokens.",
)
@click.option(
    "--rests-max",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Iterations in a row in which the batch tier's work rests while the prompt of another"
    " request advances.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="CPU threads of the whole process (torch)."
)
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
@click.pass_context
def command(context: click.Context, /, *, hosts: tuple[str, ...], **options: object) -> None:
    """Run a worker for one replica slot: one part of a deployment.

    Loads and warms the model up, reports ready with its KV budget, and runs what the cell
    dispatches to it. On SIGTERM it finishes what runs and takes nothing more. Exits with 3 when the
    cell has no place for it.

    With --host it hosts up to 4 models on one device. One iteration runs at a time, and they take
    turns by the weights of the policy (iteration_weight, iteration_tier_weights); each has a slot
    and a KV pool of its own. All are loaded before any takes work. If one cannot be loaded the
    process ends; one that the cell turns away leaves, and the others go on.
    """
    hosted = _hosted(context, hosts, options)
    log_to_stderr()
    collect_seldom()
    host = WorkerHost(broker_of(settings_of_part()), hosted)
    try:
        run_until_stopped(host.run(), host.stop)
    except TurnedAwayError as error:
        click.echo(str(error), err=True)
        sys.exit(EXIT_TURNED_AWAY)
    except (BusError, LoadError, UnwritableError) as error:
        raise click.ClickException(str(error)) from error


def _hosted(
    context: click.Context, hosts: tuple[str, ...], options: dict[str, object]
) -> list[Hosted]:
    """Return what is to be hosted.

    Raises:
        click.UsageError: it cannot be; a sentence.
    """
    if not hosts:
        _check_named(context, options)
        return [_one(options)]
    if options["model"] is not None or options["slot"] is not None:
        raise click.UsageError("give --model and --slot, or --host for each model, not both")
    given = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    several = [_one(_options_in(host, given) | {"threads": options["threads"]}) for host in hosts]
    try:
        check_hosted([one.replica for one in several])
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return several


def _options_in(host: str, given: dict[str, object]) -> dict[str, object]:
    """Return the options of one --host, with those `given` beside it in place of the defaults."""
    params = [param for param in command.params if param.name not in {"hosts", "threads"}]
    reading = click.Command("--host", params=params, add_help_option=False)
    arguments: list[str] = []
    for part in host.split(","):
        name, said, value = part.strip().partition("=")
        arguments += [f"--{name.replace('_', '-')}", *([value] if said else [])]
    try:
        context = reading.make_context("--host", arguments, default_map=given)
        _check_named(context, context.params)
    except click.UsageError as error:
        raise click.UsageError(f"--host {host}: {error.format_message()}") from error
    return context.params


def _check_named(context: click.Context, options: dict[str, object]) -> None:
    for param in context.command.params:
        if param.name in {"model", "slot"} and options[param.name] is None:
            raise click.MissingParameter(ctx=context, param=param)
    wrong = model_name_fault(str(options["model"]))
    if wrong is not None:
        raise click.UsageError(wrong)


def _one(options: dict[str, object]) -> Hosted:
    model, slot = options["model"], options["slot"]
    assert isinstance(model, str)  # noqa: S101 - checked to be there
    assert isinstance(slot, int)  # noqa: S101 - same
    return Hosted(Replica(model, slot), _loader(model, options))


def _loader(model: str, options: dict[str, object]) -> Callable[[], Engine]:
    if options["engine"] in ONESHOT:
        return oneshot_loader(model, options)
    bounds = Bounds(
        _number(options, "max_batch"),
        _number(options, "prefill_tokens"),
        _number(options, "patient_part"),
        _number(options, "rests_max"),
    )
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
