"""Removal of near-duplicates: of texts that share most of their token runs, found by MinHash, one is kept.

Exact copies are found by hash. For the rest MinHash with banded LSH (Broder 1997; Leskovec, Rajaraman and
Ullman, Mining of Massive Datasets, ch. 3) proposes pairs, by rensa (extra `code`: one wheel, no dependencies).
Every proposal is then checked by the exact Jaccard similarity of the two sets, so nothing is dropped on an
estimate. `count_bands` bounds the share of missed pairs. Texts are processed in the order of their ids: the
result depends on no order and no batch.
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

__all__ = ["Deduplication", "DroppedText", "count_bands", "find_near_duplicates"]

RECALL = 0.999  # of the pairs exactly at the threshold; more alike ones are found more surely
BATCH = 1_024  # texts whose hashes are made at once
_TOKEN = re.compile(r"\w+|[^\w\s]")
Shingles = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class DroppedText:
    """A dropped text, the kept text that it repeats, and their similarity (1: their tokens are equal)."""

    id: str
    kept_id: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Deduplication:
    """The ids that are kept, in order, and the dropped texts."""

    kept_ids: tuple[str, ...]
    dropped: tuple[DroppedText, ...]


def count_bands(threshold: float, *, permutations: int = 256, recall: float = RECALL) -> int:
    """Computes the fewest bands with which a pair at the threshold is proposed with probability `recall`.

    With b bands of r = permutations / b rows it is proposed with probability 1 - (1 - s^r)^b.

    Raises:
        ConfigError: for a threshold outside (0, 1], or fewer than one permutation.
    """
    wrong = [] if 0 < threshold <= 1 else [Problem("threshold", f"got {threshold}, expected above 0 and at most 1")]
    wrong += [] if permutations >= 1 else [Problem("permutations", f"got {permutations}, expected at least 1")]
    if wrong:
        raise ConfigError(wrong)
    for count in range(1, permutations + 1):
        if permutations % count == 0 and 1 - (1 - threshold ** (permutations // count)) ** count >= recall:
            return count
    return permutations


def find_near_duplicates(
    texts: Mapping[str, str], *, threshold: float = 0.7, run: int = 5, permutations: int = 256, seed: int = 0
) -> Deduplication:
    """Keeps each text unless a kept text, earlier in the order of ids, has at least the similarity `threshold`.

    Args:
        texts: id -> text.
        threshold: the Jaccard similarity of the sets of runs of tokens from which a text is dropped.
        run: tokens a run (words, numbers and single signs); a shorter text is one run.
        permutations: hashes a text; more find more of what lies just at the threshold.
        seed: of the hashes.

    Raises:
        ConfigError: for settings that mean nothing. MissingExtra: without the extra `code`.
    """
    count = count_bands(threshold, permutations=permutations)
    if run < 1:
        raise ConfigError([Problem("run", f"got {run} tokens, expected at least 1")])
    rensa = _import_rensa()
    index = rensa.RMinHashLSH(threshold, permutations, count)
    kept_ids: list[str] = []
    kept_shingles: list[Shingles] = []
    copies: dict[bytes, str] = {}
    dropped: list[DroppedText] = []
    names = sorted(texts)
    for start in range(0, len(names), BATCH):
        new_texts = []
        for name in names[start : start + BATCH]:
            tokens = _TOKEN.findall(texts[name])
            digest = hashlib.sha256("\0".join(tokens).encode("utf-8", "surrogatepass")).digest()
            if digest in copies:
                dropped.append(DroppedText(name, copies[digest], 1.0))
            else:
                copies[digest] = name
                new_texts.append((name, _join_runs(tokens, run)))
        hashed = rensa.RMinHash.hash_token_sets([runs for _, runs in new_texts])
        for (name, runs), hashes in zip(new_texts, hashed, strict=True):
            sketch = rensa.RMinHash(permutations, seed)
            sketch.update(runs)
            text_shingles = np.unique(np.asarray(hashes, np.uint64))
            candidates = ((_jaccard(text_shingles, kept_shingles[key]), -key) for key in index.query(sketch))
            similarity, key = max(candidates, default=(0.0, 0))
            if similarity >= threshold:
                dropped.append(DroppedText(name, kept_ids[-key], similarity))
            else:
                index.insert(len(kept_ids), sketch)
                kept_ids.append(name)
                kept_shingles.append(text_shingles)
    by_name = {text.id: text for text in dropped}
    return Deduplication(tuple(kept_ids), tuple(_resolve_chain(by_name[name], by_name) for name in sorted(by_name)))


def _resolve_chain(text: DroppedText, dropped: Mapping[str, DroppedText]) -> DroppedText:
    """Replaces the reference to a dropped copy by the text that the copy itself repeats."""
    first = dropped.get(text.kept_id)
    return text if first is None else DroppedText(text.id, first.kept_id, first.similarity)


def _import_rensa() -> Any:
    try:
        return import_module("rensa")
    except ImportError as error:
        raise MissingExtra("code", "finding near-duplicates") from error


def _join_runs(tokens: list[str], run: int) -> list[str]:
    """Returns every run of `run` tokens; the separator U+001F occurs in no token."""
    return ["\x1f".join(tokens[start : start + run]) for start in range(max(len(tokens) - run, 0) + 1)]


def _jaccard(shingles_a: Shingles, shingles_b: Shingles) -> float:
    """Computes |intersection| / |union| of two sorted sets."""
    common = len(np.intersect1d(shingles_a, shingles_b, assume_unique=True))
    return common / (len(shingles_a) + len(shingles_b) - common)
