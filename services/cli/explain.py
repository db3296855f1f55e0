"""`headway explain`: everything about one request, and where each µs of its time went."""

from typing import Any

import click

from services.cli import _endpoints, _output
from services.cli._waterfall import render_events, render_waterfall
from streams.story_parts import Story
from streams.story_sources import add_standing, story_from_kafka, story_from_store


@click.command(
    epilog="Example:  headway explain invoice-2041",
    short_help="Tell why a request waited, and what was decided.",
)
@click.argument("request_id", metavar="ID")
@click.option(
    "--from",
    "source",
    type=click.Choice(["auto", "clickhouse", "kafka"]),
    default="auto",
    show_default=True,
    help="Where to read the ledger; auto asks the recorder first, then Kafka.",
)
@_endpoints.state_option
@_output.json_option
def command(request_id: str, source: str, state_dir: str | None, *, as_json: bool) -> None:
    """Tell the story of the request ID from the ledger.

    Shows a waterfall of its time (each wait with its cause and the numbers that were compared),
    the totals by cause, which add up to the wait, and every fact and decision in order with its
    id (cell, seq, index) and the policy that it was made under. Of a request that is not over it
    tells up to now, and what holds it back at this moment; or, where its cell's ledger cannot be
    read for that, what holds its queue back, and why no more is known.
    """
    story = _find(request_id, source, state_dir)
    if story is None:
        raise click.ClickException(
            f"no ledger speaks of {request_id!r}; check the id, and the deployment with"
            " `headway doctor`"
        )
    if story.stage == "unknown":
        raise click.ClickException(
            f"no request {request_id!r} arrived; the ledger only holds {len(story.events)} events"
            f" that name it, the last one: {story.events[-1].what} {story.events[-1].detail}"
        )
    if as_json:
        _output.print_json(as_plain(story))
        return
    console = _output.console()
    console.print(render_waterfall(story, console.width))
    console.print()
    console.print(render_events(story))


def as_plain(story: Story) -> dict[str, Any]:
    """Return the story for programs: its fields, and what they add up to."""
    return {
        **_output.plain(story),
        "over": story.over,
        "wait_us": story.wait_us,
        "run_us": story.run_us,
        "e2e_us": story.e2e_us,
        "waits": story.waits(),
        "runs": story.runs(),
    }


def _find(request_id: str, source: str, state_dir: str | None) -> Story | None:
    places = _endpoints.find(state_dir)
    if source != "kafka" and (places.clickhouse or source == "clickhouse"):
        try:
            story = _from_store(request_id, state_dir)
            if story is not None:
                # A record of the past; how it stands now is the cell's to know.
                _output.run(add_standing(places.kafka, story))
            if story is not None or source == "clickhouse":
                return story
        except click.ClickException as error:
            if source == "clickhouse":
                raise
            click.echo(f"{error.message}; reading Kafka's ledger instead", err=True)
    return _output.run(story_from_kafka(_endpoints.kafka(state_dir), request_id))


def _from_store(request_id: str, state_dir: str | None) -> Story | None:
    client = _endpoints.store(state_dir)
    try:
        with _endpoints.store_errors("the recorder could not be asked"):
            return story_from_store(client, request_id)
    finally:
        client.close()
