"""Trajectory Transformer: bins, transitions as tokens, the cached continuation, the beam, and what planning adds."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import BatchMismatch, ConfigError, Incomplete, SampleInvalid
from evolvent.methods.trajectory_transformer import (
    TrajectoryTransformerConfig,
    load_planner,
    save_planner,
    trajectory_transformer,
)
from evolvent.models.sequence_bins import QuantileBins
from evolvent.models.trajectory_model import TrajectoryModel, TrajectoryShape, _sample_nucleus
from evolvent.offline.transitions import TransitionSource
from evolvent.rollout.arrays import play_arrays
from evolvent.rollout.imagined import ImaginedSteps, plan_by_beam
from evolvent.worlds.stitching import Stitching, StitchingEnv, compute_reachable, demonstrations
from tests.sequence_support import ragged


def test_bins_hold_equally_many():
    data = np.stack([np.random.default_rng(0).normal(size=1000) ** 3, np.repeat([0.0, 1.0], [999, 1])], 1)
    bins = QuantileBins.fit(data, bins=10)
    assert bins.counts == (10, 2), "a column with two values has two bins, however rare one is"
    index = bins.encode(data)
    assert set(np.bincount(index[:, 0]).tolist()) == {100}
    for bin_ in range(10):
        assert bins.middles[0][bin_] == pytest.approx(data[index[:, 0] == bin_, 0].mean())
    assert bins.decode(index)[:, 1].tolist() == data[:, 1].tolist()
    assert bins.encode([[-1e9, 5.0], [1e9, -5.0]]).tolist() == [[0, 1], [9, 0]]
    skewed = QuantileBins.fit(np.repeat([0.0, 1, 2, 3, 4], [96, 1, 1, 1, 1])[:, None], bins=4)
    assert len(skewed.borders[0]) + 1 == len(skewed.middles[0])
    with pytest.raises(SampleInvalid):
        bins.encode([[np.nan, 0.0]])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 11), min_size=1, max_size=40), st.integers(1, 8))
def test_no_bin_is_empty(values, most):
    data = np.array(values, float)[:, None]
    bins = QuantileBins.fit(data, bins=most)
    index = bins.encode(data)[:, 0]
    assert set(index.tolist()) == set(range(bins.counts[0])) and bins.counts[0] <= most
    for bin_ in range(bins.counts[0]):
        assert bins.middles[0][bin_] == pytest.approx(data[index == bin_].mean())


def test_transitions_by_hand():
    data = ragged(2, 1, observation=1, dim=1, terminated=[True, False])
    source = TransitionSource(data, context=3, bins=8, gamma=0.5, terminal=-100.0)
    tokens, seen, learned = source.windows_from(np.array([0, 2]))
    rows = source.bins.decode(tokens.view(2, 3, 5).numpy())
    r = data.reward
    expected = [
        [data.observation[0, 0], data.action[0, 0], r[0], r[1] - 100, 0],
        [data.observation[1, 0], data.action[1, 0], r[1] - 100, 0, 1],
    ]
    np.testing.assert_allclose(rows[0, :2], expected, rtol=1e-6)
    assert seen.view(2, 3, 5)[:, :, 0].tolist() == [[True] * 3, [False, True, True]]
    assert learned.view(2, 3, 5)[0].tolist() == [[True] * 5, [True] * 5, [True, False, False, False, False]]
    np.testing.assert_allclose(rows[1, 1, 4], 0.0), "cut is not ended"


def small(**changed) -> TrajectoryModel:
    torch.manual_seed(0)
    shape = {
        "counts": (4, 3, 5, 4, 3, 2),
        "observation": 2,
        "action": 1,
        "context": 3,
        "width": 16,
        "heads": 2,
        "layers": 2,
        "dropout": 0.0,
    }
    model = TrajectoryModel(TrajectoryShape(**{**shape, **changed})).eval()
    torch.nn.init.normal_(model.heads)
    return model


def test_continuing_is_the_full_pass():
    model = small()
    tokens = torch.tensor([[3, 1, 4, 0, 2, 1, 0, 2], [0, 0, 1, 3, 0, 0, 2, 1]])
    found = model.continue_transition(tokens, torch.zeros(2, 1), top_p=1e-9)
    assert found.shape == (2, 14) and torch.equal(found[:, :8], tokens)
    logits = model(found[:, :-1])
    assert torch.equal(logits[:, 7:].argmax(-1), found[:, 8:]), "nothing kept but the likeliest: greedy everywhere"
    assert torch.isinf(logits[:, 0, 3:]).all(), "column 1 has three bins"
    padded = torch.cat([torch.zeros(2, 6, dtype=torch.long), tokens], 1)
    seen = torch.tensor([[False] * 6 + [True] * 8] * 2)
    torch.testing.assert_close(model(padded, attention_mask=seen)[:, 6:], model(tokens), atol=1e-5, rtol=1e-5)
    with pytest.raises(BatchMismatch, match="observation"):
        model.continue_transition(tokens[:, :7], torch.zeros(2, 1), top_p=0.5)
    with pytest.raises(BatchMismatch, match="context"):
        model(torch.zeros(1, 19, dtype=torch.long))
    with pytest.raises(ConfigError):
        small(counts=(4, 3, 5))


def test_draws_come_from_the_likeliest():
    logits = torch.log(torch.tensor([[0.1, 0.5, 0.4]]))
    draws = torch.linspace(0, 0.999, 901)
    kept = _sample_nucleus(logits.expand(901, -1), draws, 0.6)
    share = np.bincount(kept.numpy(), minlength=3) / 901
    np.testing.assert_allclose(share, [0, 5 / 9, 4 / 9], atol=0.01)
    assert set(_sample_nucleus(logits.expand(901, -1), draws, 0.4).tolist()) == {1}
    none = torch.log(torch.tensor([[0.1, 0.5, 0.4, 0.0]]))
    assert _sample_nucleus(none, torch.tensor([1 - 1e-9], dtype=torch.float64).float(), 0.6).tolist() == [2], (
        "rounded up to 1"
    )


def test_a_wide_beam_finds_the_best_plan():
    """A world of three steps and two actions, whose pay is a table; every plan is compared."""
    pay = np.random.default_rng(3).normal(size=(2,) * 3)

    def imagine(tokens, draws):
        action = (draws[:, :1] > 0.5).astype(np.int64)
        after = np.concatenate([tokens, action], 1)
        done = after.shape[1] == 4
        reward = np.array([pay[tuple(row[1:])] if done else 0.0 for row in after])
        return ImaginedSteps(after, action, reward, np.zeros(len(after)), np.full(len(after), done))

    best = max(itertools.product((0, 1), repeat=3), key=lambda path: pay[path])
    found = plan_by_beam(imagine, np.array([9]), columns=1, width=12, keep=64, horizon=5, gamma=0.5, seed=0)
    assert tuple(found.tokens[1:].tolist()) == best and found.first == best[:1]
    assert found.earned == pytest.approx(0.25 * pay[best]) and found.steps == 3


SMALL = {
    "context": 2,
    "gamma": 0.95,
    "width": 32,
    "heads": 1,
    "layers": 1,
    "dropout": 0.0,
    "train": {"max_steps": 150, "lr": 1e-2, "batch": 32, "warmup": 10, "weight_decay": 0.0, "grad_norm": 1.0},
    "planning": {"keep": 8, "horizon": 6, "width": 4, "memory": 1, "kept": 0.9},
}


def test_planning_puts_pieces_together(tmp_path):
    maze = Stitching()
    data = demonstrations(maze)
    policy = trajectory_transformer(TrajectoryTransformerConfig(**SMALL), data)
    found = play_arrays(policy.build_actor(), lambda: StitchingEnv(maze), episodes=1, horizon=12, num_actions=4, seed=0)
    limit = compute_reachable(maze, data)
    assert found.returns[0] == limit.stitched > limit.conditioned
    save_planner(policy, tmp_path)
    again = play_arrays(
        load_planner(tmp_path).build_actor(), lambda: StitchingEnv(maze), episodes=1, horizon=12, num_actions=4, seed=0
    )
    assert again.digest == found.digest
    path = tmp_path / "sequence.json"
    told = json.loads(path.read_text())
    for extra in ({"borders": []}, {"planning": {"memory": 2}}, {"planning": {"keep": "all"}}, {"gamma": None}):
        path.write_text(json.dumps({**told, "extra": {**told["extra"], **extra}}))
        with pytest.raises(Incomplete):
            load_planner(tmp_path)


def test_choices_do_not_share_bins():
    with pytest.raises(ConfigError, match="the number of bins is too small for the actions"):
        trajectory_transformer(TrajectoryTransformerConfig(bins=3), demonstrations(Stitching()))


def test_memory_must_fit_the_context():
    with pytest.raises(ConfigError, match="memory"):
        TrajectoryTransformerConfig(context=4, planning={"memory": 4})


def test_plans_of_neighbouring_episodes_draw_apart(monkeypatch):
    """What an episode draws at a step is not what another one draws at the next."""
    from evolvent.offline.windows import History
    from evolvent.rollout import imagined

    seeds = []

    def noted(*args, seed, **more):
        seeds.append(seed)
        return plan_by_beam(*args, seed=seed, **more)

    monkeypatch.setattr(imagined, "plan_by_beam", noted)
    data = ragged(4, 3, observation=2, dim=1)
    policy = trajectory_transformer(
        TrajectoryTransformerConfig(
            context=2,
            bins=3,
            width=8,
            heads=2,
            layers=1,
            train={"max_steps": 1, "batch": 2},
            planning={"keep": 1, "horizon": 1, "memory": 1},
        ),
        data,
    )
    for step in range(3):
        policy.build_actor()(
            History(
                observation=np.zeros((2, step + 1, 2), np.float32),
                seed=np.array([5, 6]),
                action=np.zeros((2, step, 1), np.float32),
                reward=np.zeros((2, step)),
            )
        )
    assert len(set(seeds)) == 6
