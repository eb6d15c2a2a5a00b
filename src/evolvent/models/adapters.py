"""Parameter-efficient tuning: a policy whose own weights are frozen and that learns a small adapter, made by `peft`.

LoRA (arXiv 2106.09685), DoRA (2402.09353) and IA3 (2205.05638) change layers and can be merged into plain weights.
Prefix tuning (2101.00190) puts virtual tokens before the keys and values of every layer, prompt tuning (2104.08691)
before the text; these cannot be merged, and take their tokens from the context.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem, boundary, unknown_name_problem
from evolvent.models.policy import Policy, quantize_base
from evolvent.models.tuned import (
    NAME,
    adapter_names,
    adapter_tensors,
    base_digest,
    import_peft,
    kind_of,
    light_copy,
    plain_model,
    save_adapter,
    seeded_silence,
    trainable,
    virtual_tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "AdapterConfig",
    "adapt",
    "adapter_names",
    "adapter_tensors",
    "base_digest",
    "find_base_problems",
    "kind_of",
    "merge_adapter",
    "plain_model",
    "quantize_base",
    "save_adapter",
    "trainable",
    "virtual_tokens",
]

ALL = "all-linear"


class AdapterConfig(Config):
    """The adapter that is trained instead of a policy's own weights; by default there is none."""

    kind: Literal["none", "lora", "dora", "ia3", "prefix", "prompt"] = Field(
        default="none", description="the adapter; none: the policy's own weights are trained"
    )
    rank: int = Field(default=8, ge=1, description="lora, dora: rank of what is added to a matrix")
    alpha: int = Field(default=16, ge=1, description="lora, dora: what is added is scaled by alpha / rank")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="lora, dora: dropout of what the added matrices read")
    targets: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="lora, dora, ia3: names of linear layers, or all-linear; none: peft's for the architecture",
    )
    tokens: int = Field(default=16, ge=1, description="prefix, prompt: virtual tokens, taken from the context")
    base_bits: Literal[4] | None = Field(
        default=None, description="bits of the frozen weights below: 4 (NF4, QLoRA); none: as they are stored"
    )
    existing: Literal["refuse", "continue", "merge"] = Field(
        default="refuse",
        description="a policy with an adapter: refuse it, train its adapter on, or merge it and add a new one",
    )


def adapt(policy: Policy, config: AdapterConfig, *, seed: int) -> Policy:
    """Returns the policy with a fresh adapter. The given policy stays unchanged; both share the memory of the frozen
    weights.

    LoRA, DoRA and IA3 begin as no change at all. Virtual tokens begin as random words of the vocabulary: as their
    embeddings, or as the keys and values that the model computes for them.

    Args:
        seed: of the random initialization; the global random state is left as it was.
    Raises:
        ConfigError: all mistakes at once, before anything is built. MissingExtra: without peft.
    """
    if problems := find_base_problems(config):
        raise ConfigError(problems)
    if config.kind == "none":
        return policy
    if kind_of(policy.model) is not None and config.existing == "merge":
        policy = merge_adapter(policy)
    elif kind_of(policy.model) == config.kind and config.existing == "continue":
        return policy
    peft = import_peft()
    problems = _find_problems(policy, config)
    if problems:
        raise ConfigError(problems)
    if config.base_bits is not None:
        policy = quantize_base(policy)
    model = policy.model
    with boundary(ConfigError, "the model takes no such adapter", adapter=config.kind, model=model.config.model_type):
        with seeded_silence(seed):
            tuned = peft.get_peft_model(light_copy(model), _peft_config(model, config), adapter_name=NAME)
            if config.kind in ("prefix", "prompt"):
                _init_virtual_tokens(tuned, policy.tokenizer, count=config.tokens, seed=seed)
    return replace(policy, model=tuned.train(model.training))


def find_base_problems(config: AdapterConfig, *, num_ranks: int = 1, num_parts: int = 1) -> list[Problem]:
    """Returns the reasons why a base of 4 bits cannot be trained on, with remedies; empty if it can, or is not asked.

    Args:
        num_ranks: ranks that train together; each holds all weights of 4 bits.
        num_parts: ranks that a layout divides a layer, or the layers, into (tp times pp).
    """
    if config.base_bits is None:
        return []
    place = "adapter.base_bits"
    if config.kind == "none":
        message = f"got {config.base_bits} without an adapter: weights of 4 bits are frozen"
        return [Problem(place, message, "set --adapter.kind lora, or leave it out")]
    if num_parts > 1:
        message = f"weights of 4 bits are whole on every rank: got a layout that divides them into {num_parts} parts"
        return [Problem(place, message, f"use --parallel.shard {num_ranks} instead of tp and pp, or leave it out")]
    return []


def merge_adapter(policy: Policy) -> Policy:
    """Returns an ordinary policy with its own plain weights that compute the same as the adapter.

    A policy without adapter is returned unchanged.
    Raises:
        ConfigError: virtual tokens, which no weights can represent.
    """
    if kind_of(policy.model) is None:
        return policy
    return replace(policy, model=copy.deepcopy(plain_model(policy.model)).requires_grad_(True))


def _peft_config(model: PreTrainedModel, config: AdapterConfig) -> Any:
    """Builds peft's form of the configuration."""
    peft, task = import_peft(), "CAUSAL_LM"
    if config.kind == "prefix":
        return peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=config.tokens)
    if config.kind == "prompt":
        return peft.PromptTuningConfig(task_type=task, num_virtual_tokens=config.tokens)
    targets = _target_names(model, config)
    if config.kind == "ia3":
        inner = _peft_defaults(model, "IA3_FEEDFORWARD_MODULES")
        scaled = [name for name in targets if any(f".{name}".endswith(f".{end}") for end in inner)]
        return peft.IA3Config(task_type=task, target_modules=targets, feedforward_modules=scaled)
    return peft.LoraConfig(
        task_type=task,
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=targets,
        use_dora=config.kind == "dora",
    )


def _init_virtual_tokens(tuned: Any, tokenizer: PreTrainedTokenizerBase, *, count: int, seed: int) -> None:
    """Sets virtual tokens to random non-control words: noise would hide the model's knowledge."""
    import torch

    embedding = tuned.get_input_embeddings()
    control = set(tokenizer.all_special_ids)
    vocabulary = [index for index in range(min(len(tokenizer), len(embedding.weight))) if index not in control]
    numbers = torch.randint(len(vocabulary), (1, count), generator=torch.Generator().manual_seed(seed & (2**63 - 1)))
    token_ids = torch.tensor(vocabulary)[numbers].to(embedding.weight.device)
    with torch.no_grad():
        if kind_of(tuned) == "prompt":
            tuned.prompt_encoder[NAME].embedding.weight.copy_(embedding(token_ids)[0])
        else:
            cache = tuned.get_base_model()(input_ids=token_ids, use_cache=True).past_key_values
            import_peft().initialize_kv_prefix_from_past_key_values(tuned, past_key_values=cache)


# ---------------------------------------------------------------------- what an adapter goes on


def _find_problems(policy: Policy, config: AdapterConfig) -> list[Problem]:
    """Returns everything that is wrong with a configuration for this policy."""
    if (kind := kind_of(policy.model)) is not None:
        return [
            Problem(
                "adapter.kind",
                f"the policy already has an adapter of kind {kind}",
                "set adapter.existing to 'continue' (an adapter of the same kind) or 'merge'",
            )
        ]
    if config.kind not in ("prefix", "prompt"):
        return _find_target_problems(policy.model, config)
    if config.tokens < policy.context:
        return []
    message = f"{config.tokens} virtual tokens leave no room in a context of {policy.context} tokens"
    return [Problem("adapter.tokens", message, "use fewer tokens")]


def _find_target_problems(model: PreTrainedModel, config: AdapterConfig) -> list[Problem]:
    linear, targets = _linear_layers(model), _target_names(model, config)
    if not targets:
        message = f"peft has no default targets of {config.kind} for a {model.config.model_type} model"
        return [Problem("adapter.targets", message, f"choose from: {', '.join(sorted(_last_names(linear)))}")]
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    problems, widths = [], []
    for target in targets:
        matching = {name: module for name, module in linear.items() if name == target or name.endswith(f".{target}")}
        widths += [(min(module.weight.shape), name) for name, module in matching.items()]
        if not matching:
            problems.append(unknown_name_problem("target", target, _last_names(linear), location="adapter.targets"))
        elif head in matching.values() and head.weight is embedding.weight:
            message = f"{target!r} shares its weight with the embedding, so the adapter would change both"
            problems.append(Problem("adapter.targets", message, "leave it out"))
    if widths and config.kind != "ia3" and config.rank > min(widths)[0]:
        width, name = min(widths)
        problems.append(Problem("adapter.rank", f"got {config.rank}, expected at most {width}, the width of {name}"))
    return problems


def _target_names(model: PreTrainedModel, config: AdapterConfig) -> list[str]:
    """Returns the names of the layers to change; empty where none are named."""
    if config.targets not in (None, (ALL,)):
        return list(config.targets or ())
    defaults = _peft_defaults(model, "IA3_TARGET_MODULES" if config.kind == "ia3" else "LORA_TARGET_MODULES")
    if config.targets is None and (defaults or config.kind == "ia3"):
        return defaults
    head = model.get_output_embeddings()
    return sorted(_last_names({name: module for name, module in _linear_layers(model).items() if module is not head}))


def _peft_defaults(model: PreTrainedModel, table_name: str) -> list[str]:
    """Returns peft's table entry for this architecture."""
    table = getattr(import_peft().utils.constants, f"TRANSFORMERS_MODELS_TO_{table_name}_MAPPING")
    return list(table.get(model.config.model_type) or ())


def _linear_layers(model: PreTrainedModel) -> dict[str, Any]:
    """Returns the linear layers by their full names; GPT-2's are called Conv1D."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}


def _last_names(linear: dict[str, Any]) -> set[str]:
    return {name.rpartition(".")[2] for name in linear}
