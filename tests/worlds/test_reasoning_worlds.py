"""What all worlds of one question promise, checked on each of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import log
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit, play_actions
from evolvent.worlds.base import SPLITS, Forkable, SupportsRenaming
from evolvent.worlds.check import check_env
from evolvent.worlds.crafting import words_of
from evolvent.worlds.deduction.world import Deduction
from evolvent.worlds.panel import Sizes, digest
from evolvent.worlds.reasoning.arithmetic import Arithmetic
from evolvent.worlds.reasoning.entailment import Entailment
from evolvent.worlds.reasoning.episode import OUTCOMES
from evolvent.worlds.reasoning.generated import Generated
from evolvent.worlds.reasoning.problems import Problems
from evolvent.worlds.reasoning.reading import Reading
from evolvent.worlds.reasoning.rules import Rules

SMALL = Sizes(train=40, dev=20, test=20)
MAKERS: dict[str, Callable[..., Generated]] = {
    "arithmetic": Arithmetic,
    "arithmetic 2": lambda sizes=None: Arithmetic(depth=2, sizes=sizes),
    "arithmetic 16": lambda sizes=None: Arithmetic(depth=16, sizes=sizes),
    "problems": Problems,
    "problems program": lambda sizes=None: Problems(form="program", sizes=sizes),
    "deduction": Deduction,
    "entailment": Entailment,
    "reading": Reading,
    "rules": Rules,
    "rules conflict": lambda sizes=None: Rules(form="conflict", sizes=sizes),
}
WORLDS = {name: make(sizes=SMALL) for name, make in MAKERS.items()}
CHOICES = ("deduction", "entailment", "reading", "rules", "rules conflict")
LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("rules", "rules conflict", "problems program")]
WHOLE = ["arithmetic", "problems", "deduction", "entailment", "reading", *LONG]


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Generated:
    return WORLDS[request.param]


def some(world: Generated, n: int = 5) -> list[Task]:
    return [task for tier in world.tiers for task in world.tasks("dev", tier)[:n]]


def test_reset_twice_is_the_same_episode(world: Generated) -> None:
    for task in some(world):
        env, other = world.make(task), world.make(task)
        first = env.reset()
        reply = env.step("### 7")
        assert env.reset() == first == other.reset()
        assert env.step("### 7") == reply == other.step("### 7")
        env.close()


def test_the_expert_wins_and_then_the_episode_is_over(world: Generated) -> None:
    for task in some(world):
        plan = world.expert(task)
        assert plan is not None and len(plan) == world.horizon == 1
        env = world.make(task)
        env.reset()
        observation, reward, terminated, truncated, info = env.step(plan[0])
        assert (observation, reward, terminated, truncated) == (OUTCOMES[0], 1.0, True, False)
        assert info["answered"] is True and "invalid" not in info
        assert world.score([reward], info).success is True
        assert world.score([None], info).success is None
        with pytest.raises(SessionGone):
            env.step(plan[0])
        env.reset()
        env.close()
        with pytest.raises(SessionGone):
            env.step(plan[0])


def test_a_response_of_joined_words_is_read_as_well(world: Generated) -> None:
    """A closed vocabulary writes words and marks with single spaces between."""
    known = set(world.vocabulary() or ())
    for task in some(world):
        (said,) = world.expert(task) or ()
        assert play_actions(world, task, [" ".join(words_of(said))])
        assert set(words_of(world.question(task).text + said)) <= known
    assert {word for outcome in OUTCOMES for word in words_of(outcome)} <= known


@pytest.mark.parametrize("name", [name for name in WORLDS if "program" not in name])
def test_what_an_answer_is(name: str) -> None:
    world = WORLDS[name]
    task = some(world)[0]
    answer = world.question(task).answer
    wrong = next(choice for choice in (world.question(task).choices or ("999",)) if choice != answer)
    for said, seen in (
        (f"### {answer}", (1.0, True, answer, False)),
        (f"because ### {wrong} # # # {answer}", (1.0, True, answer, False)),
        (f"{answer} ### {wrong}", (0.0, True, wrong, False)),
        ("it is so ###", (0.0, False, None, True)),
        ("### something else", (0.0, False, None, True)),
        ("", (0.0, False, None, True)),
    ):
        env = world.make(task)
        env.reset()
        _, reward, _, _, info = env.step(said)
        assert (reward, info["answered"], info["answer"], info.get("invalid", False)) == seen, said


@pytest.mark.parametrize("name", [name for name in WORLDS if "program" not in name])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(max_size=60) | st.text("#0123456789 /-.,ABCDyesno", max_size=30))
def test_any_text_is_answered(name: str, text: str) -> None:
    world = WORLDS[name]
    env = world.make(some(world)[0])
    env.reset()
    observation, reward, terminated, _, info = env.step(text)
    assert terminated and reward in (0.0, 1.0) and observation in OUTCOMES
    assert info["answered"] is (info["answer"] is not None) is (not info.get("invalid", False))


def test_snapshots_are_of_one_task(world: Generated) -> None:
    one, two = some(world)[:2]
    env, other = world.make(one), world.make(two)
    env.reset()
    other.reset()
    assert isinstance(env, Forkable)
    moment = env.snapshot()
    (said,) = world.expert(one) or ()
    assert env.step(said)[1] == 1.0
    over = env.snapshot()
    fork = world.make(one)
    for running in (env, fork):
        running.restore(moment)
        assert running.step(said)[1] == 1.0
    env.restore(over)
    with pytest.raises(SessionGone):
        env.step(said)
    for value in (None, "text", True, other.snapshot()):
        with pytest.raises(ConfigError, match="snapshot"):
            env.restore(value)


def test_bad_tasks_are_refused(world: Generated) -> None:
    task = some(world)[0]
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        world.make(Task("chess", world.version, task.spec))
    with pytest.raises(VersionMismatch):
        world.make(Task(world.name, "0", task.spec))
    with pytest.raises(ConfigError) as caught:
        world.make(Task(world.name, world.version, {"chain": ["nix", 3], "seed": -1, "names": True}))
    assert [problem.where for problem in caught.value.problems][:3] == ["chain", "seed", "names"]
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        world.tasks("tset", "seen")


def test_renamed_is_the_same_question_in_other_words(world: Generated) -> None:
    assert isinstance(world, SupportsRenaming)
    for task in some(world):
        again = world.rename(task, Random(3))
        assert again.id != task.id
        assert (again.kind, again.tier, again.split) == (task.kind, task.tier, task.split)
        assert world.key(again) == world.key(task)
        assert world.question(again).answer == world.question(task).answer
        assert play_actions(world, again, world.expert(again) or ())


def test_panels_keep_their_promises(world: Generated) -> None:
    assert world.tiers[0] == "seen"
    tasks = [task for tier in world.tiers for split in SPLITS for task in world.tasks(split, tier)]
    assert len({task.id for task in tasks}) == len(tasks)
    assert max(Counter(world.key(task) for task in tasks).values()) == 1
    of_kind: dict[str, set[str]] = {}
    for task in tasks:
        of_kind.setdefault(task.kind, set()).add(task.tier)
        assert world.chains.tier_of(tuple(task.spec["chain"])) == task.tier
        assert not (task.split == "train" and task.tier in ("combo", "longer"))
    assert all(len(tiers) == 1 for tiers in of_kind.values())


@pytest.mark.parametrize("name", WHOLE)
def test_the_audit_finds_nothing_but_chance(name: str) -> None:
    """Blind replay wins what guessing wins; everything else is as the rules of held-out panels want it."""
    world = MAKERS[name]()
    found = audit(world)
    assert not [problem for problem in found.problems if "blind replay" not in problem.what]
    for seen in (found.tiers[tier] for tier in world.tiers[1:]):
        assert seen.expert == 1.0 and seen.random is None
        assert seen.replay is not None and seen.replay <= world.chance + 0.05


def _one_of(said: list[str], rng: Random, info: object) -> str:
    return rng.choice(said)


def test_environments_keep_the_contract(world: Generated) -> None:
    """With responses in place of listed actions: there is no end of them."""
    for task in some(world, 1):
        said = ["", "### 3", "return 3", *(world.expert(task) or ())]
        assert check_env(partial(world.make, task), choose=partial(_one_of, said), forkable=True) == []


@pytest.mark.parametrize("name", CHOICES)
def test_words_do_not_tell_the_answer(name: str) -> None:
    """Naive Bayes over the counts of words, and the commonest answer of each kind, are near chance."""
    world = MAKERS[name](sizes=Sizes(train=600, dev=20, test=120))
    train = [world.question(task) for tier in ("seen", "evo") for task in world.tasks("train", tier)]
    test = [(task.kind, world.question(task)) for tier in world.tiers for task in world.tasks("test", tier)]
    answers = sorted({question.answer for question in train})
    assert len(answers) == round(1 / world.chance)
    shares = Counter(question.answer for _, question in test)
    assert max(shares.values()) / len(test) < world.chance + 0.08
    words = {answer: Counter[str]() for answer in answers}
    for question in train:
        words[question.answer].update(words_of(question.text))
    sizes = {answer: sum(counts.values()) for answer, counts in words.items()}

    def likeliest(text: str) -> str:
        said = words_of(text)
        return max(answers, key=lambda answer: sum(log((words[answer][word] + 1) / sizes[answer]) for word in said))

    right = sum(likeliest(question.text) == question.answer for _, question in test) / len(test)
    assert right < world.chance + 0.09
    kinds: dict[str, Counter[str]] = {}
    for tier in ("seen", "evo"):
        for task in world.tasks("train", tier):
            kinds.setdefault(task.kind, Counter())[world.question(task).answer] += 1
    known = [(kind, question) for kind, question in test if kind in kinds]
    guessed = sum(kinds[kind].most_common(1)[0][0] == question.answer for kind, question in known) / len(known)
    assert guessed < world.chance + 0.12


def test_panels_do_not_depend_on_the_process() -> None:
    program = (
        "from evolvent.worlds.panel import Sizes, digest\n"
        "from evolvent.worlds.deduction.world import Deduction\n"
        "from evolvent.worlds.reasoning.rules import Rules\n"
        "for make in (Rules, Deduction):\n"
        "    world = make(sizes=Sizes(train=40, dev=20, test=20))\n"
        "    tasks = [task for tier in reversed(world.tiers) for task in world.tasks('test', tier)]\n"
        "    print(digest(tasks), world.question(tasks[0]).text)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "7")
    }
    assert len(printed) == 1
    rules = WORLDS["rules"]
    tasks = [task for tier in reversed(rules.tiers) for task in rules.tasks("test", tier)]
    assert printed.pop().startswith(f"{digest(tasks)} {rules.question(tasks[0]).text}\n")
