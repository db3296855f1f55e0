"""Puts the streamed pieces of one request together, whatever attempts they come from. Pure.

A retried attempt generates the same tokens again, perhaps cut into other pieces. So the text of
each attempt is put together by itself, and only what goes beyond the text shown so far is new. One
that goes on after a preemption begins where an earlier attempt's piece ended, so it takes over the
text up to there. Of an attempt whose beginning was not seen nothing is shown: its text comes whole,
with the outcome.
"""

from dataclasses import dataclass, field

from schemas.bus import Result, TokenPiece


@dataclass(slots=True)
class Assembly:
    """What has been shown of one request's output.

    Attributes:
        text: shown so far. tokens: how many tokens of it have been seen.
    """

    text: str = ""
    tokens: int = 0
    _by_attempt: dict[int, str] = field(default_factory=dict[int, str])
    _next_index: dict[int, int] = field(default_factory=dict[int, int])
    # By the count of tokens, where pieces ended: the characters shown up to there.
    _chars_at: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, piece: TokenPiece) -> TokenPiece | None:
        """Return the part of `piece` that is new, or None when there is none to show."""
        if piece.attempt not in self._next_index and piece.index in self._chars_at:
            self._by_attempt[piece.attempt] = self.text[: self._chars_at[piece.index]]
        elif piece.index > self._next_index.get(piece.attempt, 0):
            return None
        self._next_index[piece.attempt] = piece.index + len(piece.tokens)
        attempt_text = self._by_attempt.get(piece.attempt, "") + piece.text
        self._by_attempt[piece.attempt] = attempt_text
        tokens = piece.tokens[max(0, self.tokens - piece.index) :]
        text = attempt_text[len(self.text) :]
        if not tokens and not text:
            return None
        index = max(self.tokens, piece.index)
        self.tokens = index + len(tokens)
        self.text += text
        self._chars_at[self.tokens] = len(self.text)
        return TokenPiece(
            id=piece.id,
            attempt=piece.attempt,
            index=index,
            tokens=tokens,
            text=text,
            last=piece.last,
        )

    def rest(self, result: Result) -> TokenPiece | None:
        """Return what the outcome's text holds beyond what was streamed, or None."""
        if result.text is None or len(result.text) <= len(self.text):
            return None
        text = result.text[len(self.text) :]
        self.text = result.text
        return TokenPiece(
            id=result.id,
            attempt=result.attempts,
            index=self.tokens,
            tokens=(),
            text=text,
            last=True,
        )
