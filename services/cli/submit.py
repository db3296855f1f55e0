"""`headway submit`: send one request through Kafka and show its outcome."""

import json
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from schemas.bus import Result, TokenPiece
from schemas.edge import Asked, Refused, Unreadable, read_request
from schemas.embeddings import EmbeddingRequest
from schemas.policy import TIERS
from schemas.profile import MINILM_L6, SMOLLM2_135M
from schemas.requests import InferenceRequest
from services.cli import _endpoints, _output
from services.gateway.client import Client, IdTakenError
from services.gateway.vectors import vectors_of

WAIT_S = 300.0
# Of a number of a vector, for people; --json has it whole, in base64.
VECTOR_DIGITS = 6


@click.command(
    epilog='Example:  headway submit "The capital of France is" --max-output-tokens 16 --follow',
    short_help="Send a request and wait for its outcome.",
)
@click.argument("prompt", required=False)
@click.option("--message", "turns", multiple=True, metavar="ROLE:TEXT", help="A turn of a chat.")
@click.option(
    "--chat",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.json",
    help='A chat: a JSON list of {"role": …, "content": …}.',
)
@click.option(
    "--embed",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="Ask for the vector of a text instead; several times for several.",
)
@click.option(
    "--model",
    help=f"The model that shall answer; {SMOLLM2_135M.model}, or with --embed {MINILM_L6.model},"
    " if left out.",
)
@click.option("--tier", type=click.Choice(TIERS), help="Urgency; the policy's default if left out.")
@click.option("--tenant", help="Who is charged; the policy's default if left out.")
@click.option("--deadline-ms", type=int, help="It expires if it has not started by then.")
@click.option("--max-output-tokens", type=int, help="At most this many tokens are generated.")
@click.option(
    "--temperature",
    type=float,
    default=0.0,
    show_default=True,
    help="0 always takes the likeliest token.",
)
@click.option("--id", "request_id", help="The request's id; made up if left out.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="A label of your own.")
@click.option(
    "--follow",
    is_flag=True,
    help="Print the output as it is generated; of a request that is under way, first what was"
    " generated so far.",
)
@click.option("--no-wait", is_flag=True, help="Print the id and do not wait for the outcome.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    default=WAIT_S,
    show_default=True,
    help="How long to wait for the outcome.",
)
@_endpoints.state_option
@_output.json_option
def command(
    *,
    follow: bool,
    no_wait: bool,
    timeout_s: float,
    state_dir: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Send PROMPT (`-` reads it from the standard input) or a chat, and wait for the outcome.

    With --embed it prints a line for each text: its vector, as a JSON list.

    Exit code 0 only when it completed; otherwise 1, with the outcome's sentence.
    """
    request = _embedding(given) if given["texts"] else _request(given, stream=follow)
    if follow and isinstance(request, EmbeddingRequest):
        raise click.UsageError("--follow shows text as it is generated; an embedding has none")
    bootstrap = _endpoints.kafka(state_dir)
    if no_wait:
        _output.run(_send(bootstrap, request))
        if as_json:
            _output.print_json({"id": request.id})
        else:
            click.echo(request.id)
        return
    work = _outcome(
        bootstrap,
        request,
        timeout_s,
        look_back=given["request_id"] is not None,
        show_piece=(_output.print_json if as_json else _print_piece) if follow else None,
    )
    goes_on = f"{request.id} goes on without you; `headway cancel {request.id}` ends it"
    result, streamed = _output.run(work, interrupted=goes_on)
    _show(result, streamed=streamed, as_json=as_json)


def _request(given: dict[str, Any], *, stream: bool) -> InferenceRequest:
    """Return the request that the options describe.

    Raises:
        click.UsageError: they do not describe one; the sentence names the option or field.
        click.ClickException: a file of them cannot be read.
    """
    messages = _messages(given["turns"], given["chat"])
    prompt = sys.stdin.read() if given["prompt"] == "-" else given["prompt"]
    if prompt is None and messages is None:
        raise click.UsageError("give a prompt, - for the standard input, --message or --chat")
    fields = _common(given) | {
        "kind": "inference-request.v1",
        "model": SMOLLM2_135M.model if given["model"] is None else given["model"],
        "prompt": prompt,
        "messages": messages,
        "max_output_tokens": given["max_output_tokens"],
        "temperature": given["temperature"],
        "stream": stream,
    }
    # As the cell's edge will judge it, and in its words.
    asked = read_request(json.dumps(fields).encode())
    match asked:
        case InferenceRequest():
            return asked
        case Refused(detail=why) | Unreadable(reason=why):
            raise click.UsageError(f"the request is not acceptable: {why}")
        case _:
            raise AssertionError("a request was written")


def _embedding(given: dict[str, Any]) -> EmbeddingRequest:
    """Return the embedding request that the options describe.

    Raises:
        click.ClickException: they do not describe one; the sentence names the option or field.
    """
    for name in ("prompt", "turns", "chat", "max_output_tokens"):
        if given[name]:
            raise click.UsageError("--embed asks for vectors: give it no prompt, chat or limit")
    fields = _common(given) | {
        "kind": "embedding-request.v1",
        "model": MINILM_L6.model if given["model"] is None else given["model"],
        "input": given["texts"],
    }
    asked = read_request(json.dumps(fields).encode())
    match asked:
        case EmbeddingRequest():
            return asked
        case Refused(detail=why) | Unreadable(reason=why):
            raise click.UsageError(f"the request is not acceptable: {why}")
        case _:
            raise AssertionError("an embedding request was written")


def _common(given: dict[str, Any]) -> dict[str, Any]:
    made_up = f"cli-{secrets.token_hex(6)}"
    return {
        "id": made_up if given["request_id"] is None else given["request_id"],
        "tenant": given["tenant"],
        "tier": given["tier"],
        "deadline_ms": given["deadline_ms"],
        "metadata": _labels(given["metadata"]),
    }


def _messages(turns: tuple[str, ...], chat: Path | None) -> list[Any] | None:
    if turns and chat is not None:
        raise click.UsageError("give the chat by --message or by --chat, not by both")
    if chat is not None:
        try:
            found = json.loads(chat.read_text())
        except OSError as error:
            raise click.ClickException(f"{chat} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise click.ClickException(f"{chat} is not JSON: {error}") from error
        if not isinstance(found, list):
            raise click.ClickException(f"{chat} should hold a JSON list of turns")
        return found
    if not turns:
        return None
    pairs = [turn.partition(":") for turn in turns]
    for role, colon, _ in pairs:
        if not colon or role not in ("system", "user", "assistant"):
            raise click.BadParameter(
                f"{role!r} is not a role: write system:…, user:… or assistant:…",
                param_hint="--message",
            )
    return [{"role": role, "content": text} for role, _, text in pairs]


def _labels(pairs: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--metadata")
        labels[key] = value
    return labels


async def _send(bootstrap: str, request: Asked) -> None:
    async with Client(bootstrap) as client:
        await client.submit(request)


async def _outcome(
    bootstrap: str,
    request: Asked,
    timeout_s: float,
    *,
    look_back: bool,
    show_piece: Callable[[TokenPiece], None] | None,
) -> tuple[Result, bool]:
    """Return the outcome, and whether its text was shown piece by piece already.

    Of an id that has ended it is the recorded one.

    Raises:
        click.ClickException: the id belongs to another request.
    """
    async with Client(bootstrap) as client:
        try:
            if show_piece is None or isinstance(request, EmbeddingRequest):
                return await client.run(request, timeout_s), False
            async for piece in client.follow(request, timeout_s, late=look_back):
                if isinstance(piece, Result):
                    return piece, True
                show_piece(piece)
        except IdTakenError as error:
            raise click.ClickException(str(error)) from error
    raise AssertionError("a followed request ends with its outcome")


def _print_piece(piece: TokenPiece) -> None:
    click.echo(piece.text, nl=False)
    sys.stdout.flush()


def _show(result: Result, *, streamed: bool, as_json: bool) -> None:
    """Print the outcome; end with exit code 1 unless it completed.

    Raises:
        click.ClickException: with the outcome's sentence.
    """
    if as_json:
        _output.print_json(result)
    elif streamed:
        click.echo()
    elif result.text is not None:
        click.echo(result.text)
    elif result.embedding is not None:
        for vector in vectors_of(result.embedding):
            click.echo(json.dumps([round(number, VECTOR_DIGITS) for number in vector]))
    if not as_json:
        _output.progress_console().print(Text(_summary(result), style="dim"), soft_wrap=True)
    if result.outcome != "completed":
        again = ""
        if result.retry_after_ms is not None:
            again = f"; send it again in {result.retry_after_ms} ms"
        raise click.ClickException(
            f"{result.id} ended as {result.outcome} ({result.reason}): {result.detail}{again}"
        )


def _summary(result: Result) -> str:
    parts = [f"{result.id}: {result.outcome} in {result.e2e_us / 1000:.1f} ms"]
    waits = ", ".join(f"{cause} {us / 1000:.1f}" for cause, us in result.waits)
    parts.append(f"waited {result.wait_us / 1000:.1f} ms" + (f" ({waits})" if waits else ""))
    if result.ttft_us is not None:
        parts.append(f"first token {result.ttft_us / 1000:.1f} ms")
    if result.usage is not None:
        parts.append(f"{result.usage.prompt_tokens} + {result.usage.output_tokens} tokens")
    if result.replica is not None:
        parts.append(f"replica {result.replica}")
    return "; ".join(parts)
