"""What becomes of a command's output when nobody reads it any more, or it cannot be written.

A reader that leaves (`headway sql … | head -1`) is no fault of the command: what it would have
printed is dropped, and it ends with the exit code of what it did. A full disk under the output is a
fault, and is told in a sentence. Knows no command.
"""

import io
import os
import sys
from typing import TextIO

import click
from typing_extensions import Buffer


class _Output(io.FileIO):
    """An open file descriptor; drops what is written once its reader has left."""

    def __init__(self, descriptor: int, *, tells: bool) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._tells = tells

    def write(self, data: Buffer) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return memoryview(data).nbytes
        except OSError as error:
            # What is still held back cannot be written either, and is not told again.
            self._drop_the_rest()
            if self._tells:
                raise click.ClickException(
                    f"the output cannot be written: {error.strerror or error}"
                ) from error
            return memoryview(data).nbytes

    def _drop_the_rest(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def guard_output() -> None:
    """Let the standard output and error outlive their readers, from here on.

    That the output cannot be written is told on the standard error; of that one, nobody can be.
    """
    sys.stdout = _guarded(sys.stdout, tells=True)
    sys.stderr = _guarded(sys.stderr, tells=False)


def _guarded(stream: TextIO, *, tells: bool) -> TextIO:
    try:
        descriptor = stream.fileno()
    except (AttributeError, OSError, ValueError):
        # Closed by the caller, or not a file of the system: nobody can leave it.
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(descriptor, tells=tells)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=not tells or stream.isatty(),
    )
