"""AGDC: learners of stable-baselines3 learn with it, the control has its budget, networks are kept without pickles."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3")

from evolvent.belief.comparison import make_chooser, play_episodes
from evolvent.belief.seeking import SourceSearch
from evolvent.belief.stopping import StdBelow, TraceBelow
from evolvent.config import resolve
from evolvent.errors import ConfigError, CorruptRecord, ShapeMismatch
from evolvent.methods.agdc import AGDCConfig, agdc, build_detector, build_world, load_seeker, save_seeker
from evolvent.trajectory import Start
from evolvent.worlds.plume.world import PlumeWorld

TASKS = PlumeWorld().tasks("train", "seen")[:4]
SMALL = {"budget": 256, "at_once": 4, "n_particles": 30, "width": 8, "zeta": 4.0}
KINDS = [("dqn", "preset"), ("ppo", "preset"), ("ppo", "heading"), ("ddpg", "heading"), ("sac", "heading")]


def features():
    search = SourceSearch(PlumeWorld().batch(6), particles=40)
    search.begin(range(6), [TASKS[row % 4] for row in range(6)], range(6))
    return search


@pytest.mark.parametrize(("algorithm", "moves"), KINDS)
def test_what_is_learned_is_kept_without_pickles(tmp_path: Path, algorithm, moves):
    config = AGDCConfig(algorithm=algorithm, moves=moves, **SMALL)
    state = (random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state())
    learned = agdc(config, TASKS)
    assert learned.model.num_timesteps >= 256 and learned.config == config
    save_seeker(learned, tmp_path / "policy")
    assert {each.name for each in (tmp_path / "policy").iterdir()} == {"agdc.json", "policy.safetensors"}
    read = load_seeker(tmp_path / "policy")
    assert read.config == config
    search = features()
    search.preset = build_world(config).preset
    np.testing.assert_array_equal(read(search), learned(search))
    assert random.getstate() == state[0] and (np.random.get_state()[1] == state[1]).all()
    assert torch.equal(torch.get_rng_state(), state[2])


def test_the_same_seed_learns_the_same_and_another_another():
    weights = []
    for seed in (0, 0, 1):
        learned = agdc(AGDCConfig(algorithm="ppo", seed=seed, **SMALL), TASKS)
        weights.append(torch.cat([value.flatten() for value in learned.model.policy.state_dict().values()]))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_the_control_runs_to_its_horizon_and_is_stopped_when_it_is_evaluated():
    with_it, without = (
        agdc(AGDCConfig(algorithm="ppo", arm=arm, **{**SMALL, "budget": 512, "zeta": 6.0}), TASKS)
        for arm in ("agdc", "without")
    )
    assert without.model.num_timesteps == with_it.model.num_timesteps, "the same budget"
    assert without.finished and not any(one.ceased for one in without.finished)
    assert {one.steps for one in without.finished} == {100} and {one.total_reward for one in without.finished} == {
        -100.0
    }
    assert {one.task for one in without.finished} <= {task.id for task in TASKS}
    assert any(one.ceased for one in with_it.finished)
    played = play_episodes(
        without,
        build_world(without.config),
        [Start(task) for task in TASKS],
        name="without",
        detector=StdBelow(1e9),
        particles=30,
    )
    assert played.table.stops == 4


@pytest.mark.long
def test_what_is_learned_finds_sources_that_it_never_saw():
    """40,000 steps are a sixth of the default budget, and find half of them; a random walk finds next to nothing."""
    config = AGDCConfig(budget=40_000, n_particles=200)
    world, learned = build_world(config), agdc(config)
    starts = [Start(task) for task in world.tasks("dev", "seen")[:48]]
    found, lost = (
        play_episodes(choose, world, starts, name=name, detector=build_detector(config), particles=500).table.right_stop
        for name, choose in (("learned", learned), ("random", make_chooser("random")))
    )
    assert found >= 20 > 10 >= lost


def test_settings():
    assert build_detector(AGDCConfig()) == StdBelow(1.0) and build_detector(
        AGDCConfig(detector="trace:.5")
    ) == TraceBelow(0.5)
    assert build_detector(AGDCConfig(world="plume/75", moves="four")) == StdBelow(5.0), "the preset's zeta"
    assert build_world(AGDCConfig(algorithm="sac", moves="heading")).preset.moves == "heading"
    assert resolve(AGDCConfig, overrides=["--algorithm", "ppo", "--budget", "1000"]) == AGDCConfig(
        algorithm="ppo", budget=1000
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"world": "plume/agdc"}, "DQN cannot choose headings"),
        ({"algorithm": "dqn", "moves": "heading"}, "DQN cannot choose headings"),
        ({"algorithm": "ddpg"}, "DDPG cannot choose among moves"),
        ({"algorithm": "sac"}, "SAC cannot choose among moves"),
        ({"world": "plume/26"}, "plume/25"),
        ({"detector": "decided"}, "left"),
        ({"detector": "std:1", "zeta": 1.0}, "set only one of them"),
    ],
)
def test_mistakes_are_found_at_construction(wrong, said):
    with pytest.raises(ConfigError, match=said):
        AGDCConfig(**wrong)


def test_folders_that_do_not_fit(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"agdc\.json"):
        load_seeker(tmp_path)
    learned = agdc(AGDCConfig(algorithm="ppo", **SMALL), TASKS)
    save_seeker(learned, tmp_path)
    settings = tmp_path / "agdc.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text(encoding="utf-8")), "width": 9}), encoding="utf-8")
    with pytest.raises(ShapeMismatch, match="mlp_extractor"):
        load_seeker(tmp_path)
    save_seeker(replace(learned), tmp_path)
    (tmp_path / "policy.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(CorruptRecord, match="cannot read networks"):
        load_seeker(tmp_path)
    for junk in (b"{", b"[1]", b"\xff"):
        settings.write_bytes(junk)
        with pytest.raises(ConfigError, match=r"agdc\.json holds no settings"):
            load_seeker(tmp_path)
