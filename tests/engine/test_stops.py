"""Stop strings read off the last tokens: what a look through the whole text says, and a fixed share of its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from evolvent.engine.stops import completes_stop_string
from evolvent.models.tiny import word_tokenizer

TEXT = ("don't stop", "fünf Äpfel", "日本語の文", "🙂🙃", "a\n\nb", "it is 'so'")


def over(core: Tokenizer, **more: Any) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=core, **more)


def byte_level() -> PreTrainedTokenizerFast:
    """Bytes, and some pairs of them that begin in one character and end in the next."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0] for text in TEXT
    ]
    merges = list(dict.fromkeys((text[at], text[at + 1]) for text in spelled for at in range(1, len(text) - 1, 3)))
    vocabulary = {piece: at for at, piece in enumerate([*alphabet, *dict.fromkeys(a + b for a, b in merges)])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    return over(core)


def with_fallback() -> PreTrainedTokenizerFast:
    """As Llama 2 has it: pieces with a mark for the space, and bytes for what has no piece."""
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *"▁stopdn'ü日語", "▁a"]
    core = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=[], byte_fallback=True))
    core.normalizer = normalizers.Replace(" ", "▁")
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return over(core)


def word_pieces() -> PreTrainedTokenizerFast:
    """As BERT has it: spaces are put between words, and taken away before a point or behind an apostrophe."""
    pieces = ["[UNK]", "do", "n't", "n", "'", "t", "##op", "##t", "st", ".", ",", "!", "'s", "it", "##s", "is", "so"]
    core = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(pieces)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(cleanup=True)
    return over(core, unk_token="[UNK]", clean_up_tokenization_spaces=True)


KINDS = {
    "byte level": byte_level(),
    "byte fallback": with_fallback(),
    "word pieces": word_pieces(),
    "words": word_tokenizer(["go", "north", "stop", "it"], context=64),
}


def plainly(tokenizer: Any, ids: Sequence[int], stops: Sequence[str]) -> int:
    """After how many tokens the whole text holds a stop; 0: never."""
    texts = (tokenizer.decode(list(ids[:count])) for count in range(1, len(ids) + 1))
    return next((at for at, text in enumerate(texts, 1) if any(stop in text for stop in stops)), 0)


def stopped(tokenizer: Any, ids: Sequence[int], stops: Sequence[str]) -> int:
    """The same, as an engine finds it."""
    array = np.asarray(ids, np.int32)
    return next(
        (count for count in range(1, len(ids) + 1) if completes_stop_string(tokenizer, array[:count], stops)), 0
    )


@st.composite
def written(draw: st.DrawFn, kind: str) -> tuple[list[int], tuple[str, ...]]:
    """Tokens of text and of noise, and stops that mostly lie in what they say."""
    tokenizer = KINDS[kind]
    spelled = st.sampled_from(TEXT).map(lambda text: tokenizer.encode(text, add_special_tokens=False))
    noise = st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=6)
    ids = [index for part in draw(st.lists(spelled | noise, min_size=1, max_size=24)) for index in part]
    text = tokenizer.decode(ids)
    begin = draw(st.integers(0, max(0, len(text) - 1)))
    there = text[begin : begin + draw(st.integers(1, 12))] or "?"
    several = [(there,), (there, "stop"), (there[::-1], "ü"), ("\ufffd", there), (there + "z",)]
    return ids, draw(st.sampled_from(several))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tail_says_what_the_whole_text_says(kind):
    tokenizer = KINDS[kind]

    @settings(max_examples=150, deadline=None)
    @given(written(kind))
    def check(case):
        ids, stops = case
        assert stopped(tokenizer, ids, stops) == plainly(tokenizer, ids, stops), (tokenizer.decode(ids), stops)

    check()


def at_the_end(kind: str, text: str, before: int = 300) -> tuple[int, int, list[int]]:
    """Where a stop at the end of a long text is found, where it is, and how many tokens each look decoded."""
    tokenizer, sizes = KINDS[kind], list[int]()

    class Counted:
        def decode(self, ids):
            sizes.append(len(ids))
            return tokenizer.decode(ids)

    words = tokenizer.encode("st", add_special_tokens=False) if kind != "words" else tokenizer.encode("go")
    ids = [*words * before, *tokenizer.encode(text, add_special_tokens=False)]
    found = stopped(Counted(), ids, (text,))
    return found, len(ids), sizes


ENDS = [
    ("byte level", "日本語"),
    ("byte level", "🙂🙃"),
    ("byte fallback", "本🙂文"),
    ("word pieces", "dot."),
    ("words", "north stop"),
]


@pytest.mark.parametrize(("kind", "text"), ENDS)
def test_a_look_decodes_a_tail(kind, text):
    found, length, sizes = at_the_end(kind, text)
    assert found == length > 250
    assert sorted(sizes)[-2] < 80, "all of it is decoded once, where the tail held the stop"


def test_a_character_in_bytes_is_there_with_its_last():
    """日 is E6 97 A5; the run of bytes behind it is spoiled until its next character is whole."""
    tokenizer = KINDS["byte fallback"]
    run = [0x41, *"本日🙂".encode(), 0xE6]
    assert [stopped(tokenizer, run[:count], ("日",)) for count in (6, 7, 8, 12)] == [0, 7, 7, 7]
    long = [*[0x41] * 200, *"日".encode() * 100]
    assert stopped(tokenizer, long, ("日" * 20,)) == plainly(tokenizer, long, ("日" * 20,)) == 260
    assert stopped(tokenizer, [0xFF, *long], ("日",)) == 0, "one wrong byte spoils all of a run, from its beginning"
    (mark,) = tokenizer.encode("s", add_special_tokens=False)
    begun = [*[mark] * 50, *"日".encode() * 10]  # 29 spoiled bytes are no 29 characters
    assert stopped(tokenizer, begun, ("s" * 20 + "日" * 10,)) == len(begun)
