"""A batch file checked and cut into records, line by line: it is never held in memory. Reads files.

The whole file is looked through before any of it is sent, so a wrong line is told by its number and
nothing of the file runs. Only 16 bytes of each custom_id are kept, to find one that stands twice.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from schemas.batch import (
    CHUNK_ITEMS_MAX,
    JOB_ITEMS_MAX,
    BatchItem,
    BatchItems,
    BatchJob,
    Endpoint,
    add_sums,
    item_sum,
    sum_text,
)
from schemas.ids import model_name_fault
from services.gateway.openai_batch import LINE_BYTES_MAX, Line, LineError, read_line

FAULTS_TOLD_MAX = 20
# A record is full at this size: it is decoded while online requests wait.
CHUNK_BYTES = 128 * 1024
_ID_BYTES = 16


class FileError(ValueError):
    """The file cannot be a job; `faults` are sentences, each with its line's number."""

    def __init__(self, path: Path, faults: list[str], more: int) -> None:
        self.faults = faults
        rest = f"\n… and {more} more" if more else ""
        super().__init__(f"{path} cannot be submitted:\n" + "\n".join(faults) + rest)


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that can be submitted."""

    path: Path
    model: str
    endpoint: Endpoint
    items: int
    digest: str

    def header(self, job: str | None, tenant: str | None) -> BatchJob:
        """Return the job's header.

        A job that is not named gets a name that follows from what it asks for, so that the same
        command goes on where it was cut off.
        """
        named = f"{self.digest}:{self.model}:{tenant or ''}".encode()
        made_up = f"batch-{hashlib.blake2b(named, digest_size=6).hexdigest()}"
        return BatchJob(
            job=made_up if job is None else job,
            model=self.model,
            tenant=tenant,
            endpoint=self.endpoint,
            items=self.items,
            digest=self.digest,
            label=self.path.name[-200:],
        )


@dataclass(slots=True)
class _Check:
    """What is known of a file while it is looked through."""

    model: str | None
    first: Line | None = None
    items: int = 0
    total: int = 0
    seen: set[bytes] = field(default_factory=set[bytes])
    faults: list[str] = field(default_factory=list[str])
    fault_count: int = 0

    def take(self, number: int, raw: bytes) -> None:
        try:
            line = read_line(raw)
            self._fits(line)
        except LineError as error:
            self.fault(f"line {number}: {error}")
            return
        self.total = add_sums(self.total, item_sum(self.items, line.item.custom_id, line.item.body))
        self.items += 1

    def fault(self, sentence: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_TOLD_MAX:
            self.faults.append(sentence)

    def _fits(self, line: Line) -> None:
        self.first = self.first or line
        wrong = None if self.model else model_name_fault(line.model)
        if wrong is not None:
            raise LineError(f"body.model: {wrong}")
        if self.model is None and line.model != self.first.model:
            raise LineError(
                f"body.model is {line.model!r}, and the first line's is {self.first.model!r}: one"
                " model a file, or name one for all with --model"
            )
        if line.endpoint != self.first.endpoint:
            raise LineError(
                f"url is {line.endpoint}, and the first line's is {self.first.endpoint}: one a file"
            )
        name = hashlib.blake2b(line.item.custom_id.encode(), digest_size=_ID_BYTES).digest()
        if name in self.seen:
            raise LineError(f"custom_id {line.item.custom_id!r} stands in an earlier line too")
        self.seen.add(name)


def check(path: Path, model: str | None = None) -> Checked:
    """Look through the whole file.

    Args:
        path: the file.
        model: answers all lines, whatever model they name; None leaves it to them.

    Raises:
        FileError: a line is not of the format, or does not go with the others.
        OSError: the file cannot be read.
    """
    found = _Check(model)
    wrong = None if model is None else model_name_fault(model)
    if wrong is not None:
        found.fault(f"--model: {wrong}")
    for number, raw in _lines(path):
        found.take(number, raw)
    if found.first is None and not found.faults:
        found.fault("it holds no line")
    if found.items > JOB_ITEMS_MAX:
        found.fault(f"it holds {found.items} items; at most {JOB_ITEMS_MAX} are accepted")
    if found.faults or found.first is None:
        raise FileError(path, found.faults, found.fault_count - len(found.faults))
    return Checked(
        path,
        model or found.first.model,
        found.first.endpoint,
        found.items,
        sum_text(found.total),
    )


def records(checked: Checked, job: str, start: int = 0) -> Iterator[BatchItems]:
    """Yield the file's items from number `start` on, in records of a bounded size.

    Raises:
        FileError: a line is not what it was when the file was checked.
        OSError: the file cannot be read.
    """
    items: list[BatchItem] = []
    first, size = start, 0
    for place, (number, raw) in enumerate(_lines(checked.path)):
        if place < start:
            continue
        if items and (size + len(raw) > CHUNK_BYTES or len(items) == CHUNK_ITEMS_MAX):
            yield BatchItems(job=job, model=checked.model, first=first, items=tuple(items))
            first, size, items = place, 0, []
        try:
            items.append(read_line(raw).item)
        except LineError as error:
            why = f"line {number}: {error} (it was well formed when the file was checked)"
            raise FileError(checked.path, [why], 0) from error
        size += len(raw)
    if items:
        yield BatchItems(job=job, model=checked.model, first=first, items=tuple(items))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank with their numbers, from 1; a far too long one is cut."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LINE_BYTES_MAX + 2):
            number += 1
            if len(raw) > LINE_BYTES_MAX and not raw.endswith(b"\n"):
                while (rest := file.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
                    pass
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if raw.strip():
                yield number, raw.rstrip(b"\r\n")
