"""`headway cancel`: ask for a request to end now, and say what became of it."""

import click
from pydantic import ValidationError

from schemas.codec import explain
from schemas.requests import Cancel
from services.cli import _endpoints, _output
from services.gateway.cancelling import Cancelled, cancel

WAIT_S = 30.0


@click.command(
    epilog="Example:  headway cancel invoice-2041 --model smollm2-135m",
    short_help="Ask for a request to end now.",
)
@click.argument("request_id", metavar="ID")
@click.option("--model", help="The request's model; without it every cell is asked.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    default=WAIT_S,
    show_default=True,
    help="How long to wait for what becomes of it.",
)
@_endpoints.state_option
@_output.json_option
def command(
    request_id: str, model: str | None, timeout_s: float, state_dir: str | None, *, as_json: bool
) -> None:
    """Cancel the request ID: at once while it waits, after the current iteration while it runs.

    Exit code 0 when it is cancelled; 1 when it is unknown, had ended before, or did not end in
    time.
    """
    try:
        Cancel(kind="cancel.v1", id=request_id, model=model)
    except ValidationError as error:
        raise click.UsageError(f"the cancel is not acceptable: {explain(error)}") from error
    bootstrap = _endpoints.kafka(state_dir)
    became = _output.run(cancel(bootstrap, request_id, model, timeout_s))
    if as_json:
        _output.print_json(became)
    if became.became != "cancelled":
        raise click.ClickException(_sentence(became, timeout_s))
    if not as_json:
        click.echo(f"{request_id} is cancelled: {became.detail}")


def _sentence(became: Cancelled, timeout_s: float) -> str:
    name = became.id
    match became.became:
        case "unknown":
            return f"no cell knows a request {name!r}: check the id, and --model if you gave one"
        case "ended" if became.outcome is not None:
            return f"{name} ended as {became.outcome} before it could leave: {became.detail}"
        case "ended":
            return f"{name} had ended already; `headway explain {name}` tells how"
        case "already-asked":
            return f"{name} was asked to leave before, and has not left within {timeout_s:g} s"
        case "asked":
            return f"{name} was asked to leave, and has not left within {timeout_s:g} s"
        case _:
            return (
                f"no cell answered the cancel of {name} within {timeout_s:g} s; `headway doctor`"
                " tells whether cells run"
            )
