"""Branches: the environment, the tokens and the score are those of the whole episode, whichever way it was reached."""

from dataclasses import replace

import numpy as np
import pytest

import evolvent as ev
from evolvent.agents.history import Refuse, Summarise
from evolvent.agents.plain import _ScriptMind
from evolvent.engine.asks import GREEDY
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import tiny_policy
from evolvent.rl.scored_rollout import add_choice_support
from evolvent.rollout.episode import BranchedStarts, BranchOrigins
from evolvent.trajectory import Branch, Start
from evolvent.worlds.base import Parsed
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.panel import Sizes


class Pair(ev.TextWorld):
    """Say both words in turn; each right one earns 1, and 2 are success."""

    name, horizon, reward_range, instructions = "pair", 5, (0.0, 2.0), "repeat"

    def __init__(self, *, blocking=False, forks=True):
        self.run_in_thread, self.forks, self.seen = blocking, forks, []

    def specs(self):
        return [{"first": a, "then": b} for a in "abcd" for b in "abcd"]

    def play(self, spec):
        said = yield f"say {spec['first']}"
        said = yield f"say {spec['then']}", float(said == spec["first"])
        return float(said == spec["then"])

    def expert(self, task):
        return [task.spec["first"], task.spec["then"]]

    def make(self, task):
        env = super().make(task)
        return env if self.forks else Plainly(env)


class Plainly:
    """An Env that cannot be forked."""

    def __init__(self, env):
        self.reset, self.step, self.close = env.reset, env.step, env.close


class Follows(ev.Script):
    """Goes on as the parent did."""

    def resume(self, world, task, *, seed, parent, branch):
        assert branch.token == 0
        return _ScriptMind([*map(Parsed, parent.actions[branch.step :])])


COUNTDOWN = Countdown(numbers=3, sizes=Sizes(train=12, dev=2, test=2))


def demonstrated(world, count=6):
    return ev.collect_demonstrations([world], world.tasks("train", world.tiers[0])[:count])


def branches(parents):
    return [
        Start(parent.task, sample, Branch(parent.id, step))
        for parent in parents
        for sample, step in enumerate([*range(len(parent.steps))] * 3)
    ]


def follow(world, starts, origins, **options):
    found = ev.collect({world.name: world}, BranchedStarts(starts, origins), Follows(None), engine=None, **options)
    return {(one.task.id, one.sample): one for one in found}


def by_id(parents):
    return {parent.id: parent for parent in parents}


@pytest.mark.parametrize(
    "world",
    [COUNTDOWN, Pair(), Pair(blocking=True), Pair(forks=False), Pair(forks=False, blocking=True)],
    ids=["countdown", "forked", "forked off the thread", "replayed", "replayed off the thread"],
)
def test_a_branch_goes_on_exactly_where_its_parent_was(world):
    parents = by_id(demonstrated(world))
    starts, origins = branches(parents.values()), BranchOrigins(parents)
    found = follow(world, starts, origins, slots=5)
    assert len(found) == len(starts)
    for start in starts:
        one, parent = found[start.task.id, start.sample], parents[start.branch.parent]
        assert one.steps == parent.steps[start.branch.step :], "observations, rewards and the end are the parent's"
        assert (one.branch, one.score, one.ended_by) == (start.branch, parent.score, "world")
        assert one.final_observation == parent.final_observation


@pytest.mark.parametrize("forks", [True, False])
def test_steps_played_again_are_counted_apart(forks):
    world = Pair(forks=forks)
    parents = demonstrated(world)
    starts, origins = branches(parents), BranchOrigins(by_id(parents))
    found = follow(world, starts, origins, slots=1)
    assert sum(len(one.steps) for one in found.values()) == 6 * 3 * (2 + 1), "their own steps alone"
    # Each of six parents has three branches at step 0 and three at step 1.
    assert origins.replayed == (6 if forks else 18)
    assert origins.restored == (36 - 6 if forks else 0)


def test_snapshots_that_are_let_go_are_made_again():
    parents = demonstrated(COUNTDOWN)
    starts = branches(parents)
    origins, small = BranchOrigins(by_id(parents)), BranchOrigins(by_id(parents), max_parents=1)
    turns = sorted(starts, key=lambda start: start.sample)
    assert follow(COUNTDOWN, turns, origins, slots=1) == follow(COUNTDOWN, turns, small, slots=1)
    assert small.replayed > origins.replayed == sum(len(parent.steps) - 1 for parent in parents)


def test_a_parent_that_goes_another_way_when_played_again_is_an_error_of_its_branches():
    parent, other = demonstrated(Pair(), 2)
    wrong = replace(parent, steps=(parent.steps[0], replace(parent.steps[1], observation="say nothing")))
    ends = replace(other, steps=(*other.steps, other.steps[-1]))
    starts = [Start(parent.task, 0, Branch(wrong.id, 1)), Start(other.task, 0, Branch(ends.id, 2))]
    found = follow(Pair(), starts, BranchOrigins(by_id([wrong, ends])))
    assert {one.error.kind for one in found.values()} == {"EnvLost"}
    assert "differs at step 1" in found[parent.task.id, 0].error.message
    assert "its end" in found[other.task.id, 0].error.message
    assert all(one.score == ev.Score(None, None, None) for one in found.values())


def test_branches_that_no_episode_can_begin_at_are_refused_all_at_once():
    first, second = demonstrated(Pair(), 2)
    origins = BranchOrigins(by_id([first, replace(second, branch=Branch(first.id, 1))]))
    starts = [
        Start(first.task, 0, Branch("nobody", 1)),
        Start(first.task, 1, Branch(first.id, 2)),
        Start(second.task, 0, Branch(first.id, 1)),
        Start(second.task, 1, Branch(second.id, 0)),
        Start(first.task, 2, Branch(first.id, 0, -1)),
        Start(first.task, 3, Branch(first.id, 1)),
    ]
    with pytest.raises(ev.ConfigError) as caught:
        follow(Pair(), starts, origins)
    assert len(caught.value.problems) == 5
    for words in (
        "unknown parent trajectory",
        "beyond the 2 steps",
        "of the parent differs from task",
        "the parent is a branch",
    ):
        assert words in str(caught.value)
    with pytest.raises(ev.ConfigError, match=r"unknown parent trajectory"):
        list(ev.collect({"pair": Pair()}, starts[:1], ev.Expert(), engine=None))
    with pytest.raises(ev.ConfigError, match=r"this agent cannot start in the middle of an episode.*Expert"):
        list(ev.collect({"pair": Pair()}, BranchedStarts(starts[-1:], origins), ev.Expert(), engine=None))


def test_a_branch_has_the_steps_that_its_parent_had_left():
    parent = demonstrated(Pair(), 1)[0]
    stays = replace(parent, steps=(parent.steps[0], replace(parent.steps[1], action="no")))

    class Mute(Follows):
        def resume(self, world, task, *, seed, parent, branch):
            return _ScriptMind([Parsed("x")] * 9)

    class Longer(Pair):
        def play(self, spec):
            while True:
                yield f"say {spec['first']}"

    world = Longer()
    record = replace(stays, steps=(parent.steps[0],) * 4)
    starts = [Start(parent.task, step, Branch(record.id, step)) for step in range(4)]
    found = ev.collect({"pair": world}, BranchedStarts(starts, BranchOrigins(by_id([record]))), Mute(None), engine=None)
    assert {one.branch.step: len(one.steps) for one in found} == {0: 5, 1: 4, 2: 3, 3: 2}


# ------------------------------------------------------------------ tokens


def speaking(policy, starts, origins, *, agent=None, slots=8, world=COUNTDOWN):
    agent = agent or ev.LanguageAgent(policy, GREEDY, max_tokens=6)
    engine = ev.LocalEngine(policy, slots=slots)
    starts = starts if origins is None else BranchedStarts(starts, origins)
    return {
        (t.task.id, t.sample): t for t in ev.collect({world.name: world}, starts, agent, engine=engine, slots=slots)
    }


@pytest.fixture(scope="module")
def policy():
    return ev.make_policy([COUNTDOWN], seed=7)


def test_every_branch_of_a_greedy_episode_goes_on_as_that_did(policy):
    """From any token of any action, the rest comes out again: same tokens, same probabilities, same environment."""
    task = COUNTDOWN.tasks("train", "seen")[0]
    (parent,) = speaking(policy, [Start(task)], None).values()
    actions = [step.generations[0].ids[step.generations[0].sampled] for step in parent.steps]
    assert len(parent.steps) > 3 and max(map(len, actions)) > 2
    places = [(step, token) for step, ids in enumerate(actions) for token in range(len(ids))]
    starts = [Start(task, n, Branch(parent.id, *place)) for n, place in enumerate(places)]
    found = speaking(policy, starts, BranchOrigins(by_id([parent])))
    whole = np.concatenate([generation.ids for generation in parent.generations])
    ends = np.cumsum([len(generation.ids) for generation in parent.generations])
    for n, (step, token) in enumerate(places):
        one = found[task.id, n]
        assert one.actions == parent.actions[step:] and one.score == parent.score
        first, *later = one.generations
        given = ends[step] - len(actions[step]) + token
        assert np.array_equal(first.ids, whole[: ends[step]]) and first.extends is None
        assert np.array_equal(first.sampled, np.arange(len(first.ids)) >= given), "what was given is only read"
        old = parent.steps[step].generations[0]
        assert np.allclose(first.logprobs[given:], old.logprobs[old.sampled][token:], atol=1e-5)
        assert [g.extends for g in later] == list(range(len(later)))
        assert all(
            np.array_equal(g.ids, o.ids) for g, o in zip(later, list(parent.generations)[step + 1 :], strict=True)
        )


def test_a_demonstration_in_words_is_read_as_the_learner_reads_it(policy):
    parents = demonstrated(COUNTDOWN, 4)
    parts = flatten(parents, policy.dialect, instructions=lambda task: "", context=512).sequences
    agent = ev.LanguageAgent(policy, max_tokens=6)
    for parent, part in zip(parents, parts, strict=True):
        starts = [Start(parent.task, n, Branch(parent.id, 1, n)) for n in range(3)]
        found = speaking(policy, starts, BranchOrigins(by_id(parents)), agent=agent)
        begins = int(np.flatnonzero(part.written & (part.step == 1))[0])
        for start in starts:
            one = found[parent.task.id, start.sample]
            first = one.steps[0].generations[0]
            count = begins + start.branch.token
            assert np.array_equal(first.ids[:count], part.ids[:count])
            assert first.sampled.tolist() == [False] * count + [True] * (len(first.ids) - count)
            text = policy.dialect.text(first.ids[begins:])
            assert text.strip() == one.steps[0].action
            assert one.steps[0].observation == parent.steps[1].observation
            (learned,) = flatten([one], policy.dialect, instructions=lambda task: "", context=512, stops=True).sequences
            assert not learned.weight[:count].any() and not learned.logprobs[:count].any()
            assert learned.weight[count : len(first.ids)].all()


def test_branches_do_not_depend_on_slots_or_order(policy):
    parents = demonstrated(COUNTDOWN, 5)
    starts = [Start(p.task, n, Branch(p.id, n % 2, n % 3)) for p in parents for n in range(4)]
    agent = ev.LanguageAgent(policy, max_tokens=6)
    one = speaking(policy, starts, BranchOrigins(by_id(parents)), agent=agent, slots=1)
    many = speaking(policy, starts[::-1], BranchOrigins(by_id(parents)), agent=agent, slots=32)
    assert one == many and len(one) == 20


def test_only_admissible_actions_that_begin_as_given_are_chosen(policy):
    parents = demonstrated(COUNTDOWN, 4)
    starts = [Start(p.task, n, Branch(p.id, 1, n)) for p in parents for n in range(4)]
    agent = ev.LanguageAgent(policy, max_tokens=6, restrict_to_admissible=True)
    found = speaking(policy, starts, BranchOrigins(by_id(parents)), agent=agent)
    for start in starts:
        one, parent = found[start.task.id, start.sample], by_id(parents)[start.branch.parent]
        given = start.branch.token
        assert one.error is None
        assert one.actions[0].split()[:given] == parent.actions[1].split()[:given]
        env = COUNTDOWN.make(start.task)
        env.reset()
        listed = env.step(parent.actions[0])[4]["admissible"]
        assert one.actions[0] in listed
        if given == 3:
            assert one.actions[0] == parent.actions[1] and one.steps[0].info["choices"] == [[2]], "only to stop is left"
    parts = flatten(found.values(), policy.dialect, instructions=lambda task: "", context=512, stops=True).sequences
    chains = add_choice_support(list(found.values()), parts)
    for chain in chains:
        learned = np.flatnonzero(chain.weight)
        assert all(chain.ids[place] in chain.columns["support"][place] for place in learned)


def test_a_token_beyond_the_action_and_words_that_no_action_begins_with_end_their_episode(policy):
    (parent,) = demonstrated(COUNTDOWN, 1)
    (beyond,) = speaking(
        policy, [Start(parent.task, 0, Branch(parent.id, 1, 4))], BranchOrigins(by_id([parent]))
    ).values()
    assert (beyond.ended_by, beyond.error.kind) == (
        "error",
        "ConfigError",
    ) and "got 4, expected less than 4" in beyond.error.message
    strange = replace(parent, steps=(replace(parent.steps[0], action="= = ="), *parent.steps[1:]))
    agent = ev.LanguageAgent(policy, max_tokens=6, restrict_to_admissible=True)
    start = Start(parent.task, 0, Branch(parent.id, 0, 1))
    (lost,) = speaking(policy, [start], BranchOrigins(by_id([strange])), agent=agent).values()
    assert lost.error.kind == "InvalidAction" and "no admissible action" in lost.error.message


@pytest.mark.parametrize("history", [Refuse(), Summarise()])
def test_a_past_that_does_not_fit_goes_to_the_history_policy(history):
    (parent,) = demonstrated(COUNTDOWN, 1)
    policy = tiny_policy(sorted(COUNTDOWN.vocabulary()), context=20, seed=1)
    agent = ev.LanguageAgent(policy, max_tokens=5, history=history)
    start = Start(parent.task, 0, Branch(parent.id, 1, 2))
    (one,) = speaking(policy, [start], BranchOrigins(by_id([parent])), agent=agent).values()
    if history.name == "refuse":
        assert (one.ended_by, one.steps, one.meta) == ("horizon", (), {"context_full": True})
    else:
        first = next(one.generations)
        given = policy.dialect.action(parent.actions[1])[:2]
        before = int(np.flatnonzero(first.sampled)[0])
        assert first.ids[before - 2 : before].tolist() == given and len(first.ids) <= 20
        assert str(one.actions[0]).split()[:2] == parent.actions[1].split()[:2]
