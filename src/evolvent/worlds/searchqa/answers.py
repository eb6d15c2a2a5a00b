"""The equality of answers: exact match as in SQuAD (Rajpurkar et al., 2016)."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable

__all__ = ["exact_match", "normalize_answer"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Returns the text in lower case, without ASCII punctuation, articles and extra spaces.

    >>> normalize_answer("  The U.S.A.,  an   Example! ")
    'usa example'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(answer: str, gold_answers: Iterable[str]) -> bool:
    """Returns whether an answer equals one of the gold answers after normalization."""
    normalized = normalize_answer(answer)
    return any(normalized == normalize_answer(text) for text in gold_answers)
