"""MAT as a method: it learns what needs an order, is taken up again, begins from teams of other sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from evolvent.config import resolve
from evolvent.errors import ConfigError, ShapeMismatch
from evolvent.marl.settings import TeamUpdateConfig
from evolvent.methods.mat import PRESETS, MATConfig, mat
from evolvent.models.team_files import save_team
from evolvent.rollout.teams import TeamCollector, play_episodes
from evolvent.trajectory import Task
from evolvent.worlds.teams.games import GameWorld
from evolvent.worlds.teams.parallel import ParallelRow
from evolvent.worlds.teams.rows import LocalRows, RowTeam
from tests.team_support import Counting

FAST = TeamUpdateConfig(lr=2e-3, ppo_epochs=5, minibatches=2, clip_range=0.2, entropy_coef=0.01)
SMALL = MATConfig(width=32, rows=64, steps=2, decisions=64 * 2 * 4, update=FAST.model_copy(update={"ppo_epochs": 1}))


def batch_of(game: str, agents: int, rows: int = 64, *, rounds: int = 1):
    world = GameWorld(game, rounds=rounds)
    return world.batch([world.task(agents)], rows)


def weights(trained) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trained.policy.model.parameters()])


def pay(trained, batch, episodes: int = 64) -> float:
    found = play_episodes(batch, trained.policy, episodes, first=10_000, greedy=False)
    return float(np.mean([trajectory.score.raw for trajectory in found]))


class Restless(Counting):
    """Does not repeat itself: what it shows counts the episodes of all of its kind."""

    begun = 0

    def reset(self, seed=None, options=None):
        Restless.begun += 1
        return super().reset(seed, options)

    def _observations(self, names, actions=None):
        return {name: own + Restless.begun for name, own in super()._observations(names, actions).items()}


def test_episodes_that_cannot_be_played_again_begin_anew(tmp_path):
    def batch():
        row = ParallelRow(Restless(ends=5), horizon=9)
        return RowTeam(
            row.spec,
            [Task("restless", "1", {}, "2 agents", "seen", "train")],
            2,
            host=LocalRows(lambda task: ParallelRow(Restless(ends=5), horizon=9)),
        )

    config = MATConfig(
        width=16,
        rows=2,
        steps=3,
        decisions=2 * 3 * 3,
        keep_every=1,
        update=TeamUpdateConfig(ppo_epochs=1, minibatches=1),
    )

    def stop(row):
        if row["decisions"] == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mat(config, batch(), folder=tmp_path, on_row=stop)
    assert [row["decisions"] for row in mat(config, batch(), folder=tmp_path).history] == [6, 12, 18]


@pytest.mark.long
def test_an_order_lets_agents_keep_apart():
    """Agents that see the same and decide at once can at best draw lots; one after the other they need not."""
    config = MATConfig(width=32, rows=64, steps=2, decisions=64 * 2 * 35, update=FAST)
    found = {}
    for kind in ("mat", "mappo"):
        batch = batch_of("distinct", 3)
        found[kind] = pay(mat(config.model_copy(update={"kind": kind}), batch), batch)
    assert found["mat"] > 0.9 > found["mappo"] + 0.15


@pytest.mark.parametrize("kind", ["mat", "happo"])
def test_taken_up_again_it_ends_the_same(tmp_path, kind):
    config = SMALL.model_copy(update={"kind": kind, "keep_every": 1, "steps": 3, "decisions": 64 * 3 * 4})
    whole = mat(config, batch_of("team", 3, rounds=4))
    seen: list[float] = []

    class Stopped(Exception):
        pass

    def stop(row):
        seen.append(row["decisions"])
        if len(seen) == 3:
            raise Stopped

    with pytest.raises(Stopped):
        mat(config, batch_of("team", 3, rounds=4), folder=tmp_path, on_row=stop)
    torch.manual_seed(7)
    again = mat(
        config, batch_of("team", 3, rounds=4), folder=tmp_path, on_row=lambda row: seen.append(row["decisions"])
    )
    assert seen == [192, 384, 576, 576, 768], "the third was stopped before it was kept"
    assert torch.equal(weights(whole), weights(again)) and whole.history == again.history
    assert mat(config, batch_of("team", 3, rounds=4), folder=tmp_path).history == whole.history
    with pytest.raises(ConfigError, match="other settings"):
        mat(config.model_copy(update={"seed": 5}), batch_of("team", 3, rounds=4), folder=tmp_path)


def test_a_training_is_made_longer(tmp_path):
    """One that was ended is gone on with to more decisions, and is then what it would have been at once."""
    whole = mat(SMALL, batch_of("team", 3))
    half = SMALL.model_copy(update={"decisions": 64 * 2 * 2})
    assert len(mat(half, batch_of("team", 3), folder=tmp_path).history) == 2
    longer = mat(SMALL.model_copy(update={"keep_every": 3}), batch_of("team", 3), folder=tmp_path)
    assert torch.equal(weights(whole), weights(longer)) and longer.history == whole.history
    shorter = mat(half, batch_of("team", 3), folder=tmp_path)
    assert shorter.history == whole.history, "what was learned stays learned"


def test_a_training_is_of_one_team(tmp_path):
    """The same tasks with other horizons, sizes or spaces are another world."""

    def batch(horizon):
        row = ParallelRow(Counting(ends=5), horizon=horizon)
        return RowTeam(
            row.spec,
            [Task("counting", "1", {}, "2 agents", "seen", "train")],
            2,
            host=LocalRows(lambda task: ParallelRow(Counting(ends=5), horizon=horizon)),
        )

    config = MATConfig(width=16, rows=2, steps=3, decisions=6, update=TeamUpdateConfig(ppo_epochs=1, minibatches=1))
    mat(config, batch(9), folder=tmp_path)
    with pytest.raises(ConfigError, match=r"other settings.*horizon=9.*horizon=7"):
        mat(config, batch(7), folder=tmp_path)


def test_a_batch_that_cannot_be_kept_goes_on_with_new_episodes(tmp_path):
    class Plain:
        """Only what a batch must have."""

        def __init__(self, inner):
            self.inner, self.spec, self.size, self.tasks = inner, inner.spec, inner.size, inner.tasks
            self.begun: list[int] = []

        def reset(self, seeds):
            self.begun.append(int(np.min(seeds)))
            return self.inner.reset(seeds)

        def step(self, actions):
            return self.inner.step(actions)

        def close(self):
            self.inner.close()

    mat(SMALL, Plain(batch_of("team", 3)), folder=tmp_path)
    assert (tmp_path / "training.safetensors").exists()
    other = Plain(batch_of("team", 3))
    assert len(mat(SMALL, other, folder=tmp_path).history) == 4
    assert other.begun == [64 * 2 * 4 + 64]


@pytest.mark.parametrize("kind", ["mat", "mat_dec", "mappo", "happo"])
@pytest.mark.parametrize("agents", [2, 6])
def test_it_begins_from_a_team_of_another_size(tmp_path, kind, agents):
    config = SMALL.model_copy(update={"kind": kind})
    trained = mat(config, batch_of("distinct", 3))
    save_team(trained.policy.model, tmp_path)
    given = batch_of("distinct", agents)
    again = mat(config.model_copy(update={"decisions": 1}), given, start=tmp_path)
    assert again.policy.spec.agents == agents and len(again.history) == 1
    if given.spec.observation == trained.policy.spec.observation and kind in ("mat", "mappo"):
        start, after = weights(trained), weights(again)
        fresh = weights(mat(config.model_copy(update={"decisions": 1}), given))
        assert (start - after).abs().mean() < (start - fresh).abs().mean()


def test_spaces_that_do_not_fit(tmp_path):
    save_team(mat(SMALL, batch_of("team", 3)).policy.model, tmp_path)
    with pytest.raises(ShapeMismatch, match="sizes"):
        mat(SMALL, batch_of("climbing", 2), start=tmp_path)
    with pytest.raises(ConfigError, match="wrong batch size"):
        mat(SMALL, batch_of("team", 3, rows=8))


def test_what_contradicts_itself():
    with pytest.raises(ConfigError) as error:
        MATConfig(heads=3, kind="mappo", update=TeamUpdateConfig(credit="part", minibatches=5000))
    assert len(error.value.problems) == 3


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name):
    config = resolve(MATConfig, preset=PRESETS[name])
    table = {
        "smac": (5e-4, 15, 0.05, 32),
        "mamujoco": (5e-5, 10, 0.05, 40),
        "football": (5e-4, 10, 0.05, 20),
        "hands": (5e-5, 5, 0.2, 80),
    }
    assert (config.update.lr, config.update.ppo_epochs, config.update.clip_range, config.rows) == table[name]


@pytest.mark.long
def test_credit_by_parts_learns_too():
    config = MATConfig(
        width=32, rows=64, steps=2, decisions=64 * 2 * 25, update=FAST.model_copy(update={"credit": "part"})
    )
    batch = batch_of("team", 3)
    assert pay(mat(config, batch), batch) > 4.5


def test_a_collected_rollout_is_what_a_policy_said():
    batch = batch_of("distinct", 3, rows=5, rounds=3)
    policy = mat(SMALL.model_copy(update={"rows": 5, "decisions": 1}), batch).policy
    rollout = TeamCollector(batch, seed=3).collect(policy, 4)
    assert rollout.truncated.any() or rollout.terminated.any()
    assert np.array_equal(rollout.time[:, 0], [0, 1, 2, 0])
