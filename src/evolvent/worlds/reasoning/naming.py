"""Questions with roles instead of names, and the insertion of names: the same question can be told under any
names.

A role is a class and a number in braces: "{person0} has 4 {thing0}". The text with roles is canonical: it is
equal exactly for questions that differ only in names.
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

__all__ = ["Pools", "digest_question", "insert_names", "pool_words"]

Pools = Mapping[str, Sequence[str]]
_ROLE = re.compile(r"\{([a-z]+)(\d+)\}")


@lru_cache(maxsize=1 << 14)
def _shuffle_pool(kind: str, pool: tuple[str, ...], names: int) -> tuple[str, ...]:
    order = list(pool)
    Random(sample_seed("names", kind, names)).shuffle(order)
    return tuple(order)


def insert_names(question: Question, pools: Pools, names: int) -> Question:
    """Returns the question with a name in place of each role; no name is used twice.

    Args:
        pools: class -> its possible names, at least as many as a question has roles of that class.
        names: the seed of the names.
    """

    def name_of(role_match: re.Match[str]) -> str:
        return _shuffle_pool(role_match[1], tuple(pools[role_match[1]]), names)[int(role_match[2])]

    def replace_roles(text: str) -> str:
        return _ROLE.sub(name_of, text)

    demonstration = None if question.demonstration is None else replace_roles(question.demonstration)
    return replace(
        question,
        text=replace_roles(question.text),
        rationale=tuple(map(replace_roles, question.rationale)),
        demonstration=demonstration,
    )


def digest_question(question: Question) -> str:
    """Returns a digest (32 hex digits) of a question that still has its roles."""
    return hashlib.sha256(f"{question.text}\n{question.answer}".encode()).hexdigest()[:32]


def pool_words(pools: Pools) -> set[str]:
    """Returns every word of the names in the pools."""
    return {word for pool in pools.values() for name in pool for word in name.split()}
