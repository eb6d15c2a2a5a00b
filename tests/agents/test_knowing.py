"""An agent that ends its episode itself: where its belief says so, with the marks that a replay reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import evolvent as ev
from evolvent.agents.knowing import ProbabilityBelief, StoppingAgent, stop_scores
from evolvent.agents.plain import Script
from evolvent.belief.answers import AnswerBelief
from evolvent.belief.comparison import ScoredRun, replay_threshold
from evolvent.belief.outcomes import tabulate_trajectories
from evolvent.belief.stopping import Agreement, EntropyBelow, Patience


class Three(ev.TextWorld):
    """Success is to have said three things; the world never ends by itself."""

    name, instructions, horizon, run_in_thread = "three", "Say three things.", 6, False

    def specs(self):
        return ({"n": n} for n in range(20))

    def play(self, spec):
        while True:
            yield "go on"

    def score(self, rewards, info):
        return ev.Score(float(len(rewards)), None, len(rewards) == 3)


WORLD = Three()
ACTIONS = Script(lambda world, task: ["a", "b", "c", "d", "e", "f"])


@dataclass
class Growing:
    """A chance that grows by .2 a look, from 0; the first look says nothing."""

    def believe(self, world, task, *, seed):
        looks = iter([None, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
        return ProbabilityBelief(lambda observation, info: next(looks))


def play(agent, count=1):
    starts = [ev.Start(task) for task in WORLD.tasks("train", "seen")[:count]]
    return sorted(ev.collect({WORLD.name: WORLD}, starts, agent, engine=None), key=lambda one: one.id)


def test_it_ends_where_its_belief_is_sure_enough():
    (one,) = play(StoppingAgent(ACTIONS, Growing(), Agreement(0.6, least=1)))
    assert one.ended_by == "agent" and [step.action for step in one.steps] == ["a", "b", "c"]
    assert one.meta["stopped"] and one.meta["stop_score"] == pytest.approx(0.4)
    assert stop_scores(one).tolist() == pytest.approx([np.inf, 0.8, 0.6, 0.4])
    (later,) = play(StoppingAgent(ACTIONS, Growing(), Patience(Agreement(0.6, least=1), 2)))
    assert len(later.steps) == 4 and later.success is False
    table = tabulate_trajectories([one, later])
    assert (table.right_stop, table.false_stop) == (1, 1)


def test_a_detector_that_never_fires_leaves_the_episode_as_it_is():
    (plain,), (watched,) = play(ACTIONS), play(StoppingAgent(ACTIONS, Growing(), EntropyBelow(-1.0)))
    assert [(step.observation, step.action, step.reward) for step in plain.steps] == [
        (step.observation, step.action, step.reward) for step in watched.steps
    ]
    assert (watched.ended_by, watched.score) == (plain.ended_by, plain.score) == ("horizon", plain.score)
    assert "stopped" not in watched.meta and len(stop_scores(watched)) == 6


def test_scores_of_a_whole_episode_tell_where_other_thresholds_would_have_ended_it():
    (whole,) = play(StoppingAgent(ACTIONS, Growing(), Agreement(1.0, least=1, patience=9)))
    scores = [1 - chance for chance in (0.2, 0.4, 0.6, 0.8, 1.0)]
    assert whole.ended_by == "horizon"
    (free,) = play(StoppingAgent(ACTIONS, Growing(), EntropyBelow(-1.0)))
    assert len(stop_scores(free)) == 6
    run = ScoredRun(scores=[np.inf, *scores], correct=[steps == 3 for steps in range(6)], steps=list(range(6)))
    for q in (0.2, 0.4, 0.6, 0.8):
        (real,) = play(StoppingAgent(ACTIONS, Growing(), Agreement(q, least=1)))
        table = replay_threshold([run], 1 - q + 1e-9, inclusive=True)
        assert table.means["steps"].mean == len(real.steps) and bool(table.right_stop) == real.success


def test_votes_of_an_episode_are_a_belief_too():
    """Any summary will do: here each observation is a vote."""

    class Votes:
        def believe(self, world, task, *, seed):
            class Voting:
                belief = AnswerBelief(9)

                def look(self, observation, info):
                    self.belief = self.belief.add(str(observation))
                    return self.belief.summarize()
                    yield ()

            return Voting()

    for one in play(StoppingAgent(ACTIONS, Votes(), Agreement(0.9, least=3)), count=2):
        assert one.ended_by == "agent" and len(one.steps) == 2


def test_what_is_no_chance_ends_the_episode_by_an_error():
    (one,) = play(StoppingAgent(ACTIONS, ProbabilityBelief(lambda observation, info: 1.5), Agreement(0.9, least=1)))
    assert one.ended_by == "error" and "belief is not a probability" in one.error.message and one.score.success is None
