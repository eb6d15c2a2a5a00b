"""Families of transformers in rows of several sequences: every sequence gets what it gets alone, or the row is refused.

Packed rows hold sequences one after the other, shared rows feed what sequences begin with once.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.family_models import FAMILIES, VOCABULARY, build_model
from evolvent.errors import ConfigError
from evolvent.learn.forward import compute_outputs, resolve_layout
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.learn.prefix_sharing import PrefixSharing, check_branches, resolve_rl_layout, share_rows
from evolvent.learn.token_sequences import Batch, TokenSequence, collate_packed, collate_padded
from tests.engine.models import Policy

# Windows, chunks and states of fixed size: a mask does not keep the sequences of a row apart. Qwen 2 MoE and dots.1
# name a window that they do not use here. Bloom computes its distances from a mask of two dimensions.
REFUSED = {
    *("mistral", "phi3", "olmo3", "cohere2", "starcoder2", "mixtral", "ministral", "phimoe", "afmoe", "exaone4"),
    *("gemma2", "gemma3_text", "gemma4_text", "vaultgemma", "gpt_oss", "qwen2_moe", "dots1", "bloom"),
    *("qwen3_next", "qwen3_5_text", "olmo_hybrid", "lfm2", "lfm2_moe", "falcon_h1", "falcon_mamba", "mamba", "mamba2"),
    *("bamba", "granitemoehybrid", "jamba", "nemotron_h", "kimi_linear"),
}
REFUSED_IN_SHARED_ROWS = REFUSED | {"mpt"}  # it counts positions in the row

# Models of encoders that are used as decoders. Most count positions from the padding token, or in the row.
DECODERS: dict[str, dict[str, Any]] = {
    name: {}
    for name in (
        "bert",
        "bert-generation",
        "camembert",
        "data2vec-text",
        "electra",
        "ernie",
        "megatron-bert",
        "rembert",
    )
}
DECODERS |= {name: {} for name in ("roberta", "roberta-prelayernorm", "roformer", "xlm-roberta", "xlm-roberta-xl")}
DECODERS |= {"falcon": {"alibi": True}, "gpt_neo": {"attention_types": [[["global", "local"], 2]]}, "xglm": {}}


def build_decoder(name: str) -> Any:
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
        "is_decoder": True,
        **({"d_model": 32, "ffn_dim": 48, "num_layers": 4, "attention_heads": 4} if name == "xglm" else {}),
        **({"num_layers": 4, "num_heads": 4} if name == "gpt_neo" else {}),
        **DECODERS[name],
    }
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def make_sequences() -> list[TokenSequence]:
    """Four sequences, two of which begin like the first; longer than every window of the families."""
    rng = np.random.default_rng(3)
    ids = [rng.integers(3, VOCABULARY, size).astype(np.int32) for size in (30, 17, 25, 9)]
    ids[1][:8], ids[2][:20] = ids[0][:8], ids[0][:20]
    sequences = []
    for row in ids:
        flags, zeros = np.zeros(len(row), np.bool_), np.zeros(len(row), np.int32)
        weight = np.append(0, np.ones(len(row) - 1)).astype(np.float32)
        sequences.append(TokenSequence("row", row, flags, flags, zeros.astype(np.float32), zeros, zeros, weight))
    return sequences


def logprobs_of(model: Any, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        logprobs = compute_outputs(model, batch).logprobs
    assert logprobs is not None
    return logprobs


def check_rows(model: Any) -> tuple[bool, bool]:
    """Returns whether packed and shared rows are refused, after checking those that are not."""
    sequences = make_sequences()
    alone = torch.cat([logprobs_of(model, collate_padded(sequences, [[number]])) for number in range(4)])
    is_refused = []
    for layout, batch in (
        ("packed", collate_packed(sequences, [[0, 1], [2, 3]])),
        ("shared", PrefixSharing(inf).collate(sequences, [0, 1, 2, 3], max_tokens=200)),
    ):
        policy, config = Policy(model), TrainConfig(layout=layout)
        try:
            resolve_layout(model, layout)
            if layout == "shared":
                share_rows(model, Parallelism())
        except ConfigError as error:
            is_refused.append(True)
            assert error.problems[0].where == "layout" and layout in error.problems[0].what
            with pytest.raises(ConfigError, match=f"layout: {layout} rows"):
                Learner(policy, weighted_nll, config, seed=0)
            continue
        is_refused.append(False)
        assert float((logprobs_of(model, batch) - alone).abs().max()) <= 1e-5, layout
    if is_refused[1]:
        assert resolve_rl_layout("auto", model) == "auto"
        with pytest.raises(ConfigError, match="the model would mix the branches of a row"):
            check_branches(model)
    return is_refused[0], is_refused[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_sequences_of_a_row_get_what_they_get_alone_or_the_layout_is_refused(family):
    assert check_rows(build_model(family)) == (family in REFUSED, family in REFUSED_IN_SHARED_ROWS)


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_that_count_positions_otherwise_are_right_or_refused(name):
    check_rows(build_decoder(name))


def test_roberta_and_roformer_are_refused():
    """Packed rows of these differed by up to 3.9 in their logits without a word."""
    for name in ("roberta", "roformer", "xlm-roberta"):
        assert check_rows(build_decoder(name)) == (True, True)
