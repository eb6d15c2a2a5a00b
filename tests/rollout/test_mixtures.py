"""Array worlds played side by side, and offline data of known quality."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from evolvent.errors import BatchMismatch, ConfigError, CorruptRecord, EnvLost
from evolvent.rollout.arrays import play_arrays
from evolvent.rollout.mixtures import KINDS, play_mixture
from evolvent.store.episodes import load_episodes, save_episodes
from evolvent.worlds.control import CONTROLS, get_control
from tests.sequence_support import Chain

pytest.importorskip("gymnasium")


def test_episodes_do_not_depend_on_how_many_are_played():
    def act(history):
        return (history.seed + history.step) % 2

    three = play_arrays(act, Chain, episodes=3, horizon=5, num_actions=2, seed=0)
    one = play_arrays(act, Chain, episodes=1, horizon=5, num_actions=2, seed=0)
    assert three.select([0]).digest == one.digest
    assert three.lengths.tolist() == [2, 2, 2] and three.terminated.all()
    cut = play_arrays(act, Chain, episodes=2, horizon=1, num_actions=2, seed=0)
    assert cut.lengths.tolist() == [1, 1] and not cut.terminated.any()


def test_an_environment_that_fails_is_named():
    class Broken(Chain):
        def step(self, action):
            raise RuntimeError("a cable")

    with pytest.raises(EnvLost, match="a cable"):
        play_arrays(
            lambda history: np.zeros(len(history.seed), np.int64), Broken, episodes=1, horizon=2, num_actions=2, seed=0
        )
    with pytest.raises(ConfigError):
        play_arrays(lambda history: np.zeros(1), Chain, episodes=0, horizon=2, num_actions=2, seed=0)


def test_what_was_made_is_closed_where_the_next_fails():
    made = []

    class Counted(Chain):
        def __init__(self):
            if len(made) == 2:
                raise RuntimeError("no room")
            self.open = True
            made.append(self)

        def close(self):
            self.open = False

    with pytest.raises(EnvLost, match="no room"):
        play_arrays(
            lambda history: np.zeros(len(history.seed), np.int64), Counted, episodes=3, horizon=2, num_actions=2, seed=0
        )
    assert [each.open for each in made] == [False, False]


@pytest.mark.parametrize("wrong", [np.zeros(1), np.zeros((2, 1), np.int64), np.int64(0)])
def test_an_actor_of_another_world_is_refused(wrong):
    with pytest.raises(BatchMismatch):
        play_arrays(lambda history: wrong, Chain, episodes=2, horizon=2, num_actions=2, seed=0)


@pytest.mark.parametrize(("name", "random", "expert"), [("cartpole", 40, 450), ("pendulum", -900, -350)])
def test_qualities_are_in_order(name, random, expert):
    made = {kind: play_mixture(get_control(name), kind=kind, episodes=8, seed=1) for kind in KINDS}
    mean = {kind: each.manifest["return"]["mean"] for kind, each in made.items()}
    assert mean["random"] < random and mean["expert"] > expert
    assert mean["random"] < mean["replay"] < mean["expert"] and mean["random"] < mean["medium"] < mean["expert"]
    again = play_mixture(get_control(name), kind="replay", episodes=8, seed=1)
    assert again.manifest == made["replay"].manifest, "the same seed, the same episodes"
    other = play_mixture(get_control(name), kind="replay", episodes=8, seed=2)
    assert other.episodes.digest != again.episodes.digest
    assert made["replay"].manifest["random_share"] == [1.0, 0.4]
    if name == "pendulum":
        assert not made["expert"].episodes.terminated.any(), "a time limit ends nothing"


def test_what_cannot_be_made_is_refused():
    with pytest.raises(ConfigError, match="cartpole"):
        get_control("cartpol")
    with pytest.raises(ConfigError, match="expert"):
        play_mixture(dataclasses.replace(CONTROLS["hopper"], expert=None), kind="medium", episodes=1, seed=0)
    with pytest.raises(ConfigError):
        play_mixture(CONTROLS["cartpole"], kind="good", episodes=1, seed=0)
    with pytest.raises(ConfigError):
        play_mixture(CONTROLS["cartpole"], kind="medium", episodes=1, seed=0, medium=2.0)


def test_a_foreign_expert_is_taken():
    left = dataclasses.replace(CONTROLS["cartpole"], expert=lambda seen: np.zeros(len(seen), np.int64))
    found = play_mixture(left, kind="expert", episodes=2, seed=0)
    assert found.episodes.lengths.max() < 15 and found.manifest["world"] == "CartPole-v1"


def test_hoppers_expert_hops():
    pytest.importorskip("mujoco")
    control = dataclasses.replace(get_control("hopper"), horizon=300)
    found = {kind: play_mixture(control, kind=kind, episodes=2, seed=0).episodes for kind in ("random", "expert")}
    assert found["random"].returns.max() < 200 < 600 < found["expert"].returns.max()


def test_hoppers_expert_does_not_depend_on_who_is_beside():
    expert, seen = get_control("hopper").expert, np.random.default_rng(0).normal(size=(5, 11)).astype(np.float32)
    alone = np.concatenate([expert(seen[row : row + 1]) for row in range(5)])
    np.testing.assert_array_equal(expert(seen), alone)
    assert alone.shape == (5, 3) and alone.dtype == np.float32 and np.abs(alone).max() <= 1


def test_episodes_in_a_file(tmp_path):
    data = play_mixture(
        dataclasses.replace(CONTROLS["pendulum"], horizon=5), kind="medium", episodes=3, seed=0
    ).episodes
    save_episodes(data, tmp_path / "kept")
    found = load_episodes(tmp_path / "kept")
    assert found.digest == data.digest and found.action_dim == 1
    (tmp_path / "kept").write_bytes(b"torn")
    with pytest.raises(CorruptRecord):
        load_episodes(tmp_path / "kept")
    with pytest.raises(CorruptRecord):
        load_episodes(tmp_path / "none")
