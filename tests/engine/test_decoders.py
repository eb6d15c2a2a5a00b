"""Every decoder against the model's own forward; models that cannot share are refused with the reason."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from evolvent.engine import decoders
from evolvent.engine.arena import Arena
from evolvent.engine.asks import LogitsAsk, SampleAsk, ScoreAsk
from evolvent.engine.decoders import ModuleDecoder, decoder_for
from evolvent.engine.driver import ask_and_wait
from evolvent.engine.fused import FusedDecoder, first_adjacent_row
from evolvent.engine.local import LocalEngine
from evolvent.engine.recompute import RecomputeEngine
from evolvent.engine.streams import plan
from evolvent.errors import ConfigError
from tests.engine.models import CONTEXT, SHAPE, VOCABULARY, Policy, llama, model_of

GROUPED = {**SHAPE, "num_key_value_heads": 2}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
FUSED = {
    "llama": LlamaConfig(**GROUPED),
    "llama, one head each": LlamaConfig(**{**SHAPE, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama, biases": LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True),
    "llama, scaled rope": LlamaConfig(**GROUPED, rope_parameters=SCALED),
    "llama, wide": LlamaConfig(**{**GROUPED, "hidden_size": 320, "head_dim": 80}),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**GROUPED, head_dim=16),
    "mistral": MistralConfig(**GROUPED, sliding_window=None),
    "mistral, a window as long as the context": MistralConfig(**GROUPED, sliding_window=CONTEXT),
    "llama, rope that changes beyond the context": LlamaConfig(**GROUPED, rope_parameters=DYNAMIC),
}
MODULES = {
    "gpt2": GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=CONTEXT, bos_token_id=None, eos_token_id=None
    ),
    "neox": GPTNeoXConfig(**SHAPE),
    "cohere": CohereConfig(**GROUPED),
    "llama, gelu": LlamaConfig(**GROUPED, hidden_act="gelu"),
    "mistral, a window": MistralConfig(**GROUPED, sliding_window=8),
    "gemma2, windows": Gemma2Config(**GROUPED, head_dim=8, sliding_window=8),
}


def compare(decoder: Any, model: Any, length: int = 40, pieces: tuple[int, ...] = (1, 1, 2, 9)) -> float:
    """Feed random paths in random pieces, rows together; largest difference to the model's own logits."""
    rng = np.random.default_rng(0)
    paths = rng.integers(0, VOCABULARY, (6, length))
    capacity = model.config.max_position_embeddings
    arena = Arena(decoder.shape, 8, capacity, dtype=torch.float32, device=torch.device("cpu"))
    fed, worst = np.zeros(6, np.int64), 0.0
    with torch.inference_mode():
        expected = model(torch.from_numpy(paths)).logits
        while (fed < length).any():
            open_rows = np.flatnonzero(fed < length)
            rows = np.sort(rng.choice(open_rows, rng.integers(1, len(open_rows) + 1), replace=False))
            counts = np.minimum(rng.choice(pieces, len(rows)), length - fed[rows])
            layout = plan(rows, fed[rows], counts, limit=100, capacity=capacity)
            decoder.forward(torch.from_numpy(paths[layout.rows, layout.positions]), layout, arena)
            fed[rows] += counts
            for row in rows:
                found = decoder.logits(arena.hidden[row, : fed[row]])
                worst = max(worst, float((found - expected[row, : fed[row]]).abs().max()))
    return worst


@pytest.mark.parametrize("name", FUSED)
def test_fused(name: str) -> None:
    model = model_of(FUSED[name], noise=0.02 if "wide" in name else 0.1)
    decoder = decoder_for(model, capacity=CONTEXT)
    assert isinstance(decoder, FusedDecoder)
    assert compare(decoder, model) < 1e-5


@pytest.mark.parametrize("name", ["llama", "llama, one head each", "qwen3"])
def test_fused_as_on_another_device(name: str) -> None:
    """Query heads that share keys as queries of one head; rows side by side looked at in place."""
    model = model_of(FUSED[name])
    decoder = FusedDecoder(model, capacity=CONTEXT)
    decoder._attention._cpu = decoder._attention._blocks = False
    assert compare(decoder, model) < 1e-5


def test_rows_side_by_side_are_known() -> None:
    assert [first_adjacent_row(np.array(rows)) for rows in ([3], [3, 4, 5], [3, 5], [4, 3], [0, 1])] == [
        3,
        3,
        None,
        None,
        0,
    ]


@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str) -> None:
    model = model_of(MODULES[name])
    decoder = decoder_for(model, capacity=CONTEXT)
    assert isinstance(decoder, ModuleDecoder)
    assert compare(decoder, model) < 1e-5


@pytest.mark.parametrize("kind", [FusedDecoder, ModuleDecoder])
def test_long_texts_in_long_pieces(kind: type[FusedDecoder] | type[ModuleDecoder]) -> None:
    """Pieces that lie in several spans are cut; each part still sees the ones before it."""
    model = model_of(LlamaConfig(**{**GROUPED, "max_position_embeddings": 448}))
    assert compare(kind(model, capacity=448), model, length=420, pieces=(1, 120, 193, 250)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs(dtype: torch.dtype) -> None:
    model = model_of(LlamaConfig(**GROUPED), noise=0.02).to(dtype)
    engine = LocalEngine(Policy(model), slots=3)
    (scored,) = ask_and_wait([ScoreAsk(None, list(range(20)))], engine)
    with torch.inference_mode():
        logits = model.float()(torch.arange(20)[None]).logits[0].log_softmax(-1)
    expected = logits[:-1].gather(1, torch.arange(1, 20)[:, None])[:, 0]
    np.testing.assert_allclose(scored.logprobs[1:], expected, atol=0.1)


@pytest.mark.parametrize(
    ("dtype", "differences", "kind"),
    [
        (torch.bfloat16, {0: 0.06, 1: 0.011, 2: 0.017}, FusedDecoder),
        (torch.bfloat16, {0: 0.06, 1: 0.07, 2: 0.017}, ModuleDecoder),
        (torch.float32, {0: 0.06, 1: 0.0, 2: 0.0}, ModuleDecoder),
    ],
)
def test_a_text_on_which_rounding_grows_does_not_cost_the_fast_decoder(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    dtype: torch.dtype,
    differences: dict[int, float],
    kind: type[Any],
) -> None:
    measure = decoders._measure_difference

    def differ(decoder: Any, model: Any, *, seed: int = 0) -> float:
        return differences[seed] if isinstance(decoder, FusedDecoder) else measure(decoder, model, seed=seed)

    monkeypatch.setattr(decoders, "_measure_difference", differ)
    model = model_of(LlamaConfig(**GROUPED), noise=0.02).to(dtype)
    with caplog.at_level(logging.WARNING):
        assert isinstance(decoder_for(model, capacity=CONTEXT), kind)
    told = "llama: FusedDecoder differs from the model by 0.06; a slower way is taken"
    assert (told in caplog.text) == (kind is ModuleDecoder)


def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        decoder_for(model_of(MODULES["gpt2"]), capacity=CONTEXT)
    assert "gpt2 runs with ModuleDecoder" in caplog.text


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LlamaConfig(**GROUPED, rope_parameters={**DYNAMIC, "original_max_position_embeddings": 32}), "dynamic"),
    ],
)
def test_models_that_cannot_share_are_refused_and_recomputed(config: Any, reason: str) -> None:
    policy = Policy(model_of(config))
    with pytest.raises(ConfigError, match=reason):
        LocalEngine(policy, slots=2)
    engine = RecomputeEngine(policy)
    ((sample,), logits) = ask_and_wait([SampleAsk(None, [1, 2, 3], 12), LogitsAsk(None, [4, 5])], engine)
    with torch.inference_mode():
        expected = policy.model(torch.tensor([sample.node.tokens()])).logits[0].log_softmax(-1)
    expected = expected[2:-1].gather(1, torch.tensor(sample.ids.tolist())[:, None])[:, 0]
    np.testing.assert_allclose(sample.logprobs, expected, atol=1e-5)
    assert logits.shape == (VOCABULARY,)


def test_hidden_states_are_those_before_the_head() -> None:
    policy = llama()
    with torch.inference_mode():
        expected = policy.model.model(torch.tensor([[1, 2, 3]])).last_hidden_state[0, -1]
    for engine in (LocalEngine(policy, slots=1), RecomputeEngine(policy)):
        (hidden,) = ask_and_wait([LogitsAsk(None, [1, 2, 3], hidden=True)], engine)
        np.testing.assert_allclose(hidden, expected, atol=1e-5)
