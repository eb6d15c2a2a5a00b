"""Wordle: guess the hidden word in six tries, from the marks of earlier guesses.

    guess a word of 5 letters  ->  t a l e s  ->  b y b y b  ->  h e a r d  ->  b g g y b  ->  ...  ->  g g g g g

Words and marks are written letters apart, as in LMRL-Gym and AgentGym. The hidden word decides the split, so no hidden
word of dev or test is ever hidden in training; which words may be guessed is no secret. A task's kind is the pattern of
consonants and vowels of its word, and its last letter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import inf
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem, VersionMismatch, unknown_name_problem
from evolvent.trajectory import Score, Task, Value, sample_seed
from evolvent.worlds.base import Info, Reply, check_task, score_if_won
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.guessing import Solver
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.state_env import StateEnv
from evolvent.worlds.wordlists import MARKS, RULES, Rules, WordList, code_of, marks_of, read_words

__all__ = ["Wordle", "WordleEnv"]

_TRIES = 6
_INVALID = "invalid word"
_VOWELS = frozenset("aeiou")


class _Rulebook:
    """Data that all episodes of a world share: the word list, the rules and the texts that are guesses."""

    def __init__(self, word_list: WordList, rules: Rules) -> None:
        self.words, self.rules = word_list, rules
        self.first = f"guess a word of {word_list.length} letters"

    @cached_property
    def admissible(self) -> tuple[str, ...]:
        return tuple(map(_space_letters, self.words.words))

    @cached_property
    def guesses(self) -> dict[str, str]:
        """Returns guess text -> word, for letters apart and for the word as it is."""
        return dict(zip(self.admissible, self.words.words, strict=True)) | {word: word for word in self.words.words}

    def parse_guess(self, text: str) -> str | None:
        return self.guesses.get(text) or self.guesses.get(" ".join(text.lower().split()))


_State = tuple[int, NDArray[np.intp] | None]
"""The number of tries and, by LMRL-Gym's rules, the words that fit all marks so far."""


class WordleEnv(StateEnv[_State]):
    """One game. A fork copies the number of tries and, where the hidden word moves, the words that still fit."""

    def __init__(self, task: Task, book: _Rulebook, penalty: float) -> None:
        super().__init__(task, (0, None))
        self._book, self._penalty = book, penalty
        self._word: str = task.spec["word"]

    def _observe_start(self) -> tuple[Value, Info]:
        return self._book.first, {"admissible": self._book.admissible}

    def _transition(self, state: _State, action: Value) -> tuple[_State, Reply]:
        tries, candidates = state
        book, guess = self._book, self._book.parse_guess(str(action))
        hidden = self._hidden_word(tries, candidates)
        tries += 1
        if guess is None:
            info = {"admissible": book.admissible, "invalid": True}
            return (tries, candidates), (_INVALID, self._penalty, tries >= _TRIES, False, info)
        marks = marks_of(guess, hidden, rules=book.rules)
        if book.rules == "lmrl":
            candidates = self._narrow(candidates, guess, marks)
        is_over = guess == hidden or tries >= _TRIES
        reward = 1.0 if guess == hidden else 0.0
        return (tries, candidates), (_space_letters(marks), reward, is_over, False, {"admissible": book.admissible})

    def _hidden_word(self, tries: int, candidates: NDArray[np.intp] | None) -> str:
        """Returns the hidden word of this try: the task's, or by LMRL-Gym's rules a new draw among the words that
        fit.
        """
        if candidates is None:
            return self._word
        draw = sample_seed("wordle", "hidden", self._word, tries)
        return self._book.words.words[int(candidates[draw % len(candidates)])]

    def _narrow(self, candidates: NDArray[np.intp] | None, guess: str, marks: str) -> NDArray[np.intp]:
        """Returns the candidates that fit the marks of a guess."""
        word_list = self._book.words
        if candidates is None:
            candidates = np.arange(len(word_list.words))
        matches: NDArray[np.intp] = candidates[word_list.codes(guess, rules="lmrl")[candidates] == code_of(marks)]
        return matches


class Wordle:
    """The world of hidden words.

    Args:
        words: a file with one word a line, or the words; all of one length (None: the library's 3,531 words of five
            letters). Hidden words and guesses come from it.
        rules: "official" counts letters and keeps the hidden word. "lmrl" is LMRL-Gym's variant: every copy of a
            present letter is marked, and the hidden word is drawn anew at each try from the words that fit all marks so
            far (by the task: the same guesses get the same marks). A task's split goes by its first hidden word.
        penalty: the reward of a guess that is no word of the list, 0 or less. It uses one of the six tries.
        sizes: the sizes of the panels; a list that has fewer words fills them as far as it goes.

    Raises:
        ConfigError: a list that cannot be read or has mistakes, unknown rules, a penalty that is positive or not
            finite; all of them at once.
    """

    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = False
    horizon = 8
    instructions = (
        f"Guess the hidden word in {_TRIES} tries. Write a word with its letters apart, for example 's h i r e'. Each "
        "letter is marked: g right and in its place, y in the word but elsewhere, b not in the word. A guess that is "
        "not in the list of words costs a try."
    )

    def __init__(
        self,
        word_list: Path | str | Sequence[str] | None = None,
        *,
        rules: Rules = "official",
        penalty: float = 0.0,
        sizes: Sizes | None = None,
    ) -> None:
        problems = [] if rules in RULES else [unknown_name_problem("rules", str(rules), RULES)]
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        try:
            self.words = read_words(word_list)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        self.name = "wordle" if rules == "official" else "wordle_lmrl"
        self.rules, self.penalty = rules, penalty
        self.reward_range = (min(0.0, penalty), 1.0)
        self._book = _Rulebook(self.words, rules)
        self._solver = Solver(self.words, rules=rules)
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields a task for every word, in the order of a hash."""
        for word in sorted(self.words.words, key=lambda word: sample_seed("wordle", word)):
            yield Candidate({"list": self.words.digest, "word": word}, _describe_kind(word), tier, word)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> WordleEnv:
        """Creates an Env for one task.

        Raises:
            ConfigError: a task of another world, or a hidden word that is not in the list.
            VersionMismatch: a task of another version or of another list of words.
        """
        self._check_spec(task)
        return WordleEnv(task, self._book, self.penalty)

    def _check_spec(self, task: Task) -> None:
        check_task(self, task)
        if task.spec.get("list") != self.words.digest:
            raise VersionMismatch(
                "a task of another list of words", value=task.spec.get("list"), expected=self.words.digest
            )
        word = task.spec.get("word")
        if not isinstance(word, str) or word not in self.words.index:
            raise ConfigError("the hidden word is not in the list", value=word)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the word was guessed; raw = the sum of the rewards, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the guesses of a `Solver` that plays the task and sees only its marks.

        It solves all tasks of the default list; on another list it may fail some, and then its six guesses are
        returned.
        """
        env, over = self.make(task), False
        env.reset()
        marks_so_far: list[str] = []
        plan: list[str] = []
        while not over:
            plan.append(_space_letters(self._solver.guess(marks_so_far)))
            marks, _, over, _, _ = env.step(plan[-1])
            marks_so_far.append(str(marks).replace(" ", ""))
        return plan

    def key(self, task: Task) -> str:
        """Returns the hidden word: no two words are the same task."""
        self._check_spec(task)
        return cast(str, task.spec["word"])

    def vocabulary(self) -> Sequence[str]:
        """Returns every word of observations and legal actions, sorted; the letters of the list count as words."""
        letters = set(MARKS).union(*self.words.words)
        return sorted({*letters, *self._book.first.split(), *_INVALID.split()})


def _space_letters(word: str) -> str:
    return " ".join(word)


def _describe_kind(word: str) -> str:
    """Returns the pattern of consonants (c) and vowels (v), and the last letter: "cvccv ends e"."""
    return "".join("v" if letter in _VOWELS else "c" for letter in word) + f" ends {word[-1]}"
