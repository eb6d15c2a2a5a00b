"""One policy for a text world, a world of choices and one of numbers, beside policies of one task each."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from evolvent.errors import BatchMismatch, ConfigError, Incomplete, SampleInvalid
from evolvent.methods.gato import GatoConfig, build_array_task, build_text_task, gato, load_generalist, save_generalist
from evolvent.models.gato import RETURNS
from evolvent.models.gato_model import GatoModel, GatoShape
from evolvent.rollout.arrays import play_arrays
from evolvent.store.episodes import Episodes
from evolvent.worlds.stitching import Stitching, StitchingEnv, demonstrations
from tests.sequence_support import Chain, chain_episodes

SMALL = {
    "width": 32,
    "heads": 2,
    "layers": 1,
    "context": 2,
    "train": {"max_steps": 150, "lr": 1e-2, "batch": 32, "warmup": 10, "grad_norm": 1.0},
}
LESSONS = [[("see a", "say b"), ("see b", "say c")], [("see c", "go"), ("see a", "say b")]]


def test_a_return_is_predicted_before_the_action_and_a_high_one_preferred(tmp_path):
    """All four paths of the chain teach, each as often. Preferred returns act as the best path, others as the data."""
    task = build_array_task(chain_episodes(), return_bins=3)
    assert [int(step.tokens[-2]) - RETURNS for step in task.episodes[3]] == [2, 1]
    assert [step.learned.tolist()[-2:] for step in task.episodes[3]] == [[True, True]] * 2
    policy = gato(GatoConfig(**SMALL, returns=True), {"chain": task, "half": build_array_task(halves())})
    save_generalist(policy, tmp_path)
    loaded = load_generalist(tmp_path)
    assert loaded.return_bins == {"chain": 3} and loaded.expert_weight == 10.0
    best = play_arrays(loaded.build_actor("chain"), Chain, episodes=1, horizon=2, num_actions=2, seed=0)
    assert best.returns.tolist() == [2.0]
    worst = dataclasses.replace(loaded, expert_weight=-10.0).build_actor("chain")
    assert play_arrays(worst, Chain, episodes=1, horizon=2, num_actions=2, seed=0).returns.tolist() == [0.0]
    with pytest.raises(SampleInvalid, match="bin of a return out of range"):
        build_array_task(chain_episodes(), return_bins=500)


def halves() -> Episodes:
    """Half of what is seen is to be done."""
    seen = np.linspace(-1, 1, 41, dtype=np.float32)[:, None]
    return Episodes(
        observation=seen,
        final=seen,
        action=seen / 2,
        reward=np.zeros(41),
        lengths=np.ones(41, np.int64),
        terminated=np.ones(41, np.bool_),
        actions=0,
    )


class Half:
    """Pays how near the action is to half of what is seen."""

    def reset(self, *, seed=None, options=None):
        self.seen = np.random.default_rng(seed).uniform(-1, 1, 1).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        return self.seen, -abs(float(action[0]) - float(self.seen[0]) / 2), True, False, {}

    def close(self):
        pass


def test_one_policy_for_texts_choices_and_numbers(tmp_path):
    maze = Stitching()
    best = demonstrations(maze, include_best=True)
    best = best.select(np.flatnonzero((best.returns == 10) & (best.action[best.starts] == 2)))
    ones = chain_episodes()
    tasks = {
        "maze": build_array_task(best),
        "half": build_array_task(halves()),
        "talk": build_text_task(LESSONS),
        "chain": build_array_task(ones.select([3])),
    }
    found = gato(GatoConfig(**{**SMALL, "train": {**SMALL["train"], "max_steps": 250}}), tasks)
    assert (
        play_arrays(
            found.build_actor("maze"), lambda: StitchingEnv(maze), episodes=1, horizon=12, num_actions=4, seed=0
        ).returns
        == 10
    )
    assert play_arrays(found.build_actor("chain"), Chain, episodes=1, horizon=2, num_actions=2, seed=0).returns == 2
    near = play_arrays(found.build_actor("half"), Half, episodes=20, horizon=1, num_actions=0, dim=1, seed=0).returns
    assert near.mean() > -0.1
    for episode in LESSONS:
        for at, (seen, done) in enumerate(episode):
            assert found.reply("talk", episode[:at], seen) == done
    save_generalist(found, tmp_path)
    again = load_generalist(tmp_path)
    assert again.reply("talk", [], "see a") == "say b" and again.tasks == found.tasks
    assert again.model.shape == found.model.shape
    with pytest.raises(ConfigError):
        found.build_actor("talk")
    path = tmp_path / "sequence.json"
    told = json.loads(path.read_text())
    for extra in ({}, {"tasks": {"talk": ["song", 0]}, "context": 2}, {"tasks": {"talk": "text"}, "context": 2}):
        path.write_text(json.dumps({**told, "extra": extra}))
        with pytest.raises(Incomplete):
            load_generalist(tmp_path)
    with pytest.raises(ConfigError, match="maze"):
        found.build_actor("maz")
    assert isinstance(found.reply("talk", [], "a text unlike any: Zürich", max_bytes=4), str)


def test_what_is_learned_is_what_is_done():
    """Observed numbers are not foretold: changing what follows the last action changes no loss."""
    task = build_array_task(chain_episodes())
    step = task.episodes[0][0]
    assert step.learned.tolist() == [False, False, False, True]
    assert task.size == 2 and len(task.episodes) == 4 and dataclasses.astuple(task)[1] == "choice"
    for none in ({}, {"talk": build_text_task([])}, {"talk": build_text_task(LESSONS), "chain": build_text_task([[]])}):
        with pytest.raises(ConfigError, match="imitate"):
            gato(GatoConfig(**SMALL), none)


def test_the_model_reads_what_is_before():
    torch.manual_seed(0)
    model = GatoModel(GatoShape(vocabulary=(3, 5, 9, 32000, 32010), longest=4, width=16, heads=2, layers=1)).eval()
    assert model.rows(np.array([9, 3])).tolist() == [2, 0]
    with pytest.raises(SampleInvalid, match="not in the trained vocabulary"):
        model.rows(np.array([4]))
    assert model.nearest(np.array([9, 32003, 32900]), low=32000).tolist() == [9, 32000, 32010]
    tokens, place = np.array([[3, 5], [9, 9]]), np.array([[0, 1]] * 2)
    made = model.generate(tokens, place, allowed=np.array([5, 9]), max_tokens=2)
    assert made.shape == (2, 2) and set(made.ravel()) <= {5, 9}
    rows = torch.from_numpy(model.rows(tokens))
    one = model(rows, torch.from_numpy(place))[:, -1, 1:3].argmax(-1)
    assert made[:, 0].tolist() == [(5, 9)[int(at)] for at in one]
    padded = torch.cat([torch.zeros(2, 1, dtype=torch.long), rows], 1)
    seen, later = torch.tensor([[False, True, True]] * 2), torch.tensor([[0, 0, 1]] * 2)
    torch.testing.assert_close(model(padded, later, attention_mask=seen)[:, 1:], model(rows, torch.from_numpy(place)))


def test_observations_of_another_world_are_refused(tmp_path):
    config = GatoConfig(**{**SMALL, "train": {"max_steps": 1, "batch": 2}})
    save_generalist(
        gato(config, {"chain": build_array_task(chain_episodes()), "half": build_array_task(halves())}), tmp_path
    )
    policy = load_generalist(tmp_path)
    assert (
        play_arrays(policy.build_actor("half"), Half, episodes=1, horizon=1, num_actions=0, dim=1, seed=0).action_dim
        == 1
    )
    with pytest.raises(BatchMismatch, match="wrong observation size for task chain: got 1, expected 2"):
        play_arrays(policy.build_actor("chain"), Half, episodes=1, horizon=1, num_actions=2, seed=0)
