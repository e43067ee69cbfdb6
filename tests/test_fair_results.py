"""Every figure of docs/fair.md that was measured is in the results of a benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = " ".join((ROOT / "docs" / "fair.md").read_text().split())


def results(name, part):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["parts"][part]["results"]


def sure(row):
    return (
        f"{abs(row['bias']):.1%} ± {1.645 * row['bias_standard_error']:.1%} too {'low' if row['bias'] < 0 else 'high'}"
    )


def test_coverage_and_bias_of_the_page_are_those_measured():
    rows = results("fair", "coverage")
    inside = [row["coverage"] for row in rows]
    assert f"1,000 times for each of {len(rows)} settings" in PAGE
    assert f"Finished episodes are up to {-min(row['finished_only_bias'] for row in rows):.0%} off" in PAGE
    assert f"the fair mean up to {max(abs(row['bias']) for row in rows):.1%};" in PAGE
    assert f"contain the truth in {min(inside):.1%} to {max(inside):.1%} of the repeats" in PAGE
    assert all(row["repeats"] == 1000 for row in rows)


def test_intervals_cover_and_early_bias_is_gone_where_the_issue_of_finished_episodes_is():
    rows = results("fair", "coverage")
    assert sum(0.87 <= row["coverage"] <= 0.93 for row in rows) >= 8
    off = [row for row in rows if 0.2 <= -row["finished_only_bias"] <= 0.3]
    assert off
    assert all(abs(row["bias"]) < 0.01 for row in off)


def test_costs_of_the_page_are_those_measured_and_below_two_percent():
    (cartpole,), (hopper,) = results("fair", "cartpole"), results("fair", "hopper")
    assert f"{cartpole['share_of_a_step']:.1%} of a step of 64 CartPoles" in PAGE
    assert f"{hopper['share_of_a_step']:.1%} of one of 256 Hoppers" in PAGE
    assert max(cartpole["share_of_a_step"], hopper["share_of_a_step"]) <= cartpole["at_most"] == 0.02


@pytest.mark.parametrize(("part", "wrong"), [("two-lengths", "too low"), ("doorkey", "too high")])
def test_comparisons_of_evaluations_are_those_measured(part, wrong):
    ours, peer, first = results("evaluation", part)
    assert f"finished episodes are {abs(first['bias']):.0%} {wrong}" in PAGE
    assert sure(ours) in PAGE
    assert f"{ours['coverage']:.0%}" in PAGE
    assert f"{ours['steps'] / peer['steps_for_same_width']:.2f} times the steps" in PAGE


def test_the_comparison_on_hopper_is_the_one_measured():
    ours, peer, first = results("evaluation", "hopper")
    assert f"first finished episodes are {sure(first)}" in PAGE
    assert sure(ours) in PAGE
    assert f"takes {ours['steps'] / peer['steps_for_same_width']:.2f} times the steps of `evaluate_policy`" in PAGE


def test_lags_of_the_page_are_those_measured():
    few, many = results("fair_learning", "lag")
    spread = [round(1.645 * row["lag_standard_error"]) for row in (few, many)]
    assert (
        f"lags {few['lag']} ± {spread[0]} steps behind with 8 environments and {many['lag']} ± {spread[1]} with 64"
        in PAGE
    )
    assert f"100 finished episodes lags {few['finished_lag']} and {many['finished_lag']} steps behind" in PAGE
    checkpoints = results("fair_learning", "sb3")
    behind = {
        column: sum(1 - row[column] / row["evaluated"] for row in checkpoints) / len(checkpoints)
        for column in ("fair", "finished")
    }
    assert f"`fair/return` is {behind['fair']:.1%} behind" in PAGE
    assert f"({len(checkpoints)} checkpoints, 400 complete episodes each)" in PAGE
    assert f"`rollout/ep_rew_mean` {behind['finished']:.1%}." in PAGE
