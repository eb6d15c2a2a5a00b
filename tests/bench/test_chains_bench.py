"""The study of hidden chains: its world, the choice of its rates, and its gates."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from benchmarks.r3 import chains
from benchmarks.r3.chains import (
    ARMS,
    CHAINS,
    QUICK_CHAINS,
    WORDS,
    Chain,
    build_study,
    choose_rates,
    play_chains,
    summarize_chains,
    tuning_digest,
)
from benchmarks.study import pack, write_cell
from evolvent.agents.plain import Script
from evolvent.bench.study import ArmResult, run_study
from evolvent.bench.verdict import read_summary
from evolvent.errors import ConfigError
from evolvent.rollout.episode import collect
from evolvent.scale.local_backend import EvaluationPanel
from evolvent.trajectory import Start


def keep_rates(folder, best):
    for kind in ARMS:
        for rate in CHAINS.rates:
            row = {"digest": tuning_digest(CHAINS), "arm": kind, "rate": rate, "success": float(rate == best[kind])}
            write_cell(folder, f"tuning-{kind}-{rate:g}", row)


def test_a_walk_follows_one_permutation_and_only_the_whole_walk_is_paid():
    world = Chain(8, copies=2)
    assert set(world.next_word) == set(world.next_word.values()) == set(WORDS)
    steps = world.walk(WORDS[0]).split(" ; ")
    assert len(steps) == 8 and steps[0] == world.next_word[WORDS[0]]
    assert all(world.next_word[word] == following for word, following in itertools.pairwise(steps))
    task = world.tasks("train", "seen")[0]
    right = world.walk(task.spec["word"])
    for text, paid in ((right, True), (right.rpartition(" ; ")[0], False), (f"{right} ; {WORDS[0]}", False)):
        (played,) = collect({world.name: world}, [Start(task)], Script(lambda *_, text=text: [text]), engine=None)
        assert played.success is paid


def test_a_best_rate_at_an_end_of_the_grid_is_refused(tmp_path):
    inside = dict.fromkeys(ARMS, CHAINS.rates[1])
    with pytest.raises(ConfigError, match="0 of 4 rates of 'outcome' were tried"):
        choose_rates(CHAINS, tmp_path)
    keep_rates(tmp_path, inside)
    assert choose_rates(CHAINS, tmp_path) == inside
    for end in (CHAINS.rates[0], CHAINS.rates[-1]):
        keep_rates(tmp_path, {**inside, "staged": end})
        with pytest.raises(ConfigError, match="best rate of 'staged' is at an end of the grid"):
            choose_rates(CHAINS, tmp_path)


def test_gates_rates_and_the_plan_are_frozen():
    rates = dict.fromkeys(ARMS, 1e-3)
    plan = build_study(CHAINS, rates, range(6))
    assert [gate.arm for gate in plan.gates] == ["base", "base", "mixed"] and plan.arm_names[-1] == "sft"
    digests = {
        plan.digest(),
        replace(plan, gates=()).digest(),
        build_study(CHAINS, {**rates, "mixed": 3e-4}, range(6)).digest(),
        build_study(replace(CHAINS, iterations=2000), rates, range(6)).digest(),
    }
    assert len(digests) == 4
    practice = CHAINS.configure("mixed", length=8, iterations=CHAINS.iterations).practice
    assert CHAINS.lengths == (8, 12, 16)
    assert practice.iterations * practice.ppo_epochs * practice.minibatches >= 1000, "updates of a policy"


@pytest.mark.long
def test_a_quick_study_is_played_to_its_end_and_has_no_verdict(tmp_path):
    summary = play_chains(tmp_path, seeds=[0, 1], step="play", quick=True)
    assert summary["gate_passed"] is False and summary["verdict"].startswith("no verdict: gate ")
    assert summary["unfinished"] == 0 and [gate["name"] for gate in summary["gates"]][1] == "right steps of the base"
    assert all(set(own) == {str(length) for length in QUICK_CHAINS.lengths} for own in summary["success"].values())
    assert set(summary["success"]) == {"base", *ARMS, "sft"}


def test_walks_are_sampled_where_success_is_measured(tmp_path):
    """The likeliest word of a base whose errors are spread evenly is the right one: greedy walks hide all errors."""
    with chains._open_run(tmp_path, CHAINS, 8, 0) as run:
        assert run._verbs.panel == EvaluationPanel(limit=150, temperature=1.0)


def test_a_report_of_nothing_names_the_folder(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path.name} does not hold a frozen study"):
        play_chains(tmp_path, seeds=[10], step="report", quick=False)


def test_figures_stand_by_length(tmp_path):
    """Of ten walks of each length and seed: mixed 9, 8, 7; outcome 9, 0, 0; differences 0, .8, .7, their mean .5."""
    right = {"base": (0, 0, 0), "outcome": (9, 0, 0), "staged": (9, 9, 9), "mixed": (9, 8, 7), "sft": (5, 5, 5)}
    notes = {"sampled_success": 0.002, "step_accuracy": 0.5, "explained_variance": 0.4}

    def play(arm_run):
        counts = zip(CHAINS.lengths, right[arm_run.arm], strict=True)
        outcomes = {
            f"chain{length}/seen": tuple(
                (f"{length}-{number}", f"kind{number % 5}", number < count) for number in range(10)
            )
            for length, count in counts
        }
        return ArmResult(outcomes, {"trained": 1}, 3600.0, notes)

    study = build_study(CHAINS, dict.fromkeys(ARMS, 3e-4), range(10, 13))
    run_study(replace(study, arms=tuple(replace(arm, play=play) for arm in study.arms)), tmp_path)
    figures = summarize_chains(read_summary(tmp_path))
    assert figures["gate_passed"] and figures["seeds"] == [10, 11, 12] and figures["cpu_hours"] == 15.0
    means = {length: round(interval[0], 6) for length, interval in figures["r3_minus_outcome_by_length"].items()}
    assert means == {"8": 0.0, "12": 0.8, "16": 0.7}
    assert figures["r3_minus_outcome_ci"][0] == pytest.approx(0.5)
    assert figures["success"]["sft"]["16"][0] == 0.5
    pack(tmp_path)
    assert not (tmp_path / "study.json").exists()
    reported = play_chains(tmp_path, seeds=[10], step="report", quick=False)
    assert {name: reported[name] for name in figures} == figures, "the report of packed results is the same"
