"""A stream shows each token once, whatever attempts its pieces come from."""

from schemas.bus import Result, TokenPiece
from services.gateway.stream import Assembly


def piece(index: int, *words: str, attempt: int = 1, last: bool = False) -> TokenPiece:
    return TokenPiece(
        id="a",
        attempt=attempt,
        index=index,
        tokens=tuple(range(index, index + len(words))),
        text="".join(words),
        last=last,
    )


def result(text: str | None) -> Result:
    return Result(
        id="a",
        model="m",
        tenant="t",
        tier="normal",
        outcome="completed",
        reason="stop",
        detail="",
        text=text,
        usage=None,
        attempts=2,
        replica="m/0",
        wait_us=0,
        waits=(),
        run_us=0,
        ttft_us=None,
        e2e_us=0,
        metadata={},
        retry_after_ms=None,
        cell=0,
        seq=1,
        policy_version=1,
        policy_digest="0" * 16,
    )


def shown(*pieces: TokenPiece) -> list[str]:
    assembly = Assembly()
    return [new.text for one in pieces if (new := assembly.add(one)) is not None]


def test_pieces_of_one_attempt_are_shown_as_they_come() -> None:
    assert shown(piece(0, "one "), piece(1, "two ", "three "), piece(3, "four")) == [
        "one ",
        "two three ",
        "four",
    ]


def test_an_attempt_that_goes_on_after_a_preemption_is_shown_from_there() -> None:
    assert shown(
        piece(0, "one "),
        piece(1, "two "),
        piece(2, "three ", attempt=2),
        piece(3, "four", attempt=2, last=True),
    ) == ["one ", "two ", "three ", "four"]


def test_a_third_attempt_that_goes_on_from_the_same_tokens_shows_none_twice() -> None:
    assert shown(
        piece(0, "one "),
        piece(1, "two ", attempt=2),
        piece(2, "three ", attempt=2),
        piece(1, "two ", "three ", "four", attempt=3),
    ) == ["one ", "two ", "three ", "four"]


def test_a_retried_attempt_shows_only_what_goes_beyond_the_one_before() -> None:
    assert shown(
        piece(0, "one "),
        piece(1, "two "),
        piece(0, "one ", attempt=2),
        piece(1, "two ", attempt=2),
        piece(2, "three", attempt=2),
    ) == ["one ", "two ", "three"]


def test_a_retried_attempt_may_be_cut_into_other_pieces() -> None:
    assembly = Assembly()
    assembly.add(piece(0, "one "))
    new = assembly.add(piece(0, "one ", "two ", "three", attempt=2))
    assert new is not None
    assert (new.index, new.tokens, new.text) == (1, (1, 2), "two three")


def test_text_without_a_token_ends_a_stream() -> None:
    # What an incomplete last character became is text that no token carries.
    assert shown(piece(0, "gr"), piece(1), piece(1, last=True), trailing(1, "ö")) == ["gr", "ö"]


def trailing(index: int, text: str) -> TokenPiece:
    return TokenPiece(id="a", attempt=1, index=index, tokens=(), text=text, last=True)


def test_the_outcome_tells_what_the_stream_had_not_brought_yet() -> None:
    assembly = Assembly()
    assembly.add(piece(0, "one "))
    rest = assembly.rest(result("one two"))
    assert rest is not None
    assert rest.text == "two"
    assert assembly.rest(result("one two")) is None


def test_an_outcome_without_text_adds_nothing() -> None:
    assembly = Assembly()
    assembly.add(piece(0, "one "))
    assert assembly.rest(result(None)) is None


def test_an_attempt_whose_beginning_was_not_seen_comes_whole_with_the_outcome() -> None:
    assembly = Assembly()
    assert assembly.add(piece(2, "three ")) is None
    assert assembly.add(piece(3, "four")) is None
    rest = assembly.rest(result("one two three four"))
    assert rest is not None
    assert rest.text == "one two three four"


def test_an_attempt_seen_from_its_beginning_is_shown_after_one_that_was_not() -> None:
    assert shown(piece(5, "six"), piece(0, "one ", attempt=2), piece(1, "two", attempt=2)) == [
        "one ",
        "two",
    ]
