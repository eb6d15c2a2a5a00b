"""Memory estimates of reinforcement learning, by rank and kind, before anything is played or trained.

Beside what an update holds (`learn.parallel.memory`), a process keeps the initial policy, the networks of values, the
engine's copies of the weights, and the keys and values of the episodes that it plays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from evolvent.engine.fused import copied_bytes
from evolvent.learn.optim import OptimizerConfig
from evolvent.learn.parallel.memory import USABLE_RATIO, Load, estimate_memory
from evolvent.learn.parallel.ranks import Parallelism
from evolvent.models.heads import ValueHead
from evolvent.models.nf4 import list_nf4_layers
from evolvent.models.placement import token_bytes
from evolvent.models.tuned import kind_of, trainable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = [
    "RLMemoryEstimate",
    "RLPlan",
    "RLWork",
    "estimate_rl_memory",
    "format_rl_plans",
    "suggest_rl_plans",
]

ValueNetworks = Literal["none", "shared", "separate", "soft_q"]

_SHORT_EPISODE, _SHORTEST_EPISODE = 256, 64  # tokens, to which forwards and episodes are shortened at most
_SOFT_Q_LOGITS = 6  # tensors `[N, V]` of ETPO's loss beside the policy's: of rho and Q, and their log-probabilities


@dataclass(frozen=True, slots=True)
class RLWork:
    """The work of a rank in an iteration, and what it keeps beside the policy that it trains.

    Attributes:
        load: the input of one update.
        episodes: episodes that are open at once.
        context: maximum tokens of an episode.
        values: networks of values: a head on the policy, a critic with its own weights, ETPO's Q with its target.
        kept_policies: policies that are kept as they are: the initial one, and the one that imitated demonstrations.
        prefetched: copies of the policy that play ahead.
        rollout_dtype: numbers of the weights that play; None: those that are trained.
        players: processes of this machine that play for the rank, each with the whole weights; None: it plays itself;
            0: nothing is played here.
    """

    load: Load
    episodes: int
    context: int
    values: ValueNetworks = "none"
    kept_policies: int = 1
    prefetched: int = 0
    rollout_dtype: Literal["bfloat16", "int8"] | None = None
    players: int | None = None


@dataclass(frozen=True, slots=True)
class RLMemoryEstimate:
    """Bytes on the rank that holds the most.

    Attributes:
        parameters: of the policy that is trained.
        reference: of the initial policy, and of the one that imitated.
        critic: of the networks of values.
        gradients: of the policy and of the networks of values.
        optimizer: states of both.
        engine: copies of the weights that play, those of other ranks' parts included.
        keys_values: of all open episodes at their maximum length; episodes wait where there is less.
        copies: tensors that FSDP gathers and sums, or that autocast rounds.
        activations: tensors that layers keep for backward.
        logits: memory of head and loss.
        total: at the peak: of an update, or of playing where the engine gives its memory back before an update.
        text: keys and values of one episode, without which nothing is played.
        beside_episodes: held beside keys and values while they are there.
        update: the peak of an update without keys and values; 0 where these stay, and `beside_episodes` has it.
    """

    parameters: int
    reference: int
    critic: int
    gradients: int
    optimizer: int
    engine: int
    keys_values: int
    copies: int
    activations: int
    logits: int
    total: int
    text: int
    beside_episodes: int
    update: int

    @property
    def required(self) -> int:
        """Returns the bytes without which the training cannot run: of all open episodes, one alone is computed."""
        return max(self.update, self.beside_episodes + self.text)

    def fits(self, available: int) -> bool:
        """Returns whether the training runs in so many bytes; some of them are lost to libraries and fragments."""
        return self.required <= USABLE_RATIO * available

    def parallel_episodes(self, available: int) -> int:
        """Returns how many episodes of maximum length have room at once.

        >>> estimate = RLMemoryEstimate(4, 4, 0, 4, 8, 4, 100, 0, 10, 6, 140, 10, beside_episodes=40, update=0)
        >>> estimate.required, estimate.parallel_episodes(100)
        (50, 5)
        """
        free_bytes = int(USABLE_RATIO * available) - self.beside_episodes
        return max(0, min(self.keys_values, free_bytes) // self.text) if self.text else 0


class RLPlan(NamedTuple):
    """A way to train, its memory, its difference from the request, and the settings that make it."""

    parallelism: Parallelism
    work: RLWork
    estimate: RLMemoryEstimate
    changes: str = "as asked"
    settings: str = ""


def estimate_rl_memory(
    model: PreTrainedModel, parallelism: Parallelism, optimizer: OptimizerConfig, *, work: RLWork
) -> RLMemoryEstimate:
    """Estimates the memory of reinforcement learning on the rank that holds the most.

    Weights and states are counted exactly; activations are measured as in `estimate_memory`. In an update, gradients of
    the networks that learned before and all states are there. An engine of this process on a CPU gives its copies and
    all keys and values back before it; otherwise they are there, too.

    Args:
        model: a causal LM, best from `build_meta_model`, with or without an adapter.
        parallelism: the layout over ranks; each plays with whole weights.
        optimizer: of every network that learns.
        work: what the rank does.
    """
    update = estimate_memory(model, parallelism, optimizer, load=work.load)
    # Ranks that train a part of the weights keep whole ones to play with.
    is_divided = parallelism.mesh.size > 1 and not parallelism.mesh.copies_weights(fuses=optimizer.fuses)
    # Players load floats, and an engine plays them: weights of 4 bits are merged with the adapter.
    frozen_bytes = 4 * sum(layer.out_features * layer.in_features for layer in list_nf4_layers(model).values())
    float_bytes = sum(weight.nbytes for weight in model.parameters())
    whole_bytes = float_bytes + frozen_bytes
    # A policy below an adapter shares its frozen weights with every clone of it.
    has_adapter = kind_of(model) is not None
    named_weights = dict(model.named_parameters())
    clone_bytes = sum(named_weights[name].nbytes for name in trainable(model)) if has_adapter else whole_bytes
    # An offloaded reference is on the device while it scores, when there are no gradients, which are as large.
    num_references = work.kept_policies - (work.load.offload in ("reference", "both"))
    reference = num_references * clone_bytes + (float_bytes - clone_bytes if is_divided else 0)
    with torch.device("meta"):
        head_bytes = sum(weight.nbytes for weight in ValueHead(int(model.config.hidden_size)).parameters())
    learners, copies, head = {
        "none": (0, 0, 0),
        "shared": (0, 0, head_bytes),
        "separate": (1, 0, head_bytes),
        "soft_q": (1, 1, head_bytes),
    }[work.values]
    critic_bytes = update.parameters if is_divided or not has_adapter else clone_bytes
    critic = learners * critic_bytes + copies * clone_bytes + (1 + copies) * head
    gradients = (1 + learners) * update.gradients + head
    optimizer_bytes = (1 + learners) * update.optimizer + (2 * head if update.optimizer else 0)
    engine = work.prefetched * clone_bytes + (clone_bytes if is_divided else 0)
    copied = copied_bytes(model, device=work.load.device)
    engine += copied if work.players is None else work.players * (whole_bytes + copied)
    if work.rollout_dtype is not None:
        engine += whole_bytes // 2 if work.rollout_dtype == "bfloat16" else whole_bytes
    text = work.context * token_bytes(model)
    text = text // 2 if work.rollout_dtype == "bfloat16" else text
    text = 0 if work.players == 0 else text
    logits = update.logits
    if work.values == "soft_q":
        vocabulary = int(model.config.vocab_size)
        logits += _SOFT_Q_LOGITS * 4 * round(work.load.rows * work.load.tokens * work.load.targets_share) * vocabulary
    updating = (
        update.total
        + reference
        + critic
        + (gradients - update.gradients)
        + (optimizer_bytes - update.optimizer)
        + engine
        + (logits - update.logits)
    )
    keys_values = work.episodes * text
    is_released = work.players is None and work.prefetched == 0 and work.load.device == "cpu"
    # Log-probabilities of played episodes are computed with the engine in memory, so the head's memory counts.
    playing = update.parameters + reference + critic + optimizer_bytes + engine + logits
    beside_episodes = playing if is_released else updating
    update_alone = updating - copied if is_released else 0
    return RLMemoryEstimate(
        parameters=update.parameters,
        reference=reference,
        critic=critic,
        gradients=gradients,
        optimizer=optimizer_bytes,
        engine=engine,
        keys_values=keys_values,
        copies=update.copies,
        activations=update.activations,
        logits=logits,
        total=max(update_alone, beside_episodes + keys_values),
        text=text,
        beside_episodes=beside_episodes,
        update=update_alone,
    )


def suggest_rl_plans(
    model: PreTrainedModel,
    parallelism: Parallelism,
    optimizer: OptimizerConfig,
    *,
    work: RLWork,
    available: int,
) -> list[RLPlan]:
    """Returns plans that fit so many bytes, with the least change of each kind; empty where nothing fits.

    The kinds: none, smaller forwards, recomputation, both, on a device states and reference in main memory (these
    change no result), then shorter episodes. The first plan is the request where it fits.
    """
    plans: list[RLPlan] = []
    for changes, variants in _iterate_changes(parallelism, work, has_adapter=kind_of(model) is not None):
        for settings, layout, changed_work in variants:
            estimate = estimate_rl_memory(model, layout, optimizer, work=changed_work)
            if estimate.fits(available):
                plans.append(RLPlan(layout, changed_work, estimate, changes, settings))
                break
        if plans and not plans[0].settings:
            break
    return plans


_Variant = tuple[str, Parallelism, RLWork]


def _iterate_changes(
    parallelism: Parallelism, work: RLWork, *, has_adapter: bool
) -> Iterator[tuple[str, list[_Variant]]]:
    """Yields the kinds of changes, each with its variants in the order of how much they change.

    Args:
        has_adapter: whether an adapter is trained, below which the reference shares the policy's weights.
    """
    yield "as asked", [("", parallelism, work)]
    smaller = [(f"--train.max_tokens_per_forward {tokens}", less) for tokens, less in _iterate_smaller_forwards(work)]
    recomputed, switch = parallelism.model_copy(update={"recompute": True}), "--parallel.recompute true"
    yield "smaller forwards", [(settings, parallelism, less) for settings, less in smaller]
    if not parallelism.recompute:
        yield "recompute", [(switch, recomputed, work)]
        yield "both", [(f"{settings} {switch}", recomputed, less) for settings, less in smaller]
    if work.load.device != "cpu" and work.load.offload is None:
        offloaded = replace(work, load=replace(work.load, offload="optimizer" if has_adapter else "both"))
        yield "offload", [(f"--train.offload {offloaded.load.offload}", parallelism, offloaded)]
    yield (
        "shorter episodes",
        [
            (f"--context {context} --train.max_tokens_per_forward {context} {switch}", recomputed, less)
            for context, less in _iterate_shorter_episodes(work)
        ],
    )


def _iterate_smaller_forwards(work: RLWork) -> Iterator[tuple[int, RLWork]]:
    """Yields tokens of a forward, half as many each time, and the work with them: not less than a short episode."""
    load, min_tokens = work.load, min(work.context, _SHORT_EPISODE)
    update_tokens = load.rows * load.tokens * load.micro_batches
    tokens = load.rows * load.tokens // 2
    while tokens >= min_tokens:
        row = min(load.tokens, tokens)
        rows = tokens // row
        forwards = max(load.micro_batches, -(-update_tokens // (rows * row)))
        yield tokens, replace(work, load=replace(load, rows=rows, tokens=row, micro_batches=forwards))
        tokens //= 2


def _iterate_shorter_episodes(work: RLWork) -> Iterator[tuple[int, RLWork]]:
    """Yields contexts, half as long each time, and the work with one such episode in a forward."""
    context = work.context // 2
    while context >= _SHORTEST_EPISODE:
        load = replace(
            work.load, rows=1, tokens=min(context, work.load.tokens), micro_batches=max(2, work.load.micro_batches)
        )
        yield context, replace(work, context=context, load=load)
        context //= 2


def format_rl_plans(plans: Iterable[RLPlan], available: int) -> list[list[str]]:
    """Formats plans as rows of text: the memory of each kind, and whether it fits so many bytes."""
    listed = list(plans)
    is_large = listed[0].estimate.total >= 2**30
    size, unit, digits = (2**30, "GiB", 2) if is_large else (2**20, "MiB", 1)
    hidden = ("text", "beside_episodes", "update")
    kinds = [field.name for field in fields(RLMemoryEstimate) if field.name not in hidden]
    rows = [[f"{unit} a rank", *(plan.changes for plan in listed)]]
    rows += [
        [kind.replace("_", " "), *(f"{getattr(plan.estimate, kind) / size:.{digits}f}" for plan in listed)]
        for kind in kinds
    ]
    answers = ["yes" if plan.estimate.fits(available) else "no" for plan in listed]
    counts = [min(plan.work.episodes, plan.estimate.parallel_episodes(available)) for plan in listed]
    return [*rows, ["episodes at once", *map(str, counts)], [f"fits {available / 2**30:.3g} GiB", *answers]]
