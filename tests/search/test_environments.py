"""Searches in environments: the best path of small games, token-exact conversations, and environments that fail."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evolvent as ev
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import GREEDY, LogitsAsk, ScoreAsk
from evolvent.engine.driver import MultiModelEngine, ask_and_wait, run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError, EnvLost, NoLegalAction, ScoringError, WorldError
from evolvent.learn.token_sequences import flatten
from evolvent.reward.process import SpanScorer, TagIds
from evolvent.rollout.episode import collect
from evolvent.search.beam import beam
from evolvent.search.depth_first import depth_first
from evolvent.search.environments import RolloutValue, StateValue, TextValue, search_env
from evolvent.search.gumbel import gumbel_mcts
from evolvent.search.mcts import Commit, mcts
from evolvent.search.proposers import EnvState, LanguageProposer, ListedProposer, ProposalRequest
from evolvent.search.records import Budget, ExpandRequest, Request, Search, SearchResult
from evolvent.search.samples import best_of_n, search_greedy
from evolvent.search.trajectories import env_trajectory, env_tree
from evolvent.trajectory import Task, sample_rng
from evolvent.worlds.base import Limits
from evolvent.worlds.lookup import Lookup


class Steps(ev.TextWorld):
    """Three moves of three kinds; each earns by all moves so far. Some moves misbehave on purpose."""

    name, horizon, instructions = "steps", 3, "walk"

    def __init__(self, *, blocking: bool = False, moods: dict[str, str] | None = None):
        self.run_in_thread, self.moods = blocking, moods or {}
        self.release, self.made, self.closed = threading.Event(), 0, 0

    def specs(self):
        return [{"number": n} for n in range(30)]

    def make(self, task):
        self.made += 1
        return Listing(super().make(task), self)

    def play(self, spec):
        path: tuple[str, ...] = ()
        said = yield "begin"
        while True:
            path = (*path, said)
            mood = self.moods.get(" ".join(path), "")
            if mood == "fails":
                raise ZeroDivisionError("a bug in the world")
            if mood == "hangs":
                self.release.wait(60)
            reward = earned(spec["number"], path)
            if len(path) == 3 or mood == "ends":
                return reward
            said = yield f"did {said}", float("nan") if mood == "infinite" else reward


class Listing:
    """Tells what can be done, and counts how often it is closed."""

    def __init__(self, env: Any, world: Steps):
        self.env, self.world, self.depth = env, world, 0

    def _info(self):
        return {"admissible": ["a", "b", "c"]}

    def reset(self, *, seed=None, options=None):
        observation, _ = self.env.reset(seed=seed)
        return observation, self._info()

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, **self._info()}

    def snapshot(self):
        return self.env.snapshot()

    def restore(self, value):
        self.env.restore(value)

    def close(self):
        self.world.closed += 1
        self.env.close()


def earned(number: int, path: tuple[str, ...]) -> float:
    return float(sample_rng("steps", number, *path).integers(0, 100)) / 100


def total(number: int, path: tuple[str, ...]) -> float:
    return sum(earned(number, path[: at + 1]) for at in range(len(path)))


def every(length: int) -> list[tuple[str, ...]]:
    return [()] if not length else [(*path, move) for path in every(length - 1) for move in "abc"]


def best(number: int, path: tuple[str, ...] = ()) -> float:
    return max(total(number, (*path, *rest)) for rest in every(3 - len(path)))


def step_task(number: int = 0) -> Task:
    return Task("steps", "1", {"number": number}, "steps")


def run(search, world, task, *, engine=None, **more) -> SearchResult:
    (done,) = run_jobs([search_env(search, world=world, task=task, **more)], engine, slots=1)
    if done.error is not None:
        raise done.error
    return done.value


def moves(state: EnvState) -> tuple[str, ...]:
    return () if state.above is None else (*moves(state.above), str(state.proposal.action))


SEARCHES = {
    "beam": lambda root: beam(root, Budget(), np.random.default_rng(0), width=3, keep=27, depth=3),
    "depth first": lambda root: depth_first(root, Budget(), np.random.default_rng(0), width=3, depth=3, paths=27),
}


@pytest.mark.parametrize("blocking_", [False, True])
@pytest.mark.parametrize("name", ["beam", "depth first"])
def test_the_best_of_all_paths_is_found(name, blocking_):
    for number in range(3):
        world = Steps(blocking=blocking_)
        result = run(SEARCHES[name], world, step_task(number), proposer=ListedProposer())
        state = result.tree.states[result.best_node]
        assert result.tree.value[result.best_node] == pytest.approx(best(number)) == pytest.approx(state.earned)
        assert total(number, moves(state)) == pytest.approx(best(number)) and state.over == "world"
        assert len(result.tree) == 1 + 3 + 9 + 27 and world.made == world.closed == 1


def test_estimates_are_added_to_what_was_earned():
    exact = StateValue(lambda state: best(0, moves(state)) - total(0, moves(state)))
    result = run(
        lambda root: beam(root, Budget(), np.random.default_rng(0), width=3, keep=1, depth=3),
        Steps(),
        step_task(),
        proposer=ListedProposer(),
        estimate=exact,
    )
    tree = result.tree
    for node in range(1, len(tree)):
        path = moves(tree.states[node])
        assert tree.value[node] == pytest.approx(best(0, path) if len(path) < 3 else total(0, path))
    assert tree.value[result.best_node] == pytest.approx(best(0)), "an exact estimate leads a beam of one"
    valued = run(
        lambda root: beam(root, Budget(), np.random.default_rng(0), width=3, keep=1, depth=3),
        Steps(),
        step_task(),
        proposer=ListedProposer(),
        estimate=StateValue(lambda state: 5.0),
        terminal="value",
    )
    assert valued.tree.value[valued.best_node] == 5.0, "what was earned is not told"


def expected(number: int, path: tuple[str, ...]) -> float:
    """The return of moves that are drawn evenly, by enumeration."""
    ends = every(3 - len(path))
    return sum(total(number, (*path, *rest)) for rest in ends) / len(ends)


def test_rollouts_value_a_state_by_the_mean_return_of_the_rest():
    """Against enumeration: 400 rollouts of a return below 3 have a standard error below .03."""
    result = run(
        lambda root: beam(root, Budget(), np.random.default_rng(0), width=3, keep=27, depth=3),
        Steps(),
        step_task(),
        proposer=ListedProposer(),
        estimate=RolloutValue(400),
    )
    tree = result.tree
    for node in range(1, len(tree)):
        path = moves(tree.states[node])
        if len(path) == 3:
            assert tree.value[node] == pytest.approx(total(0, path)), "an end is worth what it earned"
        else:
            assert tree.value[node] == pytest.approx(expected(0, path), abs=0.1)
    assert tree.value[result.best_node] == pytest.approx(best(0))


def test_rollouts_that_fail_are_left_out_and_a_state_without_any_is_dropped():
    ended_early = {f"a {second}": "ends" for second in "bc"}
    moods = {"a a": "fails", **ended_early, **{f"b {second}": "fails" for second in "abc"}}
    (children,) = told(
        Steps(moods=moods), ExpandRequest(None, 3), proposer=ListedProposer(), estimate=RolloutValue(60)
    ).children
    by_action = {child.action: child for child in children}
    assert "a bug in the world" in by_action["b"].problem and by_action["b"].value is None
    mean = (total(0, ("a", "b")) + total(0, ("a", "c"))) / 2
    assert by_action["a"].value == pytest.approx(mean, abs=0.15) and not by_action["a"].problem
    with pytest.raises(ConfigError, match="expected 1 or more"):
        RolloutValue(0)
    with pytest.raises(ConfigError, match="neither rewards nor an estimate"):
        told(Steps(), proposer=ListedProposer(), estimate=RolloutValue(1), terminal="value")


def once(*wanted: ExpandRequest, root: EnvState) -> Search:
    found = yield Request([replace(wish, state=root) for wish in wanted])
    return found


def told(world, *wanted, task=None, **more):
    return run(lambda root: once(*wanted, root=root), world, task or step_task(), **more)


def test_listed_actions_are_told_apart():
    (three, two, more, likeliest) = told(
        Steps(),
        ExpandRequest(None, 3),
        ExpandRequest(None, 2),
        ExpandRequest(None, 2, first=2, after=2),
        ExpandRequest(None, 3, greedy=True),
        proposer=ListedProposer(),
    ).children
    assert [child.action for child in three] == ["a", "b", "c"]
    assert {child.action for child in [*two, *more]} == {"a", "b", "c"} and len(two) == 2 and len(more) == 1
    assert [child.action for child in likeliest] == ["a"]
    assert {child.logprob for child in three} == {-np.log(3)}


def test_whole_samples_play_to_the_end():
    (children,) = told(Steps(), ExpandRequest(None, 60, to_end=True), proposer=ListedProposer()).children
    assert sum(child.count for child in children) == 60 and 20 < len(children) <= 27
    for child in children:
        path = moves(child.state)
        assert child.terminal and child.action == " | ".join(path) and child.value == pytest.approx(total(0, path))
    (short,) = told(
        Steps(), ExpandRequest(None, 9, to_end=True), proposer=ListedProposer(), limits=Limits(horizon=2)
    ).children
    assert all(len(moves(child.state)) == 2 and child.state.over == "horizon" for child in short)


# ------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("blocking_", [False, True])
def test_what_the_world_fails_at_is_dropped(blocking_):
    world = Steps(blocking=blocking_, moods={"a": "fails", "b a": "infinite", "c": "ends"})
    result = run(SEARCHES["beam"], world, step_task(), proposer=ListedProposer())
    reasons = {each.action: each.reason for each in result.dropped}
    assert len(result.dropped) == 2 and "a bug in the world" in result.dropped[0].reason and "finite" in reasons["a"]
    paths = {moves(state) for state in result.tree.states}
    assert ("a",) not in paths and ("b", "a") not in paths and ("c",) in paths and ("c", "a") not in paths
    with pytest.raises(NoLegalAction, match="a bug in the world"):
        run(SEARCHES["beam"], Steps(moods=dict.fromkeys("abc", "fails")), step_task(), proposer=ListedProposer())


def test_a_hung_environment_is_left_behind():
    world = Steps(blocking=True, moods={"b": "hangs"})
    try:
        result = run(SEARCHES["beam"], world, step_task(), proposer=ListedProposer(), limits=Limits(step_s=0.3))
        assert [each.action for each in result.dropped] == ["b"] and "deadline" in result.dropped[0].reason
        assert len(result.tree) == 1 + 2 + 6 + 18 and world.made == 2
    finally:
        world.release.set()


class Rigid(Steps):
    """Cannot be forked."""

    def make(self, task):
        env = super().make(task)
        return type("Env", (), {name: getattr(env, name) for name in ("reset", "step", "close")})()


def test_environments_must_be_forkable_and_list_their_actions():
    with pytest.raises(ConfigError, match="forked"):
        run(SEARCHES["beam"], Rigid(), step_task(), proposer=ListedProposer())

    class Silent(Steps):
        def make(self, task):
            return ev.TextWorld.make(self, task)

    with pytest.raises(WorldError, match="the world does not list its admissible actions"):
        run(SEARCHES["beam"], Silent(), step_task(), proposer=ListedProposer())

    class Broken(Steps):
        def play(self, spec):
            raise OSError("no disk")
            yield ""

    with pytest.raises(EnvLost, match="no disk"):
        run(SEARCHES["beam"], Broken(), step_task(), proposer=ListedProposer())


def test_what_an_estimate_fails_at_is_dropped():
    def moody(state):
        if moves(state) == ("a",):
            raise ZeroDivisionError("unknown ground")
        return float("nan") if moves(state) == ("b",) else 0.0

    result = run(SEARCHES["beam"], Steps(), step_task(), proposer=ListedProposer(), estimate=StateValue(moody))
    reasons = {each.action: each.reason for each in result.dropped}
    assert "unknown ground" in reasons["a"] and reasons["b"] == "its value is nan"
    assert all(moves(state)[:1] in ((), ("c",)) for state in result.tree.states)

    class Short(StateValue):
        def values(self, states):
            yield from ()
            return []

    with pytest.raises(ScoringError):
        run(SEARCHES["beam"], Steps(), step_task(), proposer=ListedProposer(), estimate=Short(lambda state: 0.0))


# ------------------------------------------------------------------ a policy that writes


@pytest.fixture(scope="module")
def setting():
    world = Lookup()
    return world, ev.make_policy([world], seed=3), world.tasks("test", "seen")[:4]


class Head:
    """A value of the hidden state, as a value head's."""

    def __init__(self, model=None):
        self.model = model

    def scores(self, asked):
        states = yield [LogitsAsk(item.node, item.tokens[: item.ends[0]], hidden=True) for item in asked]
        return [(float(np.tanh(state[0])),) for state in states]


def test_the_likeliest_path_is_the_agents_greedy_episode(setting):
    world, policy, tasks = setting
    agent = LanguageAgent(policy, GREEDY, max_tokens=6)
    starts = [ev.Start(task) for task in tasks]
    played = {
        each.task.id: each
        for each in collect({"lookup": world}, starts, agent, engine=LocalEngine(policy, slots=4), slots=4)
    }
    language = LanguageProposer(policy, world, max_tokens=6)
    for task in tasks:
        result = run(
            lambda root: search_greedy(root, Budget(), np.random.default_rng(0)),
            world,
            task,
            proposer=language,
            engine=LocalEngine(policy, slots=4),
        )
        record = env_trajectory(result.tree.states[result.best_node], world, task, name=played[task.id].id)
        assert record == played[task.id], "token by token, reward by reward"
        assert len(record.steps) > 1


@pytest.mark.parametrize("generated", [None, 120, 400])
def test_rollouts_of_a_policy_count_in_the_budget(setting, generated):
    world, policy, tasks = setting
    language = LanguageProposer(policy, world, max_tokens=6)
    result = run(
        lambda root: mcts(
            root,
            Budget(generated=generated),
            np.random.default_rng(0),
            width=2,
            depth=3,
            leaves=1,
            start=Commit(simulations=3),
        ),
        world,
        tasks[0],
        proposer=language,
        estimate=RolloutValue(2),
        engine=LocalEngine(policy, slots=4),
    )
    children = sum(int(count) for count in result.tree.generated[: len(result.tree)])
    assert result.spent.generated > children, "rollouts are counted beside the tree's own tokens"
    if generated is None:
        assert result.ended_by == "done"
    else:
        assert result.spent.generated <= generated and result.ended_by == "generated"


LANGUAGE_SEARCHES = {
    "best_of_n": lambda root, budget: best_of_n(root, budget, np.random.default_rng(0), n=4),
    "beam": lambda root, budget: beam(root, budget, np.random.default_rng(0), width=3, keep=2, depth=4),
    "mcts": lambda root, budget: mcts(
        root, budget, np.random.default_rng(0), width=3, depth=4, leaves=2, start=Commit(simulations=4)
    ),
    "gumbel": lambda root, budget: gumbel_mcts(
        root, budget, np.random.default_rng(0), width=3, depth=4, simulations=4, considered=3
    ),
}


def test_what_a_scorer_does_not_keep_is_charged_each_time(setting):
    world, policy, tasks = setting
    engine, language = LocalEngine(policy, slots=16), LanguageProposer(policy, world, max_tokens=6)
    result = run(
        lambda root: LANGUAGE_SEARCHES["beam"](root, Budget()),
        world,
        tasks[0],
        proposer=language,
        engine=engine,
        estimate=TextValue(language, Head()),
    )
    assert result.spent.generated == engine.usage.generated and result.spent.computed >= engine.usage.computed


@pytest.mark.parametrize("name", LANGUAGE_SEARCHES)
@pytest.mark.parametrize("judge", [None, "judge"])
def test_conversations_are_the_agents_and_cost_what_the_engine_counts(setting, name, judge):
    world, policy, tasks = setting
    ours, theirs = LocalEngine(policy, slots=16), LocalEngine(ev.make_policy([world], seed=8), slots=16)
    language = LanguageProposer(policy, world, max_tokens=6)
    result = run(
        lambda root: LANGUAGE_SEARCHES[name](root, Budget()),
        world,
        tasks[0],
        proposer=language,
        engine=MultiModelEngine({"policy": ours, "judge": theirs}),
        estimate=TextValue(language, SpanScorer(TagIds(3, 4, 5), judge)),
    )
    assert result.spent.generated == ours.usage.generated > 0
    assert result.spent.computed == ours.usage.computed + theirs.usage.computed
    assert ours.usage.recomputed == 0 and (theirs.usage.computed > 0) == (judge == "judge" and name != "best_of_n")
    record = env_tree(result, world, tasks[0], name="t")
    flat = flatten(
        record.trajectories, policy.dialect, instructions=lambda task: world.instructions, context=policy.context
    )
    assert not flat.refused and len(flat.sequences) == len(record.trajectories) == sum(1 for _ in result.tree.leaves())
    assert sum(parts.weight.sum() for parts in flat.sequences) == sum(parts.sampled.sum() for parts in flat.sequences)
    names = {each.id: each for each in record.trajectories}
    assert len(names) == len(record.trajectories)
    for leaf, trajectory, parts in zip(result.tree.leaves(), record.trajectories, flat.sequences, strict=True):
        whole = env_trajectory(result.tree.states[leaf], world, tasks[0], name="w")
        expected, stopped = list[int](), True
        for step in whole.steps:
            said = world.instructions if not expected else ""
            read = (
                policy.dialect.open(said, step.observation)
                if not expected
                else policy.dialect.turn(step.observation, stopped=stopped)
            )
            (generation,) = step.generations
            assert generation.ids[~generation.sampled].tolist() == read
            expected += generation.ids.tolist()
            stopped = generation.stop != "length"
        assert parts.ids.tolist() == expected and trajectory.score == whole.score
        (scored,) = ask_and_wait([ScoreAsk(None, expected)], ours)
        np.testing.assert_allclose(parts.logprobs[parts.sampled], scored.logprobs[parts.sampled], atol=1e-5)
        if trajectory.branch is not None:
            shared = trajectory.branch.step
            assert [step.action for step in whole.steps[shared:]] == [step.action for step in trajectory.steps]
            parent = names[trajectory.branch.parent]
            assert shared < (parent.branch.step if parent.branch else 0) + len(parent.steps)
    assert len({(each.trajectory, each.target) for each in record.annotations if each.scorer == "t/visits"}) == (
        len(result.tree) - 1
    )


def test_searches_do_not_depend_on_what_else_runs(setting):
    world, policy, tasks = setting
    language = LanguageProposer(policy, world, max_tokens=6)

    def works():
        for seed, (name, task) in enumerate((name, task) for name in LANGUAGE_SEARCHES for task in tasks[:2]):
            search = LANGUAGE_SEARCHES[name]
            yield search_env(
                lambda root, search=search: search(root, Budget()),
                world=world,
                task=task,
                seed=seed,
                proposer=language,
                estimate=TextValue(language, Head()),
            )

    def shape(result):
        return (
            [moves(state) for state in result.tree.states],
            result.tree.visits[: len(result.tree)].tolist(),
            result.best_node,
            replace(result.spent, seconds=0.0),
        )

    together = {one.index: one.value for one in run_jobs(works(), LocalEngine(policy, slots=8), slots=8)}
    for at, work in enumerate(works()):
        (done,) = run_jobs([work], LocalEngine(policy, slots=8), slots=1)
        assert shape(done.value) == shape(together[at])


def test_no_two_samples_of_a_search_share_their_random_numbers(setting):
    world, policy, tasks = setting
    seeds = []

    class Watching(LocalEngine):
        def submit(self, ask):
            seeds.extend(ask.seeds)
            return super().submit(ask)

    for name in ("beam", "best_of_n"):
        seeds.clear()
        run(
            lambda root, name=name: LANGUAGE_SEARCHES[name](root, Budget()),
            world,
            tasks[0],
            engine=Watching(policy),
            proposer=LanguageProposer(policy, world, max_tokens=6),
        )
        assert len(seeds) == len(set(seeds)) > 8


def test_equal_actions_are_one_child_whatever_their_tokens(setting):
    world, policy, tasks = setting
    language = LanguageProposer(policy, world, ev.Sampling(temperature=0.05), max_tokens=2)
    (children,) = told(
        world, ExpandRequest(None, 12), task=tasks[0], proposer=language, engine=LocalEngine(policy, slots=16)
    ).children
    actions = [child.action for child in children]
    assert len(set(actions)) == len(actions) < 12 and sum(child.count for child in children) == 12
    assert sum(child.generated for child in children) >= 12


def test_chosen_actions_are_among_the_listed():
    world = Steps()
    policy = ev.tiny_policy(["walk", "begin", "did", "a", "b", "c"], context=64, seed=1)
    language = LanguageProposer(policy, world, max_tokens=4, restrict_to_admissible=True)
    (children,) = told(world, ExpandRequest(None, 20), proposer=language, engine=LocalEngine(policy, slots=8)).children
    assert {child.action for child in children} == {"a", "b", "c"}
    record = env_trajectory(children[0].state, world, step_task(), name="x")
    assert record.steps[0].info["choices"] == [list(policy.dialect.action(move)) for move in "abc"]
    assert record.ended_by == "horizon"


def test_a_full_context_ends_the_episode(setting):
    world, _, _ = setting
    policy = ev.make_policy([world], context=52)
    task = world.tasks("test", "longer")[0]
    language = LanguageProposer(policy, world, max_tokens=10)
    (children,) = told(
        world, ExpandRequest(None, 4, to_end=True), task=task, proposer=language, engine=LocalEngine(policy, slots=4)
    ).children
    full = [child for child in children if len(moves(child.state)) < world.horizon and child.state.over == "horizon"]
    assert full and all(child.terminal for child in children)
    for child in full:
        assert child.state.mind.length + len(language.next_tokens(child.state)) >= 52


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(sorted(LANGUAGE_SEARCHES)),
    limit=st.integers(1, 260),
    kind=st.sampled_from(["generated", "computed", "expansions"]),
)
def test_a_budget_is_never_exceeded(setting, name, limit, kind):
    world, policy, tasks = setting
    engine = LocalEngine(policy, slots=16)
    language = LanguageProposer(policy, world, max_tokens=6)
    budget = Budget(**{kind: limit})
    result = run(
        lambda root: LANGUAGE_SEARCHES[name](root, budget),
        world,
        tasks[0],
        proposer=language,
        engine=engine,
        estimate=TextValue(language, Head()),
    )
    assert engine.usage.generated <= (budget.generated or 1e9) and engine.usage.computed <= (budget.computed or 1e9)
    assert result.spent.expansions <= (budget.expansions or 1e9) and result.ended_by in ("done", kind)


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(LANGUAGE_SEARCHES)),
    limit=st.integers(40, 700),
    own=st.booleans(),
    steps=st.integers(2, 8),
)
def test_what_is_played_can_be_judged(setting, name, limit, own, steps):
    """A judge reads each path again: as much is played as leaves room for that, and nothing unjudged is chosen."""
    world, policy, tasks = setting
    ours, theirs = LocalEngine(policy, slots=16), LocalEngine(policy, slots=16)
    language = LanguageProposer(policy, world, max_tokens=steps)
    budget = Budget(computed=limit)
    value = TextValue(language, SpanScorer(TagIds(3, 4, 5), None if own else "judge"), includes_earned=True)
    result = run(
        lambda root: LANGUAGE_SEARCHES[name](root, budget),
        world,
        tasks[0],
        proposer=language,
        engine=MultiModelEngine({"policy": ours, "judge": theirs}),
        terminal="value",
        estimate=value,
    )
    assert ours.usage.computed + theirs.usage.computed <= limit
    assert np.isfinite(result.tree.value[1 : len(result.tree)]).all()


def test_samples_that_leave_no_room_for_the_judge_are_given_up(setting):
    """Of long samples side by side the last are given up, so that what the others came to is judged."""
    world, _, tasks = setting
    policy, given_up = ev.make_policy([world], context=160, seed=3), 0  # little more than an episode takes
    for limit in (200, 700, 1300):
        language, engine = LanguageProposer(policy, world, max_tokens=6), LocalEngine(policy, slots=16)
        search = partial(best_of_n, budget=Budget(computed=limit), rng=np.random.default_rng(0), n=30)
        result = run(
            search,
            world,
            tasks[0],
            proposer=language,
            engine=MultiModelEngine({"policy": engine, "judge": LocalEngine(policy, slots=16)}),
            terminal="value",
            estimate=TextValue(language, SpanScorer(TagIds(3, 4, 5), "judge"), includes_earned=True),
        )
        lost = sum("no room for the rest" in each.reason for each in result.dropped)
        given_up += lost
        assert result.spent.computed <= limit and (not lost or result.ended_by == "computed")
        assert all(np.isfinite(result.tree.value[node]) for node in result.finished)
    assert given_up


@pytest.mark.parametrize(("width", "paths"), [(1, 5), (2, 4)])
def test_a_tree_that_begins_anew_draws_other_listed_actions(width, paths):
    """Of three moves: each tree has as many as it asks for, however many trees there were, and all come to an end."""
    start = Commit(4, paths=paths, trees="inter")
    result = run(
        lambda root: mcts(root, Budget(), sample_rng(0), width=width, depth=3, start=start),
        Steps(),
        step_task(),
        proposer=ListedProposer(),
        estimate=StateValue(lambda state: 0.0),
    )
    tree = result.tree
    firsts = [tree.actions[node] for node in range(1, len(tree)) if tree.parent[node] == 0]
    assert len(result.finished) == paths and len(firsts) == width * paths
    lots = [firsts[at : at + width] for at in range(0, len(firsts), width)]
    assert all(len(set(lot)) == width for lot in lots) and len(set(map(tuple, lots))) > 1


def test_a_wish_for_more_of_the_listed_actions_goes_on_where_the_last_one_ended():
    root = EnvState("begin", {"admissible": list("abcde")}, None, seed=3)
    for begun in (0, 2, 40):  # the number of a tree's first sample
        made = [
            ListedProposer()._select(ProposalRequest(root, range(begun + after, begun + after + 2), after=after))
            for after in (0, 2, 4, 6)
        ]
        assert sorted(one.action for lot in made for one in lot) == list("abcde")
        assert [len(lot) for lot in made] == [2, 2, 1, 0]
