"""What a SQL text is, as far as the HTTP interface has to know: its statement and format. Pure.

Not a parser: it only skips strings, quoted names and comments, so that a word inside one is never
taken for a keyword.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

StatementKind = Literal["select", "insert-data", "session", "other"]

_TOKEN = re.compile(
    rb"""(?P<comment>--[^\n]*|\#!?\s[^\n]*|/\*.*?\*/)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<other>[^\sA-Za-z_'"`/\#-]+|[/\#-'"`])""",
    re.DOTALL | re.VERBOSE,
)
_RESULT_WORDS = frozenset(
    {b"SELECT", b"WITH", b"SHOW", b"DESCRIBE", b"DESC", b"EXISTS", b"EXPLAIN", b"CHECK", b"FROM"}
)
_STREAMED_WORDS = frozenset({b"SELECT", b"WITH"})
_DATA_BEGINS = frozenset({b"VALUES", b"SELECT", b"WITH", b"WATCH", b"FORMAT"})


@dataclass(frozen=True, slots=True)
class Head:
    """An INSERT without FORMAT and data: up to its SETTINGS clause, and that clause or nothing."""

    insert: str
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement and, for an INSERT with data, where its data begin.

    Attributes:
        kind: `insert-data` when a FORMAT and data follow; `session` for SET and USE.
        has_result: it answers with rows, even if there are none.
        format: that the text names, or None.
        data_at: of an insert: the byte at which the data begin.
        plain: the text in upper case, without strings and comments.
        makes_temporary: it creates a temporary table.
        head: of an insert with data.
    """

    kind: StatementKind
    has_result: bool
    format: str | None
    data_at: int
    plain: str
    makes_temporary: bool
    head: Head | None = None


def read_statement(sql: bytes) -> Statement:
    """Return what the text is; a text that is no statement is `other`, for the engine to refuse."""
    tokens = _tokens(sql)
    _, _, first = next(tokens, (0, 0, b""))
    if first == b"INSERT":
        found = _insert_with_data(sql, tokens)
        if found is not None:
            return found
    words = [first, *(text for _, _, text in tokens)]
    plain = b" ".join(words).decode(errors="replace")
    made = _format_at_end(words)
    kind: StatementKind = "other"
    if first in {b"SET", b"USE"}:
        kind = "session"
    elif first in _STREAMED_WORDS or first == b"(":
        kind = "select"
    return Statement(
        kind=kind,
        has_result=first in _RESULT_WORDS or first == b"(",
        format=_spelled(sql, made) if made else None,
        data_at=len(sql),
        plain=plain,
        makes_temporary=words[:2] == [b"CREATE", b"TEMPORARY"],
    )


def _insert_with_data(sql: bytes, tokens: "Iterator[tuple[int, int, bytes]]") -> Statement | None:
    settings_at: int | None = None
    for start, _, text in tokens:
        if text == b"SETTINGS" and settings_at is None:
            settings_at = start
        if text not in _DATA_BEGINS:
            continue
        named = next(tokens, None) if text == b"FORMAT" else None
        if named is None or named[2] == b"VALUES":
            return None
        _, end, _ = named
        name = sql[named[0] : end].decode()
        data_at = end
        # One line end, or one space, parts the format's name from the data.
        for parting in (b"\r\n", b"\n", b" "):
            if sql.startswith(parting, end):
                data_at = end + len(parting)
                break
        at = start if settings_at is None else settings_at
        head = Head(sql[:at].decode(errors="replace"), sql[at:start].decode(errors="replace"))
        return Statement("insert-data", False, name, data_at, "INSERT", False, head)
    return None


def _tokens(sql: bytes) -> "Iterator[tuple[int, int, bytes]]":
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "comment":
            continue
        text = b"''" if match.lastgroup == "string" else match[0].upper()
        yield match.start(), match.end(), text


def _format_at_end(words: list[bytes]) -> bytes | None:
    """Return the format of `… FORMAT x`, also before a SETTINGS clause or a semicolon."""
    for index in range(len(words) - 2, -1, -1):
        if words[index] == b"FORMAT":
            after = words[index + 2 : index + 3]
            whole = not after or after[0] in {b";", b"SETTINGS", b"INTO"}
            return words[index + 1] if whole and words[index + 1].isalnum() else None
    return None


def _spelled(sql: bytes, name: bytes) -> str:
    at = sql.upper().rfind(name)
    return sql[at : at + len(name)].decode()
