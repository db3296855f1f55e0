"""Puts the streamed pieces of one request together, whatever attempts they come from. Pure.

A retried attempt generates the same tokens again, perhaps cut into other pieces. So the text of
each attempt is put together by itself, and only what goes beyond the text shown so far is new.
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

    def add(self, piece: TokenPiece) -> TokenPiece | None:
        """Return the part of `piece` that is new, or None when all of it was seen."""
        attempt_text = self._by_attempt.get(piece.attempt, "") + piece.text
        self._by_attempt[piece.attempt] = attempt_text
        tokens = piece.tokens[max(0, self.tokens - piece.index) :]
        text = attempt_text[len(self.text) :]
        if not tokens and not text:
            return None
        index = max(self.tokens, piece.index)
        self.tokens = index + len(tokens)
        self.text += text
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
