"""`headway sql`: read-only queries over the flight recorder."""

import csv
import sys
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from services.cli import _endpoints, _output

# What the recorder needs for itself (inputs, the views that fill tables, and what `FINAL` views
# stand for) is left out.
_LIST = (
    "SELECT name AS table, comment AS `what it holds` FROM system.tables"
    " WHERE database = currentDatabase() AND engine NOT IN ('Null', 'MaterializedView')"
    " AND NOT endsWith(name, '_rows') AND NOT startsWith(name, '.') ORDER BY name"
)
READ_ONLY = 2
CELL_CHARS_MAX = 200


@click.command(
    epilog='Example:  headway sql "SELECT outcome, count() FROM requests GROUP BY outcome"',
    short_help="Query the flight recorder.",
)
@click.argument("query", required=False)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header line.")
@_endpoints.state_option
@_output.json_option
def command(query: str | None, state_dir: str | None, *, as_csv: bool, as_json: bool) -> None:
    """Run QUERY (ClickHouse SQL; `-` reads it from the standard input) and print its rows.

    Without a query it lists the tables and views, with what each row of them is. Nothing can be
    changed from here.
    """
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    if query == "-":
        query = sys.stdin.read()
    names, rows = _ask(query or _LIST, state_dir)
    if as_json:
        _output.print_json([dict(zip(names, map(_jsonable, row), strict=True)) for row in rows])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    else:
        _output.console().print(_table(names, rows))


def _ask(query: str, state_dir: str | None) -> tuple[list[str], list[tuple[Any, ...]]]:
    client = _endpoints.store(state_dir)
    try:
        with _endpoints.store_errors("the query failed"):
            answer = client.query(query.strip().rstrip(";"), settings={"readonly": READ_ONLY})
            return list(answer.column_names), list(answer.result_rows)
    finally:
        client.close()


def _table(names: list[str], rows: list[tuple[Any, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(names):
        numeric = bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(value)) for value in row))
    table.caption = f"{len(rows)} rows"
    table.caption_justify = "left"
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def _jsonable(value: Any) -> Any:
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
