"""Wordle: guess the hidden word in six tries, from the marks of earlier guesses.

    guess a word of 5 letters  ->  t a l e s  ->  b y b y b  ->  h e a r d  ->  b g g y b  ->  ...  ->  g g g g g

Words and marks are written letters apart, as in LMRL-Gym and AgentGym. The hidden word decides the split, so no hidden
word of dev or test is ever hidden in training; which words may be guessed is no secret. A task's kind is the pattern of
consonants and vowels of its word, and its last letter.

A solver for word-guessing games that sees only the marks of its own guesses.

It guesses the word of the list that leaves the fewest words to expect: among words equally likely hidden, the mean size
of what remains is the sum of the squared sizes of the groups that the marks tell apart, over their number. Its guesses
form a tree that grows where it is asked: playing many games costs little more than visiting each node once.

Word lists for guessing games: their files, and the marks that a guess gets.

Marks are letters: g (right letter, right place), y (the letter is elsewhere), b (it is not, or all its copies are
marked already). The default list is a selection from SCOWL; see `words.LICENSE.txt` beside it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from importlib.resources import files
from itertools import islice
from math import inf
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem, VersionMismatch, unknown_name_problem
from evolvent.trajectory import Score, Task, Value, sample_seed
from evolvent.worlds.base import Grammar, Info, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.panel import Candidate, Panels, Sizes

__all__ = [
    "MARKS",
    "RULES",
    "Rules",
    "Solver",
    "WordList",
    "Wordle",
    "WordleEnv",
    "code_of",
    "marks_of",
    "read_words",
    "sum_squared_group_sizes",
]


Rules = Literal["official", "lmrl"]
RULES: tuple[str, ...] = ("official", "lmrl")
MARKS = "byg"
"""The marks in the order of their digits: marks are numbered as a number to the base 3, first letter first."""

_LONGEST = 20  # letters: 3 ** 20 marks still have a number of 32 bits
_SHOWN = 3  # examples given of each mistake in a list
_KNOWN_ROWS = 1024  # guesses whose codes are kept ready
_DIGITS = str.maketrans(MARKS, "012")


def marks_of(guess: str, word: str, *, rules: Rules = "official") -> str:
    """Computes the marks of a guess where `word` is hidden; both have the same length.

    Official rules count letters: first the letters in place are marked g, then, from the left, a letter is y while the
    hidden word has copies of it that are not spoken for. In LMRL-Gym's rules every copy of a present letter is y.

    >>> marks_of("eerie", "crane"), marks_of("eerie", "crane", rules="lmrl")
    ('bbybg', 'yyybg')
    """
    if rules == "lmrl":
        return "".join(
            "g" if guess_letter == hidden_letter else "y" if guess_letter in word else "b"
            for guess_letter, hidden_letter in zip(guess, word, strict=True)
        )
    unmarked = [
        hidden_letter for guess_letter, hidden_letter in zip(guess, word, strict=True) if guess_letter != hidden_letter
    ]
    marks = []
    for guess_letter, hidden_letter in zip(guess, word, strict=True):
        if guess_letter == hidden_letter:
            marks.append("g")
        elif guess_letter in unmarked:
            unmarked.remove(guess_letter)
            marks.append("y")
        else:
            marks.append("b")
    return "".join(marks)


def code_of(marks: str) -> int:
    """Converts marks to a number: b, y, g are the digits 0, 1, 2 to the base 3."""
    return int(marks.translate(_DIGITS), 3)


class WordList:
    """Words of one length, in alphabetical order.

    Args:
        words: at least one; all of the same length, at most 20 letters, and different. `read_words` checks that.
    Attributes:
        words: the words.
        index: word -> its place.
        length: letters of a word.
        digest: 12 hex digits that name the list; the order in which words were given does not matter.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self.words = tuple(sorted(entries))
        self.index = {word: index for index, word in enumerate(self.words)}
        self.length = len(self.words[0])
        self.digest = hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:12]
        self._rows: dict[tuple[str, Rules], NDArray[np.unsignedinteger]] = {}

    @cached_property
    def _letters(self) -> NDArray[np.uint32]:
        """Returns the letters by their position in the word, `[length, W]`."""
        points = [[ord(letter) for letter in word] for word in self.words]
        return np.ascontiguousarray(np.array(points, dtype=np.uint32).T)

    @cached_property
    def _letter_counts(self) -> dict[str, NDArray[np.int8]]:
        """Returns, per letter, how often each word has it, `[W]`."""
        alphabet = sorted(set().union(*self.words))
        return {letter: (self._letters == ord(letter)).sum(0, dtype=np.int8) for letter in alphabet}

    def codes(self, guess: str, *, rules: Rules = "official") -> NDArray[np.unsignedinteger]:
        """Computes the marks of a guess for every word of the list as the hidden word.

        Returns:
            `[W]`: the numbers of the marks (`code_of`), in the smallest type that holds them. Do not write to it.
        """
        row = self._rows.get((guess, rules))
        if row is None:
            row = self._compute_codes(guess, rules)
            while len(self._rows) >= _KNOWN_ROWS:
                self._rows.pop(next(iter(self._rows)))
            self._rows[guess, rules] = row
        return row

    def _compute_codes(self, guess: str, rules: Rules) -> NDArray[np.unsignedinteger]:
        """Computes `marks_of` for all words at once; `unclaimed` counts the copies of a letter that no mark has used
        yet.
        """
        green = [row == ord(letter) for row, letter in zip(self._letters, guess, strict=True)]
        no_copies = np.zeros(len(self.words), np.int8)
        unclaimed = {letter: self._letter_counts.get(letter, no_copies).copy() for letter in guess}
        if rules == "official":
            for letter, is_green in zip(guess, green, strict=True):
                unclaimed[letter] -= is_green
        row = np.zeros(len(self.words), np.min_scalar_type(3**self.length - 1))
        for letter, is_green in zip(guess, green, strict=True):
            yellow = ~is_green & (unclaimed[letter] > 0)
            if rules == "official":
                unclaimed[letter] -= yellow
            row *= 3
            row += yellow
            row += is_green
            row += is_green
        return row


def read_words(source: Path | str | Sequence[str] | None = None) -> WordList:
    """Reads a word list from a file (one word a line; blank lines are skipped), a sequence, or the default list
    (None).

    Capital letters become small ones. The length of the words is the commonest one.

    Raises:
        ConfigError: the file cannot be read; it holds no word, words of other lengths, words with marks that are no
            letters, or words that came before. Every mistake is named with its first lines.
    """
    if source is None:
        lines: Sequence[str] = files("evolvent.worlds").joinpath("words.txt").read_text(encoding="utf-8").split("\n")
    elif isinstance(source, str | Path):
        lines = _read_lines(Path(source))
    else:
        lines = source
    source_name = f"words in {source}" if isinstance(source, str | Path) else "words"
    numbered_words = [(number, line.strip().lower()) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered_words:
        raise ConfigError([Problem(source_name, "the file has no words", "write one word per line")])
    length = Counter(len(word) for _, word in numbered_words).most_common(1)[0][0]
    first: dict[str, int] = {}
    for number, word in numbered_words:
        first.setdefault(word, number)
    rules: tuple[tuple[Callable[[int, str], bool], str, str], ...] = (
        (lambda _, word: not word.isalpha(), "contain other characters than letters", "remove the other characters"),
        (
            lambda _, word: len(word) != length,
            f"do not have {length} letters like most words",
            "use words of one length",
        ),
        (lambda number, word: first[word] < number, "occur twice", "list each word once"),
    )
    problems = []
    for is_wrong, message, hint in rules:
        rows = [(number, word) for number, word in numbered_words if is_wrong(number, word)]
        if rows:
            problems.append(Problem(source_name, f"{len(rows)} {message}: {_format_examples(rows)}", hint))
    if length > _LONGEST:
        problems.append(Problem(source_name, f"got words of {length} letters, expected at most {_LONGEST}"))
    if problems:
        raise ConfigError(problems)
    return WordList([word for _, word in numbered_words])


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("words", f"cannot read the list {str(path)!r}: {error}", "use a UTF-8 text file")
        raise ConfigError([problem]) from error


def _format_examples(rows: Sequence[tuple[int, str]]) -> str:
    examples = ", ".join(f"line {number} {word[: _LONGEST + 1]!r}" for number, word in islice(rows, _SHOWN))
    return examples + (f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")


_POOL = 4096  # guesses weighed at each node; of longer lists an even sample
_ROWS = 256  # guesses weighed at once


class Solver:
    """The decision tree of one word list and one set of rules.

    Args:
        word_list: the list; hidden words and guesses come from it.
        rules: how guesses are marked.
    """

    def __init__(self, word_list: WordList, *, rules: Rules = "official") -> None:
        self._words = word_list
        self._rules = rules
        self._nodes: dict[tuple[str, ...], tuple[NDArray[np.intp], str]] = {}

    def guess(self, marks: Sequence[str]) -> str:
        """Returns the next guess.

        Args:
            marks: the marks of this solver's guesses so far, first guess first.
        Raises:
            ConfigError: no word of the list fits these marks.
        """
        return self._find_node(tuple(marks))[1]

    def candidates(self, marks: Sequence[str]) -> list[str]:
        """Lists the words that fit the marks of this solver's guesses so far; raises as `guess` does."""
        return [self._words.words[index] for index in self._find_node(tuple(marks))[0]]

    def _find_node(self, marks: tuple[str, ...]) -> tuple[NDArray[np.intp], str]:
        node = self._nodes.get(marks)
        if node is None:
            candidates = np.arange(len(self._words.words))
            if marks:
                previous_candidates, guess = self._find_node(marks[:-1])
                candidates = previous_candidates[
                    self._words.codes(guess, rules=self._rules)[previous_candidates] == code_of(marks[-1])
                ]
            if not len(candidates):
                raise ConfigError("no word of the list matches these marks", value=marks)
            node = self._nodes[marks] = (candidates, self._words.words[self._choose_guess(candidates)])
        return node

    @cached_property
    def _pool(self) -> NDArray[np.intp]:
        """Returns the indices of the guesses that are evaluated."""
        count = len(self._words.words)
        return np.arange(count)[:: -(-count // _POOL)]

    @cached_property
    def _table(self) -> NDArray[np.unsignedinteger]:
        """Returns the marks of every guess for every word, `[pool, W]`."""
        word_list, rules = self._words, self._rules
        return np.stack([word_list.codes(word_list.words[index], rules=rules) for index in self._pool])

    def _choose_guess(self, candidates: NDArray[np.intp]) -> int:
        """Returns the index of the best guess; ties go to a word that may be hidden, then to the first."""
        if len(candidates) <= 2:
            return int(candidates[0])
        cost = np.concatenate(
            [
                sum_squared_group_sizes(self._table[start : start + _ROWS, candidates])
                for start in range(0, len(self._pool), _ROWS)
            ]
        )
        cost = 2 * cost - np.isin(self._pool, candidates)
        return int(self._pool[np.argmin(cost)])


def sum_squared_group_sizes(codes: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """Computes how many words each guess leaves: the sum, over its groups of equal codes, of their squared sizes.

    Args:
        codes: `[P, C]`, the marks of P guesses for C words.
    Returns:
        `[P]`; divided by C it is the mean number of words that fit after the guess.
    """
    ordered = np.sort(codes, axis=1)
    count = codes.shape[1]
    position = np.arange(count, dtype=np.int32)
    group_starts = np.zeros(codes.shape, np.int32)
    group_starts[:, 1:] = np.where(ordered[:, 1:] != ordered[:, :-1], position[1:], 0)
    np.maximum.accumulate(group_starts, axis=1, out=group_starts)
    # The k-th word of a group (from 0) adds 2 k + 1, and the first n odd numbers sum to n squared.
    increments = 2 * (position - group_starts) + 1
    return np.asarray(increments.sum(axis=1, dtype=np.int64))


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
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
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
                "the task belongs to another word list", value=task.spec.get("list"), expected=self.words.digest
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
