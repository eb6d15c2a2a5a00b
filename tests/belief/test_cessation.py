"""Cessation: what it changes and what it leaves, one episode and many; what learners rely on when an episode ends."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("stable_baselines3")

from stable_baselines3.common.env_checker import check_env  # noqa: E402
from stable_baselines3.common.vec_env import VecEnv  # noqa: E402

from evolvent.belief.cessation import Cessation, PlumeSearchEnv, action_space, actions_to_moves  # noqa: E402
from evolvent.belief.planners import choose_candidate  # noqa: E402
from evolvent.belief.seeking import DetectorHistory, SourceSearch, StopReward  # noqa: E402
from evolvent.belief.stopping import Patience, StdBelow, StopDecision  # noqa: E402
from evolvent.belief.vector import SourceSearchVec  # noqa: E402
from evolvent.errors import BatchMismatch, ConfigError, SessionGone, WorldError  # noqa: E402
from evolvent.worlds.plume.presets import get_preset  # noqa: E402
from evolvent.worlds.plume.world import PlumeWorld  # noqa: E402

NEVER, WIDE = StdBelow(1e-9), StdBelow(5.0)


def world(horizon=40, moves="four"):
    return PlumeWorld(replace(get_preset("plume/25"), moves=moves), horizon=horizon)


def made(here, detector, **options):
    inner = PlumeSearchEnv(here, here.tasks("train", "seen")[:5], particles=60)
    return Cessation(inner, inner.belief, detector, right=inner.is_right, **options)


def walked(env, actions, seed=3):
    rows = [env.reset(seed=seed)[0]]
    for action in actions:
        rows.append(env.step(action))
        if rows[-1][2] or rows[-1][3]:
            break
    return rows


WALK = [int(a) for a in np.random.default_rng(0).choice([0, 2], 40)]


def test_a_detector_that_never_fires_leaves_the_inner_environment():
    inner = PlumeSearchEnv(world(), world().tasks("train", "seen")[:5], particles=60)
    plain, ours = walked(inner, WALK), walked(made(world(), NEVER), WALK)
    assert len(plain) == len(ours) == 41
    np.testing.assert_array_equal(plain[0], ours[0])
    for (a, paid, ended, over, _), (b, paid_too, ended_too, over_too, told) in zip(plain[1:], ours[1:], strict=True):
        np.testing.assert_array_equal(a, b)
        assert (paid, ended, over) == (paid_too, ended_too, over_too) and told["ceased"] is False
    assert ours[-1][3] and not ours[-1][2], "time ran out: truncated, not terminated"


def test_ceasing_ends_and_pays_at_the_first_stop():
    free, ceased = walked(made(world(), NEVER), WALK), walked(made(world(), WIDE), WALK)
    scores = [row[4]["stop_score"] for row in free[1:]]
    first = next(i for i, score in enumerate(scores) if score < 5.0)
    assert 0 < first < 39, "the walk has to decide something"
    assert len(ceased) == first + 2
    assert [row[1] for row in ceased[1:]] == [-1.0] * first + [100.0]
    assert ceased[-1][2] and not ceased[-1][3]
    assert ceased[-1][4]["ceased"] and ceased[-1][4]["stop_score"] == scores[first]


def test_a_wrong_stop_is_paid_by_belief_and_not_by_truth():
    always = StdBelow(1e9)  # stops at the first look, where nobody can be right
    for paid_for, expected in (("belief", 100.0), ("truth", -1.0)):
        last = walked(made(world(), always, paid_for=paid_for), WALK)[-1]
        assert last[2] and not last[4]["right"] and last[1] == expected


def test_the_last_step_is_a_stop_or_the_end_of_time_and_never_both():
    at = len(walked(made(world(), WIDE), WALK)) - 1
    exact = walked(made(world(horizon=at), WIDE), WALK)[-1]
    assert exact[2] and not exact[3], "sure at the very end: terminated"
    batch = vector(world(horizon=at), WIDE, 2)
    batch.reset()
    both = [batch.step(np.zeros(2, np.int64)) for _ in range(at)]
    for _, _, done, infos in both:
        for over, info in zip(done, infos, strict=True):
            assert ("TimeLimit.truncated" in info) == bool(over)


class Counter(gymnasium.Env):
    """An inner environment with a goal of its own: counts to three."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,))
    action_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.full(1, self.count, np.float32), 7.0, self.count == 3, False, {}


@pytest.mark.parametrize(("cost", "expected"), [(-1.0, [-1.0, -1.0, 7.0]), (None, [7.0, 7.0, 7.0])])
def test_an_inner_goal_pays_for_itself(cost, expected):
    search = PlumeSearchEnv(world(), world().tasks("train", "seen")[:1], particles=20)
    search.reset(seed=0)
    env = Cessation(Counter(), search.belief, StdBelow(1e9) if cost is None else NEVER, step_cost=cost)
    env.reset()
    rows = [env.step(0)]
    if cost is None:  # ceases at once, and is paid for that
        assert rows[0][1:4] == (100.0, True, False)
        return
    rows += [env.step(0), env.step(0)]
    assert [row[1] for row in rows] == expected and rows[-1][2] and not rows[-1][4]["ceased"]


def test_check_env_of_stable_baselines3():
    for moves in ("four", "heading"):
        check_env(made(world(moves=moves), StdBelow(1.0)), warn=True)


def test_a_lookout_forgets_episodes_that_begin_anew():
    lookout, search = DetectorHistory(Patience(WIDE, 2), 10), SourceSearch(world().batch(2), particles=50)
    tasks = world().tasks("train", "seen")
    search.begin([0, 1], tasks[:2], [0, 0])
    sure = replace(search.summary, std=np.ones((2, 8)))
    assert lookout.decide(sure).stop.tolist() == [False, False]
    lookout.forget(np.array([True, False]))
    again = lookout.decide(sure)
    assert isinstance(again, StopDecision) and again.stop.tolist() == [False, True]
    assert lookout.decide(sure).stop.tolist() == [True, True]


# ---------------------------------------------------------------- many at once


def vector(here, detector, size, **options):
    search = SourceSearch(here.batch(size), particles=60)
    return SourceSearchVec(search, here.tasks("train", "seen")[:5], detector=detector, **options)


def run(env, steps):
    rng, rows = np.random.default_rng(5), []
    env.reset()
    for _ in range(steps):
        rows.append(env.step(rng.choice([0, 2], 4)[: env.num_envs]))
    return rows


def test_what_learners_rely_on():
    env = vector(world(horizon=12), WIDE, 4)
    assert isinstance(env, VecEnv)
    rows = run(env, 40)
    stops = ends = 0
    for seen, paid, done, infos in rows:
        assert seen.shape == (4, 13) and seen.dtype == paid.dtype == np.float32
        for i in np.flatnonzero(done):
            info = infos[i]
            assert info["terminal_observation"][12] > 0.0 == seen[i][12], "returned is the next episode's beginning"
            assert info["TimeLimit.truncated"] == (paid[i] == -1.0)
            assert info["terminal_observation"][12] == pytest.approx(info["episode"]["l"] / 12)
            assert info["episode"]["r"] == (-12 if info["TimeLimit.truncated"] else 101 - info["episode"]["l"])
            stops, ends = stops + (paid[i] == 100.0), ends + info["TimeLimit.truncated"]
        assert all("terminal_observation" not in infos[i] for i in np.flatnonzero(~done))
    assert stops and ends and len(env.finished) == stops + ends
    assert [one.total_steps for one in env.finished] == sorted(one.total_steps for one in env.finished)


def test_rows_do_not_know_of_each_other():
    many = vector(world(horizon=12), WIDE, 4)
    one = SourceSearchVec(
        SourceSearch(world(horizon=12).batch(1), particles=60), world().tasks("train", "seen")[:5], detector=WIDE
    )
    rng = np.random.default_rng(5)
    np.testing.assert_allclose(many.reset()[0], one.reset()[0], atol=1e-5)
    for _ in range(40):
        actions = rng.choice([0, 2], 4)
        a, b = many.step(actions), one.step(actions[:1])
        np.testing.assert_allclose(a[0][0], b[0][0], atol=1e-4)
        assert (a[1][0], a[2][0]) == (b[1][0], b[2][0])


def test_the_batch_is_the_environment():
    here = world(horizon=25)
    env, batch = made(here, WIDE), vector(here, WIDE, 3)
    batch.reset()
    task = next(task for task in here.tasks("train", "seen") if task.id == batch._names[1])
    batch.search.begin([1], [task], [77])
    a = env.reset(options={"task": task, "seed": 77})[0]
    np.testing.assert_allclose(a, batch.search.observe()[1], atol=1e-5)
    for action in WALK:
        seen, paid, ended, over, told = env.step(action)
        rows, rewards, done, infos = batch.step(np.full(3, action))
        here_now = infos[1]["terminal_observation"] if done[1] else rows[1]
        np.testing.assert_allclose(seen, here_now, atol=1e-4)
        assert paid == rewards[1] and (ended or over) == done[1]
        assert told["stop_score"] == pytest.approx(infos[1]["stop_score"], rel=1e-4)
        if done[1]:
            assert infos[1]["TimeLimit.truncated"] == over
            break
    else:
        pytest.fail("the episode has to end")


def test_without_a_detector_nothing_ends_early_and_nothing_is_paid():
    for _, paid, done, infos in (rows := run(vector(world(horizon=10), None, 3, scale=0.01), 20)):
        assert paid.tolist() == pytest.approx([-0.01] * 3)
        assert all(info["TimeLimit.truncated"] for info, over in zip(infos, done, strict=True) if over)
    assert [i for i, row in enumerate(rows) if row[2].any()] == [9, 19]


def test_no_global_generator_is_touched():
    before = (random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state())
    run(vector(world(horizon=12), WIDE, 2), 20)
    assert random.getstate() == before[0] and (np.random.get_state()[1] == before[1]).all()
    assert torch.equal(torch.get_rng_state(), before[2])


# ---------------------------------------------------------------- moves and mistakes


def test_directions_are_headings():
    preset = replace(get_preset("plume/25"), moves="heading")
    found = actions_to_moves(preset, np.array([[1, 0], [0, 0.5], [-1, 0], [0.3, -0.3]], np.float32))
    np.testing.assert_allclose(found, [0, np.pi / 2, np.pi, -np.pi / 4], atol=1e-6)
    assert action_space(preset).shape == (2,)


def test_a_belief_goes_on_where_others_have_ended():
    here = world()
    both, alone = SourceSearch(here.batch(2), particles=80), SourceSearch(here.batch(1), particles=80)
    tasks = here.tasks("train", "seen")[:2]
    both.begin([1, 0], tasks[::-1], [4, 3])
    alone.begin([0], tasks[:1], [3])
    np.testing.assert_allclose(both.observe()[:1], alone.observe(), atol=1e-5)
    both.batch.end([1])
    before = both.summary.mean[1].copy()
    for action in WALK[:15]:
        moved = both.step(np.array([action, 0]))
        alone.step(np.array([action]))
        assert moved.was_running.tolist() == [True, False]
    np.testing.assert_allclose(both.observe()[:1], alone.observe(), atol=1e-4)
    np.testing.assert_array_equal(both.summary.mean[1], before)
    places, inside = both.batch.candidates()
    assert choose_candidate("go_to_mean", both.cloud, places, sensor=both.batch.sensor, allowed=inside).shape == (2,)


def test_mistakes():
    here = world()
    tasks = here.tasks("train", "seen")[:2]
    with pytest.raises(ConfigError, match="all 2 rows"):
        SourceSearch(here.batch(2)).begin([0], tasks[:1], [0])
    with pytest.raises(SessionGone, match="before any episode"):
        _ = SourceSearch(here.batch(2)).summary
    with pytest.raises(BatchMismatch):
        SourceSearch(here.batch(2)).begin([0, 1], tasks, [0])
    with pytest.raises(ConfigError, match="particles"):
        SourceSearch(here.batch(2), particles=0)
    with pytest.raises(ConfigError) as all_of_them:
        StopReward(reward=np.inf, cost=1.0, paid_for="hope")  # type: ignore[arg-type]
    assert len(all_of_them.value.problems) == 3
    inner = PlumeSearchEnv(here, tasks, particles=20)
    with pytest.raises(ConfigError, match="the setting paid_for='truth' needs the function `right`"):
        Cessation(inner, inner.belief, NEVER, paid_for="truth")
    with pytest.raises(ConfigError, match="one task or more"):
        PlumeSearchEnv(here, [])
    with pytest.raises(ConfigError, match="scale"):
        vector(here, NEVER, 2, scale=0.0)
    env = vector(here, NEVER, 2)
    env.reset()
    seen = env.search.observe()
    with pytest.raises(WorldError, match="unknown move"):
        env.step(np.array([0, 9]))
    np.testing.assert_array_equal(env.search.observe(), seen)
    assert env.env_is_wrapped(gymnasium.Wrapper) == [False, False]
    for wrong in (lambda: env.set_attr("x", 1), lambda: env.env_method("render")):
        with pytest.raises(ConfigError, match=r"do not have separate (attributes|methods)"):
            wrong()
