"""The embedded default: parameter counts of the specification, reproducible weights, a closed vocabulary."""

import pytest
import torch

from evolvent.errors import ConfigError
from evolvent.models.tiny import SIZES, init_tiny, tiny_config, word_tokenizer


def test_parameter_counts_are_those_of_the_specification():
    counts = {
        size: sum(w.numel() for w in init_tiny(tiny_config(159, size), seed=0).parameters()) for size in ("xs", "s")
    }
    assert counts == {"xs": 170_368, "s": 873_472}


def test_parameter_formula_holds_for_every_size():
    for size, shape in SIZES.items():
        d, layers, f = shape["hidden_size"], shape["num_hidden_layers"], shape["intermediate_size"]
        expected = 100 * d + layers * (4 * d * d + 3 * d * f + 2 * d) + d
        assert sum(w.numel() for w in init_tiny(tiny_config(100, size), seed=0).parameters()) == expected


def test_same_seed_same_weights_and_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    one, two, other = (init_tiny(tiny_config(50), seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    pairs = list(zip(one.parameters(), two.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert any(not torch.equal(a, c) for a, _, c in pairs)


def test_initialisation_has_the_stated_spread():
    model = init_tiny(tiny_config(400, "s"), seed=0)
    assert model.model.embed_tokens.weight.std().item() == pytest.approx(0.25, rel=0.05)
    assert model.model.layers[0].mlp.down_proj.weight.std().item() == pytest.approx(0.7 * 384**-0.5, rel=0.05)


def test_encoding_what_was_decoded_is_the_identity():
    words = ["craft", "using", "x", "1", "2", ",", ".", "oak", "plank"]
    tokenizer = word_tokenizer(words)
    ids = tokenizer.encode("craft 2 x using 1 oak plank , 2 x .", add_special_tokens=False)
    assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids
    assert tokenizer.unk_token_id not in ids


def test_unknown_size_names_the_near_one():
    with pytest.raises(ConfigError, match=r"unknown size 'xss'.*did you mean 'xs'"):
        tiny_config(10, "xss")
