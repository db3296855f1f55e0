"""A story tells a wait by the causes that the core recorded, whatever the queue's own cause was."""

from streams.story_parts import Segment
from streams.story_waits import as_recorded


def wait(label: str, from_us: int, to_us: int) -> Segment:
    return Segment("wait", label, from_us, to_us, 0, f"why {label}")


def told(segments: list[Segment]) -> list[tuple[str, str, int, int]]:
    return [(one.kind, one.label, one.from_us, one.to_us) for one in segments]


def test_segments_that_say_what_is_recorded_stay_as_they_are() -> None:
    segments = [wait("transit", 0, 2), wait("slots", 2, 9)]
    assert as_recorded(segments, (("transit", 2), ("slots", 7))) is segments


def test_time_below_a_higher_tier_is_told_as_the_turn_that_it_was() -> None:
    segments = [wait("transit", 0, 2), wait("slots", 2, 9)]
    parted = as_recorded(segments, (("transit", 2), ("slots", 4), ("turn", 3)))
    assert told(parted) == [
        ("wait", "transit", 0, 2),
        ("wait", "slots", 2, 6),
        ("wait", "turn", 6, 9),
    ]
    assert parted[1].why == "why slots"


def test_only_the_last_wait_is_parted_and_earlier_ones_are_taken_off() -> None:
    run = Segment("run", "lost attempt 1", 9, 12, 1)
    segments = [wait("slots", 0, 9), run, wait("slots", 12, 20)]
    parted = as_recorded(segments, (("slots", 10), ("quota", 7)))
    assert told(parted)[2:] == [("wait", "slots", 12, 13), ("wait", "quota", 13, 20)]


def test_a_record_that_covers_another_time_changes_nothing() -> None:
    segments = [wait("slots", 0, 9)]
    assert as_recorded(segments, (("turn", 4),)) is segments
    assert as_recorded([], (("turn", 4),)) == []
    run = Segment("run", "lost attempt 1", 9, 12, 1)
    odd = [wait("slots", 0, 9), run, wait("slots", 12, 20)]
    assert as_recorded(odd, (("slots", 3), ("turn", 14))) is odd
