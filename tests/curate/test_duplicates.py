"""Near-duplicates: exact copies, brute force over all pairs, and no dependence on order."""

from __future__ import annotations

import os
import random
import sys
from importlib.util import find_spec

import pytest

from evolvent.curate.duplicates import Deduplication, DroppedText, count_bands, find_near_duplicates
from evolvent.errors import ConfigError, MissingExtra

needs_rensa = pytest.mark.skipif(
    find_spec("rensa") is None and not os.environ.get("CI"), reason="rensa is not installed"
)


def test_bands_by_hand():
    assert count_bands(1.0, permutations=8) == 1
    assert (
        count_bands(0.5, permutations=4, recall=0.43) == 2
    )  # one band: 0.5^4 = 0.0625; two: 1 - (1 - 0.25)^2 = 0.4375
    assert count_bands(0.5, permutations=4, recall=0.44) == 4  # 1 - 0.5^4 = 0.9375
    assert count_bands(0.5, permutations=4, recall=0.999) == 4  # no more can be had
    assert count_bands(0.7) == 64  # 1 - (1 - 0.7^4)^64 > 0.999 > 1 - (1 - 0.7^8)^32


@needs_rensa
def test_copies_by_hand():
    found = find_near_duplicates({"c": "x = 1", "a": "x  =  1\n", "b": "y = 1", "d": "", "e": " "})
    assert found == Deduplication(("a", "b", "d"), (DroppedText("c", "a", 1.0), DroppedText("e", "d", 1.0)))
    assert find_near_duplicates({}) == Deduplication((), ())


@needs_rensa
def test_similarity_by_hand():
    # runs of two: {a b, b c, c d} and {a b, b c, c e}: 2 in common of 4
    texts = {"1": "a b c d", "2": "a b c e"}
    assert find_near_duplicates(texts, threshold=0.5, run=2).dropped == (DroppedText("2", "1", 0.5),)
    assert find_near_duplicates(texts, threshold=0.51, run=2).dropped == ()


@needs_rensa
def test_a_copy_of_what_was_dropped_names_what_was_kept():
    texts = {"1": "a b c d", "2": "a b c e", "3": "a b c e"}
    found = find_near_duplicates(texts, threshold=0.5, run=2)
    assert found == Deduplication(("1",), (DroppedText("2", "1", 0.5), DroppedText("3", "1", 0.5)))


def corpus(seed: int) -> dict[str, str]:
    """Random texts, and changed copies of them that are about as alike as the threshold."""
    rng = random.Random(seed)
    texts = {}
    for number in range(60):
        words = [rng.choice("abcdefghijklmnop") * rng.randint(1, 3) for _ in range(rng.randint(1, 120))]
        texts[f"{number:03}"] = " ".join(words)
        for copy in range(rng.randint(0, 3)):
            changed = [rng.choice("xyz") if rng.random() < 0.04 else word for word in words]
            texts[f"{rng.randint(0, 99):03}-{number}-{copy}"] = " ".join(changed)
    return texts


@needs_rensa
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_equal_to_brute_force(seed):
    texts = corpus(seed)
    runs = {}
    for name, text in texts.items():
        words = text.split()
        runs[name] = {tuple(words[at : at + 5]) for at in range(max(len(words) - 5, 0) + 1)}
    kept: list[str] = []
    alike = {}
    for name in sorted(texts):
        near = {other: len(runs[name] & runs[other]) / len(runs[name] | runs[other]) for other in kept}
        alike[name] = max(near.values(), default=0.0)
        if alike[name] < 0.7:
            kept.append(name)
    found = find_near_duplicates(texts)
    assert found.kept_ids == tuple(kept)
    assert 5 < len(found.dropped) < len(texts) - 5
    for one in found.dropped:
        assert one.kept_id in found.kept_ids
        assert one.similarity == pytest.approx(alike[one.id], abs=1e-12)
    mixed = list(texts.items())
    random.Random(seed).shuffle(mixed)
    assert find_near_duplicates(dict(mixed)) == found


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": 1.1}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"permutations": 0}, "permutations"),
        ({"run": 0}, "run"),
    ],
)
def test_settings_that_mean_nothing(settings, where):
    with pytest.raises(ConfigError, match=where):
        find_near_duplicates({"a": "b"}, **settings)


def test_a_missing_wheel_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(MissingExtra, match=r"evolvent\[code\]"):
        find_near_duplicates({"a": "b"})
