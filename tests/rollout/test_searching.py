"""Playing with a search: results of their own, scored by the world; judges asked where they have learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from evolvent.engine.asks import Job
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.grade.base import Grade
from evolvent.learn.token_sequences import flatten
from evolvent.models.policy import Policy
from evolvent.reward.states import build_state_rows
from evolvent.rollout.search import SearchOutcome, SearchPlayer, check_search, graded, search_starts
from evolvent.scale.initial import make_policy
from evolvent.search.beam import beam
from evolvent.search.environments import StateValue, search_env
from evolvent.search.mcts import Commit, Descend, Restart
from evolvent.search.proposers import ListedProposer
from evolvent.search.records import Budget
from evolvent.search.scorers import Ending
from evolvent.search.settings import SEARCHES, SearchConfig
from evolvent.search.writing import Writing
from evolvent.trajectory import Start, Trajectory, trajectory_name
from evolvent.worlds.base import World
from evolvent.worlds.countdown import Countdown
from evolvent.worlds.deduction.world import Deduction
from evolvent.worlds.panel import Sizes

SMALL = {
    "width": 3,
    "depth": 5,
    "paths": 3,
    "simulations": 4,
    "considered": 2,
    "span_tokens": 8,
    "max_tokens": 24,
}


@dataclass
class Noted:
    """Scores a path by its tokens alone, and remembers every place that it was asked about."""

    model: str | None = None
    asked: set[tuple[int, ...]] = field(default_factory=set)

    def scores(self, asked: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        yield from ()
        found = []
        for item in asked:
            path = item.path()
            before = len(path) - len(item.tokens)
            places = [tuple(path[: before + end]) for end in item.ends]
            self.asked.update(places)
            found.append(tuple((sum(place) % 97) / 97 for place in places))
        return found


@pytest.fixture(scope="module", params=["countdown", "deduction"])
def place(request: pytest.FixtureRequest) -> tuple[World, Policy]:
    sizes = Sizes(train=20, dev=6, test=6)
    world: World = Countdown(sizes=sizes) if request.param == "countdown" else Deduction(sizes=sizes)
    return world, make_policy([world], context=256, seed=1)


def play(
    place: tuple[World, Policy], how: SearchConfig, *, count: int = 3, seed: int = 5, scorer: Any = None, trees: int = 0
) -> dict[str, SearchOutcome]:
    world, policy = place
    starts = [Start(task) for task in world.tasks("test", "seen")[:count]]
    scorer = Noted() if scorer is None and how.uses_judge else scorer
    player = SearchPlayer(policy, LocalEngine(policy, slots=16), scorer)
    found = search_starts({world.name: world}, starts, how, player=player, seed=seed, trees=trees)
    return {one.trajectory.task.id: one for one in found}


def config(method: str, **more: Any) -> SearchConfig:
    value = "none" if method in ("greedy", "samples", "sampled_tree") else "judge"
    return SearchConfig(**{**SMALL, "method": method, "value": value, **more})


@pytest.mark.parametrize("method", SEARCHES)
def test_a_search_depends_on_nothing_beside_it_and_is_scored_by_its_world(
    place: tuple[World, Policy], method: str
) -> None:
    world, policy = place
    many = play(place, config(method))
    (alone,) = play(place, config(method), count=1).values()
    same = many[alone.trajectory.task.id]
    assert alone.trajectory == same.trajectory and alone.answers == same.answers and alone.ended_by == same.ended_by
    assert len(many) == 3
    for one in many.values():
        assert one.trajectory.error is None and one.trajectory.success is not None
        assert replayed(world, one.trajectory) == one.trajectory.score
        assert one.spent.generated >= one.trajectory.count_generated_tokens() > 0
    flat = flatten(
        [one.trajectory for one in many.values()], policy.dialect, instructions=lambda task: "", context=policy.context
    )
    assert len(flat.sequences) == 3 and not flat.refused


def replayed(world: World, trajectory: Trajectory) -> object:
    env = world.make(trajectory.task)
    env.reset()
    rewards, info = [], {}
    for action in trajectory.actions:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            break
    return world.score(rewards, info)


def test_seeds_and_samples_differ(place: tuple[World, Policy]) -> None:
    world, policy = place
    first, other = (play(place, config("samples"), seed=seed) for seed in (1, 2))
    assert any(first[task].trajectory != other[task].trajectory for task in first)
    task = world.tasks("test", "seen")[0]
    player = SearchPlayer(policy, LocalEngine(policy, slots=16))
    starts = [Start(task, 0), Start(task, 1)]
    one, two = (
        found.trajectory for found in search_starts({world.name: world}, starts, config("samples"), player=player)
    )
    assert {one.id, two.id} == {trajectory_name(start) for start in starts} and one.group == two.group
    assert one.steps != two.steps


def test_a_judge_is_asked_where_it_has_learned(place: tuple[World, Policy]) -> None:
    """The rows of `states` have weight at all places of a path that its search asked about."""
    world, policy = place
    how, noted = config("beam", terminal="value"), Noted()
    found = play(place, how, scorer=noted)
    writing = Writing.for_policy(
        policy, max_tokens=how.max_tokens, span_tokens=how.span_tokens, separators=how.separators
    )
    spans = writing.spans if world.horizon == 1 else None
    played = [one.trajectory for one in found.values()]
    made = build_state_rows(played, policy.dialect, context=policy.context, spans=spans)
    assert len(made.sequences) == len(played) and not made.refused
    for one, row in zip(played, made.sequences, strict=True):
        whole, size = tuple(row.ids[:-1].tolist()), len(row) - 1
        asked = {len(path) for path in noted.asked if whole[: len(path)] == path}
        learned = set(np.flatnonzero(row.weight).tolist())
        assert asked and asked <= learned, "a place that the judge never learned"
        assert max(learned) == size, "the last word is learned too"
        assert set(row.columns["outcome"][list(learned)].tolist()) == {one.score.unit}


def test_without_room_for_anything_the_episode_is_a_failure_and_no_crash(place: tuple[World, Policy]) -> None:
    for method in SEARCHES:
        for one in play(place, config(method, computed=1), count=1).values():
            assert one.trajectory.success is False and one.trajectory.error is None
            assert (one.spent.generated, one.spent.computed, one.ended_by) == (0, 0, "computed"), method


@dataclass
class Broken:
    """A scorer that gives one score too few."""

    model: str | None = None

    def scores(self, asked: Sequence[Ending]) -> Job[list[tuple[float, ...]]]:
        yield from ()
        return [() for _ in asked]


def test_what_fails_is_not_scored(place: tuple[World, Policy]) -> None:
    for one in play(place, config("beam"), scorer=Broken()).values():
        assert one.trajectory.error is not None and "number of scores does not match" in one.trajectory.error.message
        assert one.trajectory.success is None and one.passed is None


def test_one_response_that_cannot_be_graded_is_left_out_and_loses_nothing() -> None:
    world = Deduction(sizes=Sizes(train=20, dev=6, test=6))
    policy = make_policy([world], context=256, seed=1)
    how = config("samples", paths=6, max_tokens=40)
    usual = next(iter(play((world, policy), how, count=1).values()))
    plain, seen = world.grade, list[str]()

    def grade(said: str, question: Any) -> Grade:
        seen.append(said)
        return Grade(None, None, "GraderTimeout") if len(seen) == 2 else plain(said, question)

    world.grade = grade  # type: ignore[method-assign]
    one = next(iter(play((world, policy), how, count=1).values()))
    assert one.trajectory.error is None and one.spent.generated == usual.spent.generated > 0
    assert one.passed is None or one.passed is True, "nobody can say whether it was right"
    assert len(seen) >= 3


def test_budgets_and_settings_that_could_never_work_are_refused() -> None:
    world = Deduction(sizes=Sizes(train=4, dev=2, test=2))
    known = {world.name: world}
    with pytest.raises(ConfigError, match="a single request may take 24 tokens"):
        check_search(known, config("best_of_n", generated=23), has_scorer=True)
    check_search(known, config("best_of_n", generated=24), has_scorer=True)
    with pytest.raises(ConfigError, match="does not sample tokens"):
        check_search(known, config("beam", generated=500, level="token"), has_scorer=True)
    with pytest.raises(ConfigError, match="needs values"):
        check_search(known, config("beam", value="none"), has_scorer=True)
    with pytest.raises(ValueError, match=r"outside 0\.\.1"):
        config("beam", rule="vote")
    with pytest.raises(ValueError, match="separators"):
        config("beam", separators=())


def test_settings_become_searches() -> None:
    """No path of one tree twice without drawn moves; a limit of simulations is one."""
    begun = {method: config(method, paths=3, simulations=5).begin() for method in SEARCHES}
    assert begun["mcts"].keywords["start"] == Commit(5)
    assert config("mcts", paths=3, simulations=5, sampled=True).begin().keywords["start"] == Commit(5, 1.0, 3)
    assert begun["mcts_restart"].keywords["start"] == Restart(3, 5)
    assert begun["mcts_descend"].keywords["start"] == Descend(3)
    assert begun["samples"].keywords == {"n": 3, "valued": False, "stop": None} and begun["beam"].keywords["keep"] == 3


def test_votes_count_equal_answers_as_the_world_sees_them() -> None:
    world = Deduction(sizes=Sizes(train=4, dev=2, test=2))
    assert world.same("18", "18.0") and world.same("true", "true") and not world.same("true", "false")
    assert not world.same("18", "81") and not world.same("true", "18")


def test_trees_are_told_of_the_first(place: tuple[World, Policy]) -> None:
    found = list(play(place, config("mcts"), trees=2).values())
    assert sorted(bool(one.tree) for one in found) == [False, True, True]
    assert all(one.tree["nodes"] > 1 for one in found if one.tree)


def test_what_cannot_be_searched_is_refused_at_once(place: tuple[World, Policy]) -> None:
    world, policy = place
    with pytest.raises(ConfigError, match="got 'judge', but no judge is set"):
        check_search({world.name: world}, config("mcts"), has_scorer=False)
    turns = world.horizon > 1
    wrong = config("mcts", level="span") if turns else config("mcts", value="reward")
    with pytest.raises(ConfigError, match="level" if turns else "value"):
        check_search({world.name: world}, wrong, has_scorer=True)
    check_search({world.name: world}, config("mcts", value="rollouts"), has_scorer=False)
    start = Start(replace(world.tasks("test", "seen")[0], world="elsewhere"))
    with pytest.raises(ConfigError, match="elsewhere"):
        next(
            search_starts(
                {world.name: world}, [start], config("samples"), player=SearchPlayer(policy, LocalEngine(policy))
            )
        )


def test_a_world_that_pays_for_the_expert_grades_it_so() -> None:
    world = Deduction(sizes=Sizes(train=4, dev=2, test=2))
    task = world.tasks("test", "seen")[0]
    (said,) = world.expert(task) or ()
    verdict = graded(world, task, said)
    assert verdict.score.success and verdict.answer in ("true", "false")
    assert graded(world, task, "no idea").answer is None


@pytest.mark.parametrize("terminal", ["value", "reward"])
def test_what_the_world_paid_is_told_only_where_it_may_be(terminal: Any) -> None:
    """All ways of three numbers: under "value" a right end is worth what the estimate says, like every other state."""
    world = Countdown(numbers=3, sizes=Sizes(train=4, dev=2, test=2))
    task = world.tasks("test", "seen")[0]

    def begin(root: Any) -> Any:
        return beam(root, Budget(), np.random.default_rng(0), width=99, keep=None, depth=9)

    work = search_env(
        begin,
        world=world,
        task=task,
        proposer=ListedProposer(),
        estimate=StateValue(lambda state: 0.25),
        terminal=terminal,
    )
    (done,) = run_jobs([work], None, slots=1)
    tree = done.value.tree
    won = [node for node in done.value.finished if tree.states[node].rewards[-1] == 1.0]
    lost = [node for node in done.value.finished if node not in won]
    assert won and lost
    worth = {"value": ({0.25}, {0.25}), "reward": ({1.0}, {0.0})}[terminal]
    assert ({*tree.value[won].tolist()}, {*tree.value[lost].tolist()}) == worth


def test_a_judge_that_knows_is_followed(place: tuple[World, Policy]) -> None:
    """With the judge's value alone, the best of n is the one that the judge likes most, whatever the world pays."""
    found = play(place, config("best_of_n", paths=8, terminal="value"), trees=3)
    for one in found.values():
        values = [one.tree["value"][node] for node, _ in one.tree["finished"]]
        assert one.tree["value"][one.tree["chosen"][-1]] == max(values) and 0 <= min(values) <= max(values) <= 1
