"""Foreign environments as rows: what they say, what they get, and everything that may go wrong inside one of them."""

from __future__ import annotations

import numpy as np
import pytest

from evolvent.errors import (
    BatchMismatch,
    ConfigError,
    EnvLost,
    NoLegalAction,
    NonFinite,
    SessionGone,
    WorldError,
)
from evolvent.trajectory import Task
from evolvent.worlds.teams.base import Continuous, Discrete, Multi
from evolvent.worlds.teams.parallel import ParallelRow
from evolvent.worlds.teams.rows import LocalRows, RowTeam, episode_seed
from tests.team_support import Box, Counting, Discrete_, actions_for, equal_episodes, make_counting, played, same


def task(horizon=10, row=None, **env) -> Task:
    return Task("counting", "1", {"env": env, "horizon": horizon, "row": row or {}})


def team(size=3, horizon=10, row=None, **env) -> RowTeam:
    one = task(horizon, row, **env)
    return RowTeam(make_counting(one).spec, [one], size, host=LocalRows(make_counting))


def idle(batch) -> np.ndarray:
    return actions_for(batch._view, batch.spec) * 0 + (1 if batch._view.available is not None else 0)


# --- one environment


def test_a_row_in_arrays():
    row = ParallelRow(env := Counting(agents=2, ends=3), horizon=5, success="won", identity=True)
    assert row.spec.actions == Discrete(3) and row.spec.observation == 6 and row.spec.horizon == 5
    begun = row.begin(100)
    assert begun.observation.tolist() == [[3, 0, 0, 0, 1, 0], [3, 0, 0, 1, 0, 1]] and begun.alive.all()
    step = row.step(np.array([2, 0]))
    assert env.told[-1] == {"a0": 3, "a1": 1}, "this space begins at 1"
    assert step.reward == 1.5 and not step.terminated and step.success is False
    row.step(np.array([0, 0]))
    last = row.step(np.array([0, 0]))
    assert last.terminated and not last.truncated and last.success is True
    row.close()
    assert env.closed == 1


def test_rewards_are_shared():
    for share, expected in (("mean", 1.5), ("sum", 3.0)):
        row = ParallelRow(Counting(), horizon=5, share=share)
        row.begin(0)
        assert row.step(np.array([0, 0])).reward == expected


def test_boxes_are_scaled_and_the_disabled_stay_in_the_middle():
    row = ParallelRow(env := Counting(discrete=False), horizon=5, disabled=[1])
    assert row.spec.actions == Continuous(2)
    row.begin(0)
    row.step(np.array([[-1.0, 1.0], [1.0, 1.0]]))
    assert env.told[-1]["a0"].tolist() == [-2.0, 6.0] and env.told[-1]["a1"].tolist() == [2.0, 2.0]
    with pytest.raises(ConfigError, match=r"disabled agents out of range: got \[2\]"):
        ParallelRow(Counting(), horizon=5, disabled=[0, 2])


def test_uneven_spaces_are_padded():
    env = Counting(agents=2)
    spaces = {"a0": Discrete_(2), "a1": Discrete_(4)}
    sizes = {"a0": 4, "a1": 6}
    env.action_space = spaces.get
    env.observation_space = lambda name: Box(-1, 1, (sizes[name],))
    inner = env._observations
    env._observations = lambda names, actions=None: {
        name: np.concatenate([seen, np.full(sizes[name] - 4, 7, np.float32)]) for name, seen in inner(names).items()
    }
    row = ParallelRow(env, horizon=5)
    begun = row.begin(1)
    assert row.spec.actions == Discrete(4) and row.spec.observation == 6
    assert begun.available.tolist() == [[True, True, False, False], [True] * 4]
    assert begun.observation.tolist() == [[1, 0, 0, 0, 0, 0], [1, 0, 0, 1, 7, 7]]


def test_masks_in_infos_and_in_observations():
    row = ParallelRow(Counting(what="mask", at=99), horizon=5, masked=True)
    assert row.begin(0).available.tolist() == [[True] * 3] * 2, "nothing is said at the beginning"
    assert row.step(np.array([1, 1])).available.tolist() == [[False, True, True]] * 2
    env = Counting()
    inner = env._observations
    env._observations = lambda names, actions=None: {
        name: {"observation": seen, "action_mask": np.array([1, 0, 1], np.int8)} for name, seen in inner(names).items()
    }
    space = type("Dict", (), {"spaces": {"observation": 0, "action_mask": 0}, "__getitem__": lambda s, k: env._seen})()
    env.observation_space = lambda name: space
    assert ParallelRow(env, horizon=5).begin(0).available.tolist() == [[True, False, True]] * 2


def test_agents_that_die():
    row = ParallelRow(env := Counting(agents=3, what="die", at=2), horizon=9)
    row.begin(0)
    assert row.step(np.array([0, 0, 0])).alive.all()
    after = row.step(np.array([0, 0, 0]))
    assert after.alive.tolist() == [False, True, True] and not after.observation[0].any() and not after.terminated
    row.step(np.array([0, 1, 1]))
    assert set(env.told[-1]) == {"a1", "a2"}
    assert row.begin(0).alive.all(), "the next episode has everybody"


def test_a_cut_shows_its_end_and_an_end_does_not():
    row = ParallelRow(Counting(ends=1, cut=True), horizon=9)
    row.begin(0)
    cut = row.step(np.array([0, 0]))
    assert cut.truncated and not cut.terminated and cut.alive.all() and cut.observation[0, 1] == 1
    row = ParallelRow(Counting(ends=1), horizon=9)
    row.begin(0)
    over = row.step(np.array([0, 0]))
    assert over.terminated and not over.truncated and not over.alive.any()


def test_who_dies_as_the_others_are_cut_is_dead_at_the_cut():
    row = ParallelRow(Counting(ends=1, cut=True, what="die", at=1), horizon=9)
    row.begin(0)
    cut = row.step(np.array([0, 0]))
    assert cut.truncated and cut.alive.tolist() == [False, True]
    assert not cut.observation[0].any() and cut.observation[1, 1] == 1


FAULTS = {
    "nan": (NonFinite, r"an observation is not finite \(.*agent 0"),
    "reward": (NonFinite, "a reward of the team is not finite"),
    "mask": (NoLegalAction, r"an agent has no available action \("),
    "stranger": (WorldError, r"unannounced agents: got \['a9'\]"),
    "raise": (EnvLost, "failed at a step: RuntimeError: broken inside"),
}


@pytest.mark.parametrize("what", sorted(FAULTS))
def test_each_fault_has_a_sentence_of_its_own(what):
    kind, sentence = FAULTS[what]
    row = ParallelRow(Counting(what=what, at=2), horizon=9, masked=what == "mask")
    row.begin(0)
    row.step(np.array([1, 1]))
    with pytest.raises(kind, match=sentence):
        row.step(np.array([1, 1]))


def test_nobody_comes_back():
    env = Counting(agents=2, what="die", at=1)
    row = ParallelRow(env, horizon=9)
    row.begin(0)
    row.step(np.array([0, 0]))
    env.what, env.at = "revive", 2
    with pytest.raises(WorldError, match=r"agents returned after their end: got \['a0'\]"):
        row.step(np.array([0, 0]))


def test_an_observation_of_another_length():
    env = Counting()
    row = ParallelRow(env, horizon=9)
    env._observations = lambda names, actions=None: {name: np.zeros(5, np.float32) for name in names}
    with pytest.raises(BatchMismatch, match="wrong observation size of agent"):
        row.begin(0)


def test_answers_that_make_no_sense():
    for answer, sentence in (
        (lambda agents: ({}, dict.fromkeys(agents, 0.0), {}, {}, {}), "an active agent has no observation"),
        (lambda agents: ({}, {}), "failed at a step: ValueError"),
        (lambda agents: ({}, dict.fromkeys(agents, "much"), {}, {}, {}), "failed at a step: ValueError"),
    ):
        env = Counting()
        row = ParallelRow(env, horizon=9)
        row.begin(0)
        env.step = lambda actions, answer=answer, env=env: answer(env.agents)
        with pytest.raises(WorldError, match=sentence):
            row.step(np.array([0, 0]))


def test_spaces_that_are_no_team():
    env = Counting()
    env.action_space = {"a0": Discrete_(2), "a1": Box(-1, 1, (1,))}.get
    with pytest.raises(ConfigError, match=r"\['Box', 'Discrete'\]"):
        ParallelRow(env, horizon=9)
    env = Counting()
    env.observation_space = lambda name: Discrete_(3)
    with pytest.raises(ConfigError, match="unsupported observation space of a team"):
        ParallelRow(env, horizon=9)


def test_several_choices_at_once():
    env = Counting()
    parts = type("MultiDiscrete", (), {"nvec": np.array([2, 3]), "dtype": np.dtype(np.int32)})()
    env.action_space = lambda name: parts
    row = ParallelRow(env, horizon=9)
    assert row.spec.actions == Multi((2, 3))
    row.begin(0)
    row.step(np.array([[1, 2], [0, 0]]))
    assert env.told[-1]["a0"].tolist() == [1, 2] and env.told[-1]["a0"].dtype == np.int32


# --- many rows


def test_side_by_side_is_one_at_a_time():
    together = played(team(4, ends=5), np.arange(4), 14)
    assert len(together) == 8
    alone = team(1, ends=5)
    assert all(equal_episodes(episode, played(alone, [number], 5)[number]) for number, episode in together.items())


def test_the_horizon_cuts():
    batch = team(2, horizon=4, ends=9)
    batch.reset([0, 1])
    results = [batch.step(idle(batch)) for _ in range(4)]
    assert [r.truncated.tolist() for r in results] == [[False] * 2] * 3 + [[True] * 2]
    assert results[3].final.observation[:, 0, 1].tolist() == [4, 4] and results[3].final.time.tolist() == [4, 4]
    assert results[3].view.number.tolist() == [2, 3] and results[3].view.observation[:, 0, 1].tolist() == [0, 0]


@pytest.mark.parametrize("what", ["nan", "reward", "raise", "stranger"])
def test_a_fault_costs_its_row_an_episode_and_nobody_else(what):
    number = next(n for n in range(9) if episode_seed(task(what=what, only=0), n) % 2 == 0)
    batch, good = team(9, what=what, only=0), team(9)
    view, calm = batch.reset(np.arange(9)), good.reset(np.arange(9))
    bad = [n for n in range(9) if episode_seed(batch.tasks[0], n) % 2 == 0]
    assert 0 < len(bad) < 9 and number in bad
    for step in range(3):
        result = batch.step(idle(batch))
        good.step(idle(good))
        assert not result.errors or step == 2
    assert sorted(result.errors) == bad == result.ended.tolist()
    assert {error.at_step for error in result.errors.values()} == {2} and result.final.time.tolist() == [3] * len(bad)
    assert not (result.terminated | result.truncated)[bad].any() and not result.reward[bad].any()
    fine = np.setdiff1d(np.arange(9), bad)
    assert (result.view.number[bad] == np.array(bad) + 9).all() and (result.view.number[fine] == fine).all()
    assert (result.reward[fine] == 1.5).all() and (result.view.observation[fine, 0, 1] == 3).all()
    del view, calm


def test_what_has_failed_is_made_anew():
    made = []

    def make(task):
        made.append(make_counting(task))
        return made[-1]

    batch = RowTeam(make_counting(task()).spec, [task(what="raise", at=2)], 1, host=LocalRows(make))
    batch.reset([0])
    assert [bool(batch.step(idle(batch)).errors) for _ in range(4)] == [False, True, False, True]
    assert len(made) == 3
    good = RowTeam(make_counting(task()).spec, [task(ends=2)], 1, host=LocalRows(make))
    good.reset([0])
    for _ in range(4):
        good.step(idle(good))
    assert len(made) == 4, "one that works is kept"


def test_what_has_failed_is_closed():
    made = []

    def make(task):
        made.append(Counting(**dict(task.spec)["env"]))
        return ParallelRow(made[-1], horizon=10)

    batch = RowTeam(make_counting(task()).spec, [task(what="raise", at=2)], 1, host=LocalRows(make))
    batch.reset([0])
    for _ in range(4):
        batch.step(idle(batch))
    assert [env.closed for env in made] == [1, 1, 0], "the third goes on"
    batch.close()
    assert [env.closed for env in made] == [1, 1, 1]


def test_one_that_cannot_be_closed_either_costs_no_more():
    class Stuck(Counting):
        def close(self):
            raise RuntimeError("still busy")

    rows = LocalRows(lambda task: ParallelRow(Stuck(what="reset", at=0), horizon=10))
    for _ in range(2):
        assert rows.begin({0: (task(), 1)})[0].message.endswith("RuntimeError: no beginning")


def test_a_task_of_another_team_is_refused():
    batch = RowTeam(make_counting(task(agents=3)).spec, [task(agents=2)], 1, host=LocalRows(make_counting))
    with pytest.raises(ConfigError, match=r"the team of the task has the wrong shape: got \(2, 4\), expected \(3, 4\)"):
        batch.reset([0])


def test_three_beginnings_that_fail():
    batch = team(2, what="reset", at=0)
    with pytest.raises(EnvLost, match=r"consecutive episodes did not begin.*no beginning"):
        batch.reset([0, 1])


def test_a_beginning_that_fails_is_passed_over():
    batch = team(4, what="reset", at=0, only=0)
    seeds = [episode_seed(batch.tasks[0], n) % 2 for n in range(12)]
    view = batch.reset([0, 1, 2, 3])
    for row, number in enumerate(view.number.tolist()):
        assert number == next(n for n in range(row, 12, 4) if seeds[n] == 1)


def test_a_snapshot_is_played_again():
    batch = team(3, ends=5)
    view = batch.reset([2, 0, 1])
    for _ in range(7):
        view = batch.step(actions_for(view, batch.spec)).view
    kept = batch.snapshot()
    other = team(3, ends=5)
    assert same(other.restore(kept), view)
    actions = actions_for(view, batch.spec)
    assert same(other.step(actions).view, batch.step(actions).view)
    with pytest.raises(BatchMismatch, match="another batch"):
        team(2).restore(kept)
    wrong = {**kept, "observation": kept["observation"] + 1}
    with pytest.raises(WorldError, match=r"an environment is not deterministic: got rows \[0, 1, 2\]"):
        team(3, ends=5).restore(wrong)


def test_before_the_beginning():
    with pytest.raises(SessionGone):
        team().step(np.zeros((3, 2), int))
    with pytest.raises(SessionGone):
        team().snapshot()
    with pytest.raises(ConfigError, match=r"tasks: got none(\n|.)*size"):
        RowTeam(team().spec, [], 0, host=LocalRows(make_counting))


def test_teams_of_two_sizes_do_not_mix():
    two, three = task(), task(agents=3)
    batch = RowTeam(make_counting(two).spec, [two, three], 2, host=LocalRows(make_counting))
    with pytest.raises(ConfigError, match="the team of the task has the wrong shape"):
        batch.reset([0, 1])
