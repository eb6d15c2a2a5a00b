"""A solver for word-guessing games that sees only the marks of its own guesses.

It guesses the word of the list that leaves the fewest words to expect: among words equally likely hidden, the mean size
of what remains is the sum of the squared sizes of the groups that the marks tell apart, over their number. Its guesses
form a tree that grows where it is asked: playing many games costs little more than visiting each node once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError
from evolvent.worlds.wordlists import Rules, WordList, code_of

__all__ = ["Solver", "sum_squared_group_sizes"]

_POOL = 4096  # guesses weighed at each node; of longer lists an even sample
_ROWS = 256  # guesses weighed at once


class Solver:
    """The decision tree of one word list and one set of rules.

    Args:
        words: the list; hidden words and guesses come from it.
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
                raise ConfigError("no word of the list fits these marks", value=marks)
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
