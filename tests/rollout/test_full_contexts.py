"""Episodes whose first observation fills the context, or that begin in an action that is longer than one may be."""

from __future__ import annotations

import numpy as np
import pytest

import evolvent as ev
from evolvent.agents.history import Refuse, Summarise, Window
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import GREEDY
from evolvent.rollout.episode import BranchedStarts, BranchOrigins
from evolvent.trajectory import Branch, Start
from evolvent.worlds.panel import Sizes

WORLD = ev.Lookup(sizes=Sizes(train=4, dev=4, test=4))
TASK = WORLD.tasks("dev", "longer")[0]


@pytest.mark.parametrize("history", [Refuse(), Window(), Summarise()], ids=lambda history: history.name)
def test_a_first_observation_that_is_too_long_ends_its_own_episode(history):
    policy = ev.make_policy([WORLD], seed=3, context=8)
    agent, engine = LanguageAgent(policy, GREEDY, max_tokens=2, history=history), ev.LocalEngine(policy, slots=2)
    (played,) = ev.collect({"lookup": WORLD}, [Start(TASK)], agent, engine=engine)
    assert (played.ended_by, played.error, played.meta) == ("horizon", None, {"context_full": True})


@pytest.mark.parametrize("history", [Window(), Summarise()], ids=lambda history: history.name)
@pytest.mark.parametrize("context", range(20, 36, 2))
def test_a_branch_within_an_action_longer_than_one_may_be_has_room_for_more(context, history):
    policy = ev.make_policy([WORLD], seed=3, context=context)
    (parent,) = ev.collect({"lookup": WORLD}, [Start(TASK)], ev.Expert(), engine=None)
    lengths = [len(policy.dialect.action(str(step.action))) for step in parent.steps]
    starts = [Start(TASK, at, Branch(parent.id, at, size - 1)) for at, size in enumerate(lengths) if size > 1]
    agent, engine = LanguageAgent(policy, GREEDY, max_tokens=1, history=history), ev.LocalEngine(policy, slots=4)
    played = list(
        ev.collect({"lookup": WORLD}, BranchedStarts(starts, BranchOrigins({parent.id: parent})), agent, engine=engine)
    )
    assert len(played) == len(starts) > 2
    assert [one.error for one in played] == [None] * len(played)


class Tenths(ev.TextWorld):
    """Pays a tenth a step, as many environments do, in half the digits."""

    name, instructions, horizon, run_in_thread = "tenths", "go on", 3, False

    def specs(self):
        return ({"n": n} for n in range(9))

    def make(self, task):
        return _Tenths(super().make(task))

    def play(self, spec):
        while True:
            yield "on"


class _Tenths:
    def __init__(self, inner):
        self.reset, self.close, self._inner = inner.reset, inner.close, inner

    def step(self, action):
        observation, _, terminated, truncated, info = self._inner.step(action)
        return observation, np.float32(0.1), terminated, truncated, info


def test_rewards_of_a_record_are_plain_numbers():
    """Sums of half the digits are rounded: the same episode was scored otherwise in process than over a server."""
    world = Tenths()
    (task, *_) = world.tasks("train", "seen")
    script = ev.Script(lambda world, task: ["go"] * 3)
    (played,) = ev.collect({"tenths": world}, [Start(task)], script, engine=None)
    assert [type(reward) for reward in played.rewards] == [float] * 3
    assert played.score.raw == pytest.approx(3 * float(np.float32(0.1)), abs=1e-12)
