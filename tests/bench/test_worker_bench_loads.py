"""The loads of the worker's benches: what they draw from. No figure is tested."""

import gzip
from pathlib import Path

import pytest

from services.worker.bench import code_output_tokens, fitted_code_output


@pytest.mark.parametrize(
    ("share", "tokens"), [(0.0, 6), (0.1, 7), (0.5, 13), (0.9, 55), (0.99, 251), (1.0, 1899)]
)
def test_the_fit_passes_through_the_traces_quantiles(share: float, tokens: int) -> None:
    assert fitted_code_output(share) == tokens


def test_between_two_quantiles_the_logarithm_is_interpolated() -> None:
    # Half way from 0.9 to 0.95: the root of 55 x 90 is 70.4.
    assert fitted_code_output(0.925) == 70


def test_the_fits_mean_is_near_the_traces() -> None:
    mean = sum(fitted_code_output((n + 0.5) / 20_000) for n in range(20_000)) / 20_000
    assert mean == pytest.approx(27.9, rel=0.1)


def test_lengths_come_from_the_trace_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gzip.open(tmp_path / "azure2023_code.csv.gz", "wt") as file:
        file.write("t_ms,prompt_tokens,output_tokens\n0.0,100,17\n5.0,90,1000\n")
    monkeypatch.setenv("HEADWAY_TRACES", str(tmp_path))
    assert set(code_output_tokens(40)) == {17, 256}  # cut at 256
    monkeypatch.delenv("HEADWAY_TRACES")
    assert code_output_tokens(40) == code_output_tokens(40)
