"""What memory a training needs: `evolvent train RECIPE DATA --plan` says it kind by kind, with what would fit a card.

A training that will not fit its device is warned of before its first step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from rich.console import Console

from evolvent.cli.console import table
from evolvent.cli.registry import POLICIES, model_folder, policy, worlds
from evolvent.cli.train_recipes import Recipe
from evolvent.errors import ConfigError, EvolventError, Problem, boundary
from evolvent.learn.forward import chosen_layout
from evolvent.learn.parallel.lay import check_layout
from evolvent.learn.parallel.memory import Load, MemoryEstimate, Plan, estimate, meta_model, nearest_fit, plan_table
from evolvent.models.adapters import adapt
from evolvent.models.dialects import dialect_for
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tuned import FILES as ADAPTER_FILES
from evolvent.models.tuned import kind_of

__all__ = ["model_config", "plan", "too_large"]

_GIB = 2**30
_WINDOW = 1024  # tokens of a row, where neither settings nor the model limit it


def plan(config: Recipe, console: Console, *, card: float | None = None) -> int:
    """Print the plan; nothing is trained, and of a model folder no weights are read. Returns the exit code.

    Args:
        card: memory of a device in GiB; None: of the one that the recipe names, or 80.
    Raises:
        ConfigError: a layout that is impossible, or a policy that is no model or cannot be planned.
    """
    model = _model(config)
    check_layout(model.config, config.parallel, world=config.parallel.mesh.size, adapter=kind_of(model) or "none")
    load = _load(config, model)
    asked = Plan(config.parallel, config.optimizer, load, _estimated(model, config, load), "as asked")
    named = config.device == "cuda" and torch.cuda.is_available()
    size = round(card * _GIB) if card else _device_bytes(config) if named else 80 * _GIB
    fitting = nearest_fit(model, config.parallel, config.optimizer, load=load, card=size)
    fits = any(other.changes == asked.changes for other in fitting)
    unit: Literal["GiB", "MiB"] = "GiB" if asked.estimate.total >= _GIB else "MiB"
    shown = plan_table([asked] if fits else [asked, *fitting], size, unit=unit)
    for line in (*_said(model, config, load), f"memory of a rank in {unit}:"):
        console.print(line)
    shown[0][0] = "kind"
    console.print(table(console, tuple(shown[0]), [tuple(row) for row in shown[1:]], numbers=tuple(shown[0][1:])))
    if not fitting:
        console.print("neither recomputation nor smaller forwards, 128 times the ranks or adalomo make it fit")
    return 0


def _said(model: Any, config: Recipe, load: Load) -> Iterator[str]:
    """What is planned, in words."""
    weights = sum(weight.numel() for weight in model.parameters())
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    some = f", {trained:,} of them trained" if trained < weights else ""
    yield f"{weights:,} parameters{some}; {config.optimizer.name}, {load.dtype}, over {config.parallel.mesh}"
    times = f"{load.micro_batches} forwards of " if load.micro_batches > 1 else ""
    rows = f"{load.rows} row{'s' * (load.rows > 1)}"
    yield f"an update of a rank: {times}{rows} of {load.tokens:,} tokens, all of them learned"


def too_large(config: Recipe, tuned: Policy, *, longest: int) -> str | None:
    """A warning, where what a rank is going to hold is more than its device has; None: it fits, or cannot be planned.

    Args:
        tuned: what is trained, not laid over ranks yet. longest: most tokens of a sequence.
    """
    try:
        model = _without_weights(tuned.model.config, tuned, config)
        needed = _estimated(model, config, _load(config, model, longest=longest)).total
    except EvolventError:
        return None
    size = _device_bytes(config)
    if needed <= size:
        return None
    unit, name = (_GIB, "GiB") if size >= _GIB else (2**20, "MiB")
    numbers = f"about {needed / unit:.1f} {name} are planned, and this {config.device} has {size / unit:.1f} {name}"
    return f"a rank may run out of memory: {numbers} for it; --plan says what would fit"


def model_config(name: str) -> Any:
    """The transformers configuration of a model folder, or of a run's last policy; no weights are read.

    Raises:
        ConfigError: no such folder, or no model in it. Incomplete: a run without a policy.
    """
    folder = model_folder(name)
    if (folder / ADAPTER_FILES[0]).is_file():
        return load_policy(folder).model.config
    if not (folder / "config.json").is_file():
        raise ConfigError([Problem("policy", f"{folder} is no model folder: it holds no config.json", "name another")])
    from transformers import AutoConfig

    with boundary(ConfigError, f"the model in {folder} is not understood"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _model(config: Recipe) -> Any:
    """What would be trained, without memory for its weights."""
    if config.policy in POLICIES:
        given = policy(config.policy, list(worlds(config.worlds).values()), seed=config.seed)
        return _without_weights(given.model.config, given, config)
    folder = model_folder(config.policy)
    if (folder / ADAPTER_FILES[0]).is_file():
        return load_policy(folder).model.to("meta")
    shape = model_config(config.policy)
    if config.adapter.kind == "none":
        return meta_model(shape)
    from transformers import AutoTokenizer

    with boundary(ConfigError, f"the tokenizer in {folder} is not understood"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    return _without_weights(shape, Policy(None, tokenizer, dialect_for(tokenizer, None)), config)


def _without_weights(shape: Any, given: Policy, config: Recipe) -> Any:
    bare = replace(given, model=meta_model(shape), base=None)
    return adapt(bare, config.adapter, seed=config.seed).model


def _estimated(model: Any, config: Recipe, load: Load) -> MemoryEstimate:
    base = model.get_base_model() if kind_of(model) is not None else model
    what = f"the memory of a {model.config.model_type} model cannot be planned"
    if not hasattr(base.get_decoder(), "layers"):
        raise ConfigError([Problem("policy", what, "one process trains it all the same")])
    with boundary(ConfigError, what):
        return estimate(model, config.parallel, config.optimizer, load=load)


def _load(config: Recipe, model: Any, *, longest: int | None = None) -> Load:
    """What a rank is fed, at most: rows as long as the longest sequence, or as the policy takes."""
    train, mesh = config.train, config.parallel.mesh
    most = train.most
    window = int(getattr(model.config, "max_position_embeddings", 0) or _WINDOW)
    packed = train.layout == "shared" or chosen_layout(model, train.layout) == "packed"  # both have a mask
    tokens = max(1, min(longest or config.context or window, most))
    rows = max(1, most // tokens)
    shares = max(1, train.batch_tokens // mesh.dp)
    micros = -(-shares // most) if shares > most else 1
    return Load(
        rows if micros > 1 else max(1, min(rows, shares // tokens)),
        tokens,
        micro_batches=micros,
        dtype=train.dtype,
        packed=packed,
    )


def _device_bytes(config: Recipe) -> int:
    """Memory that a rank has: of its CUDA device, or its share of this machine's."""
    if config.device == "cuda":
        return int(torch.cuda.get_device_properties(int(os.environ.get("LOCAL_RANK", "0"))).total_memory)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // ranks
