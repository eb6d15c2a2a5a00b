"""AgentEvol: what is kept, merged and weighed; the exact learner on an enumerable bandit; the null evolution."""

import numpy as np
import pytest

from evolvent.errors import ErrorRecord
from evolvent.methods.agentevol import (
    EMBEDDED,
    FORMULATED,
    PUBLISHED,
    AgentEvolConfig,
    LearningWeight,
    agentevol,
    evolve,
    merge_data,
    select_successes,
)
from evolvent.run import Evaluation
from evolvent.trajectory import Score, Step, Task, Trajectory


def tried(task: int, sample: int, unit: float | None, steps: int = 1) -> Trajectory:
    success = None if unit is None else unit > 0.99
    return Trajectory(
        f"{task}/{sample}",
        Task("toy", "1", {"n": task}),
        (Step("o", "a", unit),) * steps,
        sample=sample,
        score=Score(unit, unit, success),
        ended_by="error" if unit is None else "world",
        error=ErrorRecord("EnvLost", "gone") if unit is None else None,
    )


TRIED = [
    tried(1, 0, 0.0),
    tried(1, 1, 1.0, 3),
    tried(1, 2, 1.0, 2),
    tried(2, 0, None),
    tried(2, 1, 1.0),
    tried(3, 0, 0.5),
]


@pytest.mark.parametrize(
    ("how", "ids"),
    [("shortest", ["1/2", "2/1"]), ("first", ["1/1", "2/1"]), ("none", [])],
)
def test_keep(how, ids):
    assert [t.id for t in select_successes(TRIED, AgentEvolConfig(keep=how))] == ids


@pytest.mark.parametrize(
    ("how", "per_task", "ids"),
    [("first", None, ["1/1", "1/2", "2/1"]), ("shortest", 2, ["1/2", "1/1", "2/1"]), ("none", None, [])],
)
def test_keep_several_of_a_task(how, per_task, ids):
    assert [t.id for t in select_successes(TRIED, AgentEvolConfig(keep=how, per_task=per_task))] == ids


def test_a_world_may_have_its_own_threshold():
    lenient = AgentEvolConfig(thresholds={"toy": 0.0})
    assert [t.id for t in select_successes(TRIED, lenient)] == ["1/2", "2/1", "3/0"]
    assert select_successes(TRIED, AgentEvolConfig(thresholds={"other": 0.0})) == select_successes(
        TRIED, AgentEvolConfig()
    )


def test_an_unscored_episode_is_never_kept_and_a_threshold_decides():
    assert [t.id for t in select_successes(TRIED, AgentEvolConfig(threshold=0.4))] == ["1/2", "2/1", "3/0"]
    assert select_successes(TRIED, AgentEvolConfig(threshold=-1.0, keep="first", per_task=None)) == [
        t for t in TRIED if t.score.unit is not None
    ]


@pytest.mark.parametrize(
    ("merge", "ids"),
    [("base", ["d", "1/2"]), ("previous", ["1/1", "2/1"]), ("all", ["d", "1/1", "2/1"]), ("none", ["1/2"])],
)
def test_merge(merge, ids):
    demonstration = tried(9, 0, 1.0)
    object.__setattr__(demonstration, "id", "d")
    rounds = [[tried(1, 1, 1.0, 2), tried(2, 1, 1.0)], [tried(1, 2, 1.0, 2)]]
    assert [t.id for t in merge_data([demonstration], rounds, AgentEvolConfig(merge=merge))] == ids


def test_a_round_without_success_goes_on_with_the_demonstrations():
    demonstration = tried(9, 0, 1.0)
    assert merge_data([demonstration], [[]], AgentEvolConfig(merge="none")) == [demonstration]


def test_weights():
    half = tried(1, 0, 0.5)
    assert [LearningWeight(form, 0.5)(half) for form in ("threshold", "reward", "exponential")] == [
        1.0,
        0.5,
        pytest.approx(np.exp(-1)),
    ]
    assert LearningWeight("reward")(tried(1, 0, None)) == 1.0, "an imported demonstration has no reward"


def test_learning_from_exact_q_gives_r_times_pi():
    """On a bandit, the maximiser of E_pi[r log pi'] over all pi' is pi' proportional to r pi."""
    pi, reward = np.array([0.5, 0.3, 0.2]), np.array([0.2, 1.0, 0.5])
    weights = np.array([LearningWeight("reward")(tried(1, 0, r)) for r in reward])
    learned = pi * weights / (pi * weights).sum()
    others = np.random.default_rng(0).dirichlet(np.ones(3), 1000)
    value = (pi * weights) @ np.log(learned)
    assert np.all((pi * weights) @ np.log(others).T <= value + 1e-12)
    assert learned == pytest.approx(reward * pi / (reward * pi).sum())


class FakeRun:
    """Records what a method asks for; a policy is the list of what it learned."""

    def __init__(self, *rates):
        self.log, self.rates = [], rates

    def rounds(self, count):
        return iter(range(1, count + 1))

    def fit(self, policy, data, objective, *, weight=None, tokens=None, lr_scale=1.0):
        self.log.append(("fit", tokens, lr_scale))
        return [*policy, tuple(t.id for t in data)]

    def collect(self, policy, starts, *, temperature=1.0, horizon=None):
        self.log.append(("collect", len(starts), temperature, *([horizon] if horizon else [])))
        return [tried(s.task.spec["n"], s.sample, float(s.sample == 0)) for s in starts]

    def evaluate(self, policy, round=None, *, split=None):
        self.log.append(("evaluate", round, *([split] if split else [])))
        rate = self.rates[len(policy)] if split else 0.0
        return [Evaluation("toy", "seen", "dev", 1, 0, rate, 0.0, 1.0, 0, 0, 0, ())]


TASKS = [Task("toy", "1", {"n": n}) for n in (1, 2)]


def test_the_algorithm_asks_in_the_right_order_with_the_right_amounts():
    config = AgentEvolConfig(
        iterations=2, samples_per_task=3, clone_tokens=10, round_tokens=5, lr_scale=0.5, temperature=1.2
    )
    run = FakeRun()
    agentevol([], TASKS, [tried(9, 0, 1.0)], config=config, run=run)
    one = [("collect", 6, 1.2), ("fit", 5, 0.5)]
    assert run.log == [("fit", 10, 1.0), ("evaluate", 0), *one, ("evaluate", 1), *one, ("evaluate", 2)]


def test_a_cloning_in_several_fits_warms_up_anew_for_each_at_the_rate_of_a_round():
    config = AgentEvolConfig(iterations=0, clone_tokens=(10, 7), lr_scale=0.5)
    run = FakeRun()
    assert len(agentevol([], TASKS, [tried(9, 0, 1.0)], config=config, run=run)) == 2, (
        "the second goes on from the first"
    )
    assert run.log == [("fit", 10, 1.0), ("fit", 7, 0.5), ("evaluate", 0)]


@pytest.mark.parametrize(("start", "before"), [("initial", 0), ("base", 1), ("previous", 2)])
def test_where_a_round_starts_from(start, before):
    final = agentevol([], TASKS, [tried(9, 0, 1.0)], config=AgentEvolConfig(iterations=2, start=start), run=FakeRun())
    assert len(final) == before + 1


def test_null_evolution_is_continued_cloning():
    """Nothing kept: every fit learns the demonstrations alone, for the same amounts; whether it explored or not."""
    demonstrations = [tried(9, 0, 1.0)]
    nothing = agentevol([], TASKS, demonstrations, config=AgentEvolConfig(iterations=2, keep="none"), run=FakeRun())
    idle = AgentEvolConfig(iterations=2, keep="none", samples_per_task=0)
    control = agentevol([], TASKS, demonstrations, config=idle, run=FakeRun())
    assert nothing == control == [("9/0",), ("9/0",), ("9/0",)]


def test_the_best_round_on_dev_is_the_result_and_alone_meets_the_panels():
    """By dev rate of what learned 1, 2, 3, 4 times: the base is a candidate, of equals the earliest wins."""
    config = AgentEvolConfig(iterations=3, samples_per_task=0, select="best")
    for rates, best in [((0, 0.2, 0.5, 0.7, 0.7), 3), ((0, 0.9, 0.5, 0.7, 0.8), 1), ((0, 0.1, 0.2, 0.3, 0.4), 4)]:
        run = FakeRun(*rates)
        final = evolve([("9/0",)], [], [tried(9, 0, 1.0)], config=config, run=run)
        assert len(final) == best
        measured = [entry for entry in run.log if entry[0] == "evaluate"]
        assert measured == [*(("evaluate", n, "dev") for n in range(4)), ("evaluate", 3)]


def test_horizons_follow_their_schedule_and_the_choice_is_handed_in():
    config = AgentEvolConfig(iterations=4, samples_per_task=1, horizons=(5, 9), horizon_every=2)
    run = FakeRun()
    final = evolve([], TASKS, [tried(9, 0, 1.0)], config=config, run=run, select=lambda tried, config: [])
    assert [entry[-1] for entry in run.log if entry[0] == "collect"] == [5, 5, 9, 9], "two rounds in a phase"
    assert final == [("9/0",)] * 4, "nothing was chosen: cloning went on"


@pytest.mark.parametrize("tokens", [0, -5, (100, 0), ()])
def test_a_cloning_of_no_tokens_is_refused(tokens):
    with pytest.raises(ValueError, match="clone_tokens"):
        AgentEvolConfig(clone_tokens=tokens)


def test_a_horizon_of_no_steps_is_refused_before_anything_is_done():
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        AgentEvolConfig(horizons=(5, 0))


def test_what_was_solved_need_not_be_explored_again():
    """The fake run solves a task by its first sample only where that is asked for."""
    config = AgentEvolConfig(iterations=3, samples_per_task=2, revisit=False)
    run, solved = FakeRun(), iter([[1], [], [2]])

    def choose(tried, config):
        now = next(solved)
        return [t for t in tried if t.task.spec["n"] in now and t.sample == 0]

    evolve([], TASKS, [tried(9, 0, 1.0)], config=config, run=run, select=choose)
    assert [entry[1] for entry in run.log if entry[0] == "collect"] == [4, 2, 2]


def test_presets_are_valid():
    assert AgentEvolConfig(**PUBLISHED).iterations == 4
    assert AgentEvolConfig(**FORMULATED).weight == "reward"
    assert AgentEvolConfig(**EMBEDDED).start == "previous"
