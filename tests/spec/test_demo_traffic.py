"""What a demo sends, and how it is fitted to a small machine."""

from collections import Counter
from pathlib import Path

import pytest

from schemas.profile import SMOLLM2_135M
from services.cli._demo_plan import LLAMA_3_1_8B, new_plan, probe_speed
from services.cli._demo_progress import sparkline
from services.cli._demo_traffic import TENANTS, fitting_scales, request_s, sendings
from services.lab.arrivals import Arrival, typical_window


def test_a_minute_of_traffic_has_all_tenants_and_tiers_streams_deadlines_and_cancels() -> None:
    plan = sendings(typical_window(60.0), SMOLLM2_135M, "r", 0, chat=True)
    requests = [one.request for one in plan]
    assert {one.tenant for one in requests} == {name for name, _ in TENANTS}
    assert {one.tier for one in requests} == {"realtime", "critical", "normal", "batch"}
    assert 0 < sum(one.stream for one in requests) < len(requests)
    assert 0 < sum(one.deadline_ms is not None for one in requests) < len(requests) / 5
    assert sum(one.cancel_after_s is not None for one in plan) == 2
    assert Counter(one.id for one in requests).most_common(1)[0][1] == 1
    assert [one.at_s for one in plan] == sorted(one.at_s for one in plan)


def test_the_longest_outputs_are_the_ones_that_are_cancelled() -> None:
    arrivals = [Arrival(float(at), 10, tokens) for at, tokens in enumerate((3, 90, 5, 80, 4))]
    plan = sendings(arrivals, SMOLLM2_135M, "r", 0, chat=True)
    assert [one.cancel_after_s is not None for one in plan] == [False, True, False, True, False]


def test_a_byte_counting_model_gets_prompts_of_the_traces_very_size() -> None:
    (one,) = sendings([Arrival(0.0, 4808, 10)], LLAMA_3_1_8B, "r", 0, chat=False)
    assert one.request.prompt is not None
    assert len(one.request.prompt.encode()) == 4808 * 4
    assert one.request.max_output_tokens == 10


def test_traffic_that_fits_is_left_as_it_is() -> None:
    assert fitting_scales([Arrival(0.0, 100, 10)], 60.0) == (1.0, 1.0)


def test_scaled_traffic_keeps_the_machine_busy_for_just_the_time_that_it_takes_to_come() -> None:
    arrivals = typical_window(60.0)
    prompts, outputs = fitting_scales(arrivals, 60.0)
    busy_s = sum(
        request_s(one.prompt_tokens * prompts, one.output_tokens * outputs) for one in arrivals
    )
    assert busy_s == pytest.approx(60.0, rel=0.25)
    assert 0 < prompts < 0.1
    slower = fitting_scales(arrivals, 60.0, speed=0.5)
    assert slower[1] < outputs


def test_a_machine_that_takes_twice_as_long_for_the_probe_is_half_as_fast() -> None:
    expected_s = 8 * request_s(16, 16)
    assert probe_speed(2 * expected_s) == pytest.approx(0.5)


def test_a_trace_is_cut_to_the_seconds_and_sped_up_and_kept_at_full_size(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_ms,prompt_tokens,output_tokens\n0,5000,9\n4000,70,8\n9000,60,7\n")
    plan = new_plan(
        seconds=5.0,
        engine="simulated",
        trace=trace,
        speed=2.0,
        scale_tokens=None,
        workers=None,
        seed=0,
    )
    sent, scales = plan.traffic(0.1)
    assert [one.at_s for one in sent] == [0.0, 2.0, 4.5]
    assert scales == (1.0, 1.0)
    assert [one.request.max_output_tokens for one in sent] == [9, 8, 7]
    assert plan.probe() == []
    assert len(plan.workers) == 4


def test_lengths_above_the_context_are_cut_to_it(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("t_ms,prompt_tokens,output_tokens\n0,900000,900000\n")
    plan = new_plan(
        seconds=5.0,
        engine="torch",
        trace=trace,
        speed=1.0,
        scale_tokens=1.0,
        workers=2,
        seed=0,
    )
    ((one,), _) = plan.traffic(1.0)
    assert one.request.max_output_tokens == (8192 - 32) // 2
    assert len(plan.workers) == 2


def test_a_sparkline_is_as_high_as_its_highest_value() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 7, 14]) == "▁▄█"
