"""BM25: ranks the documents of a collection by how well they match a query.

    score(q, d) = sum over the words t of q of  idf(t) * tf / (tf + k1 * (1 - b + b * |d| / mean |d|))
    idf(t) = ln(1 + (N - df + 0.5) / (df + 0.5))

with tf = occurrences of t in d, df = number of the N documents that contain t, |d| = number of words of d. This
is section 3.4 of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with
an idf that is never negative (Lucene's). A word that occurs twice in a query counts twice. The defaults k1 =
0.9 and b = 0.4 are recommended by Trotman, Jia and Crane, "Towards an Efficient and Effective Search Engine"
(2012).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem

__all__ = ["Index", "split_words"]

_WORD = re.compile(r"\w+")
_MAX_QUERY_WORDS = 64  # of a query; what comes later is not looked for
_SCORE_DIGITS = (
    9  # scores that agree so far are equal: sums in another order, or another machine's logarithm, change no rank
)


def split_words(text: str) -> list[str]:
    """Splits a text into the words of the index: runs of letters, digits and `_` in lower case, without stemming."""
    return _WORD.findall(text.lower())


class Index:
    """An index over texts, which are identified by their position.

    Args:
        texts: at least one of them contains a word.
        k1: how fast repetitions of a word saturate (0: at once).
        b: how much long texts are penalized (0: not at all, 1: in proportion to their length).

    Raises:
        ConfigError: a k1 below 0, a b outside 0..1, or texts without any word.
    """

    def __init__(self, texts: Iterable[str], *, k1: float = 0.9, b: float = 0.4) -> None:
        vocabulary: dict[str, int] = {}
        term_ids, lengths = array("q"), array("q")
        for text in texts:
            terms = [vocabulary.setdefault(word, len(vocabulary)) for word in split_words(text)]
            term_ids.extend(terms)
            lengths.append(len(terms))
        problems = []
        if not term_ids:
            problems.append(Problem("texts", f"the {len(lengths)} texts contain no word", "pass texts to search"))
        if not 0.0 <= k1 < float("inf"):
            problems.append(Problem("k1", f"got {k1}, expected 0 or more"))
        if not 0.0 <= b <= 1.0:
            problems.append(Problem("b", f"got {b}, expected 0 to 1"))
        if problems:
            raise ConfigError(problems)
        self._vocabulary = vocabulary
        self._size = len(lengths)
        self._starts, self._places, self._weights = _build_postings(np.array(term_ids), np.array(lengths), k1=k1, b=b)

    def __len__(self) -> int:
        return self._size

    def compute_scores(self, query: str) -> NDArray[np.float64]:
        """Returns the score of every text, `[N]`, 0 without a query word. Only the first 64 words of the query
        count.
        """
        scores = np.zeros(self._size)
        for word in split_words(query)[:_MAX_QUERY_WORDS]:
            term_id = self._vocabulary.get(word)
            if term_id is not None:
                postings = slice(self._starts[term_id], self._starts[term_id + 1])
                scores[self._places[postings]] += self._weights[postings]
        return scores

    def search(self, query: str, max_results: int = 3) -> list[int]:
        """Returns the positions of the highest scoring texts, best first, ties in text order; texts that score 0 are
        left out.
        """
        scores = self.compute_scores(query).round(_SCORE_DIGITS)
        positions = scores.nonzero()[0]
        if len(positions) > max_results:
            cutoff = np.partition(scores[positions], -max_results)[-max_results]
            positions = positions[scores[positions] >= cutoff]
        order = (-scores[positions]).argsort(kind="stable")[:max_results]
        return [int(position) for position in positions[order]]


def _build_postings(
    term_ids: NDArray[np.int64], lengths: NDArray[np.int64], *, k1: float, b: float
) -> tuple[list[int], NDArray[np.int64], NDArray[np.float64]]:
    """Computes, for each word, the texts that contain it and its contribution to their scores.

    Args:
        term_ids: `[W]`. Ids of all words, text after text.
        lengths: `[N]`. Number of words of each text.

    Returns:
        Offsets of each word's postings, with the end of the last; `[P]` positions of texts; `[P]` weights.
    """
    size = len(lengths)
    pairs, term_counts = np.unique(term_ids * size + np.arange(size).repeat(lengths), return_counts=True)
    posting_terms, positions = np.divmod(pairs, size)
    document_counts = np.bincount(posting_terms)
    idf = np.log1p((size - document_counts + 0.5) / (document_counts + 0.5))
    norm = k1 * (1.0 - b + b * lengths / lengths.mean())
    return (
        [0, *document_counts.cumsum().tolist()],
        positions,
        idf[posting_terms] * term_counts / (term_counts + norm[positions]),
    )
