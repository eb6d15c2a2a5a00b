"""Parameter-efficient tuning: a policy whose own weights are frozen and that learns a small adapter, made by `peft`.

LoRA (arXiv 2106.09685), DoRA (2402.09353) and IA3 (2205.05638) change layers and can be merged into plain weights.
Prefix tuning (2101.00190) puts virtual tokens before the keys and values of every layer, prompt tuning (2104.08691)
before the text; these cannot be merged, and take their tokens from the context.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.errors import ConfigError, Problem, boundary, unknown
from evolvent.models.policy import Policy
from evolvent.models.tuned import (
    NAME,
    adapter_names,
    adapter_tensors,
    base_digest,
    kind_of,
    light_copy,
    peft_library,
    plain_model,
    quietly,
    save_adapter,
    trainable,
    virtual_tokens,
)

__all__ = [
    "AdapterConfig",
    "adapt",
    "adapter_names",
    "adapter_tensors",
    "base_digest",
    "kind_of",
    "merged",
    "plain_model",
    "save_adapter",
    "trainable",
    "virtual_tokens",
]

ALL = "all-linear"


class AdapterConfig(Config):
    """What is learned instead of a policy's own weights; by default nothing: the weights themselves are."""

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


def adapt(policy: Policy, config: AdapterConfig, *, seed: int) -> Policy:
    """The policy with a fresh adapter. The given one stays as it is; both share the memory of the frozen weights.

    LoRA, DoRA and IA3 begin as no change at all. Virtual tokens begin as random words of the vocabulary: as their
    embeddings, or as the keys and values that the model computes for them.

    Args:
        seed: of what is drawn; the global random state is left as it was.
    Raises:
        ConfigError: all mistakes at once, before anything is built. MissingExtra: without peft.
    """
    if config.kind == "none":
        return policy
    peft, model = peft_library(), policy.model
    problems = _problems(policy, config)
    if problems:
        raise ConfigError(problems)
    with boundary(ConfigError, "the model takes no such adapter", adapter=config.kind, model=model.config.model_type):
        with quietly(seed):
            tuned = peft.get_peft_model(light_copy(model), _settings(model, config), adapter_name=NAME)
            if config.kind in ("prefix", "prompt"):
                _begin_as_words(tuned, policy.tokenizer, count=config.tokens, seed=seed)
    return replace(policy, model=tuned.train(model.training))


def merged(policy: Policy) -> Policy:
    """An ordinary policy whose plain weights do what the adapter does, with all weights of its own.

    A policy without adapter is given back as it is.
    Raises:
        ConfigError: virtual tokens, which no weights can stand for.
    """
    if kind_of(policy.model) is None:
        return policy
    return replace(policy, model=copy.deepcopy(plain_model(policy.model)).requires_grad_(True))


def _settings(model: Any, config: AdapterConfig) -> Any:
    """The configuration as peft has it."""
    peft, task = peft_library(), "CAUSAL_LM"
    if config.kind == "prefix":
        return peft.PrefixTuningConfig(task_type=task, num_virtual_tokens=config.tokens)
    if config.kind == "prompt":
        return peft.PromptTuningConfig(task_type=task, num_virtual_tokens=config.tokens)
    targets = _targets(model, config)
    if config.kind == "ia3":
        inner = _known(model, "IA3_FEEDFORWARD_MODULES")
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


def _begin_as_words(tuned: Any, tokenizer: Any, *, count: int, seed: int) -> None:
    """Let virtual tokens begin as random words that are no control tokens: noise would hide what the model knows."""
    import torch

    embedding = tuned.get_input_embeddings()
    control = set(tokenizer.all_special_ids)
    words = [index for index in range(min(len(tokenizer), len(embedding.weight))) if index not in control]
    numbers = torch.randint(len(words), (1, count), generator=torch.Generator().manual_seed(seed & (2**63 - 1)))
    drawn = torch.tensor(words)[numbers].to(embedding.weight.device)
    with torch.no_grad():
        if kind_of(tuned) == "prompt":
            tuned.prompt_encoder[NAME].embedding.weight.copy_(embedding(drawn)[0])
        else:
            cache = tuned.get_base_model()(input_ids=drawn, use_cache=True).past_key_values
            peft_library().initialize_kv_prefix_from_past_key_values(tuned, past_key_values=cache)


# ---------------------------------------------------------------------- what an adapter goes on


def _problems(policy: Policy, config: AdapterConfig) -> list[Problem]:
    """Everything that is wrong with a configuration for this policy."""
    if (kind := kind_of(policy.model)) is not None:
        return [Problem("adapter.kind", f"the policy has an adapter already: {kind}", "merged(policy) makes it plain")]
    if config.kind not in ("prefix", "prompt"):
        return _target_problems(policy.model, config)
    if config.tokens < policy.context:
        return []
    what = f"{config.tokens} virtual tokens leave no room in a context of {policy.context} tokens"
    return [Problem("adapter.tokens", what, "take fewer")]


def _target_problems(model: Any, config: AdapterConfig) -> list[Problem]:
    linear, targets = _linear(model), _targets(model, config)
    if not targets:
        what = f"peft knows no targets of {config.kind} in a {model.config.model_type} model"
        return [Problem("adapter.targets", what, f"name some of: {', '.join(sorted(_leaves(linear)))}")]
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    problems, widths = [], []
    for target in targets:
        here = {name: module for name, module in linear.items() if name == target or name.endswith(f".{target}")}
        widths += [(min(module.weight.shape), name) for name, module in here.items()]
        if not here:
            problems.append(unknown("target", target, _leaves(linear), where="adapter.targets"))
        elif head in here.values() and head.weight is embedding.weight:
            what = f"{target!r} has one weight with the embedding: what is added to one would change both"
            problems.append(Problem("adapter.targets", what, "leave it out"))
    if widths and config.kind != "ia3" and config.rank > min(widths)[0]:
        width, name = min(widths)
        problems.append(Problem("adapter.rank", f"{config.rank} is more than the width of {name}", f"at most {width}"))
    return problems


def _targets(model: Any, config: AdapterConfig) -> list[str]:
    """The names of the layers to change; empty where nobody names any."""
    if config.targets not in (None, (ALL,)):
        return list(config.targets or ())
    known = _known(model, "IA3_TARGET_MODULES" if config.kind == "ia3" else "LORA_TARGET_MODULES")
    if config.targets is None and (known or config.kind == "ia3"):
        return known
    head = model.get_output_embeddings()
    return sorted(_leaves({name: module for name, module in _linear(model).items() if module is not head}))


def _known(model: Any, what: str) -> list[str]:
    """What peft has in a table for this architecture."""
    table = getattr(peft_library().utils.constants, f"TRANSFORMERS_MODELS_TO_{what}_MAPPING")
    return list(table.get(model.config.model_type) or ())


def _linear(model: Any) -> dict[str, Any]:
    """The linear layers by their full names; GPT-2's are called Conv1D."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)}


def _leaves(linear: dict[str, Any]) -> set[str]:
    return {name.rpartition(".")[2] for name in linear}
