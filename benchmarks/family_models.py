"""Tiny random models of many families of transformers, for tests and measurements of the engine."""

from __future__ import annotations

from typing import Any

__all__ = ["FAMILIES", "VOCABULARY", "build_model"]

VOCABULARY = 96
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
_MLA: dict[str, Any] = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "head_dim": 8,
    "num_key_value_heads": 4,
}
_SSM: dict[str, Any] = {
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_ssm": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}
_LINEAR: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_WINDOW: dict[str, Any] = {"sliding_window": 12}
_MIXED = ["sliding_attention", "full_attention"] * 2

# Family -> settings beside the common ones. MiniMax has a cache of its own, and RecurrentGemma keeps its state in its
# modules: both are recomputed.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": _WINDOW,
    "phi": {"num_key_value_heads": 4},
    "phi3": {"sliding_window": 12},
    "granite": {},
    "granitemoe": _EXPERTS,
    "olmo": {},
    "olmo2": {},
    "olmo3": {"sliding_window": 12, "layer_types": _MIXED},
    "smollm3": {},
    "cohere": {},
    "cohere2": {"sliding_window": 12, "layer_types": _MIXED},
    "starcoder2": _WINDOW,
    "stablelm": {},
    "glm": {},
    "glm4": {},
    "glm4_moe": _EXPERTS,
    "ernie4_5": {},
    "apertus": {},
    "seed_oss": {},
    "helium": {},
    "nemotron": {},
    "mixtral": {**_EXPERTS, "sliding_window": 12},
    "qwen2_moe": _EXPERTS,
    "qwen3_moe": _EXPERTS,
    "olmoe": _EXPERTS,
    "hunyuan_v1_dense": {},
    "arcee": {},
    "ministral3": {},
    "ministral": {"sliding_window": 12, "layer_types": _MIXED},
    "gemma": {},
    "gemma2": {"sliding_window": 12, "layer_types": _MIXED, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 12, "layer_types": _MIXED, "query_pre_attn_scalar": 16},
    "gemma4_text": {
        "sliding_window": 12,
        "layer_types": _MIXED,
        "global_head_dim": 32,
        "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_kv_shared_layers": 0,
    },
    "exaone4": {"sliding_window": 12, "layer_types": _MIXED},
    "vaultgemma": {"sliding_window": 12, "layer_types": _MIXED, "query_pre_attn_scalar": 16},
    "gpt_oss": {**_EXPERTS, "sliding_window": 12, "layer_types": _MIXED},
    "deepseek_v2": {**_EXPERTS, **_MLA, "first_k_dense_replace": 1},
    "deepseek_v3": {**_EXPERTS, **_MLA, "first_k_dense_replace": 1},
    "youtu": _MLA,
    "qwen3_next": {**_EXPERTS, **_LINEAR, "layer_types": ["linear_attention", "full_attention"] * 2},
    "qwen3_5_text": {**_EXPERTS, **_LINEAR, "layer_types": ["linear_attention", "full_attention"] * 2},
    "olmo_hybrid": {**_LINEAR, "layer_types": ["linear_attention", "full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "block_multiple_of": 8},
    "falcon_h1": _SSM,
    "falcon_mamba": {"state_size": 8},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 16, "expand": 2},
    "bamba": {**_SSM, "attn_layer_indices": [1, 3]},
    "granitemoehybrid": {**_SSM, **_EXPERTS, "layer_types": ["mamba", "attention"] * 2},
    "jamba": {**_SSM, **_EXPERTS, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "nemotron_h": {
        **_SSM,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512},
    "gpt_neox": {"num_key_value_heads": 4},
    "gptj": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "bloom": {"n_layer": 4, "n_head": 4},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 512},
    "falcon": {"num_kv_heads": 2, "new_decoder_architecture": True, "head_dim": None, "num_key_value_heads": None},
    "biogpt": {},
    "codegen": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "persimmon": {},
    "jetmoe": {**_EXPERTS, "kv_channels": 16},
    "doge": {},
    "bitnet": {},
    "kimi_linear": {**_EXPERTS, **_MLA, "layer_types": ["linear_attention", "full_attention"] * 2},
    "afmoe": {**_EXPERTS, "sliding_window": 12, "layer_types": _MIXED, "num_dense_layers": 1},
    "dots1": {**_EXPERTS, "first_k_dense_replace": 1, "n_shared_experts": 1},
    "ernie4_5_moe": {**_EXPERTS, "moe_num_experts": 4, "moe_k": 2},
    "flex_olmo": _EXPERTS,
    "lfm2_moe": {**_EXPERTS, "layer_types": ["conv", "full_attention"] * 2, "conv_L_cache": 3, "num_dense_layers": 1},
    "minicpm3": _MLA,
    "longcat_flash": {**_EXPERTS, **_MLA},
    "hunyuan_v1_moe": {**_EXPERTS, "moe_topk": 2},
    "phimoe": {**_EXPERTS, "sliding_window": 12},
    "diffllama": {},
}


def build_model(family: str, *, seed: int = 0) -> Any:
    """Returns a tiny random model of a family, in float32, for inference."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {name: value for name, value in {**_COMMON, **FAMILIES[family]}.items() if value is not None}
    config = AutoConfig.for_model(family, **settings)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():  # from zeros and ones too, so that every weight matters
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model.eval()
