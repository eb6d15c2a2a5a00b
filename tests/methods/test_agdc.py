"""AGDC: learners of stable-baselines3 learn with it, the control has the same budget, networks are kept without pickles."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from evolvent.belief.comparison import play  # noqa: E402
from evolvent.belief.seeking import SourceSearch  # noqa: E402
from evolvent.belief.stopping import StdBelow, TraceBelow  # noqa: E402
from evolvent.config import resolve  # noqa: E402
from evolvent.errors import ConfigError, CorruptRecord, ShapeMismatch  # noqa: E402
from evolvent.methods.agdc import AGDC, agdc, detector_of, load_seeker, save_seeker, world_of  # noqa: E402
from evolvent.trajectory import Start  # noqa: E402
from evolvent.worlds.plume.world import PlumeWorld  # noqa: E402

SMALL = {"budget": 256, "at_once": 4, "n_particles": 30, "width": 8, "zeta": 4.0}
KINDS = [("dqn", "preset"), ("ppo", "preset"), ("ppo", "heading"), ("ddpg", "heading"), ("sac", "heading")]


def features():
    search = SourceSearch(PlumeWorld().batch(6), particles=40)
    search.begin(range(6), PlumeWorld().tasks("dev", "seen")[:6], [0] * 6)
    return search


@pytest.mark.parametrize(("algorithm", "moves"), KINDS)
def test_what_is_learned_is_kept_without_pickles(tmp_path: Path, algorithm, moves):
    config = AGDC(algorithm=algorithm, moves=moves, **SMALL)
    state = (random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state())
    learned = agdc(config)
    assert learned.model.num_timesteps >= 256 and learned.config == config
    save_seeker(learned, tmp_path / "policy")
    assert {each.name for each in (tmp_path / "policy").iterdir()} == {"agdc.json", "policy.safetensors"}
    read = load_seeker(tmp_path / "policy")
    assert read.config == config
    search = features()
    search.preset = world_of(config).preset
    np.testing.assert_array_equal(read(search), learned(search))
    assert random.getstate() == state[0] and (np.random.get_state()[1] == state[1]).all()
    assert torch.equal(torch.get_rng_state(), state[2])


def test_the_same_seed_learns_the_same_and_another_another():
    weights = []
    for seed in (0, 0, 1):
        learned = agdc(AGDC(algorithm="ppo", seed=seed, **SMALL))
        weights.append(torch.cat([value.flatten() for value in learned.model.policy.state_dict().values()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_control_runs_to_its_horizon_and_is_stopped_when_it_is_evaluated():
    tasks = world_of(AGDC()).tasks("train", "seen")[:4]
    with_it, without = (agdc(AGDC(algorithm="ppo", arm=arm, **{**SMALL, "budget": 512, "zeta": 6.0}), tasks)
                        for arm in ("agdc", "without"))  # fmt: skip
    assert without.model.num_timesteps == with_it.model.num_timesteps, "the same budget"
    assert without.finished and not any(one.ceased for one in without.finished)
    assert {one.steps for one in without.finished} == {100} and {one.paid for one in without.finished} == {-100.0}
    assert {one.task for one in without.finished} <= {task.id for task in tasks}
    assert any(one.ceased for one in with_it.finished)
    played = play("without", without, world_of(without.config), [Start(task) for task in tasks],
                  detector=StdBelow(1e9), particles=30)  # fmt: skip
    assert played.table.stops == 4


def test_learning_finds_the_way():
    """PPO on one source: going there is learned in a minute of no processor, and going away is not."""
    config = AGDC(algorithm="ppo", budget=6000, at_once=8, n_particles=60, width=32, zeta=3.0, lr=3e-3)
    task = world_of(config).tasks("train", "seen")[:1]
    finished = agdc(config, task).finished
    early, late = finished[: len(finished) // 4], finished[-len(finished) // 4 :]
    assert np.mean([one.paid for one in late]) > np.mean([one.paid for one in early]) + 10


def test_settings():
    assert detector_of(AGDC()) == StdBelow(1.0) and detector_of(AGDC(detector="trace:.5")) == TraceBelow(0.5)
    assert detector_of(AGDC(world="plume/75", moves="four")) == StdBelow(5.0), "the preset's zeta"
    assert world_of(AGDC(algorithm="sac", moves="heading")).preset.moves == "heading"
    assert resolve(AGDC, overrides=["--algorithm", "ppo", "--budget", "1000"]) == AGDC(algorithm="ppo", budget=1000)


@pytest.mark.parametrize(("wrong", "said"), [
    ({"world": "plume/agdc"}, "DQN cannot choose headings"),
    ({"algorithm": "dqn", "moves": "heading"}, "DQN cannot choose headings"),
    ({"algorithm": "ddpg"}, "DDPG cannot choose among moves"),
    ({"algorithm": "sac"}, "SAC cannot choose among moves"),
    ({"world": "plume/26"}, "plume/25"),
    ({"detector": "decided"}, "left"),
    ({"detector": "std:1", "zeta": 1.0}, "one of the two"),
])  # fmt: skip
def test_mistakes_are_found_at_construction(wrong, said):
    with pytest.raises(ConfigError, match=said):
        AGDC(**wrong)


def test_folders_that_do_not_fit(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"agdc\.json"):
        load_seeker(tmp_path)
    learned = agdc(AGDC(algorithm="ppo", **SMALL))
    save_seeker(learned, tmp_path)
    settings = tmp_path / "agdc.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text(encoding="utf-8")), "width": 9}), encoding="utf-8")
    with pytest.raises(ShapeMismatch, match="mlp_extractor"):
        load_seeker(tmp_path)
    save_seeker(replace(learned), tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(CorruptRecord, match="cannot be read"):
        load_seeker(tmp_path)
