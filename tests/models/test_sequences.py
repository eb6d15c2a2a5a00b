"""The stream of returns, observations and actions: the published network, and what it may not look at."""

from __future__ import annotations

import json
import math

import pytest
import torch

from evolvent.errors import BatchMismatch, ConfigError, Incomplete, ShapeMismatch
from evolvent.models.sequence_files import load_sequence, save_sequence
from evolvent.models.sequences import DecisionModel, SequenceShape, squashed_logp, squashed_sample


def made(**shape) -> DecisionModel:
    torch.manual_seed(0)
    return DecisionModel(
        SequenceShape(
            **{"observation": 3, "dim": 2, "context": 4, "horizon": 9, "width": 16, "layers": 2, "heads": 2, **shape}
        )
    ).eval()


def windows(batch=2, steps=4, *, dim=2, seed=1):
    g = torch.Generator().manual_seed(seed)
    return {
        "observation": torch.randn(batch, steps, 3, generator=g),
        "action": torch.rand(batch, steps, dim, generator=g) * 2 - 1,
        "to_go": torch.randn(batch, steps, generator=g),
        "time": torch.arange(steps).repeat(batch, 1),
    }


def test_it_is_transformers_decision_transformer():
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    config = DecisionTransformerConfig(
        state_dim=3,
        act_dim=2,
        hidden_size=16,
        max_ep_len=9,
        n_layer=2,
        n_head=2,
        n_positions=64,
        activation_function="relu",
    )
    torch.manual_seed(3)
    theirs, ours = DecisionTransformerModel(config).eval(), made()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
        pairs = [
            (ours.embed_return, theirs.embed_return),
            (ours.embed_observation, theirs.embed_state),
            (ours.embed_action, theirs.embed_action),
            (ours.embed_time, theirs.embed_timestep),
            (ours.norm, theirs.embed_ln),
            (ours.trunk.norm, theirs.encoder.ln_f),
            (ours.head, theirs.predict_action[0]),
        ]
        for mine, other in pairs:
            mine.load_state_dict(other.state_dict())
        ours.norm.bias += theirs.encoder.wpe.weight[0]  # theirs adds the embedding of position 0 everywhere
        for mine, other in zip(ours.trunk.blocks, theirs.encoder.h, strict=True):
            mine.norm_attention.load_state_dict(other.ln_1.state_dict())
            mine.norm_mlp.load_state_dict(other.ln_2.state_dict())
            for linear, conv in (
                (mine.attention.mix, other.attn.c_attn),
                (mine.attention.out, other.attn.c_proj),
                (mine.up, other.mlp.c_fc),
                (mine.down, other.mlp.c_proj),
            ):
                linear.weight.copy_(conv.weight.T)
                linear.bias.copy_(conv.bias)
    read = windows()
    seen = torch.tensor([[True] * 4, [False, True, True, True]])
    with torch.no_grad():
        found = ours(**read, attention_mask=seen)
        expected = theirs(
            states=read["observation"],
            actions=read["action"],
            rewards=torch.zeros(2, 4, 1),
            returns_to_go=read["to_go"][..., None],
            timesteps=read["time"],
            attention_mask=seen.long(),
        ).action_preds
    torch.testing.assert_close(found[seen], expected[seen], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [{}, {"returns": False}, {"horizon": 0, "stochastic": True}])
def test_nothing_later_and_nothing_padded_is_read(shape):
    model, read = made(**shape), windows()
    seen = torch.tensor([[False, True, True, True]] * 2)
    base = model(**read, attention_mask=seen)
    changed = {name: value.clone() for name, value in read.items()}
    for name, noise in (("observation", 7.0), ("action", 0.5), ("to_go", 3.0)):
        changed[name][:, 0] += noise
    torch.testing.assert_close(model(**changed, attention_mask=seen)[:, 1:], base[:, 1:])
    later = {name: value.clone() for name, value in read.items()}
    later["action"][:, 2] *= -1
    later["observation"][:, 3] += 1
    after = model(**later, attention_mask=seen)
    torch.testing.assert_close(after[:, :3], base[:, :3])
    assert not torch.allclose(after[:, 3], base[:, 3]), "the last step reads the action before it"


def test_returns_matter_where_they_are_read():
    read = windows()
    other = {**read, "to_go": read["to_go"] + 1}
    assert not torch.allclose(made()(**read), made()(**other))
    torch.testing.assert_close(made(returns=False)(**read), made(returns=False)(**other))
    scaled = made(scale=10.0)(**{**read, "to_go": read["to_go"] * 10})
    torch.testing.assert_close(scaled, made()(**read))


def test_a_missing_discrete_action_is_none():
    model, read = made(actions=3, dim=0), windows()
    read["action"] = torch.tensor([[0, 1, 2, -1]] * 2)
    base = model(**read)
    read["action"] = torch.tensor([[0, 1, 2, 1]] * 2)
    torch.testing.assert_close(model(**read), base)
    assert base.shape == (2, 4, 3)


def test_squashed_gaussians():
    gaussian = torch.tensor([[[0.3], [-0.5]]])
    grid = torch.linspace(-1, 1, 20001, dtype=torch.float64)[1:-1, None]
    density = squashed_logp(gaussian.expand(len(grid), 2, 1), grid).exp()
    assert float(density.sum()) * 1e-4 == pytest.approx(1.0, abs=1e-4)
    noise = torch.tensor([[0.7]])
    action, logp = squashed_sample(gaussian, noise)
    assert float(action) == pytest.approx(math.tanh(0.3 + 0.7 * math.exp(-0.5)), abs=1e-6)
    torch.testing.assert_close(logp, squashed_logp(gaussian, action), atol=1e-5, rtol=1e-5)
    assert torch.isfinite(squashed_logp(gaussian, torch.tensor([[1.0]]))).all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(ConfigError) as caught:
        SequenceShape(observation=0, actions=2, dim=2, scale=-1.0)
    assert len(caught.value.problems) == 3
    read = windows(steps=5)
    with pytest.raises(BatchMismatch, match="windows have the wrong shape"):
        made()(**read)
    read = windows()
    with pytest.raises(BatchMismatch, match="time step out of range"):
        made()(**{**read, "time": read["time"] + 6})
    with pytest.raises(BatchMismatch, match="actions have the wrong shape"):
        made()(**{**read, "action": read["action"][..., :1]})


def test_saved_and_loaded(tmp_path):
    model, read = made(), windows()
    save_sequence(model, model.shape, tmp_path, extra={"mean": [1.0]})
    again, extra = load_sequence(DecisionModel, SequenceShape, tmp_path)
    torch.testing.assert_close(again(**read), model(**read), atol=0, rtol=0)
    assert extra == {"mean": [1.0]} and again.shape == model.shape
    with pytest.raises(Incomplete):
        load_sequence(DecisionModel, SequenceShape, tmp_path / "none")
    path = tmp_path / "sequence.json"
    row = json.loads(path.read_text())
    for shape, error in (
        ({"width": 10**7}, ShapeMismatch),
        ({"layers": 10**9}, ShapeMismatch),
        ({"width": 10**30}, Incomplete),
        ({"heads": "x"}, Incomplete),
    ):
        path.write_text(json.dumps({**row, "shape": {**row["shape"], **shape}}))
        with pytest.raises(error):
            load_sequence(DecisionModel, SequenceShape, tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(Incomplete):
        load_sequence(DecisionModel, SequenceShape, tmp_path)
    path.rmdir()
    other = made(width=32)
    save_sequence(other, model.shape, tmp_path)
    with pytest.raises(ShapeMismatch):
        load_sequence(DecisionModel, SequenceShape, tmp_path)
