"""Whether work can be served, checked in full before it joins. Pure apart from the tokenizer.

Everything that could make one request trip over a limit later is found here, so that a bad one
fails alone and says why. Also the record that an accepted attempt lives in.
"""

import math
from dataclasses import dataclass, field

from services.worker.blocks import blocks_for
from services.worker.engine import EngineInfo, LeaveCause, Work, WorkKey
from services.worker.tokenizer import ModelTokenizer, TextDecoder


@dataclass(slots=True, eq=False)
class RunningText:
    """One attempt inside the engine.

    `ids` are prompt, resumed and produced tokens; the first `context` of them are in the KV pool.
    `blocks` are reserved for it now. `asked_blocks` is how many it had when it last asked for more.
    """

    work: Work
    key: WorkKey
    ids: list[int]
    prompt_tokens: int
    limit: int
    decoder: TextDecoder
    added_us: int
    blocks: int
    asked_blocks: int = 0
    context: int = 0
    text: list[str] = field(default_factory=list[str])
    joined_us: int | None = None
    first_us: int | None = None
    last_us: int | None = None
    leaving: LeaveCause | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens produced so far, resumed ones included."""
        return len(self.ids) - self.prompt_tokens

    @property
    def prefill_left(self) -> int:
        """Prompt and resumed tokens that are not in the KV pool; 0 once it decodes."""
        return 0 if self.first_us is not None else len(self.ids) - self.context

    def room(self, block_tokens: int) -> int:
        """Tokens that still go into its blocks: below 1 it pauses."""
        return self.blocks * block_tokens - self.context

    def may_need_more(self, block_tokens: int) -> bool:
        """Whether its blocks may be too few for the output that it may have."""
        whole = blocks_for(self.prompt_tokens + self.work.max_output_tokens, block_tokens)
        return self.work.grows and self.blocks < whole


def accept(work: Work, info: EngineInfo, tokenizer: ModelTokenizer, added_us: int) -> RunningText:
    """Tokenise, and check against every limit.

    Raises:
        ValueError: When the work cannot be served by this engine; its text is the reason.
    """
    if work.max_output_tokens < 1:
        raise ValueError(
            f"Request {work.id!r} asks for {work.max_output_tokens} output tokens; ask for at"
            " least 1."
        )
    if not (math.isfinite(work.temperature) and work.temperature >= 0):
        raise ValueError(
            f"Request {work.id!r} has the temperature {work.temperature}; give a number of 0"
            " or more."
        )
    ids = _prompt_ids(work, tokenizer)
    if not ids:
        raise ValueError(f"Request {work.id!r} has a prompt of no tokens; give some text.")
    total = len(ids) + work.max_output_tokens
    if total > info.max_sequence_tokens:
        raise ValueError(
            f"Request {work.id!r} has {len(ids)} prompt tokens and asks for up to"
            f" {work.max_output_tokens} more; {info.model} takes"
            f" {info.max_sequence_tokens} together. Shorten the prompt or the output."
        )
    _check_blocks(work, info, len(ids))
    decoder = tokenizer.decoder()
    limit = work.max_output_tokens
    if work.output_tokens is not None:
        limit = max(1, min(limit, work.output_tokens))
    text = RunningText(
        work,
        work.key,
        ids,
        len(ids),
        limit,
        decoder,
        added_us=added_us,
        blocks=work.reserved_blocks,
    )
    _resume(text, tokenizer.vocabulary, info.model)
    return text


def _check_blocks(work: Work, info: EngineInfo, prompt_tokens: int) -> None:
    """Check the blocks against the pool, and against what the request may come to need."""
    whole = blocks_for(prompt_tokens + work.max_output_tokens, info.block_tokens)
    told = work.prompt_tokens
    # One that grows begins with less; but it may not come to need more than the cell knows of.
    begins = work.grows and (told is None or prompt_tokens <= told)
    resumed = min(len(work.resume_tokens), work.max_output_tokens)
    needed = blocks_for(prompt_tokens + resumed, info.block_tokens) if begins else whole
    if needed > work.reserved_blocks:
        raise ValueError(
            f"Request {work.id!r} needs {needed} KV blocks for {prompt_tokens} prompt and"
            f" {work.max_output_tokens} output tokens, and {work.reserved_blocks} are reserved"
            " for it. Reserve what the prompt's exact count asks for."
        )
    largest = max(work.reserved_blocks, whole)
    if largest > info.kv_blocks:
        raise ValueError(
            f"Request {work.id!r} reserves {largest} KV blocks and the pool has"
            f" {info.kv_blocks}. Send it to a replica with a larger pool."
        )


def _prompt_ids(work: Work, tokenizer: ModelTokenizer) -> list[int]:
    if work.prompt_tokens is not None and tokenizer.counts_suffice:
        return [0] * work.prompt_tokens
    try:
        return tokenizer.prompt_ids(work.prompt, work.messages)
    except ValueError as error:  # also text that is not valid Unicode
        raise ValueError(f"Request {work.id!r} has no usable prompt: {error}") from error


def _resume(text: RunningText, vocabulary: int, model: str) -> None:
    """Put an earlier attempt's tokens behind the prompt."""
    resumed = text.work.resume_tokens[: text.limit]
    for token in resumed:
        if not 0 <= token < vocabulary:
            raise ValueError(
                f"Request {text.work.id!r} resumes with the token {token}, and the vocabulary"
                f" of {model} has {vocabulary}. Resume it on its own model."
            )
        text.text.append(text.decoder.add(token))
    text.ids.extend(resumed)
