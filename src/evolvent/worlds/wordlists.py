"""Word lists for guessing games: their files, and the marks that a guess gets.

Marks are letters: g (right letter, right place), y (the letter is elsewhere), b (it is not, or all its copies are
marked already). The default list is a selection from SCOWL; see `words.LICENSE.txt` beside it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem

__all__ = ["MARKS", "RULES", "Rules", "WordList", "code_of", "marks_of", "read_words"]

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
        raise ConfigError([Problem(source_name, "there is no word", "give one word a line")])
    length = Counter(len(word) for _, word in numbered_words).most_common(1)[0][0]
    first: dict[str, int] = {}
    for number, word in numbered_words:
        first.setdefault(word, number)
    rules: tuple[tuple[Callable[[int, str], bool], str, str], ...] = (
        (lambda _, word: not word.isalpha(), "are not of letters alone", "remove what is no letter"),
        (lambda _, word: len(word) != length, f"do not have {length} letters as most have", "give words of one length"),
        (lambda number, word: first[word] < number, "came before", "give every word once"),
    )
    problems = []
    for is_wrong, message, hint in rules:
        rows = [(number, word) for number, word in numbered_words if is_wrong(number, word)]
        if rows:
            problems.append(Problem(source_name, f"{len(rows)} {message}: {_format_examples(rows)}", hint))
    if length > _LONGEST:
        problems.append(Problem(source_name, f"words of {length} letters", f"give words of at most {_LONGEST}"))
    if problems:
        raise ConfigError(problems)
    return WordList([word for _, word in numbered_words])


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("words", f"the list {str(path)!r} cannot be read: {error}", "give a text file in UTF-8")
        raise ConfigError([problem]) from error


def _format_examples(rows: Sequence[tuple[int, str]]) -> str:
    examples = ", ".join(f"line {number} {word[: _LONGEST + 1]!r}" for number, word in islice(rows, _SHOWN))
    return examples + (f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else "")
