"""The Learner: a policy, an objective and an optimizer. `update` is its one hot method; `fit` goes through a data set.

Length, schedule and end of a training are counted in learned tokens or updates, never in seconds: two runs are
bit-equal, and a run that was interrupted equals one that was not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from evolvent.config import Config
from evolvent.errors import BatchMismatch, ConfigError, DeviceMemory, NonFinite, NothingToLearn
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.forward import chosen_layout, outputs
from evolvent.learn.objectives import Objective
from evolvent.learn.packing import Batch, Stream, collate_packed, collate_padded
from evolvent.learn.parts import Parts, check_parts
from evolvent.learn.progress import FitReport, Metrics, Progress, identity, restore, save
from evolvent.models.policy import Policy

__all__ = ["FitReport", "Learner", "Metrics", "TrainConfig"]

_log = logging.getLogger(__name__)
_PACKED_ROW = 4096  # tokens: a block mask is quadratic in its row


Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Config):
    """How a policy is trained. Its length is `updates`, else `tokens`, else `epochs`: the first of them that is set."""

    lr: float = Field(default=4e-3, gt=0, description="peak learning rate of AdamW")
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.98), description="decay of AdamW's two moments")
    weight_decay: float = Field(default=0.1, ge=0, description="decoupled decay of matrices; vectors have none")
    warmup_updates: int = Field(default=50, ge=0, description="updates of linear warm-up")
    final_lr: float = Field(default=0.1, ge=0, le=1, description="share of the peak that the linear decay ends at")
    clip: float | None = Field(default=1.0, gt=0, description="largest global norm of the gradient; none: no clipping")
    batch_tokens: int = Field(default=768, ge=1, description="most tokens of an update, padding included")
    micro_tokens: int | None = Field(
        default=None, ge=1, description="most tokens of one forward; none: the whole update"
    )
    epochs: int = Field(default=10, ge=1, description="passes through the data")
    tokens: int | None = Field(
        default=None, ge=1, description="stop after this many learned tokens, instead of by epochs"
    )
    updates: int | None = Field(
        default=None, ge=1, description="stop after this many updates, instead of by tokens or epochs"
    )
    layout: Literal["auto", "bucketed", "packed"] = Field(
        default="auto", description="padded rows of like length, or packed rows"
    )
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="of the forward; weights stay float32")
    patience: int = Field(default=5, ge=1, description="updates in a row that may be not finite before training stops")

    def rate(self, update: int, share: float) -> float:
        """The learning rate of an update (from 0), where `share` of the training is behind it: warm-up times decay."""
        warm = min(1.0, (update + 1) / self.warmup_updates) if self.warmup_updates else 1.0
        return self.lr * warm * (1.0 - (1.0 - self.final_lr) * min(1.0, share))


class Learner:
    """Changes the weights of a policy's model, in place.

    Args:
        policy: its model is set to float32 and trained where it is.
        objective: what is minimised.
        config: how.
        seed: of the data order and of dropout.
    Raises:
        ConfigError: an objective whose needs are not met, a layout that the model cannot have, nothing to train.
    """

    def __init__(self, policy: Policy, objective: Objective, config: TrainConfig, *, seed: int) -> None:
        self.policy, self.objective, self.config, self.seed = policy, objective, config, seed
        if objective.needs:
            raise ConfigError(
                f"objective {objective.name!r} needs what this learner does not have", value=", ".join(objective.needs)
            )
        self._model: nn.Module = policy.model.float()
        self._device = next(self._model.parameters()).device
        self.layout = chosen_layout(policy.model, config.layout)
        self._dtype = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        self._weights = [weight for weight in self._model.parameters() if weight.requires_grad]
        if not self._weights:
            raise ConfigError("the policy has no weights to train", value=f"{policy.parameters()} frozen ones")
        groups = [
            {"params": [w for w in self._weights if w.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [w for w in self._weights if w.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=config.betas,
            fused=self._device.type in ("cpu", "cuda"),
        )
        self.updates = 0
        self.share = 0.0  # how much of the training is behind it; `fit` moves it on

    # ------------------------------------------------------------------ one update

    def update(self, batches: Sequence[Batch]) -> Metrics:
        """One optimizer update over micro-batches; their split does not change it (beyond rounding).

        The gradient is that of (sum of losses) / (count of all batches). If it is not finite, the weights stay.

        Raises:
            NothingToLearn: a count of 0. DeviceMemory: a forward or backward that does not fit the device.
        """
        config, count = self.config, sum(self.objective.count(batch) for batch in batches)
        if count == 0:
            raise NothingToLearn("no target of this update has a learning weight", value=f"{len(batches)} batches")
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self._device)
        for batch in batches:
            total += self._backward(batch.to(self._device), count)
        grads = [weight.grad for weight in self._weights if weight.grad is not None]
        norm = nn.utils.get_total_norm(grads)
        loss, size = torch.stack([total / count, norm]).tolist()  # the one wait for the device
        lr = config.rate(self.updates, self.share)
        finite = abs(loss) < float("inf") and size < float("inf")
        if finite:
            if config.clip is not None:
                nn.utils.clip_grads_with_norm_(self._weights, config.clip, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        self.updates += 1
        fed, padded = sum(batch.real for batch in batches), sum(batch.padded for batch in batches)
        return Metrics(self.updates, loss, size, lr, count, fed, padded, not finite)

    def _backward(self, batch: Batch, count: int) -> Tensor:
        """Add a micro-batch's share to the gradients; returns its sum of losses."""
        try:
            amount, counted = self.objective.loss(outputs(self._model, batch, dtype=self._dtype), batch)
            if counted != self.objective.count(batch):
                raise BatchMismatch(
                    f"objective {self.objective.name!r} counts a batch in two ways",
                    value=counted,
                    expected=self.objective.count(batch),
                )
            torch.autograd.backward(amount / count)
        except torch.OutOfMemoryError as error:
            raise DeviceMemory(
                "a batch does not fit the device's memory",
                value=f"rows x tokens {tuple(batch.ids.shape)}",
                hint="lower train.micro_tokens (same result), or train.batch_tokens",
            ) from error
        return amount.detach()

    # ------------------------------------------------------------------ a whole training

    def fit(
        self,
        parts: Sequence[Parts],
        *,
        checkpoint: Checkpointer | None = None,
        on_update: Callable[[Metrics], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> FitReport:
        """Train on a data set, for as long as the config says. Call it once in a Learner's life.

        Args:
            checkpoint: where to keep the state; if it holds one, training goes on from there, bit for bit (on CPU).
            on_update: called after every update.
            should_stop: asked after every update; True saves a checkpoint and ends the training early.
        Raises:
            NothingToLearn: no part has a learning weight. BatchMismatch, VocabularyMismatch: parts that the model
                cannot read. NonFinite: `patience` updates in a row were not finite. ConfigError: the checkpoint is of
                another training. CheckpointError: it is damaged. NoSpace: it cannot be written.
        """
        learned = self._learnable(parts)
        progress = Progress(self._stream(learned))
        collate = collate_packed if self.layout == "packed" else collate_padded
        epoch = sum(int(np.count_nonzero(sequence.weight[1:])) for sequence in learned)
        goal = self.config.tokens or self.config.epochs * epoch
        with self._training():
            keeper = None if checkpoint is None else self._resumed(checkpoint, progress, learned, goal=goal)
            stopping = False
            while not (stopping or self._done(progress, goal)):
                batches = [collate(learned, micro) for micro in progress.stream.take()]
                metrics = self.update(batches)
                progress.note(metrics, (learned[i].trajectory for batch in batches for i in batch.samples))
                if on_update is not None:
                    on_update(metrics)
                self._check_finite(progress, metrics, checkpoint)
                stopping = should_stop is not None and should_stop()
                if keeper is not None:
                    keeper(stopping or self._done(progress, goal))
            self.optimizer.zero_grad(set_to_none=True)  # the policy goes on without its gradients
            return progress.report(finished=self._done(progress, goal))

    def _resumed(
        self, checkpoint: Checkpointer, progress: Progress, learned: Sequence[Parts], *, goal: int
    ) -> Callable[[bool], None]:
        """Go to where the checkpoint is; returns what keeps it up to date: called with True, it saves in any case."""
        model, optimizer = self._model, self.optimizer
        same = identity(self.policy, self.objective, learned, config=self.config, seed=self.seed)
        if restore(checkpoint, progress, model, optimizer=optimizer, same=same):
            self.updates = progress.updates
            rest = ": no work is left" if self._done(progress, goal) else ""
            _log.info("resumed after update %d%s", self.updates, rest)

        def keep(now: bool) -> None:
            if now or self.updates % checkpoint.every == 0:
                save(checkpoint, progress, model, optimizer=optimizer, same=same)

        return keep

    def _learnable(self, parts: Sequence[Parts]) -> list[Parts]:
        learned = [sequence for sequence in parts if sequence.feed]
        if not learned:
            raise NothingToLearn(
                "no sequence has a token with a learning weight",
                value=f"{len(parts)} sequences",
                hint="check what was kept, and what flatten() refused",
            )
        rows = self.policy.model.get_input_embeddings().weight.shape[0]
        check_parts(learned, vocabulary=rows, context=self.policy.context)
        return learned

    def _done(self, progress: Progress, goal: int) -> bool:
        if self.config.updates is not None:
            self.share = progress.updates / self.config.updates
        else:
            self.share = progress.tokens / goal
        return self.share >= 1.0

    def _stream(self, learned: Sequence[Parts]) -> Stream:
        lengths, budget = [sequence.feed for sequence in learned], self.config.batch_tokens
        row = min(budget, self.policy.context, _PACKED_ROW)
        capacity = max(row, *lengths) if self.layout == "packed" else None
        return Stream(lengths, budget=budget, micro=self.config.micro_tokens, capacity=capacity, seed=self.seed)

    def _check_finite(self, progress: Progress, metrics: Metrics, checkpoint: Checkpointer | None) -> None:
        if not metrics.skipped:
            return
        _log.warning("update %d skipped: loss %s, gradient norm %s", metrics.update, metrics.loss, metrics.grad_norm)
        if progress.in_row >= self.config.patience:
            last = checkpoint.newest() if checkpoint is not None else None
            raise NonFinite(
                f"{progress.in_row} updates in a row were not finite, the last of them number {metrics.update}",
                value=f"loss {metrics.loss}, trajectories {', '.join(progress.skipped[-1][1][:8])}",
                hint=f"lower train.lr; the last good checkpoint is {last.name if last else 'not there'}",
            )

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Training mode and a random state of its own; both are put back."""
        devices = [self._device.index or 0] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.seed & (2**63 - 1))
            was = self._model.training
            self._model.train()
            try:
                yield
            finally:
                self._model.train(was)
