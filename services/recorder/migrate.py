"""Brings a ClickHouse to the tables that this version knows; a migration that ran never changes.

May touch the store and the files beside it. Applied migrations stand in `headway_migrations` with
the digest of their text.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

from services.recorder.store import Store

DIRECTORY: Final = Path(__file__).parent / "migrations"
_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS headway_migrations (
    number UInt32 COMMENT 'of the file',
    name String COMMENT 'of the file',
    digest String COMMENT 'BLAKE2b of its text, 16 hex characters',
    applied_at DateTime DEFAULT now() COMMENT 'when it had run'
) ENGINE = MergeTree ORDER BY number COMMENT 'Migrations that have run here'
"""


class MigrationError(RuntimeError):
    """The tables there cannot be brought to this version; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its statements, and what names its text."""

    number: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """Return 16 hex characters that name the text."""
        return blake2b(self.text.encode(), digest_size=8).hexdigest()

    def statements(self) -> list[str]:
        """Return its statements; each ends in a semicolon at the end of a line."""
        parts = re.split(r";[ \t]*\n", self.text + "\n")
        return [part.strip() for part in parts if _has_code(part)]


def read_migrations(directory: Path = DIRECTORY) -> list[Migration]:
    """Return the migrations in `directory`, in their order.

    Raises:
        MigrationError: a file has no number, or two have the same.
    """
    found: dict[int, Migration] = {}
    for file in sorted(directory.glob("*.sql")):
        named = _NAME.fullmatch(file.name)
        if not named or int(named.group(1)) in found:
            raise MigrationError(
                f"the migration {file.name} needs a name NNNN_words.sql with a number of its own"
            )
        number = int(named.group(1))
        found[number] = Migration(number, file.name, file.read_text(encoding="utf-8"))
    return [found[number] for number in sorted(found)]


def migrate(store: Store, migrations: list[Migration] | None = None) -> list[str]:
    """Run what has not run yet; return the names of what was run now.

    A migration that was cut half way runs again, so its tables are created only where missing.

    Raises:
        MigrationError: a migration that ran here had another text, or is not known here.
        StoreError: ClickHouse refused, or did not answer.
    """
    known = read_migrations() if migrations is None else migrations
    store.command(_TABLE)
    applied = {
        int(row["number"]): row
        for row in store.rows("SELECT number, name, digest FROM headway_migrations ORDER BY number")
    }
    _check(applied, {migration.number: migration for migration in known})
    ran: list[str] = []
    for migration in known:
        if migration.number in applied:
            continue
        for statement in migration.statements():
            store.command(_unless_there(statement))
        store.command(
            "INSERT INTO headway_migrations (number, name, digest)"
            f" VALUES ({migration.number}, '{migration.name}', '{migration.digest}')"
        )
        ran.append(migration.name)
    return ran


def _check(applied: dict[int, dict[str, str]], known: dict[int, Migration]) -> None:
    for number, row in applied.items():
        migration = known.get(number)
        if migration is None:
            raise MigrationError(
                f"this ClickHouse has had the migration {row['name']}, which this version of"
                " Headway does not know; use the newer version, or another database"
            )
        if migration.digest != row["digest"]:
            raise MigrationError(
                f"the migration {row['name']} has run here with another text (digest"
                f" {row['digest']}, now {migration.digest}); put the old text back and write the"
                " change as a new migration"
            )


def _unless_there(statement: str) -> str:
    return re.sub(
        r"^((?:--[^\n]*\n|\s)*CREATE (?:TABLE|VIEW) )(?!IF NOT EXISTS)",
        r"\1IF NOT EXISTS ",
        statement,
    )


def _has_code(part: str) -> bool:
    lines = [line.strip() for line in part.splitlines()]
    return any(line and not line.startswith("--") for line in lines)
