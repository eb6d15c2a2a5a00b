"""The Learner: a policy, an objective and an optimizer. `update` takes one step; `fit` trains on a data set.

Length, schedule and end of a training are counted in learned tokens or updates, never in seconds: two runs are
bit-equal, and an interrupted run equals an uninterrupted one.

Settings of every training, whatever its objective, optimizer and layout.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, NothingToLearn, Problem
from evolvent.learn.checkpoint import Checkpointer, owned_parts
from evolvent.learn.forward import cast_weights, frozen, report_memory_errors, resolve_layout
from evolvent.learn.loader import DataOrder, LearnableSequences, RankBatcher
from evolvent.learn.objectives import Objective, Outputs, gauss_newton
from evolvent.learn.optim.clip import clamp_, clip_factor, scale_, total_norm
from evolvent.learn.optim.fused import FusedOptimizer
from evolvent.learn.optim.make import (
    OffloadedOptimizer,
    OptimizerConfig,
    build_optimizer,
    check_fused,
    check_offload,
)
from evolvent.learn.optim.sophia import SophiaG
from evolvent.learn.parallel.lay import check_layout, distribute_model
from evolvent.learn.parallel.ranks import SINGLE_PROCESS, Parallelism, Ranks
from evolvent.learn.prefix_sharing import check_branches, share_rows
from evolvent.learn.progress import (
    FitReport,
    TrainingProgress,
    TrainState,
    UpdateMetrics,
    check_resumes,
    finish_pending_save,
    restore_progress,
    save_progress,
    training_identity,
)
from evolvent.learn.settings import RL_OPTIMIZER, RL_TRAIN, TrainConfig
from evolvent.learn.token_sequences import Batch, Row, SequenceSource, TokenSequence
from evolvent.models.heads import fresh_head
from evolvent.models.nf4 import iterate_buffers, list_nf4_layers
from evolvent.models.pieces import Region
from evolvent.models.policy import Policy
from evolvent.models.tuned import base_digest, kind_of
from evolvent.trajectory import sample_seed

__all__ = [
    "RL_OPTIMIZER",
    "RL_TRAIN",
    "FitReport",
    "KLLimitReached",
    "Learner",
    "MetricSums",
    "TrainConfig",
    "UpdateMetrics",
    "check_objective",
]


class KLLimitReached(Exception):
    """A metric exceeds the objective's limit, so the update is dropped. It never leaves the Learner."""


class MetricSums:
    """The sums of an objective's metrics over one update.

    Args:
        ranks: every data rank measures its own micro-batches; a limit applies to all of them together.
    """

    def __init__(self, objective: Objective, ranks: Ranks) -> None:
        self._objective, self._ranks = objective, ranks
        self._left, self._whole = 0, 0
        self._sums = torch.zeros(len(objective.metric_names), 2, dtype=torch.float64, device=ranks.device)

    def reset(self, num_batches: int, num_targets: int) -> None:
        """Starts a new update of so many micro-batches, with so many targets over all data ranks."""
        self._sums.zero_()
        self._left, self._whole = num_batches, num_targets

    @torch.no_grad()
    def add(self, outputs: Outputs, batch: Batch) -> None:
        """Adds a micro-batch, before its backward pass.

        Raises:
            KLLimitReached: the metric of this update exceeds the limit, or will whatever is still to come: no metric
                with a limit is negative, so that the result does not depend on the split into micro-batches.
        """
        self._left -= 1
        objective = self._objective
        if objective.stats is None:
            return
        stats, device = objective.stats(outputs, batch), self._ranks.device
        pairs = [
            [torch.as_tensor(value, dtype=torch.float64, device=device) for value in stats[name]]
            for name in objective.metric_names
        ]
        self._sums += torch.stack([torch.stack(pair) for pair in pairs])
        if objective.limit is not None:
            name, limit = objective.limit
            total, count = self._ranks.sum(self._sums[objective.metric_names.index(name)].clone(), "dp").tolist()
            if total > limit * (max(count, self._whole) if self._left else count) and count:
                raise KLLimitReached

    def means(self) -> dict[str, float]:
        """Returns the means by name, over all ranks; metrics without a count are left out."""
        if not self._objective.metric_names:
            return {}
        sums = self._ranks.sum(self._sums.clone(), "dp", "pp").tolist()
        pairs = zip(self._objective.metric_names, sums, strict=True)
        return {name: total / count for name, (total, count) in pairs if count}


def check_objective(objective: Objective, parallelism: Parallelism) -> None:
    """Checks that a layout supports an objective.

    Raises:
        ConfigError: it does not; lists all problems.
    """
    problems = []
    if "logits" in objective.needs and parallelism.tp > 1:
        message = f"objective {objective.name!r} needs full distributions, but each rank holds a part of the vocabulary"
        problems.append(Problem("parallel.tp", message, "use shard or replicate"))
    if objective.limit is not None and parallelism.pp > 1:
        message = f"objective {objective.name!r} may stop an update early, which pipeline parallelism does not support"
        problems.append(Problem("parallel.pp", message, "leave the limit out, or use shard"))
    if objective.limit is not None and objective.limit[0] not in objective.metric_names:
        problems.append(
            Problem(
                "stop", f"got {objective.limit[0]!r}, expected one of {objective.metric_names}", "add it to the metrics"
            )
        )
    if problems:
        raise ConfigError(problems)


_log = logging.getLogger(__name__)
_MEMORY_HINT = "lower train.max_tokens_per_forward (same result), or train.batch_tokens; or --parallel.recompute true"
_DECAYED_ADAPTERS = ("none", "lora", "dora")  # what others learn are vectors: scales, and states
_MAX_PACKED_ROW = 4096  # tokens: a block mask is quadratic in its row


class _NonFiniteLoss(Exception):
    """A loss, its one argument, that must not reach a fused backward pass."""


class Learner:
    """Trains the weights of a policy's model, in place.

    Over several ranks every rank builds the same Learner from the same policy, data and seed, and calls the same
    methods. Afterwards the policy's model holds this rank's part alone, and the whole is in the checkpoint, unless the
    Learner keeps whole weights to play with.

    Args:
        policy: its model is set to float32 and trained where it is.
        objective: the loss.
        config: settings of the training.
        seed: of the data order and of dropout.
        optimizer: the optimizer; AdamW by default.
        parallelism: distribution of the model over `ranks`.
        keeps_whole: over several ranks, whether the policy keeps whole weights on each rank, which `sync_whole` fills;
            otherwise its model becomes this rank's part. Where the layout copies all weights it is what is trained.
    Attributes:
        updates: updates so far.
        taken: the trajectories that the last update learned, over all ranks.
        waited: seconds that building its batches took.
        device: of this rank.
    Raises:
        ConfigError: the model cannot have this layout, the optimizer does not support it, or nothing can be
            trained.
    """

    def __init__(
        self,
        policy: Policy,
        objective: Objective,
        config: TrainConfig,
        *,
        seed: int,
        optimizer: OptimizerConfig | None = None,
        parallelism: Parallelism | None = None,
        ranks: Ranks = SINGLE_PROCESS,
        keeps_whole: bool = False,
    ) -> None:
        self.policy, self.objective, self.config, self.seed = policy, objective, config, seed
        self.parallelism, self.optimizer_config = parallelism or Parallelism(), optimizer or OptimizerConfig()
        adapter = kind_of(policy.model) or "none"
        check_layout(policy.model.config, self.parallelism, world=ranks.mesh.size, adapter=adapter)
        if ranks.mesh != self.parallelism.mesh:
            raise ConfigError("the ranks have another layout", value=ranks.mesh, expected=self.parallelism.mesh)
        if ranks.mesh.tp * ranks.mesh.pp > 1 and list_nf4_layers(policy.model):
            raise ConfigError("weights of 4 bits cannot be divided", value=ranks.mesh, expected="shard or replicate")
        self._base = base_digest(policy.model) if adapter != "none" else None  # while the base is whole
        check_objective(objective, self.parallelism)
        self.layout = resolve_layout(policy.model, config.layout)
        self.sharing = share_rows(policy.model, self.parallelism) if config.layout == "shared" else None
        if problems := check_fused(self.optimizer_config, self._min_micro_batches(), self.parallelism.pp):
            raise ConfigError(problems)
        model = cast_weights(policy.model, config.dtype)
        self.device = next(model.parameters()).device if ranks is SINGLE_PROCESS else ranks.device
        self.ranks = ranks if ranks is not SINGLE_PROCESS else replace(ranks, device=self.device)
        if config.offloads_optimizer and (problems := self._find_offload_problems()):
            raise ConfigError(problems)
        if "values" in objective.needs:
            model.value_head = self._ensure_value_head()
        if not any(weight.requires_grad for weight in model.parameters()):
            raise ConfigError("the policy has no weights to train", value=f"{policy.parameters()} frozen ones")
        is_divided = ranks.mesh.size > 1 and not ranks.mesh.copies_weights(fuses=self.optimizer_config.fuses)
        self._keeps_whole = keeps_whole and is_divided
        if self._keeps_whole:
            self.policy.model.to(self.device)
            # A base below an adapter too, whose layout is not that of the whole one; weights of 4 bits have none.
            model = copy.deepcopy(model, {id(buffer): buffer for _, buffer in iterate_buffers(model)})
        self._model: nn.Module = model.to(self.device)
        autocast_dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        self.laid = distribute_model(
            model,
            self.parallelism,
            self.ranks,
            dtype=autocast_dtype,
            temperature=objective.temperature,
            fuses=self.optimizer_config.fuses,
        )
        named_weights = {name: weight for name, weight in self.laid.named_parameters() if weight.requires_grad}
        self._weights = list(named_weights.values())
        self._uncounted = [weight for name, weight in named_weights.items() if not self.laid.is_counted(name)]
        build = partial(
            build_optimizer,
            self.optimizer_config,
            lr=config.lr,
            betas=config.betas,
            clip=config.max_grad_norm,
            weight_decay=config.weight_decay if adapter in _DECAYED_ADAPTERS else 0.0,
        )
        self.optimizer = (
            OffloadedOptimizer(build, named_weights.items())
            if config.offloads_optimizer
            else build(named_weights.items())
        )
        self.trained = TrainState(
            named_weights, self.optimizer, {name: self.laid.whole_name(name) for name in named_weights}
        )
        self.updates, self.waited, self.share, self.taken = 0, 0.0, 0.0, cast(tuple[str, ...], ())
        self._measured = MetricSums(objective, self.ranks)

    def _min_micro_batches(self) -> int:
        """Returns the smallest number of micro-batches of an update."""
        return 2 if self.config.max_forward_tokens < self.config.batch_tokens or self.parallelism.pp > 1 else 1

    def _find_offload_problems(self) -> list[Problem]:
        return check_offload(self.optimizer_config, device_type=self.device.type, num_ranks=self.ranks.mesh.size)

    def _ensure_value_head(self) -> nn.Module:
        if self.policy.value_head is None:
            head = fresh_head(self.policy.model.config.hidden_size, seed=sample_seed(self.seed, "value head") % 2**63)
            self.policy = replace(self.policy, value_head=head)
        return cast(nn.Module, self.policy.value_head)

    @contextmanager
    def with_objective(self, objective: Objective) -> Iterator[None]:
        """Trains with an objective of values alone inside the block: the value head learns, all other weights stay."""
        previous_objective, previous_metrics = self.objective, self._measured
        other_weights = (weight for name, weight in self.trained.weights.items() if "value_head." not in name)
        self.objective, self._measured = objective, MetricSums(objective, self.ranks)
        try:
            with frozen(other_weights):
                yield
        finally:
            self.objective, self._measured = previous_objective, previous_metrics

    def set_objective(self, objective: Objective) -> None:
        """Trains with another objective of the same needs from now on."""
        self.objective, self._measured = objective, MetricSums(objective, self.ranks)

    # ------------------------------------------------------------------ over ranks

    def batch_rows(self, sequences: SequenceSource, rows: Sequence[Row]) -> list[Batch]:
        """Builds this rank's micro-batches of an update over these rows, as many as every other data rank builds."""
        selected = {index: sequences[index] for row in rows for index in row}
        trees = any(sequence.parent is not None for sequence in selected.values())
        packed = self.layout == "packed" and not trees
        return RankBatcher(
            packed,
            self.objective.together,
            self.config.max_forward_tokens,
            self.ranks.mesh,
            self.parallelism.schedule,
            self.ranks.rank_along("dp"),
            None if trees else self.sharing,
        ).build_batches(selected, rows)

    @torch.no_grad()
    def sync_whole(self) -> None:
        """Copies the trained weights of all ranks into the policy's whole weights; all ranks call it.

        Every element comes from the one rank that saves it, so that no sum rounds. A Learner whose policy is what it
        trains has nothing to copy.
        """
        if not self._keeps_whole:
            return
        whole_weights = {name: weight for name, weight in self.policy.model.named_parameters() if weight.requires_grad}
        counted = {name: weight for name, weight in self.trained.weights.items() if self.laid.is_counted(name)}
        parts = owned_parts(counted, self.ranks)
        for name, weight in whole_weights.items():
            gathered = torch.zeros(weight.shape, dtype=weight.dtype, device=self.device)
            if name in parts:
                part = parts[name]
                gathered[part.region.slices(Region.whole(weight.shape))] = part.values.to(self.device)
            weight.copy_(self.ranks.sum(gathered, "pp", "dp", "tp"))

    # ------------------------------------------------------------------ one update

    def update(self, batches: Sequence[Batch]) -> UpdateMetrics:
        """Updates the weights once over micro-batches; their split, over ranks too, changes nothing beyond rounding.

        The gradient is that of (sum of losses) / (count of all batches). If it is not finite, the weights stay.

        Args:
            batches: this rank's; every data rank brings as many.
        Raises:
            NothingToLearn: the count is 0.
            DeviceMemory: it does not fit the device.
        """
        if problems := check_fused(self.optimizer_config, len(batches), self.parallelism.pp):
            raise ConfigError(problems)
        count = self._sum_over_data_ranks(sum(self.objective.count(batch) for batch in batches))
        if count == 0:
            raise NothingToLearn(
                "no target of this update has a nonzero learning weight", value=f"{len(batches)} batches"
            )
        lr = self.config.learning_rate(self.updates, self.share)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with report_memory_errors(max((tuple(batch.ids.shape) for batch in batches), key=prod), _MEMORY_HINT):
            on_device = [batch.to(self.device) for batch in batches]
            if isinstance(self.optimizer, SophiaG) and self.updates % self.optimizer.hessian_every == 0:
                self._estimate_curvature(on_device)
            self._measured.reset(len(batches), self._sum_over_data_ranks(sum(len(batch.targets) for batch in batches)))
            loss, norm, stopped = self._try_step(on_device, count)
        self.updates += 1
        fed = self._sum_over_data_ranks(sum(batch.real for batch in batches))
        padded = self._sum_over_data_ranks(sum(batch.padded for batch in batches))
        skipped, stats = not (abs(loss) < float("inf") and norm < float("inf")), self._measured.means()
        return UpdateMetrics(self.updates, loss, norm, lr, count, fed, padded, skipped, stopped, stats)

    def _try_step(self, batches: Sequence[Batch], count: int) -> tuple[float, float, bool]:
        """Takes one step; returns loss, gradient norm, and whether it was dropped for exceeding the objective's
        limit.
        """
        try:
            return *(self._step_in_backward if self.optimizer_config.fuses else self._step_after_backward)(
                batches, count
            ), False
        except KLLimitReached:
            self.optimizer.zero_grad(set_to_none=True)
        return 0.0, 0.0, True

    def _step_after_backward(self, batches: Sequence[Batch], count: int) -> tuple[float, float]:
        """Takes one step from the gradients of all micro-batches, with clipping; returns loss and gradient norm."""
        self.optimizer.zero_grad(set_to_none=True)
        total = self._backward(batches, count)
        self.laid.reduce()
        norm = total_norm(self._weights, pp_group=self.ranks.group("pp"), skip=self._uncounted)
        loss, size = torch.stack([self._total_loss(total), norm]).tolist()  # the one wait for the device
        if abs(loss) < float("inf") and size < float("inf"):
            if self.config.max_grad_norm is not None and self.optimizer_config.clipping == "norm":
                scale_(self._weights, self.config.max_grad_norm, norm)
            elif self.config.max_grad_norm is not None and self.optimizer_config.clipping == "value":
                clamp_(self._weights, self.config.max_grad_norm)
            self.optimizer.step()
        return loss, size

    def _step_in_backward(self, batches: Sequence[Batch], count: int) -> tuple[float, float]:
        """Takes the step inside backward; a non-finite loss on any rank ends it before."""
        optimizer, grad_norm = cast(FusedOptimizer, self.optimizer), 0.0
        try:
            if self.optimizer_config.clipping == "two_pass" and self.config.max_grad_norm is not None:
                with optimizer.measure_norm() as norm:
                    self._backward(batches, count, check_loss=True)
                grad_norm = float(norm)
                if not grad_norm < float("inf"):
                    raise _NonFiniteLoss(float("nan"))
                optimizer.arm(clip_factor(self.config.max_grad_norm, norm))
            else:
                optimizer.arm()
            loss = float(self._total_loss(self._backward(batches, count, check_loss=True)))
        except _NonFiniteLoss as stop:
            optimizer.zero_grad(set_to_none=True)
            loss = float(stop.args[0])
        else:
            optimizer.step()
        finally:
            optimizer.disarm()  # an update beyond the limit, too, leaves here
        return loss, grad_norm

    def _backward(self, batches: Sequence[Batch], count: int, *, check_loss: bool = False) -> Tensor:
        """Runs forward and backward of everything; returns this rank's part of the loss."""
        scale = self.ranks.mesh.dp / count  # sharded gradients are divided by the data ranks
        # Here, so that the second of two passes drops out what the first did.
        self._seed_dropout("update", self.updates, self.ranks.rank_along("dp"))

        def scaled_loss(outputs: Outputs, batch: Batch) -> Tensor:
            self._measured.add(outputs, batch)
            loss_sum, count_in_loss = self.objective.loss(outputs, batch)
            if count_in_loss != self.objective.count(batch):
                message = f"objective {self.objective.name!r} counts a batch in two ways"
                raise BatchMismatch(message, value=count_in_loss, expected=self.objective.count(batch))
            if check_loss:
                self._check_loss(loss_sum * scale)
            return loss_sum * scale

        return self.laid.backward(batches, scaled_loss, self.objective.needs)

    def _check_loss(self, amount: Tensor) -> None:
        """Raises on all ranks if the loss is not finite, because a fused update cannot be undone."""
        total_loss = float(self._total_loss(amount))
        if not abs(total_loss) < float("inf"):
            raise _NonFiniteLoss(total_loss)

    def _estimate_curvature(self, batches: Sequence[Batch]) -> None:
        """Computes SophiaG's estimate: the gradient of the loss on labels sampled from the model's own distribution."""
        tokens = self._sum_over_data_ranks(sum(map(gauss_newton.count, batches)))
        scale = self.ranks.mesh.dp / tokens

        def sampled_loss(outputs: Outputs, batch: Batch) -> Tensor:
            return gauss_newton.loss(outputs, batch)[0] * scale

        self._seed_dropout("curvature", self.updates)  # the same on all ranks
        self.optimizer.zero_grad(set_to_none=True)
        self.laid.backward(batches, sampled_loss, gauss_newton.needs)
        self.laid.reduce()
        if float(total_norm(self._weights, pp_group=self.ranks.group("pp"), skip=self._uncounted)) < float("inf"):
            cast(SophiaG, self.optimizer).update_hessian(tokens)

    def _seed_dropout(self, *parts: object) -> None:
        seed = sample_seed(self.seed, *parts) % 2**63
        # Without CUDA, torch.manual_seed notes where it was called from, which takes as long as a small layer.
        (torch.manual_seed if self.device.type == "cuda" else torch.default_generator.manual_seed)(seed)

    def _total_loss(self, total: Tensor) -> Tensor:
        """Returns the loss of the whole update from this rank's part of it."""
        return self.ranks.sum(total.detach().clone(), "dp", "pp") / self.ranks.mesh.dp

    def _sum_over_data_ranks(self, number: int) -> int:
        if self.ranks.devices is None:
            return number
        return int(self.ranks.sum(torch.tensor(number, device=self.device), "dp"))

    # ------------------------------------------------------------------ a whole training

    def fit(
        self,
        sequences: Sequence[TokenSequence],
        *,
        checkpoint: Checkpointer | None = None,
        on_update: Callable[[UpdateMetrics], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> FitReport:
        """Trains on a data set for the configured length. Call it once per Learner.

        Args:
            sequences: token sequences.
            checkpoint: where to store the state; if it holds one, training resumes from it, bit for bit (on CPU).
            on_update: called after every update.
            should_stop: asked after every update; True saves a checkpoint and ends the training early.
        Raises:
            NothingToLearn: no token has a learning weight.
            BatchMismatch, VocabularyMismatch: the model cannot read a sequence.
            NonFinite: `max_nonfinite_steps` updates in a row were not finite.
            ConfigError: the checkpoint is of another training.
            CheckpointError: the checkpoint is damaged.
            NoSpace: it cannot be written.
        """
        learnable = self._select_learnable(sequences)
        progress, batcher = TrainingProgress(self._build_order(learnable)), self._build_batcher(learnable)
        goal = self.config.tokens or self.config.epochs * learnable.targets
        with self._training_mode(), finish_pending_save(checkpoint, self.ranks):
            save_checkpoint = None if checkpoint is None else self._resume(checkpoint, progress, learnable, goal=goal)
            stopping = False
            while not (stopping or self._is_finished(progress, goal)):
                rows = progress.stream.take()
                start_time = time.perf_counter()
                selected = {index: learnable[index] for row in rows for index in row}
                batches = batcher.build_batches(selected, rows)
                self.waited = time.perf_counter() - start_time
                self.taken = tuple(sequences.trajectory for sequences in selected.values())
                metrics = self.update(batches)
                progress.record(metrics, self.taken)
                if on_update is not None:
                    on_update(metrics)
                self._check_finite(progress, metrics, checkpoint)
                stopping = self._any_rank(should_stop is not None and should_stop())
                if save_checkpoint is not None:
                    save_checkpoint(stopping or self._is_finished(progress, goal))
            self.optimizer.zero_grad(set_to_none=True)  # the policy goes on without its gradients
            return progress.report(finished=self._is_finished(progress, goal))

    def _resume(
        self, checkpoint: Checkpointer, progress: TrainingProgress, learnable: LearnableSequences, *, goal: int
    ) -> Callable[[bool], None]:
        """Restores the newest checkpoint; returns a function that saves checkpoints: called with True, it saves in
        any case.
        """
        check_resumes(self.optimizer_config)
        current_identity = training_identity(
            self.policy,
            self.objective,
            learnable.digest(),
            config=self.config,
            optimizer=self.optimizer_config,
            seed=self.seed,
            base_digest=self._base,
        )
        if restore_progress(checkpoint, progress, self.trained, identity=current_identity):
            self.updates = progress.updates
            remaining_note = ": no work is left" if self._is_finished(progress, goal) else ""
            _log.info("resumed after update %d%s", self.updates, remaining_note)

        def save_if_due(force: bool) -> None:
            if force or self.updates % checkpoint.every == 0:
                save_progress(checkpoint, progress, self.trained, identity=current_identity, wait=force)

        return save_if_due

    def _select_learnable(self, sequences: Sequence[TokenSequence]) -> LearnableSequences:
        vocabulary = self.policy.model.config.vocab_size
        learnable = LearnableSequences(
            sequences, together=self.objective.together, vocabulary=vocabulary, context=self.policy.context
        )
        if learnable.trees and self.ranks.devices is None:
            check_branches(self.policy.model)
        if "reference" in self.objective.needs and "reference" not in learnable[0].columns:
            raise ConfigError(
                f"objective {self.objective.name!r} needs the column 'reference'",
                value=sorted(learnable[0].columns),
                hint="add it with learn.annotate before training",
            )
        return learnable

    def _is_finished(self, progress: TrainingProgress, target_tokens: int) -> bool:
        if self.config.max_steps is not None:
            self.share = progress.updates / self.config.max_steps
        elif self.config.tokens is None and self.objective.together > 1:  # an epoch is so many samples
            self.share = progress.stream.position / (self.config.epochs * progress.stream.samples)
        else:
            self.share = progress.tokens / target_tokens
        return self.share >= 1.0

    def _build_order(self, learnable: LearnableSequences) -> DataOrder:
        lengths, budget = learnable.feeds, self.config.batch_tokens
        row, together = min(budget, self.policy.context, _MAX_PACKED_ROW), self.objective.together
        longest = max(sum(lengths[start : start + together]) for start in range(0, len(lengths), together))
        capacity = max(row, longest) if self.layout == "packed" and not learnable.trees else None
        return DataOrder(lengths, budget=budget, capacity=capacity, together=together, seed=self.seed)

    def _build_batcher(self, learnable: LearnableSequences) -> RankBatcher:
        packed, schedule = self.layout == "packed" and not learnable.trees, self.parallelism.schedule
        sharing, max_tokens = self.sharing if self.config.layout == "shared" else None, self.config.max_forward_tokens
        return RankBatcher(
            packed, self.objective.together, max_tokens, self.ranks.mesh, schedule, self.ranks.rank_along("dp"), sharing
        )

    def _any_rank(self, is_true_here: bool) -> bool:
        """Returns whether a condition holds on any rank."""
        flag = torch.tensor(int(is_true_here), device=self.device)
        return is_true_here if self.ranks.devices is None else bool(self.ranks.sum(flag, "dp", "pp", "tp"))

    def _check_finite(
        self, progress: TrainingProgress, metrics: UpdateMetrics, checkpoint: Checkpointer | None
    ) -> None:
        if not metrics.skipped:
            return
        _log.warning("update %d skipped: loss %s, gradient norm %s", metrics.update, metrics.loss, metrics.grad_norm)
        if progress.in_row >= self.config.max_nonfinite_steps:
            if checkpoint is not None:
                checkpoint.wait()
            newest = checkpoint.find_newest() if checkpoint is not None else None
            raise NonFinite(
                f"{progress.in_row} consecutive updates were not finite, up to update {metrics.update}",
                value=f"loss {metrics.loss}, trajectories {', '.join(progress.skipped[-1][1][:8])}",
                hint="lower --train.lr" + (f"; the last good checkpoint is {newest.name}" if newest else ""),
            )

    @contextmanager
    def _training_mode(self) -> Iterator[None]:
        """Sets training mode, a separate random state and the training weights inside the block; restores them
        afterwards.
        """
        devices = [self.device.index or 0] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self.trained.learning():
            torch.manual_seed(self.seed & (2**63 - 1))
            was_training = self._model.training
            self._model.train()
            try:
                yield
            finally:
                self._model.train(was_training)
