"""Countdown: episodes by hand, action texts, bad input, and what the tiers promise, checked against all solutions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS, TIERS, Forkable
from evolvent.worlds.countdown import UNDEMONSTRATED, Countdown, CountdownEnv, tier_of_shape
from evolvent.worlds.crafting import words_of
from evolvent.worlds.numbers import Form, form_of, moves, parts, plan, shape_of, solution_shapes, solve_probability
from evolvent.worlds.panel import Sizes

WORLD = Countdown()
PENAL = Countdown(penalty=-0.25)
SMALL = Sizes(train=30, dev=20, test=20)
WORDS = frozenset(WORLD.vocabulary())


def task_of(*numbers: int, target: int = 24, **more: object) -> Task:
    return Task("countdown", "1", {"numbers": list(numbers), "target": target, **more})


def begin(*numbers: int, target: int = 24, world: Countdown = WORLD) -> CountdownEnv:
    env = world.make(task_of(*numbers, target=target))
    env.reset()
    return env


def shape_of_task(task: Task) -> Form:
    numbers = tuple(task.spec["numbers"])
    return shape_of(form_of(numbers, plan(numbers, task.spec["target"]) or ()))


def all_tasks(world: Countdown = WORLD) -> list[Task]:
    return [task for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)]


class TestEpisodes:
    def test_a_whole_episode(self):
        env = WORLD.make(task_of(4, 9, 10, 13))
        observation, info = env.reset()
        assert observation == "make 24 from 4 9 10 13"
        assert len(info["admissible"]) == 18
        assert info["admissible"][:3] == ("10 - 9", "13 - 10", "13 - 9")
        assert env.step("13 - 10")[:4] == ("left 3 4 9", 0.0, False, False)
        assert env.left == (3, 4, 9)
        assert env.step("9 - 3") == ("left 4 6", 0.0, False, False, {"admissible": ("6 - 4", "6 + 4", "6 * 4")})
        assert env.step("6 * 4") == ("left 24", 1.0, True, False, {"admissible": ()})
        with pytest.raises(SessionGone):
            env.step("6 * 4")

    def test_another_last_number_ends_without_reward(self):
        env = begin(2, 3, 4)
        assert env.step("4 * 3")[:3] == ("left 2 12", 0.0, False)
        assert env.step("12 + 2")[:3] == ("left 14", 0.0, True)
        assert WORLD.score([0.0, 0.0], {}).success is False

    def test_admissible_actions_are_the_moves(self):
        for task in all_tasks()[::97]:
            env = WORLD.make(task)
            _, info = env.reset()
            while info["admissible"]:
                assert info["admissible"] == tuple(str(move) for move in moves(env.left))
                info = env.step(info["admissible"][len(env.left) % len(info["admissible"])])[4]

    @pytest.mark.parametrize(
        "text",
        ["10 - 4", " 10  -  4\n", "10-4", "10 - 4 = 6", "10 - 4 = 6 (left: 6 9 13)", "10 - 4 = 6 (left: 9 13 6)"],
    )
    def test_ways_to_write_a_move(self, text):
        assert begin(4, 9, 10, 13).step(text)[0] == "left 6 9 13"

    def test_sums_and_products_go_either_way_round(self):
        assert begin(4, 9, 10, 13).step("4 + 10")[0] == begin(4, 9, 10, 13).step("10 + 4")[0] == "left 9 13 14"
        assert begin(4, 9, 10, 13).step("4 * 10 = 40")[0] == "left 9 13 40"

    @pytest.mark.parametrize(
        "text, answer",
        [
            ("", "expected two numbers left and + - * or / between"),
            ("10 ^ 4", "expected two numbers left and + - * or / between"),
            ("10 - 4 - 9", "expected two numbers left and + - * or / between"),
            ("make 24", "expected two numbers left and + - * or / between"),
            ("9" * 5000 + " - 4", "expected two numbers left and + - * or / between"),
            ("12 - 4", "12 is not left"),
            ("999999999 - 4", "that number is not left"),
            ("4 + 4", "4 is left only once"),
            ("4 - 10", "the larger number comes first"),
            ("10 / 4", "10 / 4 is no whole number"),
            ("4 / 10", "4 / 10 is no whole number"),
            ("10 - 4 = 7", "10 - 4 is 6"),
            ("10 - 4 = 6 (left: 6 9)", "then left 6 9 13"),
        ],
    )
    def test_what_is_no_action(self, text, answer):
        env = begin(4, 9, 10, 13, world=PENAL)
        observation, reward, terminated, truncated, info = env.step(text)
        assert (observation, reward, terminated, truncated) == (answer, -0.25, False, False)
        assert info["invalid"] is True and len(info["admissible"]) == 18
        assert set(words_of(answer)) <= WORDS
        assert env.left == (4, 9, 10, 13)

    def test_zero_and_the_limit(self):
        env = begin(3, 3, 50, 10, target=60)
        assert env.step("3 - 3")[0] == "left 0 10 50"
        assert env.step("10 / 0")[0] == "cannot divide by 0"
        assert env.step("50 * 10")[0] == "50 * 10 is over 200"
        assert "0 / 50" in env.step("bad")[4]["admissible"]
        assert env.step("0 / 50")[0] == "left 0 10"

    @settings(deadline=None)
    @given(st.lists(st.text(max_size=30) | st.from_regex(r"[0-9]{1,3} ?[-+*/] ?[0-9]{1,3}( ?= ?[0-9]+)?"), max_size=8))
    def test_any_text_is_answered_in_known_words(self, texts):
        env = begin(4, 9, 10, 13)
        for text in texts:
            observation, _, terminated, _, info = env.step(text)
            assert set(words_of(str(observation))) <= WORDS
            assert len(words_of(str(observation))) <= 16
            assert info["admissible"] or terminated
            if terminated:
                break

    def test_snapshots_fork(self):
        env, other = begin(4, 9, 10, 13), WORLD.make(task_of(4, 9, 10, 13))
        assert isinstance(env, Forkable)
        env.step("10 - 4")
        moment = env.snapshot()
        assert env.step("13 - 9")[0] == "left 4 6"
        other.restore(moment)
        assert other.step("13 - 9")[0] == "left 4 6"
        with pytest.raises(ConfigError, match="snapshot"):
            begin(4, 9, 10, 12).restore(moment)
        env.close()
        with pytest.raises(SessionGone):
            env.step("6 * 4")


class TestTasks:
    def test_the_order_of_the_numbers_makes_no_difference(self):
        task = task_of(13, 4, 10, 9)
        assert WORLD.key(task) == WORLD.key(task_of(4, 9, 10, 13)) == "4 9 10 13 -> 24"
        assert WORLD.expert(task) == ["13 - 10", "9 - 3", "6 * 4"]
        assert WORLD.make(task).reset()[0] == "make 24 from 4 9 10 13"

    def test_an_unsolvable_task_is_refused(self):
        for numbers in ((1, 1, 1, 1), (3, 3, 8, 8)):
            with pytest.raises(ConfigError, match=f"24 cannot be made from {' '.join(map(str, numbers))}"):
                WORLD.make(task_of(*numbers))

    @pytest.mark.parametrize(
        "spec, told",
        [
            ({}, ["numbers", "target"]),
            ({"numbers": "4 9", "target": "24"}, ["numbers", "target"]),
            ({"numbers": [24], "target": 24}, ["numbers"]),
            ({"numbers": [4, 6.0], "target": 24}, ["numbers"]),
            ({"numbers": [4, True], "target": 4}, ["numbers"]),
            ({"numbers": [4, -6], "target": 24}, ["numbers"]),
            ({"numbers": [4, 10**9], "target": 24}, ["numbers"]),
            ({"numbers": [4] * 6, "target": 24}, ["numbers"]),
            ({"numbers": [4, 6], "target": 201}, ["target"]),
        ],
    )
    def test_broken_specs(self, spec, told):
        with pytest.raises(ConfigError) as caught:
            WORLD.make(Task("countdown", "1", spec))
        assert [problem.where for problem in caught.value.problems] == told

    def test_foreign_tasks(self):
        with pytest.raises(ConfigError, match="the task does not belong to world"):
            WORLD.make(Task("lookup", "1", {"numbers": [4, 6], "target": 24}))
        with pytest.raises(VersionMismatch, match="another version"):
            WORLD.make(Task("countdown", "0", {"numbers": [4, 6], "target": 24}))
        with pytest.raises(VersionMismatch, match="another limit"):
            WORLD.make(task_of(4, 6, limit=100))

    def test_another_limit_is_another_task(self):
        world = Countdown(limit=60, sizes=SMALL)
        task = world.tasks("train", "seen")[0]
        assert task.spec["limit"] == 60
        assert "is over 60" in str(begin_of(world, task_of(30, 30, 3, target=3, limit=60)).step("30 * 3")[0])
        assert max(int(word) for word in world.vocabulary() if word.isdigit()) == 60
        with pytest.raises(VersionMismatch):
            WORLD.make(task)
        with pytest.raises(VersionMismatch):
            world.make(task_of(4, 6))

    @pytest.mark.parametrize("numbers", [2, 7, (4, 3), (3, 4, 5), (), (3, 7)])
    def test_numbers_are_checked(self, numbers):
        with pytest.raises(ConfigError, match="numbers: got tasks of"):
            Countdown(numbers=numbers)

    def test_all_mistakes_are_told_at_once(self):
        with pytest.raises(ConfigError) as caught:
            Countdown(numbers=9, target=500, low=0, penalty=0.5)
        assert [problem.where for problem in caught.value.problems] == ["numbers", "low", "target", "penalty"]
        with pytest.raises(ConfigError, match="penalty"):
            Countdown(penalty=float("nan"))


def begin_of(world: Countdown, task: Task) -> CountdownEnv:
    env = world.make(task)
    env.reset()
    return env


class TestPanels:
    def test_the_audit_is_clean(self):
        found = audit(WORLD, "test")
        assert found.problems == ()
        for tier in found.tiers.values():
            assert (tier.tasks, tier.expert, tier.replay, tier.duplicates) == (200, 1.0, 0.0, 0.0)
            assert tier.random is not None and tier.random < 0.1
            assert tier.kinds >= 30

    def test_kinds_and_tiers_are_those_of_the_canonical_solution(self):
        for task in all_tasks():
            numbers = tuple(task.spec["numbers"])
            assert task.kind == str(form_of(numbers, plan(numbers, task.spec["target"]) or ()))
            assert tier_of_shape(shape_of_task(task), 4) == task.tier

    def test_no_solution_is_of_another_tier(self):
        for tier in ("seen", "evo", "combo"):
            for task in WORLD.tasks("test", tier):
                numbers = tuple(task.spec["numbers"])
                ways = set(solution_shapes(numbers, task.spec["target"]))
                assert {tier_of_shape(way, 4) for way in ways} == {tier}
                assert tier != "evo" or all(UNDEMONSTRATED & {str(part) for part in parts(way)} for way in ways)

    def test_combo_and_longer_hold_trained_pairs_only_and_are_never_trained_whole(self):
        trained = {shape_of_task(task) for tier in ("seen", "evo") for task in WORLD.tasks("train", tier)}
        pairs = {part for task in WORLD.tasks("train", "seen") for part in parts(shape_of_task(task))}
        assert not UNDEMONSTRATED & {str(part) for part in pairs}
        for tier in ("combo", "longer"):
            for task in (*WORLD.tasks("dev", tier), *WORLD.tasks("test", tier)):
                assert shape_of_task(task) not in trained
                assert parts(shape_of_task(task)) <= pairs

    def test_how_many_numbers(self):
        for tier in TIERS:
            counts = Counter(len(task.spec["numbers"]) for split in SPLITS for task in WORLD.tasks(split, tier))
            assert set(counts) == {"combo": {4}, "longer": {5}}.get(tier, {3, 4})
        counts = Counter(len(task.spec["numbers"]) for task in WORLD.tasks("train", "seen"))
        assert abs(counts[3] - counts[4]) < 100

    def test_luck_is_bounded(self):
        for tier in TIERS:
            for task in WORLD.tasks("test", tier):
                assert solve_probability(tuple(task.spec["numbers"]), task.spec["target"]) <= 0.1

    def test_episodes_are_short_and_in_known_words(self):
        lengths = []
        for task in [task for tier in TIERS for task in WORLD.tasks("dev", tier)]:
            env = WORLD.make(task)
            texts, plan_of = [str(env.reset()[0])], list(WORLD.expert(task))
            for action in plan_of:
                texts += [action, str(env.step(action)[0])]
            words = [word for text in texts for word in words_of(text)]
            assert set(words) <= WORDS
            assert len(plan_of) == len(task.spec["numbers"]) - 1 <= WORLD.horizon
            lengths.append(len(words))
        assert max(lengths) <= 40

    def test_game24(self):
        """One target and few multisets: the panels hold less than the 1,346 solvable ones, and that is no error."""
        world = Countdown(numbers=4, target=24, low=1, high=13)
        found = [task for task in all_tasks(world) if task.tier != "longer"]
        assert 400 < len(found) < 1346
        assert {(len(task.spec["numbers"]), task.spec["target"]) for task in found} == {(4, 24)}
        assert len({world.key(task) for task in found}) == len(found)

    def test_three_numbers_have_no_combo(self):
        world = Countdown(numbers=3, sizes=SMALL)
        assert world.tiers == ("seen", "evo", "longer")
        assert {len(task.spec["numbers"]) for task in world.tasks("train", "evo")} == {3}
        assert {len(task.spec["numbers"]) for task in world.tasks("test", "longer")} == {4}
        with pytest.raises(ConfigError, match="unknown tier 'combo'"):
            world.tasks("test", "combo")

    def test_six_numbers_are_dealt_and_solved(self):
        world = Countdown(numbers=6, sizes=Sizes(train=5, dev=3, test=3))
        for task in all_tasks(world):
            rewards = []
            env = begin_of(world, task)
            for action in world.expert(task):
                rewards.append(env.step(action)[1])
            assert world.score(rewards, {}).success

    def test_a_tier_that_cannot_be_filled_stays_empty(self):
        world = Countdown(numbers=3, low=1, high=1, sizes=Sizes(per_kind=100))
        found = [task for split in SPLITS for task in world.tasks(split, "seen")]
        assert [(task.spec["target"], task.kind) for task in found] == [(3, "a + b + c")]
        assert not world.tasks("train", "evo")

    def test_panels_do_not_depend_on_which_tier_is_asked_first(self):
        one, two = Countdown(sizes=SMALL), Countdown(sizes=SMALL)
        found = [[task.id for task in one.tasks("dev", tier)] for tier in TIERS]
        assert found == [[task.id for task in two.tasks("dev", tier)] for tier in reversed(TIERS)][::-1]
