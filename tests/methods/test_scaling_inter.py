"""ScalingInter-RL: horizons grow by phases; with one phase as long as the world's own it is GRPO."""

import json

import pytest
import torch

from evolvent.methods.grpo import GRPOConfig, grpo
from evolvent.methods.scaling_inter import ScalingInterConfig, scaling_inter
from evolvent.run import StageKey
from tests.rl.acting import Echo, Endless, quick, run_of, small


def tasks(world):
    return world.tasks("train", "seen")


def test_episodes_are_as_long_as_their_phase_lets_them(tmp_path):
    world = Endless()
    config = ScalingInterConfig(
        kind="reinforce_pp", kl=0.0, horizons=(1, 2, 4), every=2, practice=quick(iterations=7, tasks_per_iteration=3)
    )
    with run_of(tmp_path, world) as run:
        scaling_inter(small(world), tasks(world), config=config, run=run)
        found = list(run.store.trajectories())
    longest = [max(len(one.steps) for one in found if f"/{n}/" in one.id) for n in range(1, 8)]
    assert longest == [1, 2, 2, 4, 4, 4, 4], "horizons[min(g // 2, 2)]"
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["horizon"] for row in rows if row["kind"] == "practise"] == longest


def test_it_is_measured_with_the_horizon_of_the_world(tmp_path):
    world = Echo()
    config = ScalingInterConfig(horizons=(1,), every=1, practice=quick(iterations=1))
    with run_of(tmp_path, world) as run:
        scaling_inter(small(world), tasks(world), config=config, run=run)
        measured = [one for one in run.store.trajectories() if "evaluate" in one.id]
    assert measured and all(len(one.steps) == 2 for one in measured)


def test_one_phase_as_long_as_an_episode_is_grpo_bit_for_bit(tmp_path):
    world = Echo()
    learned = []
    for name in ("grpo", "scaled"):
        practice = quick(iterations=3)
        with run_of(tmp_path / name, world) as run:
            run._compute_key = lambda verb, *arguments, **more: StageKey(
                verb, verb, verb, ()
            )  # else the seed of the stage depends on its settings
            if name == "grpo":
                learned.append(grpo(small(world), tasks(world), config=GRPOConfig(practice=practice), run=run))
            else:
                config = ScalingInterConfig(horizons=(2,), every=5, practice=practice)
                learned.append(scaling_inter(small(world), tasks(world), config=config, run=run))
    first, second = (policy.model.state_dict() for policy in learned)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_settings_that_have_no_effect_or_fall_are_refused_together():
    with pytest.raises(ValueError, match=r"fall.*practice.horizon.*practice.prefetch_rollouts.*overlong"):
        ScalingInterConfig(horizons=(5, 3), overlong=4, practice=quick(horizon=3, prefetch_rollouts=True))
    for horizons in ((), (0, 5)):
        with pytest.raises(ValueError, match="horizons"):
            ScalingInterConfig(horizons=horizons)
