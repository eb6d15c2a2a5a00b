"""Reasoning Gym itself: questions answered, scored, and answers that are never run."""

from __future__ import annotations

import ast

import pytest

from evolvent.errors import ConfigError, SessionGone
from evolvent.trajectory import Task
from evolvent.worlds.audit import play_actions
from evolvent.worlds.base import SPLITS
from evolvent.worlds.check import check_env
from evolvent.worlds.extras.reasoning_gym import ReasoningGym
from evolvent.worlds.panel import Sizes

pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = Sizes(train=30, dev=10, test=10)
NAMES = ("leg_counting", "basic_arithmetic", "prime_factorization", "number_sorting", "word_sorting", "sudoku")
HOSTILE = ("", "\x00", "\ud800", "9" * 30000, "__import__('os').abort()", "1/0", "[" * 5000, "None")


@pytest.fixture(scope="module")
def world():
    return ReasoningGym(NAMES, sizes=SMALL)


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_wins_and_others_do_not(world, name):
    task = next(task for task in world.tasks("train", "seen") if task.kind == name)
    plan = world.expert(task)
    assert plan is not None and len(plan) == 1 and play_actions(world, task, plan)
    assert play_actions(world, task, [f"I thought long. <answer>no</answer> <answer> {plan[0]} </answer>"])
    for text in HOSTILE:
        env = world.make(task)
        question, info = env.reset()
        assert question and "admissible" not in info
        observation, reward, terminated, truncated, info = env.step(text)
        assert (observation, terminated, truncated) == ("wrong", True, False) and 0 <= reward < 1
        assert world.score([reward], info).success is False
        with pytest.raises(SessionGone):
            env.step(text)


def test_it_keeps_the_promises_of_an_env(world):
    for task in world.tasks("dev", "seen")[:4]:
        assert check_env(lambda task=task: world.make(task), choose=lambda rng, info: "5", forkable=True) == []


def find_question(world, dataset, is_meant=lambda entry: True):
    """Returns the first task of a dataset whose entry is meant, with its entry."""
    for seed in range(200):
        task = Task("reasoning", world.version, {"dataset": dataset, "seed": seed})
        env = world.make(task)
        env.reset()
        if is_meant(env._session.entry):
            return task, env._session.entry
    raise AssertionError(f"no such question of {dataset}")


def mark(world, task, answer):
    """Answers and returns (text, reward, success)."""
    env = world.make(task)
    env.reset()
    observation, reward, _, _, info = env.step(answer)
    return observation, round(reward, 6), world.score([reward], info).success


RIGHT = ("right", 1.0, True)


def test_halting_asks_for_the_right_word():
    """The package pays every text, because each is as true as the text "False"."""
    world = ReasoningGym("game_of_life_halting")
    for word, other in (("True", "False"), ("False", "True")):
        task, _ = find_question(world, "game_of_life_halting", lambda entry, word=word: entry["answer"] == word)
        assert mark(world, task, word) == mark(world, task, word.lower()) == RIGHT
        for answer in (other, "banana", "0", f"{word} {other}"):
            assert mark(world, task, answer) == ("wrong", 0.0, False)


def test_a_probability_is_more_than_its_first_digit():
    """The package pays "0" in full: one of one character agrees. 0.234375 has eight, of which 0.2 has three."""
    world = ReasoningGym("coin_flip")
    task, _ = find_question(world, "coin_flip", lambda entry: entry["answer"] == "0.234375")
    for answer in ("0.234375", "15/64", "0.2344"):
        assert mark(world, task, answer) == RIGHT
    assert mark(world, task, "0") == ("wrong", 0.125, False)
    assert mark(world, task, "0.2") == ("wrong", 0.375, False)
    small, entry = find_question(world, "coin_flip", lambda entry: float(entry["answer"]) < 1e-4)
    assert mark(world, small, entry["answer"]) == RIGHT
    for answer in ("0", f"-{entry['answer']}", "0.0001"):
        assert mark(world, small, answer)[1:] != (1.0, True)


def test_sorted_numbers_are_those_of_the_question():
    """The package lets each number differ by 1."""
    world = ReasoningGym("number_sorting")
    task, entry = find_question(world, "number_sorting", lambda entry: entry["metadata"]["direction"] == "ascending")
    numbers = [float(number) for number in ast.literal_eval(entry["answer"])]
    assert mark(world, task, str([str(number) for number in numbers])) == RIGHT
    assert mark(world, task, str(numbers)) == RIGHT
    shifted = [str(round(number + 0.5, 3)) for number in numbers]
    assert mark(world, task, str(shifted)) == ("wrong", 0.0, False)


def test_the_sign_of_a_number_is_read():
    """The package finds the first number without its sign."""
    world = ReasoningGym("gsm_symbolic")
    task, entry = find_question(world, "gsm_symbolic", lambda entry: float(entry["answer"]) > 0)
    right = entry["answer"]
    for answer in (right, f"It is {right}.", f"{right}-{right}"):
        assert mark(world, task, answer) == RIGHT
    for answer in (f"-{right}", f"It is -{right}."):
        assert mark(world, task, answer) == ("wrong", 0.01, False)


def test_conclusions_consist_of_the_variables():
    """Of premises that contradict each other the package accepts every word."""
    world = ReasoningGym("propositional_logic")
    task, entry = find_question(world, "propositional_logic")  # Q, (Q → Q) → ¬R, R
    assert entry["metadata"]["premises"] == ["Q", "((Q → Q) → ¬R)", "R"]
    assert mark(world, task, world.expert(task)[0]) == RIGHT
    for answer in ("banana", "(banana ∧ apple)", "Q banana"):
        assert mark(world, task, answer) == ("wrong", 0.0, False)


@pytest.mark.parametrize(
    ("dataset", "end", "surplus"),
    [
        ("word_sorting", None, ", banana"),
        ("spell_backward", None, "banana"),
        ("letter_jumble", None, " banana"),
        ("game_of_life", -1, ", [1]]"),
    ],
)
def test_the_right_answer_and_more_is_not_right(dataset, end, surplus):
    """The package compares as much as the right answer has, and pays in full."""
    world = ReasoningGym(dataset)
    for seed in range(8):
        task = Task("reasoning", world.version, {"dataset": dataset, "seed": seed})
        right = world.expert(task)[0]
        assert mark(world, task, right) == RIGHT
        text, reward, success = mark(world, task, right[:end] + surplus)
        assert (text, success) == ("wrong", False) and reward <= 0.9


def test_ten_right_letters_are_not_a_longer_word():
    world = ReasoningGym("figlet_font", config={"min_word_len": 11, "max_word_len": 14})
    task = next(iter(world.tasks("train", "seen")))
    right = world.expert(task)[0]
    assert mark(world, task, right) == RIGHT
    assert mark(world, task, f"{right}x") == ("wrong", round(len(right) / (len(right) + 1), 6), False)


def test_24_is_made_of_the_numbers_of_the_question():
    """The package takes any four numbers; the answers are ours, so that they may be run."""
    world = ReasoningGym("puzzle24", trusted=True)
    task, _ = find_question(world, "puzzle24", lambda entry: sorted(entry["metadata"]["numbers"]) != [4, 6, 7, 7])
    assert mark(world, task, world.expert(task)[0]) == RIGHT
    assert mark(world, task, "7 + 7 + 4 + 6") == ("wrong", 0.01, False)


@pytest.mark.parametrize("dataset", ["graph_color", "propositional_logic", "rubiks_cube"])
def test_entries_without_an_answer_have_an_example(dataset):
    world = ReasoningGym(dataset)
    for seed in range(3):
        task = Task("reasoning", world.version, {"dataset": dataset, "seed": seed})
        assert play_actions(world, task, world.expert(task))


@pytest.mark.parametrize("name", ["countdown", "puzzle24", "n_queens", "spiral_matrix", "composite"])
def test_scorers_that_run_answers_are_refused(name, tmp_path):
    refused = ReasoningGym(name, sizes=SMALL)
    task = refused.tasks("dev", "seen")[0]
    with pytest.raises(ConfigError, match="runs the answer as a program"):
        refused.make(task).reset()


def test_they_can_be_trusted():
    trusting = ReasoningGym("puzzle24", trusted=True, sizes=SMALL)
    task = trusting.tasks("dev", "seen")[0]
    assert play_actions(trusting, task, trusting.expert(task))


def test_options_are_part_of_the_task():
    plain, small = (
        ReasoningGym("leg_counting", config=config, sizes=SMALL)
        for config in (None, {"min_animals": 2, "max_animals": 2})
    )
    ours, theirs = small.tasks("test", "seen")[0], plain.tasks("test", "seen")[0]
    assert dict(ours.spec["config"]) == {"min_animals": 2, "max_animals": 2}
    assert "config" not in theirs.spec
    assert small.make(ours).reset()[0].count(",") == 2
    for config in ({"legs": 3}, {"min_animals": 5, "max_animals": 1}):
        broken = ReasoningGym("leg_counting", config=config, sizes=SMALL)
        with pytest.raises(ConfigError, match="refuses its options"):
            broken.make(broken.tasks("test", "seen")[0]).reset()


def test_unknown_names_and_specs(world):
    with pytest.raises(ConfigError, match="did you mean 'leg_counting'"):
        world.make(Task("reasoning", world.version, {"dataset": "leg_countin", "seed": 1})).reset()
    for spec in ({"dataset": "sudoku"}, {"dataset": "sudoku", "seed": -1}, {"dataset": "a", "seed": 1, "config": 3}):
        with pytest.raises(ConfigError):
            world.make(Task("reasoning", world.version, spec))


def test_panels(world):
    assert [len(world.tasks(split, "seen")) for split in SPLITS] == [30, 10, 10]
    assert {task.kind for task in world.tasks("test", "seen")} <= set(NAMES)
    again = ReasoningGym(NAMES, sizes=SMALL)
    assert [task.id for task in again.tasks("train", "seen")] == [task.id for task in world.tasks("train", "seen")]
