"""Heads that look up, from the beginning: they find what stood behind an equal word, at the distances that are told."""

from __future__ import annotations

import pytest
import torch

from benchmarks.looking_up import look_up
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy
from evolvent.models.tiny import init_tiny, tiny_config, word_tokenizer

WORDS = [f"w{number}" for number in range(40)]


@pytest.mark.parametrize(("asks", "answers"), [(3, 4), (1, 3)])
def test_an_equal_word_is_found_where_the_shift_says(asks, answers):
    tokenizer = word_tokenizer(WORDS, context=80)
    config = tiny_config(len(tokenizer), "xs", context=80)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e6}
    policy = Policy(init_tiny(config, seed=3), tokenizer, dialect_for(tokenizer, "words"))
    look_up(policy, offsets=(asks, answers), shifts=((asks, answers),) * 4)
    policy.model.set_attn_implementation("eager")
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(20):
        ids = torch.randperm(len(WORDS), generator=generator)[None] + len(tokenizer) - len(WORDS)
        ids[0, 30] = ids[0, 5]
        with torch.no_grad():
            weights = policy.model(ids, output_attentions=True).attentions[1][0]
        found.append(weights[:, 30 + asks].argmax(-1).eq(5 + answers).float().mean())
    assert torch.stack(found).mean() > 0.3, "in 1 of 30 by chance; learning sharpens it"
