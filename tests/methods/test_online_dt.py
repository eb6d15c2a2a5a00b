"""Online Decision Transformer: its entropy stays at its floor, it does what is asked, it learns from its own play."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.methods.decision_transformer import load_conditioned, save_conditioned
from evolvent.methods.online_dt import OnlineDTConfig, online_dt
from evolvent.rollout.arrays import play_arrays
from evolvent.store.episodes import Episodes
from tests.sequence_support import Chain, chain_episodes, ragged

SMALL = {"context": 2, "acting": 2, "scale": 1.0, "width": 32, "heads": 1, "layers": 1, "dropout": 0.0}
TRAIN = {"max_steps": 400, "lr": 3e-3, "warmup": 10, "grad_norm": 1.0, "batch": 64}


def bandit(seed: int, *, low: float, high: float) -> Episodes:
    """One step; the action is its own reward; behaviour is even between low and high."""
    action = np.random.default_rng(seed).uniform(low, high, (200, 1)).astype(np.float32)
    ones = np.ones((200, 1), np.float32)
    return Episodes(
        observation=ones,
        final=ones,
        action=action,
        reward=action[:, 0].astype(np.float64),
        lengths=np.ones(200, np.int64),
        terminated=np.ones(200, np.bool_),
        actions=0,
    )


class Bandit:
    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(action[0]), True, False, {}

    def close(self):
        pass


def earned(policy, target: float, *, greedy: bool = True, episodes: int = 1) -> np.ndarray:
    return play_arrays(
        policy.build_actor(target, greedy=greedy), Bandit, episodes=episodes, horizon=1, num_actions=0, dim=1, seed=0
    ).returns


@pytest.mark.long
def test_the_entropy_stays_at_its_floor(tmp_path):
    """The data determine the action, so that likelihood alone would let the entropy fall for ever."""
    config = OnlineDTConfig(**SMALL, temperature_lr=0.01, train={**TRAIN, "max_steps": 700, "lr": 1e-3})
    found = online_dt(config, bandit(0, low=-0.8, high=0.8))
    assert np.mean(found.entropy[-200:]) == pytest.approx(-1.0, rel=0.05)
    assert min(found.entropy) < -1.05 or found.temperature != pytest.approx(0.1), "the bound was felt"
    for target in (-0.5, 0.0, 0.5):
        assert earned(found.policy, target)[0] == pytest.approx(target, abs=0.15)
    drawn = earned(found.policy, 0.0, greedy=False, episodes=50)
    assert 0.02 < drawn.std() < 0.4, "it explores"
    save_conditioned(found.policy, tmp_path)
    np.testing.assert_array_equal(earned(load_conditioned(tmp_path), 0.0, greedy=False, episodes=50), drawn)


def test_playing_teaches_beyond_the_data():
    data = bandit(1, low=-0.8, high=0.2)
    config = OnlineDTConfig(
        **SMALL,
        temperature_lr=0.05,
        target=0.9,
        explore=1.0,
        rounds=25,
        updates=12,
        replay=60,
        train={**TRAIN, "max_steps": 150},
    )

    def explore(actor, number):
        return play_arrays(actor, Bandit, episodes=4, horizon=1, num_actions=0, dim=1, seed=100 + number)

    found = online_dt(config, data, explore=explore)
    assert len(found.online_returns) == 100
    best = float(data.returns.max())
    assert earned(found.policy, 0.9)[0] > best + 0.2
    again = online_dt(config.model_copy(update={"rounds": 0}), data)
    assert np.mean(found.online_returns[-20:]) > best and again.online_returns == ()


def test_choices_keep_their_least_entropy_and_pay_what_is_asked_for():
    """In the chain the return decides both actions, so that likelihood alone would drive the entropy to 0."""
    settings = {**SMALL, "temperature_lr": 0.02, "entropy_floor": 0.3, "train": {**TRAIN, "max_steps": 250, "lr": 1e-2}}
    trained = online_dt(OnlineDTConfig(**settings), chain_episodes())
    assert np.mean(trained.entropy[-50:]) == pytest.approx(0.3, abs=0.06)
    for target in (0.0, 2.0):
        actor = trained.policy.build_actor(target)
        assert play_arrays(actor, Chain, episodes=1, horizon=2, num_actions=2, seed=0).returns.tolist() == [target]
    drawn = play_arrays(
        trained.policy.build_actor(2.0, greedy=False), Chain, episodes=200, horizon=2, num_actions=2, seed=0
    )
    assert 1.5 < drawn.returns.mean() < 2.0, "it explores"


def test_playing_choices_teaches_beyond_the_data():
    """Only one path pays 1 and none pays 2; asked for 2 it explores, and finds the path that pays it."""
    data = chain_episodes(copies=10)
    data = data.select(np.flatnonzero(data.returns < 2.0))
    config = OnlineDTConfig(
        **SMALL,
        temperature_lr=0.02,
        entropy_floor=0.4,
        target=2.0,
        explore=1.0,
        rounds=12,
        updates=15,
        replay=60,
        train={**TRAIN, "max_steps": 60, "lr": 1e-2},
    )

    def explore(actor, number):
        return play_arrays(actor, Chain, episodes=4, horizon=2, num_actions=2, seed=100 + number)

    trained = online_dt(config, data, explore=explore)
    assert data.returns.max() == 1.0 and np.mean(trained.online_returns[-16:]) > 1.3


def test_what_it_cannot_learn_from_is_refused():
    wild = ragged(2)
    wild.action[0, 0] = 1.5
    with pytest.raises(ConfigError, match="actions are out of range"):
        online_dt(OnlineDTConfig(**SMALL), wild)
    with pytest.raises(ConfigError, match="explore"):
        online_dt(OnlineDTConfig(**SMALL, rounds=1), ragged(3))


def test_the_worst_of_the_data_are_the_first_to_go(monkeypatch):
    """The replay begins with the best episodes, ascending; each new one takes the place of the worst (published)."""
    from evolvent.offline import windows

    seen = []
    began = windows.WindowSource.__init__

    def noted(self, episodes, **more):
        seen.append(episodes.returns.round(2).tolist())
        began(self, episodes, **more)

    monkeypatch.setattr(windows.WindowSource, "__init__", noted)
    data = bandit(0, low=-1, high=1).select(range(5))
    data = type(data)(
        **{**{name: getattr(data, name) for name in data.__slots__}, "reward": np.array([0.3, -0.5, 0.9, 0.1, 0.6])}
    )

    def explore(actor, number):
        return data.select([1])

    config = OnlineDTConfig(**SMALL, rounds=2, updates=1, replay=3, train={**TRAIN, "max_steps": 1, "batch": 2})
    online_dt(config, data, explore=explore)
    assert seen == [[0.3, 0.6, 0.9], [0.6, 0.9, -0.5], [0.9, -0.5, -0.5]]
