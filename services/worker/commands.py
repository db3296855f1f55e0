"""What a cell's messages ask of an engine. No bus and no clock; decides nothing about who runs.

The one place where the words of the bus become those of the engine's contract on the way in, as
reports.py is on the way out.
"""

from schemas import bus as messages
from services.worker.engine import Engine, Work

Command = messages.Work | messages.WorkGrant | messages.WorkLeave | messages.WorkerNotice

# Of a dispatch number in a header: as in schemas.facts.Number.
_NUMBER_MAX = 2**53
_DIGITS_MAX = 18


def work_of(command: messages.Work) -> Work:
    """Return the work that a message asks for."""
    return Work(
        id=command.id,
        attempt=command.attempt,
        max_output_tokens=command.max_output_tokens,
        reserved_blocks=command.blocks,
        prompt=command.prompt,
        messages=command.messages,
        temperature=command.temperature,
        seed=command.seed,
        stream=command.stream,
        prompt_tokens=command.prompt_tokens,
        resume_tokens=command.resume_tokens,
        grows=command.grows,
        texts=command.texts,
        batch=None if command.batch is None else (command.batch.batch, command.batch.size),
        patient=command.tier == "batch",
    )


def give_or_take(engine: Engine, command: messages.WorkGrant | messages.WorkLeave) -> None:
    """Tell the engine that a request has more blocks, or that it is to leave."""
    if isinstance(command, messages.WorkGrant):
        engine.grant(command.id, command.attempt, command.blocks)
    elif command.cause == "cancelled":
        engine.cancel(command.id, command.attempt)
    else:
        engine.preempt(command.id, command.attempt)


def dispatch_number(header: bytes | None, incarnation: str) -> int:
    """Return the dispatch number in a record's header, or 0 when it is for no or another life."""
    life, _, number = (header or b"").decode(errors="replace").rpartition(" ")
    if life != incarnation or not number.isdecimal():
        return 0
    return min(int(number[:_DIGITS_MAX]), _NUMBER_MAX)
