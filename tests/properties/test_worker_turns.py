"""However models and their work come and go, each has its share of turns and none is frozen."""

from collections.abc import Sequence
from itertools import accumulate, combinations

from hypothesis import given
from hypothesis import strategies as st

from services.worker.turns import HOSTED_MAX, Replica, Turns

WEIGHTS = st.lists(st.integers(1, 10_000), min_size=2, max_size=HOSTED_MAX)
SMALL = st.lists(st.integers(1, 12), min_size=2, max_size=HOSTED_MAX)
# Who has work, for how many turns: a bit for each model.
STRETCHES = st.lists(
    st.tuples(st.integers(0, 2**HOSTED_MAX - 1), st.integers(1, 40)), min_size=1, max_size=25
)
Played = list[tuple[frozenset[int], int]]


def played(weights: Sequence[int], stretches: list[tuple[int, int]]) -> Played:
    """Return for each turn who had work and whose it was, by their places in `weights`."""
    turns = Turns()
    told: Played = []
    for bits, count in stretches:
        busy = frozenset(at for at in range(len(weights)) if bits >> at & 1)
        if not busy:
            continue
        asked = {Replica(str(at), 0): weights[at] for at in busy}
        told += [(busy, int(turns.next(asked).model)) for _ in range(count)]
    return told


def runs(told: Played, *models: int) -> list[list[int]]:
    """Return the stretches of turns during which all of these had work, whose each turn was."""
    found: list[list[int]] = [[]]
    for busy, chosen in told:
        if busy.issuperset(models):
            found[-1].append(chosen)
        elif found[-1]:
            found.append([])
    return found


def spread(steps: list[int]) -> int:
    """Return the largest sum, whichever its sign, over any window of the steps."""
    sums = list(accumulate(steps, initial=0))
    return max(sums) - min(sums)


@given(weights=st.one_of(SMALL, WEIGHTS), stretches=STRETCHES)
def test_only_models_that_have_work_get_turns(
    weights: list[int], stretches: list[tuple[int, int]]
) -> None:
    assert all(chosen in busy for busy, chosen in played(weights, stretches))


@given(weights=st.one_of(SMALL, WEIGHTS), stretches=STRETCHES)
def test_over_any_window_two_models_that_have_work_share_by_their_weights(
    weights: list[int], stretches: list[tuple[int, int]]
) -> None:
    told = played(weights, stretches)
    for one, other in combinations(range(len(weights)), 2):
        for run in runs(told, one, other):
            # Turns over weight, which is what they share, differ by at most 1/w + 1/v.
            steps = [
                weights[other] if chosen == one else -weights[one] if chosen == other else 0
                for chosen in run
            ]
            assert spread(steps) <= weights[one] + weights[other]


@given(weights=st.one_of(SMALL, WEIGHTS), turns=st.integers(1, 400), idle_before=st.integers(0, 40))
def test_over_any_window_each_model_has_its_share_of_all_turns(
    weights: list[int], turns: int, idle_before: int
) -> None:
    whole = 2 ** len(weights) - 1
    told = played(weights, [(1, idle_before or 1), (whole, turns)])[idle_before or 1 :]
    total = sum(weights)
    for model, weight in enumerate(weights):
        steps = [total - weight if chosen == model else -weight for _, chosen in told]
        # Two models: within one iteration. More: one, and its share once for each third and fourth.
        assert spread(steps) <= total + (len(weights) - 2) * weight


@given(weights=st.one_of(SMALL, WEIGHTS), stretches=STRETCHES)
def test_no_model_that_has_work_is_frozen_by_the_others(
    weights: list[int], stretches: list[tuple[int, int]]
) -> None:
    told = played(weights, stretches)
    total, others = sum(weights), len(weights) - 1
    for model, weight in enumerate(weights):
        # Of each other v/w + 1; the sum counts the model itself with 2.
        longest = sum(other // weight + 1 for other in weights) - 2
        assert longest <= total / weight + others - 1
        for run in runs(told, model):
            waited = 0
            for chosen in run:
                waited = 0 if chosen == model else waited + 1
                assert waited <= longest


@given(stretches=STRETCHES, changes=st.lists(SMALL, min_size=1, max_size=10))
def test_weights_that_change_freeze_nobody_either(
    stretches: list[tuple[int, int]], changes: list[list[int]]
) -> None:
    turns, waited = Turns(), [0, 0]
    for at, (_, count) in enumerate(stretches):
        first, second, *_ = changes[at % len(changes)]
        for _ in range(count):
            chosen = turns.next({Replica("0", 0): first, Replica("1", 0): second}).model
            waited = [0 if chosen == str(model) else waited[model] + 1 for model in (0, 1)]
            # The highest weight of one over the lowest of the other, and one more.
            assert max(waited) <= 12 + 1


@given(weights=WEIGHTS, stretches=STRETCHES)
def test_the_same_work_has_the_same_turns(
    weights: list[int], stretches: list[tuple[int, int]]
) -> None:
    assert played(weights, stretches) == played(weights, stretches)
