"""The clock of a ledger follows the wall clock, and goes on when that one is set back."""

from dataclasses import dataclass

from streams.clock import LedgerClock

SECOND = 1_000_000
START_US = 1_764_500_000 * SECOND


@dataclass
class Clocks:
    """A wall clock that can be set, and one that cannot; both in µs."""

    wall_us: int = START_US
    monotonic_us: int = 77

    def pass_us(self, us: int) -> None:
        self.wall_us += us
        self.monotonic_us += us

    def ledger(self) -> LedgerClock:
        return LedgerClock(lambda: self.wall_us * 1000, lambda: self.monotonic_us * 1000)


def test_it_tells_the_wall_clocks_time() -> None:
    clocks = Clocks()
    clock = clocks.ledger()
    clocks.pass_us(5 * SECOND)
    assert clock.now_us() == START_US + 5 * SECOND
    assert clock.ahead_us == 0


def test_a_wall_clock_that_is_set_on_is_followed_at_once() -> None:
    clocks = Clocks()
    clock = clocks.ledger()
    clocks.wall_us += 3600 * SECOND
    assert clock.now_us() == START_US + 3600 * SECOND


def test_one_that_is_set_back_is_waited_for_without_standing_still() -> None:
    clocks = Clocks()
    clock = clocks.ledger()
    clocks.pass_us(SECOND)
    before_us = clock.now_us()
    clocks.wall_us -= 60 * SECOND
    clocks.pass_us(10 * SECOND)
    # Nine of ten seconds: it is to meet the wall clock again.
    assert clock.now_us() == before_us + 9 * SECOND
    assert clock.ahead_us == 59 * SECOND
    clocks.pass_us(590 * SECOND)
    assert clock.now_us() == clocks.wall_us
    assert clock.ahead_us == 0


def test_a_new_owner_goes_on_from_the_ledgers_last_stamp() -> None:
    clocks = Clocks()
    clock = clocks.ledger()
    clock.go_on_from(START_US + 30 * SECOND)
    clocks.pass_us(10 * SECOND)
    assert clock.now_us() == START_US + 39 * SECOND
    clock.go_on_from(0)
    assert clock.now_us() == START_US + 39 * SECOND
