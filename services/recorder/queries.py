"""The ready-made queries beside this file: their names, what they answer, their SQL. Reads files.

A query's first lines are comments that say what it answers. Where it needs a parameter, the comment
names it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(__file__).parent / "queries"

_PARAMETER = re.compile(r"\{([a-z_]+):[A-Za-z0-9]+\}")


@dataclass(frozen=True, slots=True)
class ReadyQuery:
    """One query.

    Attributes:
        answers: a sentence.
        parameters: names that must be bound.
    """

    name: str
    answers: str
    sql: str
    parameters: tuple[str, ...]


def ready_queries() -> list[ReadyQuery]:
    """Return all of them by name."""
    return [_read(path) for path in sorted(DIRECTORY.glob("*.sql"))]


def _read(path: Path) -> ReadyQuery:
    text = path.read_text()
    comments = [line[2:].strip() for line in text.splitlines() if line.startswith("--")]
    sql = "\n".join(line for line in text.splitlines() if not line.startswith("--")).strip()
    parameters = tuple(dict.fromkeys(_PARAMETER.findall(sql)))
    return ReadyQuery(path.stem, " ".join(comments), sql, parameters)
