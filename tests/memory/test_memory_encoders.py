"""Vectors of texts: the same everywhere, near for like words, and never of another model."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from evolvent.errors import ConfigError
from evolvent.memory.encoders import HashedNgrams, SentenceEncoder


def test_equal_on_every_run_and_in_every_batch():
    texts = ["I took the mug 1.", "", "Next, I need to cool the bowl.", "ÄÖ 日本 !"]
    made = HashedNgrams(64)(texts)
    assert made.dtype == np.float32 and made.shape == (4, 64)
    assert np.array_equal(made[2:3], HashedNgrams(64)(texts[2:3]))
    assert np.allclose(np.linalg.norm(made, axis=1), [1, 0, 1, 1])
    code = (
        "from evolvent.memory.encoders import HashedNgrams;"
        "print(HashedNgrams(64)(['I took the mug 1.']).tobytes().hex())"
    )
    told = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "77", "PATH": ""},
    ).stdout.strip()
    assert told == made[0].tobytes().hex()


def test_golden_places_of_one_word():
    """One mark has one feature: its place and sign are those of BLAKE2b of "seed word text"."""
    import hashlib

    for mark in "?!.":
        value = int.from_bytes(hashlib.blake2b(f"3 word {mark}".encode(), digest_size=8).digest(), "little")
        wanted = np.zeros(16, np.float32)
        wanted[value % 16] = -1 if value >> 63 else 1
        assert np.array_equal(HashedNgrams(16, 3)([mark])[0], wanted)


def test_like_words_are_near():
    texts = [
        "Next, I need to cool the bowl with the fridge.",
        "I need to cool a bowl 2 using the fridge next.",
        "Now I put the keychain on the sofa.",
    ]
    a, b, c = HashedNgrams()(texts)
    assert a @ b > 0.5 and a @ b > a @ c + 0.2
    assert not np.allclose(HashedNgrams(seed=1)(texts[:1]), HashedNgrams()(texts[:1]))
    assert HashedNgrams(256)(["cooled"])[0] @ HashedNgrams(256)(["cooling"])[0] > 0.1, "trigrams"


def test_names():
    assert HashedNgrams.from_id(HashedNgrams(128, 4).id) == HashedNgrams(128, 4)
    with pytest.raises(ConfigError):
        HashedNgrams.from_id("sentence/x/y")
    with pytest.raises(ConfigError):
        HashedNgrams(4)


def test_nothing_is_downloaded_unasked():
    with pytest.raises(ConfigError, match="allow_download"):
        SentenceEncoder("all-MiniLM-L6-v2")


def test_hidden_states_are_means_over_the_text():
    torch = pytest.importorskip("torch")
    from evolvent.memory.encoders import HiddenStates
    from evolvent.models.policy import tiny_policy

    policy = tiny_policy(["go", "to", "the", "mug"], context=16)
    encoder = HiddenStates(policy, batch=2)
    made = encoder(["go to the mug", "mug", "", "to the"])
    ids = torch.tensor([policy.tokenizer("to the", add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        alone = policy.model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0].mean(0).numpy()
    assert np.allclose(made[3], alone, atol=1e-5) and np.all(made[2] == 0)
    other = HiddenStates(tiny_policy(["go", "to", "the", "mug"], context=16, seed=1))
    assert other.id != encoder.id and encoder.id == HiddenStates(policy.clone()).id
