"""`evolvent train RECIPE DATA --plan`: what memory a rank needs, kind by kind, and what would fit a card."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from evolvent.cli.console import table
from evolvent.cli.names import POLICIES, policy, worlds
from evolvent.cli.recipes import Recipe
from evolvent.errors import ConfigError, Problem
from evolvent.learn.parallel.lay import check_layout
from evolvent.learn.parallel.memory import Load, Plan, estimate, meta_model, nearest_fit, plan_table
from evolvent.models.adapters import adapt
from evolvent.models.policy import Policy

__all__ = ["plan"]

_GIB = 2**30


def plan(config: Recipe, console: Console, *, card: float = 80.0) -> int:
    """Print the plan; nothing is trained and no weights are read where the policy is a model folder.

    Args:
        card: memory of a device in GiB.
    """
    model = _model(config)
    check_layout(model.config, config.parallel, world=config.parallel.mesh.size)
    tokens = config.context or int(getattr(model.config, "max_position_embeddings", 0) or 1024)
    most = config.train.micro_tokens or config.train.batch_tokens
    tokens = min(tokens, most)
    micros = -(-config.train.batch_tokens // (most * config.parallel.mesh.dp))
    load = Load(max(1, most // tokens), tokens, micro_batches=micros, dtype=config.train.dtype)
    size = round(card * _GIB)
    asked = Plan(config.parallel, config.optimizer, load, estimate(model, config.parallel, config.optimizer, load=load),
                 "as asked")  # fmt: skip
    plans = [asked, *[other for other in nearest_fit(model, size, config.parallel, config.optimizer, load=load)
                      if other.changes != "as asked"]]  # fmt: skip
    shown = plan_table(plans, size)
    weights = sum(weight.numel() for weight in model.parameters())
    said = f"{weights:,} parameters over {config.parallel.mesh}; {config.optimizer.name}"
    console.print(f"{said}; {load.micro_batches} forwards of {load.rows} x {load.tokens} tokens a rank", soft_wrap=True)
    console.print(table(console, tuple(shown[0]), [tuple(row) for row in shown[1:]], numbers=tuple(shown[0][1:])))
    return 0


def _model(config: Recipe) -> Any:
    """The model without memory for its weights: of a folder its configuration alone is read."""
    made = list(worlds(config.worlds).values()) if config.policy in POLICIES else []
    if config.policy in POLICIES:
        given = policy(config.policy, made, seed=config.seed)
        return _adapted(given, config).model if config.adapter.kind != "none" else meta_model(given.model.config)
    from transformers import AutoConfig

    from evolvent.cli.names import model_folder

    try:
        found = AutoConfig.from_pretrained(model_folder(config.policy), trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError) as error:
        raise ConfigError([Problem("policy", f"{config.policy} has no model: {error}")]) from error
    if config.adapter.kind == "none":
        return meta_model(found)
    return _adapted(policy(config.policy, [], seed=config.seed), config).model


def _adapted(given: Policy, config: Recipe) -> Policy:
    return adapt(given, config.adapter, seed=config.seed)
