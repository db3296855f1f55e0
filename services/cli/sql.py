"""`headway sql`: read-only queries over the flight recorder, the reader's own or ready-made."""

import csv
import sys
from typing import Any

import click
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from services.cli import _endpoints, _output
from services.recorder.queries import ReadyQuery, ready_queries

# What the recorder needs for itself (inputs, the views that fill tables, and what `FINAL` views
# stand for) is left out.
_LIST = (
    "SELECT name AS table, comment AS `what it holds` FROM system.tables"
    " WHERE database = currentDatabase() AND engine NOT IN ('Null', 'MaterializedView')"
    " AND NOT endsWith(name, '_rows') AND NOT startsWith(name, '.') ORDER BY name"
)
_DESCRIBE = (
    "SELECT name AS column, type, comment AS `what it means` FROM system.columns"
    " WHERE database = currentDatabase() AND table = {table:String} ORDER BY position"
)
READ_ONLY = 2
CELL_CHARS_MAX = 200
# So few still read well in a narrow terminal, folded.
FOLDING_COLUMNS = 3
# Wider than any table that a person asks for: a pipe has no width of its own.
NATURAL_COLUMNS = 100_000

READY = {query.name: query for query in ready_queries()}


@click.command(
    epilog='Examples:  headway sql "SELECT outcome, count() FROM requests GROUP BY outcome"    '
    "headway sql --describe requests    headway sql --ready slowest_requests    "
    "headway sql --ready request_story --param id=invoice-2041",
    short_help="Query the flight recorder.",
    # A query may begin with a comment, `-- like this`.
    context_settings={"ignore_unknown_options": True},
)
@click.argument("query", required=False)
@click.option(
    "--ready",
    type=click.Choice(list(READY)),
    metavar="NAME",
    help="Run this ready-made query; `headway sql` alone lists them.",
)
@click.option(
    "--describe",
    "described",
    metavar="TABLE",
    help="Tell what each column of this table or view means, with its unit.",
)
@click.option(
    "--param",
    "bound",
    multiple=True,
    metavar="NAME=VALUE",
    help="The value of a {NAME:Type} in the query.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header line.")
@_endpoints.state_option
@_output.json_option
def command(
    *,
    query: str | None,
    ready: str | None,
    described: str | None,
    bound: tuple[str, ...],
    state_dir: str | None,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Run QUERY (ClickHouse SQL; `-` reads it from the standard input) and print its rows.

    Without a query it lists the tables and views, with what each row of them is, and the ready-made
    queries; --describe tells what the columns of one mean. Rows that are wider than the terminal
    are printed one below the other, as `column value`. Nothing can be changed from here.
    """
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    values = _values(bound)
    text = _text_of(query, ready, described, values)
    names, rows = _ask(text, values, state_dir)
    if described is not None and not rows:
        raise click.ClickException(
            f"there is no table or view {described!r}; `headway sql` alone lists them"
        )
    if as_json:
        _output.print_json([dict(zip(names, map(_jsonable, row), strict=True)) for row in rows])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    else:
        console = _output.console()
        _print(console, names, rows)
        if text == _LIST:
            told = [(one.name, one.answers) for one in READY.values()]
            console.print()
            _print(console, ["--ready", "what it answers"], told)


def _text_of(
    query: str | None, ready: str | None, described: str | None, values: dict[str, str]
) -> str:
    """Return the SQL that is asked for; what it needs bound is added to `values`.

    Raises:
        click.UsageError: more than one thing is asked for, or a parameter is missing.
    """
    if sum(one is not None for one in (query, ready, described)) > 1:
        raise click.UsageError("give one of a query, --ready and --describe, not both")
    if described is not None:
        values["table"] = described
        return _DESCRIBE
    if ready is not None:
        return _ready(READY[ready], values)
    if not query or query == "-":
        return sys.stdin.read() if query else _LIST
    if query.startswith("-") and len(query.split()) == 1:
        raise click.NoSuchOption(query)
    return query


def _values(bound: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in bound:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--param")
        values[name] = value
    return values


def _ready(chosen: ReadyQuery, values: dict[str, str]) -> str:
    missing = [name for name in chosen.parameters if name not in values]
    if missing:
        raise click.UsageError(f"{chosen.name} needs --param {missing[0]}=…")
    return chosen.sql


def _ask(
    query: str, values: dict[str, str], state_dir: str | None
) -> tuple[list[str], list[tuple[Any, ...]]]:
    text = query.strip().rstrip(";")
    asked_as = {"parameters": values or None, "settings": {"readonly": READ_ONLY}}
    client = _endpoints.store(state_dir)
    try:
        with _endpoints.store_errors("the query failed"):
            answer = client.query(text, **asked_as)
            names = list(answer.column_names)
            if not names:
                names = _columns(client, text, asked_as)
            return names, list(answer.result_rows)
    finally:
        client.close()


def _columns(client: Any, text: str, asked_as: dict[str, Any]) -> list[str]:
    """Return what columns an answer without rows has: its format does not tell them."""
    try:
        with _endpoints.store_errors():
            described = client.query(f"DESCRIBE TABLE (\n{text}\n)", **asked_as)
            return [str(row[0]) for row in described.result_rows]
    except click.ClickException:
        return []  # of a statement that is no SELECT, such as SHOW


def _print(console: Console, names: list[str], rows: list[tuple[Any, ...]]) -> None:
    table = _table(names, rows)
    everything = console.options.update(width=NATURAL_COLUMNS)
    natural = Measurement.get(console, everything, table).maximum
    if not console.is_terminal:
        console.width = max(natural, 1)
    if natural <= console.width or len(names) <= FOLDING_COLUMNS:
        console.print(table)
    else:
        for number, row in enumerate(rows, 1):
            console.print(Text(f"row {number}", style="dim"))
            console.print(_record(names, row))
    click.echo("1 row" if len(rows) == 1 else f"{len(rows)} rows")


def _table(names: list[str], rows: list[tuple[Any, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(names):
        numeric = bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    return table


def _record(names: list[str], row: tuple[Any, ...]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in zip(names, row, strict=True):
        table.add_row(name, Text(_text(value)))
    return table


def _shown(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def _text(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _jsonable(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
