"""The trunk: torch's own attention and layers, the full pass and position by position, masks, dropout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from evolvent.errors import BatchMismatch, ConfigError
from evolvent.models.trunk import Attention, Trunk, TrunkShape, orthogonal_

SHAPE = TrunkShape(width=16, heads=4, layers=2)


def trunk(shape: TrunkShape = SHAPE, *, seed: int = 0) -> Trunk:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Trunk(shape)
        for weight in made.parameters():  # nothing small, nothing zero: a part that is left out would be seen
            weight.data.normal_(0.0, 0.4)
    return made.double().eval()


def stream(batch: int, length: int, *, seed: int = 1, width: int = 16) -> torch.Tensor:
    return torch.randn(batch, length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def memory_of(shape: TrunkShape, x: torch.Tensor) -> torch.Tensor | None:
    return stream(x.shape[0], x.shape[1], seed=7) if shape.cross else None


SHAPES = [
    replace(SHAPE, norm=norm, cross=cross, activation=activation, mlp=mlp)
    for norm, cross, activation, mlp in (
        ("pre", False, "gelu", 4),
        ("post", False, "relu", 1),
        ("post", True, "gelu", 1),
        ("pre", True, "gelu_tanh", 2),
    )
]


def test_attention_is_torchs_own():
    shape = replace(SHAPE, width=12, heads=3)
    own = Attention(shape).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = own.mix.weight.data, own.mix.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = own.out.weight.data, own.out.bias.data
    x, later = stream(2, 5, width=12), torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.allclose(own(x), theirs(x, x, x)[0], atol=1e-12)
    assert torch.allclose(own(x, causal=True), theirs(x, x, x, attn_mask=later)[0], atol=1e-12)


def test_cross_attention_asks_with_the_memory():
    shape = replace(SHAPE, width=12, heads=3)
    own = Attention(shape, cross=True).double()
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double()
    theirs.in_proj_weight.data = torch.cat([own.query.weight.data, own.mix.weight.data])
    theirs.in_proj_bias.data = torch.cat([own.query.bias.data, own.mix.bias.data])
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = own.out.weight.data, own.out.bias.data
    x, memory = stream(2, 5, width=12), stream(2, 5, seed=3, width=12)
    assert torch.allclose(own(x, memory), theirs(memory, x, x)[0], atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_trunk_is_torchs_encoder(norm):
    shape = replace(SHAPE, norm=norm, causal=False, activation="relu")
    own = trunk(shape)
    layer = nn.TransformerEncoderLayer(16, 4, 64, 0.0, "relu", batch_first=True, norm_first=norm == "pre")
    theirs = nn.TransformerEncoder(
        layer, 2, norm=nn.LayerNorm(16) if norm == "pre" else None, enable_nested_tensor=False
    )
    theirs = theirs.double().eval()
    for block, other in zip(own.blocks, theirs.layers, strict=True):
        other.self_attn.in_proj_weight.data, other.self_attn.in_proj_bias.data = (
            block.attention.mix.weight.data,
            block.attention.mix.bias.data,
        )
        for name, part in (
            ("self_attn.out_proj", block.attention.out),
            ("linear1", block.up),
            ("linear2", block.down),
            ("norm1", block.norm_attention),
            ("norm2", block.norm_mlp),
        ):
            other.get_submodule(name).load_state_dict(part.state_dict())
    if norm == "pre":
        theirs.norm.load_state_dict(own.norm.state_dict())
    x, seen = stream(3, 6), torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 1], [1, 0, 1, 1, 1, 1]], dtype=torch.bool)
    assert torch.allclose(own(x), theirs(x), atol=1e-10)
    found, expected = own(x, attention_mask=seen), theirs(x, src_key_padding_mask=~seen)
    assert torch.allclose(found[seen], expected[seen], atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [[1] * 7, [3, 1, 2, 1], [7]])
@pytest.mark.parametrize("masked", [False, True])
def test_position_by_position_is_the_full_pass(shape, steps, masked):
    model, x = trunk(shape), stream(3, 7)
    memory = memory_of(shape, x)
    seen = None
    if masked:
        seen = torch.tensor([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 1, 0]], dtype=torch.bool)
    whole = model(x, memory, attention_mask=seen)
    cache, found, at = model.cache(3, 7), [], 0
    for step in steps:
        part = slice(at, at + step)
        found.append(
            model.decode(
                x[:, part],
                cache,
                None if memory is None else memory[:, part],
                attention_mask=None if seen is None else seen[:, part],
            )
        )
        at += step
    assert cache.length == 7
    assert torch.allclose(torch.cat(found, 1), whole, atol=1e-10)


@pytest.mark.parametrize("shape", SHAPES)
@settings(max_examples=6, deadline=None)
@given(at=st.integers(0, 5))
def test_what_comes_later_changes_nothing_before(shape, at):
    model, x = trunk(shape), stream(2, 6)
    memory, other = memory_of(shape, x), x.clone()
    other[:, at] = stream(2, 6, seed=8)[:, at]
    before, after = model(x, memory), model(other, memory)
    assert torch.equal(before[:, :at], after[:, :at])
    assert not torch.allclose(before[:, at], after[:, at], atol=1e-6)


def test_without_causality_all_see_all_and_order_does_not_matter():
    model, x = trunk(replace(SHAPE, causal=False)), stream(2, 5)
    order = torch.tensor([3, 0, 4, 2, 1])
    assert torch.allclose(model(x[:, order]), model(x)[:, order], atol=1e-10)
    other = x.clone()
    other[:, 4] = stream(2, 5, seed=8)[:, 4]
    assert not torch.allclose(model(x)[:, 0], model(other)[:, 0], atol=1e-3)


def test_nobody_looks_at_what_is_not_seen():
    model, x = trunk(), stream(2, 5)
    seen = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 1]], dtype=torch.bool)
    noise = torch.where(seen[..., None], x, stream(2, 5, seed=9))
    found = model(x, attention_mask=seen)
    assert torch.isfinite(found).all()
    assert torch.equal(found[seen], model(noise, attention_mask=seen)[seen])
    assert torch.allclose(found[0, 2:], model(x[:1, 2:])[0], atol=1e-10), "left padding is as if it were not there"


def test_rows_of_a_cache_go_on_apart():
    model, x = trunk(), stream(2, 4)
    cache = model.cache(2, 6)
    model.decode(x, cache, attention_mask=torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]], dtype=torch.bool))
    beams, index = cache.rows(torch.tensor([1, 1, 0])), torch.tensor([1, 1, 0])
    new = stream(3, 1, seed=5)
    found = model.decode(new, beams)
    seen = torch.tensor([[1] * 5, [1] * 5, [0, 1, 1, 1, 1]], dtype=torch.bool)
    whole = model(torch.cat([x[index], new], 1), attention_mask=seen)
    assert torch.allclose(found[:, 0], whole[:, 4], atol=1e-10)
    assert cache.length == 4 and beams.length == 5


def test_dropout_is_off_at_evaluation():
    model, x = trunk(replace(SHAPE, dropout=0.5)), stream(2, 5)
    plain = trunk()
    assert torch.equal(model(x), plain(x))
    assert torch.equal(model.decode(x, model.cache(2, 5)), plain.decode(x, plain.cache(2, 5)))
    model.train()
    assert not torch.allclose(model(x), model(x))


def test_orthogonal_parts():
    layer = orthogonal_(nn.Linear(8, 24), 2.0, parts=3)
    for part in layer.weight.detach().chunk(3):
        assert torch.allclose(part @ part.T, 4.0 * torch.eye(8), atol=1e-5)
    assert not layer.bias.any()


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"width": 0}, {"layers": 0}, {"dropout": 1.0}])
def test_shapes_that_are_none(wrong):
    with pytest.raises(ConfigError):
        replace(SHAPE, **wrong)


def test_what_does_not_fit():
    model, both = trunk(), trunk(SHAPES[2])
    with pytest.raises(BatchMismatch, match="stream"):
        model(stream(2, 3, width=8))
    with pytest.raises(BatchMismatch, match="the attention mask has the wrong shape"):
        model(stream(2, 3), attention_mask=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(BatchMismatch, match="memory"):
        both(stream(2, 3))
    with pytest.raises(BatchMismatch, match="memory"):
        both(stream(2, 3), stream(2, 4))
    with pytest.raises(BatchMismatch, match="cache"):
        model.decode(stream(2, 4), model.cache(2, 3))
    with pytest.raises(ConfigError, match="causal"):
        trunk(replace(SHAPE, causal=False)).decode(stream(1, 1), trunk().cache(1, 1))
