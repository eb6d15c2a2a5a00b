"""Marks against an independent count, lists with every kind of mistake, and a solver that sees marks alone."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evolvent.errors import ConfigError
from evolvent.worlds import wordle
from evolvent.worlds.wordle import RULES, Solver, WordList, code_of, marks_of, read_words, sum_squared_group_sizes

DEFAULT = read_words()
SOME = sorted(Random(5).sample(DEFAULT.words, 200))
TOYS = st.lists(st.text("abc", min_size=4, max_size=4), min_size=1, max_size=12, unique=True)


def counted(guess: str, word: str, rules: str) -> str:
    """The rules by counting: how many copies of a letter earn a mark, and which of them, from the left."""
    marks = []
    for place, letter in enumerate(guess):
        if word[place] == letter:
            marks.append("g")
            continue
        if rules == "lmrl":
            marks.append("y" if word.count(letter) else "b")
            continue
        greens = sum(one == other == letter for one, other in zip(guess, word, strict=True))
        before = sum(guess[i] == letter != word[i] for i in range(place))
        marks.append("y" if before < word.count(letter) - greens else "b")
    return "".join(marks)


@pytest.mark.parametrize(
    ("word", "guess", "official", "lmrl"),
    [
        ("crane", "eerie", "bbybg", "yyybg"),
        ("abide", "speed", "bbyby", "bbyyy"),
        ("these", "geese", "bbggg", "byggg"),
        ("llama", "allay", "ygyyb", "ygyyb"),
        ("shire", "shire", "ggggg", "ggggg"),
        ("quick", "boxer", "bbbbb", "bbbbb"),
    ],
)
def test_marks_worked_by_hand(word, guess, official, lmrl):
    assert marks_of(guess, word) == official
    assert marks_of(guess, word, rules="lmrl") == lmrl


@pytest.mark.parametrize("rules", RULES)
def test_marks_equal_a_count_on_all_pairs(rules):
    """The scalar rules and their vectors, for 200 x 200 words."""
    words = WordList(SOME)
    for guess in SOME:
        codes = words.codes(guess, rules=rules)
        for place, word in enumerate(words.words):
            marks = marks_of(guess, word, rules=rules)
            assert marks == counted(guess, word, rules)
            assert codes[place] == code_of(marks)


@given(pair=st.integers(1, 9).flatmap(lambda n: st.tuples(*[st.text("abc", min_size=n, max_size=n)] * 2)))
def test_marks_have_their_meaning(pair):
    guess, word = pair
    official, lmrl = marks_of(guess, word), marks_of(guess, word, rules="lmrl")
    assert (official == "g" * len(word)) == (guess == word) == (lmrl == "g" * len(word))
    common = Counter(guess) & Counter(word)
    assert sum(mark != "b" for mark in official) == common.total()
    assert all(one == other or (one, other) == ("b", "y") for one, other in zip(official, lmrl, strict=True))
    words = WordList([word])
    assert [words.codes(guess)[0], words.codes(guess, rules="lmrl")[0]] == [code_of(official), code_of(lmrl)]


def test_codes_are_numbers_to_the_base_three():
    assert [code_of(marks) for marks in ("bbbbb", "bbbby", "bbbbg", "bbbyb", "ggggg")] == [0, 1, 2, 3, 242]
    long = WordList(["abcdefghijklmnopqrst"])
    assert long.codes("abcdefghijklmnopqrst")[0] == 3**20 - 1
    assert WordList(["ab"]).codes("zz")[0] == 0


def test_the_default_list():
    assert len(DEFAULT.words) == 3531
    assert DEFAULT.digest == "24070886e683"
    assert all(len(word) == 5 and set(word) <= set("abcdefghijklmnopqrstuvwxyz") for word in DEFAULT.words)
    lines = files("evolvent.worlds").joinpath("words.txt").read_text(encoding="ascii").splitlines()
    assert lines == sorted(set(lines)) == list(DEFAULT.words)
    licence = files("evolvent.worlds").joinpath("words.LICENSE.txt").read_text(encoding="utf-8")
    assert "Copyright 2000-2011 by Kevin Atkinson" in licence and "modified selection" in licence


def test_a_list_is_read_from_a_file(tmp_path):
    path = tmp_path / "list.txt"
    path.write_bytes(b"\xef\xbb\xbfShire\r\n\r\ncrane\r\n  eerie \r\n")
    for source in (path, str(path), ["crane", "shire", "eerie"]):
        words = read_words(source)
        assert (words.words, words.length) == (("crane", "eerie", "shire"), 5)
        assert words.digest == WordList(["eerie", "crane", "shire"]).digest != DEFAULT.digest
    assert read_words(["ñandú", "árbol"]).words == ("árbol", "ñandú")


def test_every_mistake_of_a_list_is_named(tmp_path):
    lines = ["crane", "shire", "fishes", "it's!", "crane", "a", "on", "two", "eerie", "speed", "SHIRE"]
    with pytest.raises(ConfigError) as caught:
        read_words(lines)
    letters, length, twice = (problem.what for problem in caught.value.problems)
    assert letters == '1 contain other characters than letters: line 4 "it\'s!"'
    assert length == "4 do not have 5 letters like most words: line 3 'fishes', line 6 'a', line 7 'on' and 1 more"
    assert twice == "2 occur twice: line 5 'crane', line 11 'shire'"
    path = tmp_path / "list.txt"
    path.write_text("crane\n\nfishes\n")
    with pytest.raises(ConfigError, match=r"list\.txt: 1 do not have 5 letters like most words: line 3 'fishes'"):
        read_words(path)


@pytest.mark.parametrize("lines", [[], [""], ["", "  "]])
def test_an_empty_list_is_refused(lines):
    with pytest.raises(ConfigError, match="write one word per line"):
        read_words(lines)


def test_lists_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the list '.*nowhere\.txt'"):
        read_words(tmp_path / "nowhere.txt")
    (tmp_path / "picture").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(ConfigError, match="use a UTF-8 text file"):
        read_words(str(tmp_path / "picture"))
    with pytest.raises(ConfigError, match="at most 20"):
        read_words(["a" * 21])


@given(
    codes=st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=1, max_size=5)
    )
)
def test_remaining_counts_groups(codes):
    expected = [sum(size**2 for size in Counter(row).values()) for row in codes]
    assert sum_squared_group_sizes(np.array(codes, dtype=np.uint8)).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(words=TOYS, rules=st.sampled_from(RULES), pick=st.integers(0, 11))
def test_the_solver_is_greedy_and_honest(words, rules, pick):
    """Its candidates are those that a filter leaves, its guess leaves the fewest, and it always arrives."""
    solver, hidden = Solver(WordList(words), rules=rules), words[pick % len(words)]
    seen, guesses = [], []
    while not guesses or guesses[-1] != hidden:
        fitting = [
            word
            for word in sorted(words)
            if all(marks_of(g, word, rules=rules) == marks for g, marks in zip(guesses, seen, strict=True))
        ]
        assert solver.candidates(seen) == fitting
        guesses.append(solver.guess(seen))
        if len(fitting) > 2:
            left = {g: sum(n**2 for n in Counter(marks_of(g, w, rules=rules) for w in fitting).values()) for g in words}
            best = min(sorted(words), key=lambda g: (left[g], g not in fitting))
            assert guesses[-1] == best
        else:
            assert guesses[-1] == fitting[0]
        seen.append(marks_of(guesses[-1], hidden, rules=rules))
        assert len(guesses) <= len(words)


def test_the_solver_finds_every_word_of_the_default_list():
    solver, tries = Solver(DEFAULT), Counter()
    for word in DEFAULT.words:
        seen = []
        while not seen or seen[-1] != "ggggg":
            seen.append(marks_of(solver.guess(seen), word))
        tries[len(seen)] += 1
    assert max(tries) <= 6
    assert sum(n * count for n, count in tries.items()) / len(DEFAULT.words) < 3.7


def test_a_long_list_weighs_a_sample_of_guesses(monkeypatch):
    monkeypatch.setattr(wordle, "_POOL", 16)
    solver = Solver(WordList(SOME))
    for word in SOME:
        seen = []
        while not seen or seen[-1] != "ggggg":
            seen.append(marks_of(solver.guess(seen), word))
        assert len(seen) <= 8


def test_marks_that_fit_nothing_are_refused():
    with pytest.raises(ConfigError, match="no word of the list matches these marks"):
        Solver(WordList(["ab", "cd"])).guess(["bb", "bb"])
