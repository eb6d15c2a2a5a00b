"""The memory that a training needs: `evolvent train RECIPE DATA --plan` lists it by kind, with layouts that would
fit.

A training that will not fit its device prints a warning before its first step; reinforcement learning is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any, Literal

import torch
from rich.console import Console

from evolvent.cli.setup.backends import HERE
from evolvent.cli.setup.registry import POLICIES, load_worlds, resolve_model_folder, resolve_policy
from evolvent.cli.terminal.console import render_table
from evolvent.cli.train.recipes import RecipeConfig
from evolvent.errors import ConfigError, EvolventError, Problem, boundary
from evolvent.learn.forward import resolve_layout
from evolvent.learn.parallel.lay import check_layout
from evolvent.learn.parallel.memory import (
    USABLE_RATIO,
    Load,
    MemoryEstimate,
    TrainingPlan,
    build_meta_model,
    estimate_memory,
    format_plans,
    suggest_plans,
)
from evolvent.learn.prefix_sharing import resolve_rl_layout
from evolvent.models.adapters import adapt
from evolvent.models.dialects import dialect_for
from evolvent.models.gguf import find_gguf, read_gguf_config
from evolvent.models.inspection import check_files
from evolvent.models.nf4 import count_weights
from evolvent.models.placement import DEFAULT_CONTEXT, available_bytes, find_device, find_memory_limit, reserved_bytes
from evolvent.models.policy import Policy, load_policy
from evolvent.models.tuned import FILES as ADAPTER_FILES
from evolvent.models.tuned import kind_of
from evolvent.rl.memory import RLPlan, RLWork, estimate_rl_memory, format_rl_plans, suggest_rl_plans
from evolvent.rl.settings import RLConfig
from evolvent.scale.ray_cluster import parse_cluster
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from evolvent.cli.train.rl_settings import TrainRLConfig

__all__ = ["check_rl_memory", "memory_warning", "print_plan", "print_rl_plan", "read_model_config"]

_BYTES_PER_GIB = 2**30
_DEFAULT_CONTEXT = 1024  # tokens of a row, where neither settings nor the model limit it


def print_plan(config: RecipeConfig, console: Console, *, card_gib: float | None = None) -> int:
    """Prints the plan; nothing is trained, and no weights of a model folder are read. Returns the exit code.

    Args:
        card_gib: memory of a device in GiB; None: that of the recipe's device, or 80.
    Raises:
        ConfigError: an impossible layout, or a policy that is not a model or cannot be planned.
    """
    model = _build_model(config)
    check_layout(model.config, config.parallel, world=config.parallel.mesh.size, adapter=kind_of(model) or "none")
    load = replace(_estimate_load(config, model), device="cuda")  # the plan is for a card, wherever it is made
    requested = TrainingPlan(config.parallel, config.optimizer, load, _estimate_memory(model, config, load), "as asked")
    uses_cuda_card = config.device.startswith("cuda") and torch.cuda.is_available()
    card_bytes = (
        round(card_gib * _BYTES_PER_GIB)
        if card_gib
        else _cuda_bytes(config.device)
        if uses_cuda_card
        else 80 * _BYTES_PER_GIB
    )
    suggestions = suggest_plans(model, config.parallel, config.optimizer, load=load, card=card_bytes)
    is_fitting = any(suggestion.changes == requested.changes for suggestion in suggestions)
    unit: Literal["GiB", "MiB"] = "GiB" if requested.estimate.total >= _BYTES_PER_GIB else "MiB"
    plan_rows = format_plans([requested] if is_fitting else [requested, *suggestions], card_bytes, unit=unit)
    for line in (*_describe_plan(model, config, load), f"memory of a rank in {unit}:"):
        console.print(line)
    plan_rows[0][0] = "kind"
    console.print(
        render_table(
            console, tuple(plan_rows[0]), [tuple(row) for row in plan_rows[1:]], numbers=tuple(plan_rows[0][1:])
        )
    )
    if not suggestions:
        console.print("neither recomputation nor smaller forwards, 128 times the ranks or adalomo make it fit")
    return 0


def _describe_plan(model: PreTrainedModel, config: RecipeConfig, load: Load) -> Iterator[str]:
    """Yields lines that describe the plan."""
    num_weights = count_weights(model)
    num_trainable = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    trainable_text = f", {num_trainable:,} of them trained" if num_trainable < num_weights else ""
    yield (
        f"{num_weights:,} parameters{trainable_text}; {config.optimizer.name}, {load.dtype}, "
        f"over {config.parallel.mesh}"
    )
    forwards_text = f"{load.micro_batches} forwards of " if load.micro_batches > 1 else ""
    rows_text = f"{load.rows} row{'s' * (load.rows > 1)}"
    yield f"an update of a rank: {forwards_text}{rows_text} of {load.tokens:,} tokens, all of them learned"


def memory_warning(config: RecipeConfig, tuned_policy: Policy, *, max_sequence_length: int) -> str | None:
    """Returns a warning where a rank needs more memory than its device has; None: it fits, or cannot be planned.

    Args:
        tuned_policy: the trained policy, not laid over ranks yet.
        max_sequence_length: maximum tokens of a sequence.
    """
    try:
        model = _build_meta_model(tuned_policy.model.config, tuned_policy, config)
        needed_bytes = _estimate_memory(
            model, config, _estimate_load(config, model, max_sequence_length=max_sequence_length)
        ).total
    except EvolventError:
        return None
    device_bytes, limit_name = _find_rank_memory(config.device, tuned_policy.model)
    if needed_bytes <= device_bytes:
        return None
    unit, unit_name = (_BYTES_PER_GIB, "GiB") if device_bytes >= _BYTES_PER_GIB else (2**20, "MiB")
    sizes_text = (
        f"about {needed_bytes / unit:.1f} {unit_name} are planned, and this {config.device} has "
        f"{device_bytes / unit:.1f} {unit_name} for it ({limit_name})"
    )
    return f"a rank may run out of memory: {sizes_text}; --plan says what would fit"


# ---------------------------------------------------------------------- reinforcement learning


def print_rl_plan(
    config: TrainRLConfig,
    practice: object,
    worlds: Sequence[World],
    console: Console,
    *,
    values: str,
    card_gib: float | None = None,
) -> int:
    """Prints the memory that reinforcement learning would need; nothing is played or trained. Returns the exit code.

    Args:
        config: settings of `train rl`.
        practice: settings of the method's rollouts; those of methods without `RLConfig` cannot be planned.
        worlds: those that are played, whose words an untrained policy knows.
        values: the networks of values of the method (`Method.values`).
        card_gib: memory of a device in GiB; None or 0: what the recipe's device has left, or 80.
    Raises:
        ConfigError: an impossible layout, a method without rollouts, or a policy that cannot be planned.
    """
    if not isinstance(practice, RLConfig):
        raise ConfigError(
            [Problem("--plan", f"method {config.method} has no settings of rollouts (practice)", "leave it out")]
        )
    if config.policy in POLICIES:
        policy = resolve_policy(
            config.policy, worlds, seed=config.seed, placement=replace(config.placement, device="cpu")
        )
        model, context = _build_meta_model(policy.model.config, policy, config), policy.context
    else:
        model = _build_model(config)
        limit = int(getattr(model.config, "max_position_embeddings", 0) or DEFAULT_CONTEXT)
        context = min(limit, config.context or DEFAULT_CONTEXT)
    check_layout(model.config, config.parallel, world=config.parallel.mesh.size, adapter=kind_of(model) or "none")
    is_cloned = bool(config.demonstrations or config.random)
    work = _estimate_rl_work(config, practice, model, context, values=values, is_cloned=is_cloned)
    optimizer = config.train.make_optimizer_config()
    with boundary(ConfigError, f"cannot plan the memory of a {model.config.model_type} model"):
        estimate = estimate_rl_memory(model, config.parallel, optimizer, work=work)
    available, limit_name = (
        (round(card_gib * _BYTES_PER_GIB), "the card") if card_gib else _available_rl_bytes(config.device)
    )
    suggestions = suggest_rl_plans(model, config.parallel, optimizer, work=work, available=available)
    is_fitting = estimate.fits(available)
    requested = RLPlan(config.parallel, work, estimate)
    rows = format_rl_plans([requested] if is_fitting else [requested, *suggestions], available)
    num_weights = count_weights(model)
    load = work.load
    console.print(
        f"{num_weights:,} parameters; {optimizer.name}, {load.dtype}, over {config.parallel.mesh}; "
        f"{work.episodes} episodes of at most {context:,} tokens at once"
    )
    forwards_text = f"{load.micro_batches} forwards of " if load.micro_batches > 1 else ""
    console.print(
        f"an update of a rank: {forwards_text}{load.rows} row{'s' * (load.rows > 1)} of {load.tokens:,} tokens, "
        f"all of them learned; {available / _BYTES_PER_GIB:.3g} GiB: {limit_name}"
    )
    console.print(render_table(console, tuple(rows[0]), [tuple(row) for row in rows[1:]], numbers=tuple(rows[0][1:])))
    for plan in [] if is_fitting else suggestions:
        console.print(f"{plan.changes}: {plan.settings}")
    if not is_fitting and not suggestions:
        console.print("neither smaller forwards nor recomputation or shorter episodes make it fit: use more ranks")
    if context > load.tokens:
        long_work = replace(work, load=replace(load, rows=1, tokens=context))
        long = estimate_rl_memory(model, config.parallel, optimizer, work=long_work).total
        console.print(f"an episode of all {context:,} tokens is a longer row: then {long / 2**20:,.0f} MiB in all")
    return 0


def check_rl_memory(
    config: TrainRLConfig, practice: object, policy: Policy, *, values: str, is_cloned: bool, plays: bool = True
) -> int | None:
    """Checks that reinforcement learning fits the memory, before anything is played or trained.

    Args:
        config: settings of `train rl`.
        practice: settings of the method's rollouts; those of methods without `RLConfig` cannot be planned.
        policy: the loaded policy, with its adapter.
        values: the networks of values of the method (`Method.values`).
        is_cloned: whether demonstrations are imitated first, which keeps another policy.
        plays: whether episodes are played; False: recorded ones are learned.

    Returns:
        The bytes that keys and values may take beside the update, for the engine; None: half of what is free, its
        default, leaves enough.
    Raises:
        ConfigError: it does not fit; says what is needed, what is there, and the nearest settings.
    """
    if not isinstance(practice, RLConfig):
        return None
    optimizer = config.train.make_optimizer_config()
    try:
        model = _build_meta_model(policy.model.config, policy, config)
        work = _estimate_rl_work(config, practice, policy.model, policy.context, values=values, is_cloned=is_cloned)
        work = work if plays else replace(work, players=0)
        with boundary(ConfigError, "it cannot be planned"):
            estimate = estimate_rl_memory(model, config.parallel, optimizer, work=work)
    except EvolventError:  # other models are trained all the same, with the check of their weights alone
        return None
    free_bytes, limit_name = _available_rl_bytes(config.device)
    weights = list(policy.model.parameters())
    loaded_bytes = sum(weight.nbytes for weight in weights if weight.device.type == config.device.partition(":")[0])
    available = free_bytes + loaded_bytes
    if estimate.fits(available):
        spare_bytes = int(USABLE_RATIO * available) - estimate.beside_episodes
        return None if spare_bytes >= free_bytes // 2 else max(spare_bytes, estimate.text)
    suggestions = suggest_rl_plans(model, config.parallel, optimizer, work=work, available=available)
    hints = [f"set {plan.settings}" for plan in suggestions[:2]]
    if config.adapter.kind == "none":
        hints.append("train an adapter (--adapter.kind lora)")
    raise ConfigError(
        f"an update of this training does not fit {limit_name}",
        value=f"{free_bytes / 1e9:.2f} GB",
        expected=f"at least {(estimate.required / USABLE_RATIO - loaded_bytes) / 1e9:.2f} GB",
        hint=f"{', or '.join(hints) or 'use a smaller model'}; --plan lists the memory by kind",
    )


def _estimate_rl_work(
    config: TrainRLConfig, practice: RLConfig, model: PreTrainedModel, context: int, *, values: str, is_cloned: bool
) -> RLWork:
    """Estimates the work of a rank: episodes as long as the context, and forwards of as many tokens as are allowed."""
    train, mesh = config.train, config.parallel.mesh
    episodes = practice.tasks_per_iteration * practice.group_size
    per_rank = ceil(episodes / mesh.size)
    learned = max(1, ceil(episodes / (practice.minibatches * mesh.dp)))  # episodes of an update
    row_tokens = min(context, train.max_tokens_per_forward)
    rows = max(1, min(train.max_tokens_per_forward // row_tokens, learned))
    is_on_cpu = config.device == "cpu"
    is_shared = is_on_cpu and mesh.tp * mesh.pp == 1 and _shares_rows(model)
    load = Load(
        1 if is_shared else rows,
        rows * row_tokens if is_shared else row_tokens,
        micro_batches=ceil(learned / rows),
        dtype=train.dtype,
        packed=is_shared,
        offload=train.offload,
        device=config.device.partition(":")[0],
    )
    critic: Any = values if values != "critic" else practice.critic
    return RLWork(
        load,
        min(config.slots, per_rank),
        context,
        critic,
        kept_policies=1 + is_cloned,
        prefetched=practice.max_policy_lag if practice.prefetch_rollouts else 0,
        rollout_dtype=config.rollout_dtype,
        players=_count_players(config),
    )


def _count_players(config: TrainRLConfig) -> int | None:
    """Returns how many processes of this machine play for the learner; None: it plays itself."""
    if config.endpoint:
        return 0
    if config.backend == HERE:
        return None
    cluster = parse_cluster(config.backend)
    is_on_this_machine = cluster.is_here or cluster.address is None
    return (cluster.placement.players or 1) if is_on_this_machine else 0


def _shares_rows(model: PreTrainedModel) -> bool:
    """Returns whether episodes share rows on a CPU; a model without weights is taken to do so, which needs more."""
    if next(model.parameters()).device.type == "meta":
        return True
    return resolve_rl_layout("auto", model) == "shared"


def _available_rl_bytes(device_name: str) -> tuple[int, str]:
    """Returns the bytes that a rank can still take on its device, and what limits them."""
    if device_name.startswith("cuda") and not torch.cuda.is_available():
        return 80 * _BYTES_PER_GIB, "a device of 80 GiB, because there is none here"
    num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = find_device(device_name)
    if device.type != "cpu":
        return available_bytes(device), f"the memory of {device_name}"
    free_bytes, limit_name = find_memory_limit()
    return max(0, free_bytes // num_ranks - reserved_bytes()), limit_name


# ---------------------------------------------------------------------- models without weights


def read_model_config(name: str) -> object:
    """Reads the transformers configuration of a model or of a run's last policy; no weights are read.

    Raises:
        ConfigError: the folder does not exist or holds no model.
        Incomplete: a run without a policy.
    """
    folder = resolve_model_folder(name)
    check_files(folder)
    if (folder / ADAPTER_FILES[0]).is_file():
        return load_policy(folder).model.config
    if (gguf_file := find_gguf(folder)) is not None:
        return read_gguf_config(gguf_file)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            [Problem("policy", f"{folder} is not a model folder: config.json is missing", "pass another folder")]
        )
    from transformers import AutoConfig

    with boundary(ConfigError, f"the model in {folder} is not understood"):
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def _build_model(config: RecipeConfig | TrainRLConfig) -> Any:
    """Builds the model that would be trained, without memory for its weights."""
    if config.policy in POLICIES:
        untrained_policy = resolve_policy(config.policy, list(load_worlds(config.worlds).values()), seed=config.seed)
        return _build_meta_model(untrained_policy.model.config, untrained_policy, config)
    folder = resolve_model_folder(config.policy)
    if (folder / ADAPTER_FILES[0]).is_file():
        return load_policy(folder).model.to("meta")
    model_shape = read_model_config(config.policy)
    if config.adapter.kind == "none":
        return build_meta_model(model_shape)
    if find_gguf(folder) is not None:
        return _build_meta_model(model_shape, load_policy(folder), config)
    from transformers import AutoTokenizer

    with boundary(ConfigError, f"the tokenizer in {folder} is not understood"):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    return _build_meta_model(model_shape, Policy(None, tokenizer, dialect_for(tokenizer, None)), config)


def _build_meta_model(model_shape: Any, source_policy: Policy, config: RecipeConfig | TrainRLConfig) -> Any:
    meta_policy = replace(source_policy, model=build_meta_model(model_shape), base=None)
    return adapt(meta_policy, config.adapter, seed=config.seed).model


def _estimate_memory(model: PreTrainedModel, config: RecipeConfig, load: Load) -> MemoryEstimate:
    base = model.get_base_model() if kind_of(model) is not None else model
    message = f"cannot plan the memory of a {model.config.model_type} model"
    if not hasattr(base.get_decoder(), "layers"):
        raise ConfigError([Problem("policy", message, "train it in one process")])
    with boundary(ConfigError, message):
        return estimate_memory(model, config.parallel, config.optimizer, load=load)


def _estimate_load(config: RecipeConfig, model: PreTrainedModel, *, max_sequence_length: int | None = None) -> Load:
    """Estimates the maximum load of a rank: rows as long as the longest sequence, or as the policy's context."""
    train, mesh = config.train, config.parallel.mesh
    max_forward_tokens = train.max_forward_tokens
    model_context = int(getattr(model.config, "max_position_embeddings", 0) or _DEFAULT_CONTEXT)
    packed = train.layout == "shared" or resolve_layout(model, train.layout) == "packed"  # both have a mask
    tokens = max(1, min(max_sequence_length or config.context or model_context, max_forward_tokens))
    rows = max(1, max_forward_tokens // tokens)
    rank_tokens = max(1, train.batch_tokens // mesh.dp)
    num_micro_batches = -(-rank_tokens // max_forward_tokens) if rank_tokens > max_forward_tokens else 1
    return Load(
        rows if num_micro_batches > 1 else max(1, min(rows, rank_tokens // tokens)),
        tokens,
        micro_batches=num_micro_batches,
        dtype=train.dtype,
        packed=packed,
        offload=train.offload,
        device=config.device.partition(":")[0],
    )


def _find_rank_memory(device_name: str, model: PreTrainedModel) -> tuple[int, str]:
    """Returns the bytes that a rank has for a training, those of the loaded weights included, and what limits them."""
    if device_name.startswith("cuda"):
        return _cuda_bytes(device_name), "the memory of the device"
    free_bytes, limit_name = find_memory_limit()
    loaded_bytes = sum(weight.nbytes for weight in model.parameters())
    return free_bytes // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) + loaded_bytes, limit_name


def _cuda_bytes(device_name: str) -> int:
    """Returns the memory of a rank's CUDA device."""
    index = torch.device(device_name).index
    rank_index = int(os.environ.get("LOCAL_RANK", "0")) if index is None else index
    return int(torch.cuda.get_device_properties(rank_index).total_memory)
