"""Questions with roles where names belong, and the names put in: the same question can be told under any names.

A role is a class and a number in braces: "{person0} has 4 {thing0}". What is left without names is canonical: it is
equal exactly for questions that differ in names only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random

from evolvent.trajectory import sample_seed
from evolvent.worlds.reasoning.question import Question

__all__ = ["Pools", "canonical", "named", "pool_words"]

Pools = Mapping[str, Sequence[str]]
_ROLE = re.compile(r"\{([a-z]+)(\d+)\}")


@lru_cache(maxsize=1 << 14)
def _order(kind: str, pool: tuple[str, ...], names: int) -> tuple[str, ...]:
    order = list(pool)
    Random(sample_seed("names", kind, names)).shuffle(order)
    return tuple(order)


def named(question: Question, pools: Pools, names: int) -> Question:
    """The question with a name in place of each role, no name twice.

    Args:
        pools: class -> the names it can have, at least as many as a question has roles of that class.
        names: the seed of the names.
    """

    def name(found: re.Match[str]) -> str:
        return _order(found[1], tuple(pools[found[1]]), names)[int(found[2])]

    def put(text: str) -> str:
        return _ROLE.sub(name, text)

    said = None if question.said is None else put(question.said)
    return replace(question, text=put(question.text), rationale=tuple(map(put, question.rationale)), said=said)


def canonical(question: Question) -> str:
    """A digest (32 hex digits) of a question that still has its roles."""
    return hashlib.sha256(f"{question.text}\n{question.answer}".encode()).hexdigest()[:32]


def pool_words(pools: Pools) -> set[str]:
    """Every word that a name can bring."""
    return {word for pool in pools.values() for name in pool for word in name.split()}
