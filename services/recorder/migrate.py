"""Brings a store's tables up to date: numbered SQL files, each applied once, none ever changed.

Touches the store only. Knows no topic.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.recorder.store import Store

DIRECTORY = Path(__file__).parent / "migrations"

_NAME = re.compile(r"^(\d{4})_[a-z_]+\.sql$")
_APPLIED = """
CREATE TABLE IF NOT EXISTS schema_migrations
(
    number Int32 COMMENT 'Of the file.',
    name String COMMENT 'Of the file.',
    digest String COMMENT 'BLAKE2b over its bytes.',
    applied_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'When.'
)
ENGINE = MergeTree
ORDER BY number
COMMENT 'Which migrations this store has had.'
"""


class MigrationError(RuntimeError):
    """The store's tables are not what these files make; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file."""

    number: int
    name: str
    digest: str
    sql: str


def migrations(directory: Path = DIRECTORY) -> list[Migration]:
    """Return the migrations in the order of their numbers."""
    found: list[Migration] = []
    for path in sorted(directory.iterdir()):
        match = _NAME.match(path.name)
        if match:
            raw = path.read_bytes()
            digest = hashlib.blake2b(raw, digest_size=8).hexdigest()
            found.append(Migration(int(match[1]), path.name, digest, raw.decode()))
    return found


def migrate(store: Store, directory: Path = DIRECTORY) -> list[str]:
    """Apply what the store has not had yet; return the names of the files applied.

    Every statement creates something, and one that was cut off half-way is gone through again.

    Raises:
        MigrationError: a file that was applied has changed since, or is gone.
        StoreError: the store refused, or did not answer.
    """
    store.command(_APPLIED)
    had = {
        int(number): (name, digest)
        for number, name, digest in store.query(
            "SELECT number, name, digest FROM schema_migrations"
        )
    }
    available = migrations(directory)
    _compare(had, available)
    applied: list[str] = []
    for migration in available:
        if migration.number in had:
            continue
        for statement in statements(migration.sql):
            store.command(_repeatable(statement))
        store.command(
            "INSERT INTO schema_migrations (number, name, digest)"  # noqa: S608 - our own files' names
            f" VALUES ({migration.number}, '{migration.name}', '{migration.digest}')"
        )
        applied.append(migration.name)
    return applied


def _compare(had: dict[int, tuple[str, str]], available: list[Migration]) -> None:
    files = {migration.number: migration for migration in available}
    for number, (name, digest) in sorted(had.items()):
        migration = files.get(number)
        if migration is None:
            raise MigrationError(
                f"the store has had the migration {name}, which this version of Headway does not"
                " know: use the version that made the store, or another store"
            )
        if migration.digest != digest:
            raise MigrationError(
                f"the migration {migration.name} has changed since the store had it ({digest} then,"
                f" {migration.digest} now): undo the change and write a new migration instead"
            )


def statements(sql: str) -> Iterator[str]:
    """Yield the statements of a file, which stand apart by a semicolon at the end of a line."""
    for part in re.split(r";[ \t]*(?:\n|$)", sql):
        lines = [line for line in part.splitlines() if not line.startswith("--")]
        statement = "\n".join(lines).strip()
        if statement:
            yield statement


def _repeatable(statement: str) -> str:
    return re.sub(
        r"^CREATE (TABLE|VIEW|MATERIALIZED VIEW) ", r"CREATE \1 IF NOT EXISTS ", statement
    )
