"""Values that contradict each other are told with both keys, and where they hold."""

from typing import Any

import pytest

from schemas.policy import Override, Policy
from schemas.policy_pairs import contradictions


def told(**values: Any) -> list[str]:
    return [fault.sentence() for fault in contradictions(Policy(**values))]


def of_model(key: str, value: int, model: str = "m") -> Override:
    return Override(model=model, key=key, value=value)


def test_the_built_in_policy_contradicts_itself_nowhere() -> None:
    assert told() == []


TUNED = "a window is tuned between window_min_ms and window_max_ms; set both"
NEVER = "so many outputs are never remembered, and no quantile would ever be trusted; set both"
UNFILLED = "requests of one text each could never fill a batch; set both"
MAX = "window_max_ms"
LOOK_AHEAD, SAMPLES = "batch_look_ahead_requests", "reservation_samples_max"
ORDER = "a higher tier aims at a longer wait than one below it; the highest stands first"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"window_ms": 201},
            f"window_ms cannot be 201: it is above window_max_ms, which is 200: {TUNED}",
        ),
        (
            {"batch_texts_max": 65},
            f"batch_texts_max cannot be 65: it is above {LOOK_AHEAD}, which is 64: {UNFILLED}",
        ),
        (
            {"reservation_samples_max": 49},
            f"reservation_samples_min cannot be 50: it is above {SAMPLES}, which is 49: {NEVER}",
        ),
        (
            {"tier_latency_target_ms": (100, 500, 400, 60_000)},
            f"tier_latency_target_ms cannot be [100, 500, 400, 60000]: {ORDER}",
        ),
    ],
)
def test_a_contradiction_is_told_with_both_keys_and_the_reason(
    values: dict[str, Any], sentence: str
) -> None:
    assert told(**values) == [sentence]


def test_the_smallest_window_is_held_against_both_of_the_others() -> None:
    sentences = told(window_min_ms=220)
    assert [one.split(":")[1] for one in sentences] == [
        " it is above window_ms, which is 150",
        " it is above window_max_ms, which is 200",
    ]


def test_an_override_is_held_against_what_holds_for_its_model() -> None:
    assert told(overrides=(of_model("window_ms", 250),)) == [
        f"window_ms for model m cannot be 250: it is above {MAX}, which is 200 there: {TUNED}"
    ]
    both = (of_model("window_ms", 250), of_model("window_max_ms", 300))
    assert told(overrides=both) == []
    assert len(told(overrides=(both[0], of_model("window_max_ms", 300, "n")))) == 1


def test_a_contradiction_that_holds_everywhere_is_told_once() -> None:
    of_two = (of_model("window_backlog_closes", 3), of_model("batch_padding_pct_max", 3))
    assert len(told(window_ms=300, overrides=of_two)) == 1
    same = (of_model("window_ms", 300),)
    assert len(told(window_ms=300, overrides=same)) == 1


def test_the_place_that_is_told_is_the_key_that_was_changed() -> None:
    changed = [fault.path for fault in contradictions(Policy(window_max_ms=100))]
    assert changed == [("window_max_ms",)]
    lower = [fault.path for fault in contradictions(Policy(window_ms=300))]
    assert lower == [("window_ms",)]
    (override,) = contradictions(Policy(overrides=(of_model("window_ms", 300),)))
    assert override.path == ("overrides", 0, "value")
