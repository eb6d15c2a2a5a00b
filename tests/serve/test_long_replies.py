"""Replies that are long, and texts that end them: every piece costs what is new in it, and not all that came before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import evolvent as ev
from evolvent.engine.asks import GREEDY
from evolvent.errors import ConfigError
from evolvent.models.dialects import Chat, Words
from evolvent.serve.openai.generator import Generator
from evolvent.serve.openai.reply import ReplyFormat, count_unsendable, has_stop_after
from evolvent.serve.openai.request import ChatRequest, SamplingSpec, parse_request
from evolvent.serve.openai.writing import ReplyWriter, _IncrementalText
from tests.models.test_dialects import CHATML, byte_tokenizer

TOKENS = 400


class Counting(Words):
    """Counts the tokens that it makes text of."""

    decoded = 0

    def text(self, ids):
        ids = list(ids)
        self.decoded += len(ids)
        return super().text(ids)


async def streamed(policy, stops):
    async with Generator(policy, ev.LocalEngine(policy, slots=2)) as generator:
        wanted = SamplingSpec(GREEDY, TOKENS, stops, (0,))
        writing = ReplyWriter(generator, policy.dialect, wanted, ReplyFormat(False, "small", str, with_ids=True))
        return [event["choices"][0] async for event in writing.stream_events([[1, 2, 3]], usage=False)]


@pytest.mark.parametrize("stops", [(), ("nothing says this",)])
def test_a_long_stream_is_made_text_once_and_not_once_a_piece(stops):
    policy = ev.tiny_policy(["go", "left", "right", "stay", "see", "a", "door", "and", "key"], context=512, seed=4)
    counting = Counting(policy.tokenizer)
    chunks = asyncio.run(streamed(replace(policy, dialect=counting), stops))
    written = [token for chunk in chunks for token in chunk["token_ids"]]
    assert len(written) == TOKENS and chunks[-1]["finish_reason"] == "length"
    assert "".join(chunk["text"] for chunk in chunks) == policy.dialect.text(written)
    assert counting.decoded <= 5 * TOKENS, "20 times as many and more, if all of the text is made anew for each piece"


BYTES = Chat(byte_tokenizer(CHATML, ["<|im_start|>", "<|im_end|>"]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=4), max_size=12))
def test_a_growing_text_is_at_every_moment_that_of_all_its_tokens(pieces):
    """Of a tokenizer whose tokens are single bytes, of which several make a character, or none."""
    growing, ids, before = _IncrementalText(BYTES.text), np.zeros(0, np.int32), ""
    for piece in pieces:
        ids = np.concatenate([ids, np.array(piece, np.int32)])
        text = growing.add(np.array(piece, np.int32))
        assert text == BYTES.text(ids)
        assert text.startswith(before), "what is settled stays"
        before = text[: growing.num_settled]


def test_what_is_settled_is_sent_whole_characters_at_a_time():
    ids = np.array(BYTES.action("é→𝄞 a")[:-1], np.int32)
    growing = _IncrementalText(BYTES.text)
    seen = [(growing.add(ids[at : at + 1]), growing.num_settled)[1] for at in range(len(ids))]
    assert sorted(set(seen)) == [0, 1, 2, 3, 4, 5] and growing.add(ids[:0]) == "é→𝄞 a"


@settings(max_examples=200, deadline=None)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.integers(0, 12))
def test_stops_are_looked_for_where_they_can_be(text, stops, since):
    begun = [size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])]
    assert count_unsendable(text, stops) == max([0, *begun])
    if not any(stop in text[:since] for stop in stops):
        assert has_stop_after(text, stops, since) == any(stop in text for stop in stops)


@pytest.mark.parametrize("stop", ["a" * 1001, ["b", "a" * 100_000]])
def test_a_text_that_ends_a_reply_is_no_book(stop):
    """Every beginning of it would be looked for after every token, on the loop that serves everybody."""
    body = {"model": "small", "messages": [{"role": "user", "content": "go"}]}
    with pytest.raises(ConfigError) as caught:
        parse_request(ChatRequest, {**body, "stop": stop})
    assert "stop" in str(caught.value) and len(str(caught.value)) < 2000
    assert parse_request(ChatRequest, {**body, "stop": "a" * 1000}).sampling_spec(8).stops == ("a" * 1000,)
