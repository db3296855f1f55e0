"""What an iteration becomes on the bus: one report a kind, or several where one is too long."""

from schemas.facts import WorkFinished, WorkStarted
from services.worker.engine import Finished, Started, StepResult, Timings, WorkKey
from services.worker.reports import ITEMS_MAX, TEXT_CHARS_MAX, Life, reports_of

LIFE = Life("m", 0, "life")


def finished(name: str, text: str) -> Finished:
    return Finished(WorkKey(name, 1), "length", text, "", 1, 1, Timings(0, 0, 0, None))


def test_a_batch_that_ends_together_is_told_in_reports_that_an_entry_can_hold() -> None:
    names = [f"r{number}" for number in range(2 * ITEMS_MAX + 1)]
    result = StepResult(
        started=tuple(Started(WorkKey(name, 1), 1) for name in names),
        finished=tuple(finished(name, f"text of {name}") for name in names),
    )
    reports = reports_of(LIFE, result)
    kinds = [type(report.fact) for report in reports]
    assert kinds == [WorkStarted] * 3 + [WorkFinished] * 3
    told = [
        (item.id, text)
        for report in reports
        if isinstance(report.fact, WorkFinished)
        for item, text in zip(report.fact.items, report.texts, strict=True)
    ]
    assert told == [(name, f"text of {name}") for name in names]


def test_long_texts_are_told_apart_and_none_is_cut() -> None:
    texts = ["x" * TEXT_CHARS_MAX, "y", "z" * TEXT_CHARS_MAX * 2, "w"]
    result = StepResult(finished=tuple(finished(text[0], text) for text in texts))
    assert [list(report.texts) for report in reports_of(LIFE, result)] == [[text] for text in texts]
