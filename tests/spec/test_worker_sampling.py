"""Seeded sampling: shares, reproducibility, and rows that do not touch each other."""

import math

import pytest
import torch

from services.worker.sampling import Draw, gumbel, pick

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


def test_temperature_0_takes_the_most_likely_token() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, -1.0, 2.0]])
    assert pick(logits, [Draw(0.0, 1, 0), Draw(0.0, 2, 9)]) == [1, 0]


def test_draws_follow_the_softmax_at_the_temperature() -> None:
    # Weights e^(l / 2) of 1 : 2 : 5, so shares 0.125, 0.25 and 0.625; 5 standard errors are 0.035.
    row = torch.tensor([0.0, 2 * math.log(2), 2 * math.log(5)])
    count = 5_000
    drawn = pick(row.repeat(count, 1), [Draw(2.0, 42, index) for index in range(count)])
    shares = [drawn.count(token) / count for token in range(3)]
    assert shares == pytest.approx([0.125, 0.25, 0.625], abs=0.035)


def test_the_noise_is_standard_gumbel() -> None:
    noise = gumbel([Draw(1.0, seed, 3) for seed in range(4)], 50_000, CPU)
    # Mean is Euler's constant, variance pi^2 / 6; 200,000 values.
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.04)
    correlation = torch.corrcoef(noise) - torch.eye(4)
    assert correlation.abs().max().item() < 0.025  # over 5 standard errors of 50,000 pairs


def test_a_draw_depends_on_seed_and_index_and_not_on_its_row() -> None:
    logits = torch.zeros(3, 49_152)
    first = pick(logits.clone(), [Draw(1.0, 7, 0), Draw(1.0, 7, 1), Draw(1.0, 8, 0)])
    again = pick(logits.clone(), [Draw(1.0, 8, 0), Draw(0.0, 7, 0), Draw(1.0, 7, 0)])
    assert len(set(first)) == 3
    assert (again[0], again[2]) == (first[2], first[0])


def test_any_integer_is_a_seed() -> None:
    for seed in (0, -1, 2**63, 2**64 - 1, 10**30):
        assert pick(torch.zeros(1, 100), [Draw(1.0, seed, 0)])[0] is not None


def test_a_row_that_is_not_a_number_is_reported_alone() -> None:
    logits = torch.tensor([[0.0, float("nan")], [0.0, 1.0]])
    assert pick(logits, [Draw(0.0, 0, 0), Draw(0.0, 0, 0)]) == [None, 1]
