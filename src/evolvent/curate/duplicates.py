"""Near-duplicates: texts that share most of their token runs, found by MinHash and kept once.

Exact copies are found by hash. For the rest MinHash with banded LSH (Broder 1997; Leskovec, Rajaraman and Ullman,
Mining of Massive Datasets, ch. 3) proposes pairs, by rensa (extra `code`: one wheel, no dependencies); every proposal
is then judged by the exact Jaccard similarity of the two sets, so nothing is dropped on an estimate. What may be missed
is bounded by `bands`. Texts are taken in the order of their ids: the result depends on no order and no batch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, MissingExtra, Problem

__all__ = ["Dropped", "Duplicates", "bands", "near_duplicates"]

RECALL = 0.999  # of the pairs exactly at the threshold; more alike ones are found more surely
BATCH = 1_024  # texts whose hashes are made at once
_TOKEN = re.compile(r"\w+|[^\w\s]")
Shingles = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A text that was dropped, the kept one that it repeats, and how alike they are (1: their tokens are equal)."""

    id: str
    of: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Duplicates:
    """The ids that stay, in order, and those that go, with the reason."""

    kept: tuple[str, ...]
    dropped: tuple[Dropped, ...]


def bands(threshold: float, *, permutations: int = 256, recall: float = RECALL) -> int:
    """The fewest bands with which a pair of that similarity is proposed with probability `recall`.

    With b bands of r = permutations / b rows it is proposed with probability 1 - (1 - s^r)^b.

    Raises:
        ConfigError: for a threshold outside (0, 1], or fewer than one permutation.
    """
    wrong = [] if 0 < threshold <= 1 else [Problem("threshold", f"{threshold} is no similarity", "above 0, at most 1")]
    wrong += [] if permutations >= 1 else [Problem("permutations", f"{permutations} hashes nothing", "at least 1")]
    if wrong:
        raise ConfigError(wrong)
    for count in range(1, permutations + 1):
        if permutations % count == 0 and 1 - (1 - threshold ** (permutations // count)) ** count >= recall:
            return count
    return permutations


def near_duplicates(
    texts: Mapping[str, str], *, threshold: float = 0.7, run: int = 5, permutations: int = 256, seed: int = 0
) -> Duplicates:
    """Keeps each text unless a kept one, earlier in the order of ids, is at least `threshold` alike.

    Args:
        texts: id -> text.
        threshold: the Jaccard similarity of the sets of runs of tokens from which a text is dropped.
        run: tokens a run (words, numbers and single signs); a shorter text is one run.
        permutations: hashes a text; more find more of what lies just at the threshold.
        seed: of the hashes.

    Raises:
        ConfigError: for settings that mean nothing. MissingExtra: without the extra `code`.
    """
    count = bands(threshold, permutations=permutations)
    if run < 1:
        raise ConfigError([Problem("run", f"{run} tokens are no run", "at least 1")])
    rensa = _rensa()
    index = rensa.RMinHashLSH(threshold, permutations, count)
    kept: list[str] = []
    kept_shingles: list[Shingles] = []
    copies: dict[bytes, str] = {}
    dropped: list[Dropped] = []
    names = sorted(texts)
    for at in range(0, len(names), BATCH):
        fresh = []
        for name in names[at : at + BATCH]:
            tokens = _TOKEN.findall(texts[name])
            digest = hashlib.sha256("\0".join(tokens).encode("utf-8", "surrogatepass")).digest()
            if digest in copies:
                dropped.append(Dropped(name, copies[digest], 1.0))
            else:
                copies[digest] = name
                fresh.append((name, _runs(tokens, run)))
        hashed = rensa.RMinHash.hash_token_sets([runs for _, runs in fresh])
        for (name, runs), hashes in zip(fresh, hashed, strict=True):
            sketch = rensa.RMinHash(permutations, seed)
            sketch.update(runs)
            own = np.unique(np.asarray(hashes, np.uint64))
            near = ((_jaccard(own, kept_shingles[key]), -key) for key in index.query(sketch))
            similarity, key = max(near, default=(0.0, 0))
            if similarity >= threshold:
                dropped.append(Dropped(name, kept[-key], similarity))
            else:
                index.insert(len(kept), sketch)
                kept.append(name)
                kept_shingles.append(own)
    by_name = {one.id: one for one in dropped}
    return Duplicates(tuple(kept), tuple(_resolved(by_name[name], by_name) for name in sorted(by_name)))


def _resolved(one: Dropped, dropped: Mapping[str, Dropped]) -> Dropped:
    """The copy of a text that was itself dropped repeats what that one repeats."""
    first = dropped.get(one.of)
    return one if first is None else Dropped(one.id, first.of, first.similarity)


def _rensa() -> Any:
    try:
        return import_module("rensa")
    except ImportError as error:
        raise MissingExtra("code", "finding near-duplicates") from error


def _runs(tokens: list[str], run: int) -> list[str]:
    """Every run of that many tokens; U+001F, which is no token's, keeps their bounds apart."""
    return ["\x1f".join(tokens[at : at + run]) for at in range(max(len(tokens) - run, 0) + 1)]


def _jaccard(one: Shingles, other: Shingles) -> float:
    """|intersection| / |union| of two sorted sets."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)
