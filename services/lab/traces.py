"""Reads recorded traffic: when requests came, and how many tokens they had. Reads files only.

Two forms of CSV, plain or gzipped: `t_ms,prompt_tokens,output_tokens`, and Azure's own
`TIMESTAMP,ContextTokens,GeneratedTokens`. Times are made relative to the earliest row.
"""

import csv
import gzip
import io
import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, cast

from services.lab.arrivals import Arrival

GZIP_MAGIC = b"\x1f\x8b"
TOKENS_MAX = 100_000_000
OWN_COLUMNS = ("t_ms", "prompt_tokens", "output_tokens")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# Python's own parser takes at most six fractional digits; Azure writes seven.
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?"
)


class TraceError(ValueError):
    """A trace cannot be used; the sentence names the file, and the line where one is at fault."""


def read_trace(path: Path) -> list[Arrival]:
    """Return the trace's arrivals in the order of time, the first at 0 ms.

    Raises:
        TraceError: the file cannot be read, its columns are not known, it holds no row, or a row is
            not acceptable.
    """
    try:
        with _opened(path) as file:
            arrivals = list(_rows(path, file))
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"the trace {path} cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise TraceError(
            f"the trace {path} is not text in UTF-8: give a CSV, or one in .gz"
        ) from error
    except csv.Error as error:
        raise TraceError(f"the trace {path} is not a CSV: {error}") from error
    if not arrivals:
        raise TraceError(f"the trace {path} holds no row: give one with at least one request")
    arrivals.sort(key=lambda arrival: arrival.t_ms)
    first_ms = arrivals[0].t_ms
    return [
        Arrival(arrival.t_ms - first_ms, arrival.prompt_tokens, arrival.output_tokens)
        for arrival in arrivals
    ]


def _opened(path: Path) -> IO[str]:
    """Open the file as text; what it is, its first bytes say, not its name."""
    with path.open("rb") as file:
        packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    if packed:
        return io.TextIOWrapper(
            cast("IO[bytes]", gzip.open(path)), encoding="utf-8-sig", newline=""
        )
    return path.open(encoding="utf-8-sig", newline="")


def _rows(path: Path, file: IO[str]) -> Iterator[Arrival]:
    reader = csv.reader(file)
    header = [name.strip() for name in next(reader, [])]
    if not header:
        raise TraceError(f"the trace {path} is empty: its first line should name the columns")
    names, read_ms = _form(path, header)
    places = [header.index(name) for name in names]
    for row in reader:
        if not any(cell.strip() for cell in row):
            continue
        where = f"line {reader.line_num} of the trace {path}"
        if len(row) <= max(places):
            raise TraceError(f"{where} has {len(row)} columns; it should have {len(header)}")
        time, prompt, output = (row[place].strip() for place in places)
        t_ms = read_ms(time)
        if t_ms is None:
            raise TraceError(f"{where}: {names[0]} is {time!r}; {_TIME_WORDS[names[0]]}")
        yield Arrival(
            t_ms,
            _tokens(where, names[1], prompt),
            _tokens(where, names[2], output),
        )


def _form(path: Path, header: list[str]) -> tuple[tuple[str, ...], Callable[[str], float | None]]:
    if set(OWN_COLUMNS) <= set(header):
        return OWN_COLUMNS, _number_ms
    if set(AZURE_COLUMNS) <= set(header):
        return AZURE_COLUMNS, _timestamp_ms
    raise TraceError(
        f"the trace {path} has the columns {', '.join(header)[:200]}; it should have"
        f" {','.join(OWN_COLUMNS)} or {','.join(AZURE_COLUMNS)}"
    )


_TIME_WORDS = {
    "t_ms": "it should be a number of milliseconds",
    "TIMESTAMP": "it should be a time such as 2023-11-16 18:15:46.6805900",
}


def _number_ms(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _timestamp_ms(text: str) -> float | None:
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    try:
        at = datetime.fromisoformat(f"{day}T{clock}{zone or '+00:00'}")
    except ValueError:
        return None
    whole_ms = (at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000
    return whole_ms + int((fraction or "0").ljust(9, "0")) / 1_000_000


def _tokens(where: str, name: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= TOKENS_MAX:
        raise TraceError(f"{where}: {name} is {text!r}; it should be a whole number, 0 or more")
    return value
