"""A solver for word-guessing games that sees nothing but the marks of its own guesses.

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

__all__ = ["Solver", "remaining"]

_POOL = 4096  # guesses weighed at each node; of longer lists an even sample
_ROWS = 256  # guesses weighed at once


class Solver:
    """The decision tree of one list and one set of rules.

    Args:
        words: the list; hidden words and guesses come from it.
        rules: how guesses are marked.
    """

    def __init__(self, words: WordList, *, rules: Rules = "official") -> None:
        self._words = words
        self._rules = rules
        self._nodes: dict[tuple[str, ...], tuple[NDArray[np.intp], str]] = {}

    def guess(self, seen: Sequence[str]) -> str:
        """The next guess.

        Args:
            seen: the marks of this solver's guesses so far, first guess first.
        Raises:
            ConfigError: no word of the list fits these marks.
        """
        return self._node(tuple(seen))[1]

    def candidates(self, seen: Sequence[str]) -> list[str]:
        """The words that fit the marks of this solver's guesses so far; raises as `guess` does."""
        return [self._words.words[place] for place in self._node(tuple(seen))[0]]

    def _node(self, seen: tuple[str, ...]) -> tuple[NDArray[np.intp], str]:
        node = self._nodes.get(seen)
        if node is None:
            left = np.arange(len(self._words.words))
            if seen:
                before, guess = self._node(seen[:-1])
                left = before[self._words.codes(guess, rules=self._rules)[before] == code_of(seen[-1])]
            if not len(left):
                raise ConfigError("no word of the list fits these marks", value=seen)
            node = self._nodes[seen] = (left, self._words.words[self._best(left)])
        return node

    @cached_property
    def _pool(self) -> NDArray[np.intp]:
        """The places of the guesses that are weighed."""
        count = len(self._words.words)
        return np.arange(count)[:: -(-count // _POOL)]

    @cached_property
    def _table(self) -> NDArray[np.unsignedinteger]:
        """`[pool, W]`: the marks of every guess for every word."""
        words, rules = self._words, self._rules
        return np.stack([words.codes(words.words[place], rules=rules) for place in self._pool])

    def _best(self, left: NDArray[np.intp]) -> int:
        """The place of the best guess; of equals a word that may be hidden, then the first."""
        if len(left) <= 2:
            return int(left[0])
        cost = np.concatenate(
            [remaining(self._table[at : at + _ROWS, left]) for at in range(0, len(self._pool), _ROWS)]
        )
        cost = 2 * cost - np.isin(self._pool, left)
        return int(self._pool[np.argmin(cost)])


def remaining(codes: NDArray[np.unsignedinteger]) -> NDArray[np.int64]:
    """How much each guess leaves: the sum over its groups of equal codes of their squared sizes.

    Args:
        codes: `[P, C]`, the marks of P guesses for C words.
    Returns:
        `[P]`; divided by C it is the mean number of words that fit after the guess.
    """
    ordered = np.sort(codes, axis=1)
    count = codes.shape[1]
    place = np.arange(count, dtype=np.int32)
    begins = np.zeros(codes.shape, np.int32)
    begins[:, 1:] = np.where(ordered[:, 1:] != ordered[:, :-1], place[1:], 0)
    np.maximum.accumulate(begins, axis=1, out=begins)
    # The k-th word of a group (from 0) adds 2 k + 1, and the first n odd numbers sum to n squared.
    odd = 2 * (place - begins) + 1
    return np.asarray(odd.sum(axis=1, dtype=np.int64))
