"""Tiny GGUF files of random Llama models, written with the `gguf` package as llama.cpp's converter writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

_NO_EXTRA = "the extra [gguf] is not installed"

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_vocabulary(text: str = "", num_merges: int = 0) -> tuple[list[str], list[str]]:
    """Returns the tokens and merges of a byte-level BPE, learned from a text without any split of words.

    Its merges cross every boundary, so that each pre-tokenizer gives other tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + len(SPECIAL) + num_merges,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=12,
    )
    learner.train_from_iterator([text], trainer)
    state = json.loads(learner.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    return tokens, [" ".join(merge) for merge in state["merges"]]


def tiny_llama(vocab_size: int, **settings: Any) -> LlamaForCausalLM:
    """Returns a random model whose keys have another number of heads than its queries."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            **{
                "vocab_size": vocab_size,
                "hidden_size": 64,
                "intermediate_size": 96,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 16,
                "max_position_embeddings": 256,
                "tie_word_embeddings": True,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 2,
            }
            | settings
        )
    ).eval()


def _permute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Orders the rows of a query or key projection as llama.cpp's rotary embedding has them."""
    rows = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return rows.swapaxes(1, 2).reshape(weight.shape)


_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tensors_of(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """Returns the weights of a model under llama.cpp's names and in its order."""
    config, tensors = model.config, {}
    for name, weight in model.state_dict().items():
        array = weight.float().numpy()
        if name == "model.embed_tokens.weight":
            tensors["token_embd.weight"] = array
        elif name == "model.norm.weight":
            tensors["output_norm.weight"] = array
        elif name == "lm_head.weight":
            if not config.tie_word_embeddings:
                tensors["output.weight"] = array
        else:
            _, _, layer, *middle, _ = name.split(".")
            kind = _NAMES[".".join(middle)]
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(kind)
            tensors[f"blk.{layer}.{kind}.weight"] = array if heads is None else _permute(array, heads)
    return tensors


def write_gguf(
    path: Path,
    *,
    pre: str | None = "smollm",
    architecture: str = "llama",
    vocabulary: tuple[list[str], list[str]] | None = None,
    tokenizer: str | None = "gpt2",
    quantized: bool = False,
    values: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
    left_out: tuple[str, ...] = (),
    **settings: Any,
) -> LlamaForCausalLM:
    """Writes a tiny model; returns it. `values` are further unsigned or text values of the header."""
    gguf = pytest.importorskip("gguf", reason=_NO_EXTRA)
    pytest.importorskip("accelerate", reason=_NO_EXTRA)
    tokens, merges = vocabulary or byte_vocabulary("  the  ", 1)
    model = tiny_llama(len(tokens), **settings)
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("Tiny Private Name")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(tokens))
    if tokenizer is not None:
        writer.add_tokenizer_model(tokenizer)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        if merges:
            writer.add_token_merges(merges)
        writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(2)
        writer.add_add_bos_token(False)
        writer.add_chat_template(TEMPLATE)
    for key, value in (values or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    for name, array in (tensors_of(model) | (extra_tensors or {})).items():
        if name in left_out:
            continue
        if quantized and array.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model
