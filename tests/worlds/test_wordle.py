"""Wordle: golden games under both rules, tries, held-out words, other lists, and an expert that does not peek."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError, SessionGone, VersionMismatch
from evolvent.trajectory import Task
from evolvent.worlds.audit import audit
from evolvent.worlds.base import SPLITS
from evolvent.worlds.crafting import words_of
from evolvent.worlds.panel import Sizes
from evolvent.worlds.wordle import Wordle, marks_of

OFFICIAL, LMRL = Wordle(), Wordle(rules="lmrl")
WORLDS = {world.name: world for world in (OFFICIAL, LMRL)}


def hidden(world: Wordle, word: str) -> Task:
    return Task(world.name, world.version, {"list": world.words.digest, "word": word})


def play(world: Wordle, word: str, guesses: list[str]) -> list[tuple]:
    env = world.make(hidden(world, word))
    env.reset()
    return [env.step(guess)[:4] for guess in guesses]


@pytest.fixture(params=list(WORLDS))
def world(request: pytest.FixtureRequest) -> Wordle:
    return WORLDS[request.param]


def test_a_game_worked_by_hand():
    env = OFFICIAL.make(hidden(OFFICIAL, "crane"))
    observation, info = env.reset()
    assert observation == "guess a word of 5 letters"
    assert len(info["admissible"]) == 3531 and "s h i r e" in info["admissible"]
    assert env.step("e e r i e") == ("b b y b g", 0.0, False, False, info)
    assert env.step("e n a r c") == ("invalid word", 0.0, False, False, {**info, "invalid": True})
    assert env.step("s h i r e") == ("b b b y g", 0.0, False, False, info)
    assert env.step("crate") == ("g g g b g", 0.0, False, False, info)
    assert env.step("c r a n e") == ("g g g g g", 1.0, True, False, info)
    with pytest.raises(SessionGone):
        env.step("c r a n e")
    assert OFFICIAL.score([0.0, 0.0, 0.0, 1.0], {}).success is True


def test_the_golden_pair_of_the_two_rules():
    words = ["crane", "eerie", "shire"]
    assert play(Wordle(words), "crane", ["e e r i e"])[0][0] == "b b y b g"
    assert play(Wordle(words, rules="lmrl"), "crane", ["e e r i e"])[0][0] == "y y y b g"


@pytest.mark.parametrize("text", ["s h i r e", "shire", "SHIRE", " s  h i r\te\n", "S h I r E"])
def test_ways_to_write_a_guess(text):
    assert play(OFFICIAL, "shire", [text]) == [("g g g g g", 1.0, True, False)]


@pytest.mark.parametrize(
    "text", ["", " ", "shi re", "s h i r", "shires", "s h i r e !", "ſhire", "x" * 10**5, "g g g g g"]
)
def test_what_is_no_guess(text):
    assert play(OFFICIAL, "shire", [text]) == [("invalid word", 0.0, False, False)]


def test_six_tries_of_either_sort_end_the_game():
    wrong = [("b b b b b", 0.0, False, False)] * 5 + [("b b b b b", 0.0, True, False)]
    assert play(OFFICIAL, "shire", ["junky"] * 6) == wrong
    world = Wordle(penalty=-0.1)
    answers = play(world, "shire", ["?"] * 6)
    assert answers == [("invalid word", -0.1, False, False)] * 5 + [("invalid word", -0.1, True, False)]
    answers = play(world, "shire", ["?", "junky", "?", "?", "?", "shire"])
    assert answers[-1] == ("g g g g g", 1.0, True, False)
    score = world.score([answer[1] for answer in answers], {})
    assert (score.success, score.unit, score.raw) == (True, 1.0, pytest.approx(0.6))
    assert world.score([0.0] * 6, {}).success is False
    assert world.score([1.0, None], {}).success is None


def test_no_hidden_word_of_one_split_is_in_another(world):
    found = {split: {task.spec["word"] for task in world.tasks(split, "seen")} for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [1200, 100, 200]
    assert len(set().union(*found.values())) == 1500
    task = next(task for task in world.tasks("train", "seen") if task.spec["word"][-1] == "e")
    vowels = "".join("v" if letter in "aeiou" else "c" for letter in task.spec["word"])
    assert task.kind == f"{vowels} ends e"
    assert world.key(task) == task.spec["word"]


@pytest.mark.parametrize("split", ["dev", "test"])
def test_the_panels_are_sound(world, split):
    found = audit(world, split)
    assert found.problems == ()
    assert found.tiers["seen"].expert == 1.0


def test_the_expert_follows_the_marks_alone(world):
    """Tasks whose answers were equal so far get the same next guess; a plan is within six guesses."""
    guessed: dict[tuple[str, ...], str] = {}
    for task in [*world.tasks("dev", "seen"), *world.tasks("test", "seen")]:
        env, seen = world.make(task), ()
        env.reset()
        plan = world.expert(task)
        assert len(plan) <= 6
        for action in plan:
            assert guessed.setdefault(seen, action) == action
            seen = (*seen, env.step(action)[0])
    assert len(guessed) > 200


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_lmrl_hides_a_word_that_fits_all_marks(seed):
    """The marks of every try fit some word, the same guesses get the same marks, and a win is the only word left."""
    rng, words = Random(seed), LMRL.words.words
    task = rng.choice(LMRL.tasks("train", "seen"))
    env, again = LMRL.make(task), LMRL.make(task)
    env.reset()
    again.reset()
    left = list(words)
    for n in range(6):
        guess = rng.choice(left if rng.random() < 0.5 else words)
        answer = env.step(guess)
        assert answer == again.step(" ".join(guess))
        marks = answer[0].replace(" ", "")
        if n == 0:
            assert marks == marks_of(guess, task.spec["word"], rules="lmrl")
        left = [word for word in left if marks_of(guess, word, rules="lmrl") == marks]
        assert left
        assert (marks == "ggggg") == (answer[1] == 1.0)
        assert answer[2] == (marks == "ggggg" or n == 5)
        if answer[2]:
            break


def test_lmrl_moves_the_hidden_word():
    """Guessing the first hidden word second misses wherever another word was drawn; official rules never move it."""
    lost = 0
    for task in LMRL.tasks("train", "seen")[:40]:
        word = task.spec["word"]
        guesses = ["tales" if word != "tales" else "crane", word]
        lost += play(LMRL, word, guesses)[-1][1] == 0.0
        assert play(OFFICIAL, word, guesses)[-1][1] == 1.0
    assert 20 < lost < 40


def test_snapshots_of_both_rules_are_exact(world):
    for task in world.tasks("dev", "seen")[:5]:
        env, other = world.make(task), world.make(task)
        env.reset()
        first, *rest = [" ".join(word) for word in Random(task.id).sample(world.words.words, 5)]
        env.step(first)
        moment = env.snapshot()
        seen = [env.step(guess) for guess in rest]
        for fork in (env, other):
            fork.restore(moment)
            assert [fork.step(guess) for guess in rest] == seen
        with pytest.raises(ConfigError, match="snapshot"):
            world.make(world.tasks("test", "seen")[0]).restore(moment)


def test_lists_of_other_lengths():
    three = ["cat", "dog", "cow", "hen", "ant", "bee", "fox", "owl", "rat", "pig"]
    world = Wordle(three, sizes=Sizes(train=10, dev=10, test=10))
    tasks = [task for split in SPLITS for task in world.tasks(split, "seen")]
    assert sorted(task.spec["word"] for task in tasks) == sorted(three)
    assert world.make(tasks[0]).reset()[0] == "guess a word of 3 letters"
    assert play(world, "cow", ["dog", "w o c"]) == [("b g b", 0.0, False, False), ("invalid word", 0.0, False, False)]
    for task in tasks:
        assert play(world, task.spec["word"], list(world.expert(task)))[-1][:2] == ("g g g", 1.0)
    assert {"3", "c", "w"} <= set(world.vocabulary())
    assert "z" not in world.vocabulary()


def test_a_list_in_a_file(tmp_path):
    path = tmp_path / "animals.txt"
    path.write_text("horse\nsheep\nmoose\n")
    assert Wordle(path).words.words == ("horse", "moose", "sheep")


def test_an_expert_that_cannot_win_says_what_it_tried():
    """Twelve words that differ in one letter cannot be told apart in six tries."""
    world = Wordle([letter + "aaaa" for letter in "bcdfghjklmnp"])
    plan = world.expert(hidden(world, "paaaa"))
    assert len(plan) == 6
    assert play(world, "paaaa", list(plan))[-1] == ("b g g g g", 0.0, True, False)


def test_everything_seen_is_in_the_vocabulary(world):
    known, rng = set(world.vocabulary()), Random(3)
    assert len(known) == 32
    for task in world.tasks("dev", "seen")[:20]:
        env = world.make(task)
        texts = [env.reset()[0], *world.expert(task)]
        over = False
        while not over:
            action = rng.choice([rng.choice(world.words.words), "hmm"])
            observation, _, over, _, _ = env.step(action)
            texts.append(observation)
        assert {word for text in texts for word in words_of(text)} <= known


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.text(max_size=40) | st.sampled_from(["__import__('os')", "\x00", "a a a a a"]), max_size=5))
def test_any_text_is_answered(texts):
    world = Wordle(["crane", "shire"], penalty=-0.05)
    env = world.make(hidden(world, "crane"))
    env.reset()
    for text in texts:
        observation, reward, terminated, truncated, info = env.step(text)
        assert (observation, reward, terminated, truncated) == ("invalid word", -0.05, False, False)
        assert info["invalid"] is True and info["admissible"] == ("c r a n e", "s h i r e")


def test_all_mistakes_are_reported_at_once():
    with pytest.raises(ConfigError) as caught:
        Wordle(["crane", "x"], rules="offical", penalty=0.5)
    assert [problem.where for problem in caught.value.problems] == ["rules", "penalty", "words"]
    assert caught.value.problems[0].hint == "did you mean 'official'?"


def test_foreign_and_broken_tasks_are_refused():
    task = hidden(OFFICIAL, "crane")
    with pytest.raises(ConfigError, match="the task does not belong to world"):
        LMRL.make(task)
    with pytest.raises(VersionMismatch, match="another version of 'wordle'"):
        OFFICIAL.make(Task("wordle", "0", task.spec))
    with pytest.raises(VersionMismatch, match=r"the task belongs to another word list.*24070886e683"):
        Wordle(["crane", "shire"]).make(task)
    for word in (None, 7, "zzzzz", "CRANE", "", ["crane"]):
        with pytest.raises(ConfigError, match="not in the list"):
            OFFICIAL.make(Task("wordle", "1", {**task.spec, "word": word}))
    with pytest.raises(ConfigError, match="did you mean 'seen'"):
        OFFICIAL.tasks("test", "sen")
