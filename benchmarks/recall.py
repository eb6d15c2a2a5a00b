"""A base that can read names back: what a pretrained language model brings to function calling, and words do not hold.

    mul kadrop : tobig
    rez : kopnis bad
    user : kopnis bad , tobig , kopnis bad
        -> [rez, mul kadrop, rez]

Random words stand behind random words, and the second parts of pairs ask for the first ones. Nothing in it is a tool, a
request or a schema; what is learned is to find and to copy words that mean nothing (associative recall, in the form of
Arora et al., "Zoology", arXiv 2312.04927). All words of the vocabulary but marks are drawn alike, so that afterwards a
name is no worse for being unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from evolvent.learn.taught import build_demonstration
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.dialects import Dialect
from evolvent.trajectory import sample_rng

__all__ = ["recalled"]

Pair = tuple[list[str], list[str]]


def recalled(words: Sequence[str], count: int, *, dialect: Dialect, seed: int) -> Iterator[TokenSequence]:
    """So many lists of pairs with five asked for (of two pairs four), none again before all; the answer is learned.

    Args:
        words: at least 30, of which each list draws different ones.
        dialect: a vocabulary that has them and `: , [ ] user`.
    """
    for number in range(count):
        rng = sample_rng("recall", seed, number)
        pairs = _pairs(words, rng)
        asked = [pairs[place] for place in [*rng.permutation(len(pairs)), *rng.permutation(len(pairs))][:5]]
        lines = [f"{' '.join(key)} : {' '.join(value)}" for key, value in pairs]
        prompt = "\n".join([*lines, f"user : {' , '.join(' '.join(value) for _, value in asked)}"])
        answer = f"[{', '.join(' '.join(key) for key, _ in asked)}]"
        yield build_demonstration(f"recall-{number}", dialect.open("", prompt), dialect.action(answer))


def _pairs(words: Sequence[str], rng: np.random.Generator) -> list[Pair]:
    """Two to five pairs of one to three words, all different."""
    drawn = iter(rng.choice(len(words), size=30, replace=False))

    def some() -> list[str]:
        return [words[next(drawn)] for _ in range(int(rng.integers(1, 4)))]

    return [(some(), some()) for _ in range(int(rng.integers(2, 6)))]
