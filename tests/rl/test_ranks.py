"""Practice over ranks is that of one process: episodes, credit, losses and weights, in every layout, also resumed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import practice_ranks as ranks_do
import pytest

from evolvent.errors import ConfigError
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.rl.trainer import RLConfig
from evolvent.scale.ranks_backend import check_practice, deal_starts
from evolvent.trajectory import Start, Task
from tests.learn.parallel.crew import Crew

BOUND = 2e-6
SMALL = {"tasks_per_iteration": 4}
AHEAD = {"prefetch_rollouts": True, "iterations": 4, "measure_every": 2}
WHOLE = {"target_kl": None}  # no limit, whose measurement ends with the micro-batch that exceeds it

Alone = Callable[..., tuple[dict[str, Any], Path]]


@pytest.fixture(scope="module")
def two() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """What a practice comes to in one process, and its folder; each is run once."""
    known: dict[str, tuple[dict[str, Any], Path]] = {}

    def practise(*how: Any) -> tuple[dict[str, Any], Path]:
        name = json.dumps(how)
        if name not in known:
            folder = tmp_path_factory.mktemp("alone")
            known[name] = ranks_do.practise(str(folder), {}, *how), folder
        return known[name]

    return practise


def check_equal(crew: Crew, alone: Alone, folder: Path, layout: Mapping[str, int], *how: Any) -> None:
    """Practise over ranks, and compare everything with one process."""
    whole, whole_folder = alone(*how)
    ranks = crew.run(ranks_do.practise, str(folder), layout, *how)
    assert [one["writes"] for one in ranks] == [True, *([False] * (crew.size - 1))]
    expected, found = ranks_do.stored(whole_folder), ranks_do.stored(folder)
    first = {name: line for name, line in expected.items() if "practise" in name and "/1/" in name}
    assert first and first.items() <= found.items(), "bit for bit, log-probabilities included, by the same weights"
    assert ranks_do.tokens(found) == ranks_do.tokens(expected), "by weights that rounding moved, the same tokens"
    assert ranks_do.furthest(ranks_do.measured(whole_folder), ranks_do.measured(folder)) <= BOUND
    for one in ranks:
        assert ranks_do.apart(whole, one) <= BOUND
        assert (one["rates"], one["version"]) == (whole["rates"], whole["version"])


LONG = pytest.mark.long


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("layout", "method", "settings", "practice", "options"),
    [
        ({"shard": 2}, "grpo", {}, {}, {}),
        ({"tp": 2}, "poad", WHOLE, {}, {"world": "endless"}),
        ({"pp": 2}, "ppo", WHOLE, {"critic": "separate"}, {}),
        ({"shard": 2}, "grpo", {"importance_correction": "truncated"}, AHEAD, {}),
        ({"shard": 2}, "etpo", {}, {"tasks_per_iteration": 8}, {}),  # by fewer nothing is paid: Q moves by rounding
        pytest.param({"replicate": 2}, "grpo", {"kl": 0.1}, {}, {"adapter": "lora"}, marks=LONG),
        ({"shard": 2}, "grpo", {"kl": 0.1}, {}, {"adapter": "lora4"}),
        pytest.param({"replicate": 2}, "ppo", WHOLE, {"critic": "separate"}, {"adapter": "lora4"}, marks=LONG),
        pytest.param({"tp": 2}, "grpo", {"kl": 0.1}, {}, {"adapter": "lora"}, marks=LONG),
        pytest.param({"pp": 2}, "grpo", {"kl": 0.1}, {}, {"adapter": "lora"}, marks=LONG),
        pytest.param({"pp": 2}, "poad", WHOLE, {}, {}, marks=LONG),
        pytest.param({"replicate": 2}, "ppo", WHOLE, {"critic": "separate"}, {"world": "endless"}, marks=LONG),
        pytest.param({"shard": 2}, "ppo", {"level": "listed", **WHOLE}, {}, {"world": "listed"}, marks=LONG),
        pytest.param({"shard": 2}, "grpo", {}, {"top_k": 3}, {}, marks=LONG),
        pytest.param({"shard": 2}, "poad", WHOLE, {"restrict_to_admissible": True}, {"world": "listed"}, marks=LONG),
    ],
)
def test_two_ranks_practise_as_one_process(two, alone, tmp_path, layout, method, settings, practice, options):
    check_equal(two, alone, tmp_path / "run", layout, method, settings, {**SMALL, **practice}, options)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [{"shard": 4}, {"replicate": 2, "shard": 2}, {"shard": 2, "tp": 2}])
def test_four_ranks_practise_as_one_process(alone, tmp_path, layout):
    """One task and three samples an iteration: a rank plays nothing."""
    with Crew(4) as four:
        check_equal(four, alone, tmp_path / "run", layout, "grpo", {}, {"tasks_per_iteration": 1, "group_size": 3}, {})


@pytest.mark.filterwarnings("ignore")
def test_an_update_beyond_the_limit_is_dropped_by_all(two, alone, tmp_path):
    how = ("poad", {"target_kl": 1e-4}, SMALL, {})
    whole, folder = alone(*how)
    assert any(row["stopped"] for row in ranks_do.measured(folder))
    for one in two.run(ranks_do.practise, str(tmp_path / "run"), {"shard": 2}, *how):
        assert ranks_do.apart(whole, one) <= BOUND


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"shard": 2}, {}),
        pytest.param({}, {"shard": 2}, marks=LONG),
        pytest.param({"tp": 2}, {"replicate": 2}, marks=LONG),
    ],
)
def test_a_practice_resumes_on_another_number_of_ranks(two, alone, tmp_path, before, after):
    how = ("ppo", WHOLE, {**SMALL, "iterations": 3})
    whole, whole_folder = alone(*how, {})
    folder = tmp_path / "run"

    def practise(layout: Mapping[str, int], options: Mapping[str, int]) -> dict[str, Any]:
        arguments = (str(folder), layout, *how, options)
        return two.run(ranks_do.practise, *arguments)[0] if layout else ranks_do.practise(*arguments)

    assert practise(before, {"stop": 1}) == {}
    assert len(ranks_do.measured(folder)) == 1
    resumed = practise(after, {})
    assert ranks_do.apart(whole, resumed) <= BOUND and resumed["rates"] == whole["rates"]
    assert ranks_do.furthest(ranks_do.measured(whole_folder), ranks_do.measured(folder)) <= BOUND
    assert ranks_do.tokens(ranks_do.stored(folder)) == ranks_do.tokens(ranks_do.stored(whole_folder))


def test_ranks_that_would_do_different_things_are_refused(two):
    told = two.run(ranks_do.agree, {"code of world w": "1", "tasks": "2"})
    assert all("rank 1 has tasks that differ from those of rank 0" in one for one in told)


def test_starts_are_dealt_in_nearly_equal_shares():
    tasks = [Task("w", "t", {"n": number}) for number in range(5)]
    grouped = [Start(task, sample) for task in tasks for sample in range(4)]
    for count in (1, 2, 3, 7, 30):
        for starts in (grouped, [Start(task) for task in tasks], []):
            shares = deal_starts(starts, count)
            sizes = [len(share) for share in shares]
            assert len(shares) == count and max(sizes) - min(sizes) <= 1
            assert sorted((start.task.id, start.sample) for share in shares for start in share) == sorted(
                (start.task.id, start.sample) for start in starts
            )
    assert [len({start.task.id for start in share}) for share in deal_starts(grouped, 5)] == [1] * 5


@pytest.mark.parametrize(
    ("config", "layout", "more", "said"),
    [
        ({"critic_warmup": 1}, {"shard": 2}, {}, ["critic_warmup", "--rl.practice.critic separate"]),
        ({"top_k": 3}, {"tp": 2, "shard": 2}, {}, ["top_k needs the logits", "use --parallel.shard 4"]),
        ({"restrict_to_admissible": True}, {"tp": 2}, {}, ["restrict_to_admissible needs", "use --parallel.shard 2"]),
        ({}, {"pp": 2}, {"action_level": True}, ["pure data parallelism", "use --parallel.shard 2"]),
        ({}, {"pp": 2}, {"is_limited": True}, ["rl.target_kl", "set it to none"]),
        ({}, {"tp": 2}, {"needs_logits": True}, ["the method needs full distributions", "use --parallel.shard 2"]),
    ],
)
def test_a_layout_that_cannot_practise_is_refused_with_one_that_can(config, layout, more, said):
    with pytest.raises(ConfigError) as refusal:
        check_practice(RLConfig(**config), Parallelism(**layout), **more)
    assert all(part in str(refusal.value) for part in said)
    if not config:
        check_practice(RLConfig(), Parallelism(shard=2), **more)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_sampler_of_fewer_bits_is_measured_and_the_learner_computes_again(tmp_path, dtype):
    rows, mismatches = ranks_do.practise_by("truncated", tmp_path, iterations=1, rollout_dtype=dtype)
    assert 0 < rows[0]["mismatch"] < 1e-2 and rows[0]["mismatch_clipped"] == 0
    assert max(mismatches) > 1e-4, "what was sampled is not what the learner computes"


@pytest.mark.long
@pytest.mark.parametrize("correction", ["truncated", "sequence_masked"])
def test_a_noisy_sampler_learns_as_well_as_the_learner_itself(tmp_path, correction):
    """Logits with noise of .3 of their deviation, anew in every version: 1.2 of 2 at the end, from .2 at first."""
    more = {"iterations": 12, "tasks_per_iteration": 8, "group_size": 8}
    exact, _ = ranks_do.practise_by("none", tmp_path / "exact", **more)
    noisy, _ = ranks_do.practise_by(correction, tmp_path / "noisy", noise=0.3, **more)
    last_exact, last_noisy = (sum(row["return"] for row in rows[-4:]) / 4 for rows in (exact, noisy))
    assert noisy[0]["mismatch"] > 5e-3 and exact[0]["mismatch"] < 1e-9
    assert noisy[0]["return"] < 0.5 and last_exact > 1.0 and last_noisy > last_exact - 0.3
