"""SearchQA played: whole episodes, a reader that wins by the documents alone, rules, and what is refused."""

from __future__ import annotations

import hashlib
import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS, TIERS, SupportsRenaming
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.searchqa.episode import SearchQAEnv
from evolvent.worlds.searchqa.world import SearchQA

SMALL = Sizes(train=30, dev=20, test=20)
WORLD, TAGGED = SearchQA(), SearchQA(text="searchqa")
# SHA-256 over split, tier, first observation, plan and what it shows: what a task id means never changes unnoticed.
CONTENT = "ba3df521fbd41969f55c81e0955d67de676c415fa8c508d6938b74ad78545509"
QUESTION = re.compile(r"Question: (?:who|what) is (the .+) of (\w+)\?")


def task_of(*chain: str, seed: int = 0, **more: object) -> Task:
    return Task("searchqa", "1", {"chain": list(chain), "seed": seed, **more})


def begin(world: SearchQA = WORLD, *, task: Task | None = None) -> SearchQAEnv:
    env = world.make(task or task_of("teacher", "home"))
    env.reset()
    return env


def play_by_reading(world: SearchQA, task: Task, content: list[str] | None = None) -> tuple[list[str], float]:
    """An agent that decomposes the question and finds each value by a pattern in what it is shown."""
    env = world.make(task)
    observation, _ = env.reset()
    found = QUESTION.fullmatch(str(observation))
    assert found
    name, actions, reward = found[2], [], 0.0
    for relation in reversed(found[1].removeprefix("the ").split(" of the ")):
        actions.append(f"search {relation} of {name}")
        observation = str(env.step(actions[-1])[0])
        if content is not None:
            content.append(observation)
        fact = re.search(rf"the {relation} of {name} is (\w+)\.|(\w+) is the {relation} of {name}\.", observation)
        assert fact, (actions[-1], observation)
        name = fact[1] or fact[2]
    actions.append(f"answer {name}")
    _, reward, terminated, _, _ = env.step(actions[-1])
    assert terminated
    return actions, reward


def test_a_whole_episode() -> None:
    env = WORLD.make(task_of("teacher", "home"))
    observation, info = env.reset()
    assert observation == "Question: what is the home of the teacher of zelda?"
    assert info["admissible"] == (
        "search teacher of zelda",
        "search friend of zelda",
        "search home of zelda",
        "search birthplace of zelda",
        "search employer of zelda",
        "search masterpiece of zelda",
        "answer zelda",
    )
    observation, reward, terminated, truncated, info = env.step("search teacher of zelda")
    assert observation == (
        "<information>the employer of zelda is sintrava. the teacher of zelda is viktor.\n"
        "the teacher of xenia is zelda.\nthe teacher of nina is zelda.</information>"
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert {"search home of viktor", "search seat of sintrava", "answer nina"} <= set(info["admissible"])
    assert len(info["admissible"]) == len(set(info["admissible"])) == 4 * 7 + 4
    assert "lorwick is the home of viktor." in str(env.step("search home of viktor")[0])
    assert env.step("answer lorwick")[:4] == ("right", 1.0, True, False)


def test_the_same_in_the_text_of_agentgym() -> None:
    env = TAGGED.make(task_of("teacher", "home"))
    assert "<search>home of zelda</search>" in env.reset()[1]["admissible"]
    assert str(env.step("<think>Who?</think> <search>teacher of zelda</search>")[0]).split("\n")[:2] == [
        "<information>Doc 1(Title: zelda) the employer of zelda is sintrava. the teacher of zelda is viktor.",
        "Doc 2(Title: xenia) the teacher of xenia is zelda.",
    ]
    assert env.step("answer The Lorwick!")[1:3] == (1.0, True)
    plan = TAGGED.expert(task_of("teacher", "home"))
    assert plan == ["<search>teacher of zelda</search>", "<search>home of viktor</search>", "<answer>lorwick</answer>"]
    assert [TAGGED.grammar.parse(action).action for action in plan] == plan
    assert [WORLD.grammar.parse(action).action for action in plan] == WORLD.expert(task_of("teacher", "home"))


def test_reading_alone_wins_every_task_as_the_expert_plays_it() -> None:
    content: list[str] = []
    for split in SPLITS:
        for tier in TIERS:
            for task in WORLD.tasks(split, tier)[:400]:
                actions, reward = play_by_reading(WORLD, task, content)
                assert (actions, reward) == (WORLD.expert(task), 1.0)
                assert len(actions) == len(task.spec["chain"]) + 1 <= WORLD.horizon
                content += [split, tier, task.id, *actions]
    assert hashlib.sha256("\n".join(content).encode()).hexdigest() == CONTENT


def test_panels_are_sound() -> None:
    for split, limit in (("dev", 30), ("test", None)):
        found = audit(WORLD, split, limit=limit)
        assert found.problems == ()
        assert {tier.expert for tier in found.tiers.values()} == {1.0}


def test_all_that_is_told_and_done_is_in_a_small_vocabulary() -> None:
    for world in (WORLD, TAGGED, SearchQA(text="searchqa", until_right=True)):
        known = set(world.vocabulary() or ())
        assert len(known) <= 260
        assert set(words_of(world.instructions)) <= known
        for tier in TIERS:
            for task in world.tasks("test", tier)[:60]:
                env = world.make(task)
                observation, info = env.reset()
                said = [str(observation)]
                for action in (*(world.expert(task) or ())[:-1], "nonsense", "search ?", "answer", "answer anna"):
                    assert set(words_of(" ".join(info["admissible"]))) <= known
                    observation, _, terminated, _, info = env.step(action)
                    said += [str(observation), action if action != "nonsense" else ""]
                    if terminated:
                        break
                assert set(words_of(" ".join(said))) <= known


def test_an_experts_episode_is_short() -> None:
    longest = {}
    for tier in TIERS:
        for task in WORLD.tasks("test", tier):
            env = WORLD.make(task)
            text = str(env.reset()[0])
            for action in WORLD.expert(task) or ():
                text += f" {action} {env.step(action)[0]}"
            longest[tier] = max(longest.get(tier, 0), len(words_of(text)))
    assert max(longest.values()) <= 200


class TestRules:
    def test_a_wrong_answer_ends_the_episode(self) -> None:
        env = begin()
        assert env.step("answer anna")[:4] == ("wrong", 0.0, True, False)
        with pytest.raises(SessionGone, match="reset"):
            env.step("answer lorwick")

    def test_until_right_goes_on_as_the_original_does(self) -> None:
        world = SearchQA(until_right=True, format_score=0.1)
        env = begin(world)
        rewards = []
        for _ in range(12):
            observation, reward, terminated, _, _ = env.step("answer anna")
            assert (observation, terminated) == ("wrong, try again", False)
            rewards.append(reward)
        assert rewards == [0.1] * 12
        assert world.score(rewards, {}).success is False
        assert "go on" in world.instructions
        assert env.step("answer lorwick")[:3] == ("right", 1.0, True)
        assert world.score([*rewards, 1.0], {}).success is True

    def test_what_is_no_action_costs_the_penalty_and_changes_nothing(self) -> None:
        env = begin(SearchQA(penalty=-0.05))
        for text in (
            "",
            "home of zelda",
            "search",
            "<search></search>",
            "answer ",
            "__import__('os')",
        ):
            observation, reward, terminated, _, info = env.step(text)
            assert observation == "expected search and words or answer and a name"
            assert (reward, terminated, info["invalid"]) == (-0.05, False, True)
        assert env.step("answer lorwick")[1] == 1.0

    def test_searching_for_nothing_known_is_no_mistake(self) -> None:
        env = begin()
        observation, reward, terminated, _, info = env.step("search '; DROP TABLE people; --")
        assert (observation, reward, terminated) == ("<information>nothing found</information>", 0.0, False)
        assert "invalid" not in info

    @given(st.text(max_size=60), st.sampled_from(["", "search ", "answer ", "<search>", "<answer>"]))
    def test_no_text_raises(self, text: str, before: str) -> None:
        env = begin(TAGGED)
        observation, reward, *_ = env.step(before + text)
        assert set(words_of(str(observation))) <= set(TAGGED.vocabulary() or ())
        assert reward in (0.0, 1.0)

    def test_horizons(self) -> None:
        assert (SearchQA(hops=4).horizon, SearchQA(horizon=5).horizon, WORLD.horizon) == (10, 5, 8)

    def test_moments_carry_what_was_met(self) -> None:
        env, other = begin(), WORLD.make(task_of("teacher", "home"))
        _, _, _, _, info = env.step("search teacher of zelda")
        moment = env.snapshot()
        env.step("answer anna")
        other.restore(moment)
        assert other.step("nonsense")[4]["admissible"] == info["admissible"]
        env.restore(moment)
        assert env.step("answer lorwick")[1] == 1.0
        with pytest.raises(ConfigError, match="snapshot"):
            begin(task=task_of("home", "mayor")).restore(moment)


class TestTasks:
    def test_renamed_is_another_task_of_the_same_kind(self) -> None:
        assert isinstance(WORLD, SupportsRenaming)
        task = WORLD.tasks("train", "seen")[0]
        other = WORLD.rename(task, Random(1))
        assert other.id != task.id
        assert (other.kind, other.tier, other.split, WORLD.key(other)) == (
            task.kind,
            task.tier,
            task.split,
            WORLD.key(task),
        )
        assert play_by_reading(WORLD, other) == (WORLD.expert(other), 1.0)
        assert WORLD.expert(other) != WORLD.expert(task)
        assert WORLD.rename(task, Random(1)) == other

    def test_options_out_of_range_are_all_named(self) -> None:
        with pytest.raises(ConfigError) as caught:
            SearchQA(hops=7, text="loud", format_score=1.0, penalty=0.5, horizon=0)  # type: ignore[arg-type]
        where = [problem.where for problem in caught.value.problems]
        assert where == ["hops", "text", "format_score", "penalty", "horizon"]
        with pytest.raises(ConfigError):
            SearchQA(format_score=float("nan"))

    @pytest.mark.parametrize(
        ("spec", "where"),
        [
            ({}, ["chain", "seed"]),
            ({"chain": ["home", "home"], "seed": 1}, ["chain"]),
            ({"chain": "home", "seed": True}, ["chain", "seed"]),
            ({"chain": ["twin"] * 50, "seed": 0}, ["chain"]),
            ({"chain": ["home"], "seed": 0, "names": "x"}, ["names"]),
        ],
    )
    def test_broken_specs_are_refused(self, spec: dict[str, object], where: list[str]) -> None:
        task = Task("searchqa", "1", spec)
        for use in (WORLD.make, WORLD.expert, WORLD.key):
            with pytest.raises(ConfigError) as caught:
                use(task)
            assert [problem.where for problem in caught.value.problems] == where

    def test_foreign_tasks_are_refused(self) -> None:
        spec = {"chain": ["home"], "seed": 0}
        for use in (WORLD.make, WORLD.expert, WORLD.key, lambda task: WORLD.rename(task, Random(0))):
            with pytest.raises(ConfigError, match="searchqa"):
                use(Task("lookup", "1", spec))
            with pytest.raises(VersionMismatch):
                use(Task("searchqa", "0", spec))

    def test_scenes_are_forgotten_and_made_again(self) -> None:
        world = SearchQA(sizes=Sizes(train=1030, dev=1, test=1))
        tasks = world.tasks("train", "seen")
        first = world.make(tasks[0])
        assert first.reset()[0] == f"Question: {first._scene.material.question}"
        for task in tasks[1:]:
            world.make(task)
        assert len(world._scenes) == 1024
        assert world.make(tasks[0]).reset() == first.reset()
