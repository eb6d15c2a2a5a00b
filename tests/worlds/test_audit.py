"""The audit on toy worlds whose figures are known, and on the shipped panels."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from evolvent.trajectory import Score, Task
from evolvent.worlds.audit import Canonical, audit, blind_replay, play_actions, play_random
from evolvent.worlds.base import Env, Grammar, Info, Plain, Reply, Value, World, score_episode
from evolvent.worlds.crafting import Crafting
from evolvent.worlds.lookup import Lookup
from evolvent.worlds.panel import Sizes
from evolvent.worlds.shapes import Level


class GuessEnv:
    """One guess among four; 1 if it is the task's answer."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        return "guess", {"admissible": ("a", "b", "c", "d")}

    def step(self, action: Value) -> Reply:
        return "", float(action == self.answer), True, False, {"admissible": ("a", "b", "c", "d")}

    def close(self) -> None:
        pass


class Guess:
    """In tier `seen` the answer is a function of the kind; in `longer` it is drawn for each task."""

    name, version, instructions, horizon, run_in_thread = "guess", "1", "", 3, False
    grammar: Grammar = Plain()
    reward_range, tiers = (0.0, 1.0), ("seen", "longer")

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        if tier == "seen":
            answers = [("k1", "a"), ("k2", "b")] * 4
        else:
            answers = [("k3", answer) for answer in "abcd" * (50 if split != "train" else 0)]
        return [
            Task(self.name, "1", {"answer": answer, "at": [split, tier, n]}, kind, tier, split)
            for n, (kind, answer) in enumerate(answers)
        ]

    def make(self, task: Task) -> Env:
        return GuessEnv(task.spec["answer"])

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        return score_episode(rewards, self.reward_range)

    def expert(self, task: Task) -> Sequence[str] | None:
        return [task.spec["answer"]]

    def vocabulary(self) -> Sequence[str] | None:
        return None


class Copied(Guess):
    """Every held-out task equals another one up to renaming."""

    def key(self, task: Task) -> str:
        return task.kind if task.tier == "longer" else task.id


class Silent(Guess):
    """No expert, and no list of legal actions."""

    tiers = ("seen",)

    def make(self, task: Task) -> Env:
        env = GuessEnv(task.spec["answer"])
        env.reset = lambda **_: ("guess", {})  # type: ignore[assignment]
        return env

    def expert(self, task: Task) -> Sequence[str] | None:
        return None


def test_blind_replay_wins_all_where_the_kind_tells_the_answer_and_chance_where_it_does_not() -> None:
    world = Guess()
    train = world.tasks("train", "seen")
    assert blind_replay(world, train, world.tasks("test", "seen")) == 1.0
    assert blind_replay(world, train, world.tasks("test", "longer")) == 0.25  # another kind: the commonest plan of all
    assert blind_replay(world, [], world.tasks("test", "seen")) == 0.0


def test_commonest_plan_not_the_first_is_replayed() -> None:
    world = Guess()
    plans = [Task("guess", "1", {"answer": answer, "n": n}, "k3") for n, answer in enumerate("cddac" + "d")]
    tests = [Task("guess", "1", {"answer": "d", "n": 99}, "k3")]
    assert blind_replay(world, plans, tests) == 1.0


def test_audit_of_the_toy_by_hand() -> None:
    found = audit(Guess())
    seen, longer = found.tiers["seen"], found.tiers["longer"]
    assert (seen.tasks, seen.kinds, seen.largest_kind, seen.expert, seen.replay) == (8, 2, 4, 1.0, 1.0)
    assert (longer.tasks, longer.kinds, longer.expert, longer.replay, longer.duplicates) == (200, 1, 1.0, 0.25, 0.0)
    assert longer.random is not None
    assert 0.15 < longer.random < 0.35
    assert {problem.where for problem in found.problems} == {"test/longer"}
    assert [problem.what.split(" ")[0:2] for problem in found.problems][-2:] == [["only", "1"], ["200", "tasks"]]
    assert any("blind replay wins 0.25" in problem.what for problem in found.problems)


def test_audit_counts_copies_up_to_renaming() -> None:
    assert isinstance(Copied(), Canonical)
    assert not isinstance(Guess(), Canonical)
    assert audit(Copied(), limit=4).tiers["longer"].duplicates == 1.0


def test_audit_says_none_where_it_cannot_measure() -> None:
    found = audit(Silent()).tiers["seen"]
    assert (found.expert, found.random, found.replay) == (None, None, None)


def test_play_stops_at_the_end_of_the_episode() -> None:
    world = Guess()
    task = world.tasks("test", "seen")[0]
    assert play_actions(world, task, ["a", "a", "a"])
    assert not play_actions(world, task, ["b", "a"])
    assert not play_actions(world, task, [])
    assert play_random(world, task, seed=1) == play_random(world, task, seed=1)


@pytest.mark.parametrize("world", [Crafting(), Lookup()], ids=lambda world: world.name)
def test_shipped_panels_keep_every_rule(world: World) -> None:
    found = audit(world, limit=100)
    assert found.problems == ()
    assert all(tier.expert == 1.0 and tier.duplicates == 0.0 for tier in found.tiers.values())


def test_problems_name_the_rule_that_is_broken() -> None:
    world = Crafting(level=Level(depth=1, most=3, crafts=1), sizes=Sizes(train=20, dev=5, test=10, per_kind=100))
    texts = [str(problem) for problem in audit(world).problems]
    assert any(text.startswith("test/evo: only ") and "kinds (at least 30 are needed)" in text for text in texts)
    assert any("only 10 tasks" in text for text in texts)
