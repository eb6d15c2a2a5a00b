"""The Learner: a policy, an objective and an optimizer. `update` is its one hot method; `fit` goes through a data set.

Length, schedule and end of a training are counted in learned tokens or updates, never in seconds: two runs are
bit-equal, and a run that was interrupted equals one that was not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import cast

import torch
from torch import Tensor, nn

from evolvent.errors import BatchMismatch, ConfigError, NonFinite, NothingToLearn
from evolvent.learn.checkpoint import Checkpointer
from evolvent.learn.config import TrainConfig
from evolvent.learn.forward import chosen_layout, fitting, in_precision, still
from evolvent.learn.loader import Dealing, Learnable, Stream
from evolvent.learn.measured import Beyond, Measured, check_objective
from evolvent.learn.objectives import Objective, Outputs, gauss_newton
from evolvent.learn.optim.clip import clamp_, factor, scale_, total_norm
from evolvent.learn.optim.fused import Fused
from evolvent.learn.optim.make import OptimizerConfig, check_fused, make
from evolvent.learn.optim.sophia import SophiaG
from evolvent.learn.packing import Batch
from evolvent.learn.parallel.lay import check_layout, lay
from evolvent.learn.parallel.mesh import Parallelism
from evolvent.learn.parallel.ranks import ALONE, Ranks
from evolvent.learn.prefix_sharing import sharing_of
from evolvent.learn.progress import FitReport, Metrics, Progress, identity, restore, save, settled
from evolvent.learn.token_sequences import Parts
from evolvent.learn.trained import Trained, check_resumes
from evolvent.models.heads import fresh_head
from evolvent.models.policy import Policy
from evolvent.models.tuned import base_digest, kind_of
from evolvent.trajectory import sample_seed

__all__ = ["FitReport", "Learner", "Metrics", "TrainConfig"]

_log = logging.getLogger(__name__)
_LESS = "lower train.micro_tokens (same result), or train.batch_tokens; or --parallel.recompute true"
_DECAYING = ("none", "lora", "dora")  # what others learn are vectors: scales, and states
_PACKED_ROW = 4096  # tokens: a block mask is quadratic in its row


class _NotFinite(Exception):
    """A loss, its one argument, that must not reach a fused backward."""


class Learner:
    """Changes the weights of a policy's model, in place.

    Over several ranks every rank makes the same Learner from the same policy, data and seed, and calls the same
    methods. Afterwards the policy's model holds this rank's part alone, and the whole is in the checkpoint.

    Args:
        policy: its model is set to float32 and trained where it is.
        objective: what is minimised.
        config: how.
        seed: of the data order and of dropout.
        optimizer: by which rule; AdamW by default.
        parallelism: how the model is laid over `ranks`.
    Attributes:
        updates: taken so far. taken: the trajectories that the last one learned, over all ranks.
        waited: seconds that making its batches took. device: of this rank.
    Raises:
        ConfigError: a layout that the model cannot have, an optimizer that does not go with it, nothing to train.
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
        ranks: Ranks = ALONE,
    ) -> None:
        self.policy, self.objective, self.config, self.seed = policy, objective, config, seed
        self.parallelism, self.optimizer_config = parallelism or Parallelism(), optimizer or OptimizerConfig()
        adapter = kind_of(policy.model) or "none"
        check_layout(policy.model.config, self.parallelism, world=ranks.mesh.size, adapter=adapter)
        if ranks.mesh != self.parallelism.mesh:
            raise ConfigError("the ranks are of another layout", value=ranks.mesh, expected=self.parallelism.mesh)
        self._base = base_digest(policy.model) if adapter != "none" else None  # while the base is whole
        check_objective(objective, self.parallelism)
        self.layout = chosen_layout(policy.model, config.layout)
        self.sharing = sharing_of(policy.model, config.layout, self.parallelism)
        if problems := check_fused(self.optimizer_config, self._forwards(), self.parallelism.pp):
            raise ConfigError(problems)
        model = in_precision(policy.model, config.dtype)
        self.device = next(model.parameters()).device if ranks is ALONE else ranks.device
        self.ranks = ranks if ranks is not ALONE else replace(ranks, device=self.device)
        if "values" in objective.needs:
            model.value_head = self._value_head()
        if not any(weight.requires_grad for weight in model.parameters()):
            raise ConfigError("the policy has no weights to train", value=f"{policy.parameters()} frozen ones")
        self._model: nn.Module = model.to(self.device)
        low = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
        self.laid = lay(model, self.parallelism, self.ranks, dtype=low, temperature=objective.temperature)
        named = {name: weight for name, weight in self.laid.named_parameters() if weight.requires_grad}
        self._weights = list(named.values())
        self._uncounted = [weight for name, weight in named.items() if not self.laid.counted(name)]
        self.optimizer = make(
            self.optimizer_config,
            named.items(),
            lr=config.lr,
            betas=config.betas,
            clip=config.clip,
            weight_decay=config.weight_decay if adapter in _DECAYING else 0.0,
        )
        self.trained = Trained(named, self.optimizer, {name: self.laid.whole_name(name) for name in named})
        self.updates, self.waited, self.share, self.taken = 0, 0.0, 0.0, cast(tuple[str, ...], ())
        self._measured = Measured(objective, self.ranks)

    def _forwards(self) -> int:
        """Least number of micro-batches of an update."""
        return 2 if self.config.most < self.config.batch_tokens or self.parallelism.pp > 1 else 1

    def _value_head(self) -> nn.Module:
        if self.policy.value_head is None:
            head = fresh_head(self.policy.model.config.hidden_size, seed=sample_seed(self.seed, "value head") % 2**63)
            self.policy = replace(self.policy, value_head=head)
        return cast(nn.Module, self.policy.value_head)

    @contextmanager
    def towards(self, objective: Objective) -> Iterator[None]:
        """Inside, updates minimise an objective of values alone: the value head learns, all else stays."""
        usual, measured = self.objective, self._measured
        others = (weight for name, weight in self.trained.weights.items() if "value_head." not in name)
        self.objective, self._measured = objective, Measured(objective, self.ranks)
        try:
            with still(others):
                yield
        finally:
            self.objective, self._measured = usual, measured

    # ------------------------------------------------------------------ one update

    def update(self, batches: Sequence[Batch]) -> Metrics:
        """One optimizer update over micro-batches; their split, over ranks too, does not change it (beyond rounding).

        The gradient is that of (sum of losses) / (count of all batches). If it is not finite, the weights stay.

        Args:
            batches: this rank's; every data rank brings as many.
        Raises:
            NothingToLearn: a count of 0. DeviceMemory: it does not fit the device.
        """
        if problems := check_fused(self.optimizer_config, len(batches), self.parallelism.pp):
            raise ConfigError(problems)
        count = self._over_data(sum(self.objective.count(batch) for batch in batches))
        if count == 0:
            raise NothingToLearn("no target of this update has a learning weight", value=f"{len(batches)} batches")
        lr = self.config.rate(self.updates, self.share)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        with fitting(max((tuple(batch.ids.shape) for batch in batches), key=prod), _LESS):
            on_device = [batch.to(self.device) for batch in batches]
            if isinstance(self.optimizer, SophiaG) and self.updates % self.optimizer.hessian_every == 0:
                self._curvature(on_device)
            self._measured.reset(len(batches), self._over_data(sum(len(batch.targets) for batch in batches)))
            loss, norm, stopped = self._taken(on_device, count)
        self.updates += 1
        fed = self._over_data(sum(batch.real for batch in batches))
        padded = self._over_data(sum(batch.padded for batch in batches))
        skipped, stats = not (abs(loss) < float("inf") and norm < float("inf")), self._measured.means()
        return Metrics(self.updates, loss, norm, lr, count, fed, padded, skipped, stopped, stats)

    def _taken(self, batches: Sequence[Batch], count: int) -> tuple[float, float, bool]:
        """One step: loss, gradient norm, and whether it was given up for being beyond the objective's limit."""
        try:
            return *(self._fused if self.optimizer_config.fuses else self._step)(batches, count), False
        except Beyond:
            self.optimizer.zero_grad(set_to_none=True)
        return 0.0, 0.0, True

    def _step(self, batches: Sequence[Batch], count: int) -> tuple[float, float]:
        """Gradients of all micro-batches, clipping, one step; returns loss and gradient norm."""
        self.optimizer.zero_grad(set_to_none=True)
        total = self._backward(batches, count)
        self.laid.reduce()
        norm = total_norm(self._weights, pp_group=self.ranks.group("pp"), skip=self._uncounted)
        loss, size = torch.stack([self._whole(total), norm]).tolist()  # the one wait for the device
        if abs(loss) < float("inf") and size < float("inf"):
            if self.config.clip is not None and self.optimizer_config.clipping == "norm":
                scale_(self._weights, self.config.clip, norm)
            elif self.config.clip is not None and self.optimizer_config.clipping == "value":
                clamp_(self._weights, self.config.clip)
            self.optimizer.step()
        return loss, size

    def _fused(self, batches: Sequence[Batch], count: int) -> tuple[float, float]:
        """The step happens inside backward; a loss that is not finite on any rank ends it before."""
        optimizer, size = cast(Fused, self.optimizer), 0.0
        try:
            if self.optimizer_config.clipping == "two_pass" and self.config.clip is not None:
                with optimizer.measuring() as norm:
                    self._backward(batches, count, guarded=True)
                size = float(norm)
                if not size < float("inf"):
                    raise _NotFinite(float("nan"))
                optimizer.arm(factor(self.config.clip, norm))
            else:
                optimizer.arm()
            loss = float(self._whole(self._backward(batches, count, guarded=True)))
        except _NotFinite as stop:
            optimizer.zero_grad(set_to_none=True)
            loss = float(stop.args[0])
        else:
            optimizer.step()
        finally:
            optimizer.disarm()  # an update beyond the limit, too, leaves here
        return loss, size

    def _backward(self, batches: Sequence[Batch], count: int, *, guarded: bool = False) -> Tensor:
        """Forward and backward of everything; returns this rank's part of the loss."""
        times = self.ranks.mesh.dp / count  # sharded gradients are divided by the data ranks
        # Here, so that the second of two passes drops out what the first did.
        self._sow("update", self.updates, self.ranks.at("dp"))

        def loss(outputs: Outputs, batch: Batch) -> Tensor:
            self._measured.note(outputs, batch)
            amount, counted = self.objective.loss(outputs, batch)
            if counted != self.objective.count(batch):
                what = f"objective {self.objective.name!r} counts a batch in two ways"
                raise BatchMismatch(what, value=counted, expected=self.objective.count(batch))
            if guarded:
                self._guard(amount * times)
            return amount * times

        return self.laid.backward(batches, loss, self.objective.needs)

    def _guard(self, amount: Tensor) -> None:
        """What a fused update has changed cannot be taken back: all ranks look at the loss before backward."""
        whole = float(self._whole(amount))
        if not abs(whole) < float("inf"):
            raise _NotFinite(whole)

    def _curvature(self, batches: Sequence[Batch]) -> None:
        """SophiaG's estimate: the gradient of the loss on labels drawn from the model's own distribution."""
        tokens = self._over_data(sum(map(gauss_newton.count, batches)))
        times = self.ranks.mesh.dp / tokens

        def loss(outputs: Outputs, batch: Batch) -> Tensor:
            return gauss_newton.loss(outputs, batch)[0] * times

        self._sow("curvature", self.updates)  # the same on all ranks
        self.optimizer.zero_grad(set_to_none=True)
        self.laid.backward(batches, loss, gauss_newton.needs)
        self.laid.reduce()
        if float(total_norm(self._weights, pp_group=self.ranks.group("pp"), skip=self._uncounted)) < float("inf"):
            cast(SophiaG, self.optimizer).update_hessian(tokens)

    def _sow(self, *parts: object) -> None:
        seed = sample_seed(self.seed, *parts) % 2**63
        # Without CUDA, torch.manual_seed notes where it was called from, which takes as long as a small layer.
        (torch.manual_seed if self.device.type == "cuda" else torch.default_generator.manual_seed)(seed)

    def _whole(self, total: Tensor) -> Tensor:
        """The loss of the whole update from this rank's part of it."""
        return self.ranks.sum(total.detach().clone(), "dp", "pp") / self.ranks.mesh.dp

    def _over_data(self, number: int) -> int:
        if self.ranks.devices is None:
            return number
        return int(self.ranks.sum(torch.tensor(number, device=self.device), "dp"))

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
        progress, dealing = Progress(self._stream(learned)), self._dealing(learned)
        goal = self.config.tokens or self.config.epochs * learned.targets
        with self._training(), settled(checkpoint, self.ranks):
            keeper = None if checkpoint is None else self._resumed(checkpoint, progress, learned, goal=goal)
            stopping = False
            while not (stopping or self._done(progress, goal)):
                rows = progress.stream.take()
                began = time.perf_counter()
                chosen = {index: learned[index] for row in rows for index in row}
                batches = dealing.batches(chosen, rows)
                self.waited = time.perf_counter() - began
                self.taken = tuple(parts.trajectory for parts in chosen.values())
                metrics = self.update(batches)
                progress.note(metrics, self.taken)
                if on_update is not None:
                    on_update(metrics)
                self._check_finite(progress, metrics, checkpoint)
                stopping = self._any(should_stop is not None and should_stop())
                if keeper is not None:
                    keeper(stopping or self._done(progress, goal))
            self.optimizer.zero_grad(set_to_none=True)  # the policy goes on without its gradients
            return progress.report(finished=self._done(progress, goal))

    def _resumed(
        self, checkpoint: Checkpointer, progress: Progress, learned: Learnable, *, goal: int
    ) -> Callable[[bool], None]:
        """Go to where the checkpoint is; returns what keeps it up to date: called with True, it saves in any case."""
        check_resumes(self.optimizer_config)
        same = identity(
            self.policy,
            self.objective,
            learned.digest(),
            config=self.config,
            optimizer=self.optimizer_config,
            seed=self.seed,
            base=self._base,
        )
        if restore(checkpoint, progress, self.trained, same=same):
            self.updates = progress.updates
            rest = ": no work is left" if self._done(progress, goal) else ""
            _log.info("resumed after update %d%s", self.updates, rest)

        def keep(now: bool) -> None:
            if now or self.updates % checkpoint.every == 0:
                save(checkpoint, progress, self.trained, same=same, wait=now)

        return keep

    def _learnable(self, parts: Sequence[Parts]) -> Learnable:
        rows = self.policy.model.config.vocab_size
        found = Learnable(parts, together=self.objective.together, words=rows, context=self.policy.context)
        if "reference" in self.objective.needs and "reference" not in found[0].columns:
            raise ConfigError(
                f"objective {self.objective.name!r} needs the column 'reference'",
                value=sorted(found[0].columns),
                hint="add it with learn.annotate before training",
            )
        return found

    def _done(self, progress: Progress, goal: int) -> bool:
        if self.config.updates is not None:
            self.share = progress.updates / self.config.updates
        elif self.config.tokens is None and self.objective.together > 1:  # an epoch is so many samples
            self.share = progress.stream.position / (self.config.epochs * progress.stream.samples)
        else:
            self.share = progress.tokens / goal
        return self.share >= 1.0

    def _stream(self, learned: Learnable) -> Stream:
        lengths, budget = learned.feeds, self.config.batch_tokens
        row, together = min(budget, self.policy.context, _PACKED_ROW), self.objective.together
        longest = max(sum(lengths[at : at + together]) for at in range(0, len(lengths), together))
        capacity = max(row, longest) if self.layout == "packed" and not learned.trees else None
        return Stream(lengths, budget=budget, capacity=capacity, together=together, seed=self.seed)

    def _dealing(self, learned: Learnable) -> Dealing:
        packed, schedule = self.layout == "packed" and not learned.trees, self.parallelism.schedule
        sharing, most = self.sharing if self.config.layout == "shared" else None, self.config.most
        return Dealing(packed, self.objective.together, most, self.ranks.mesh, schedule, self.ranks.at("dp"), sharing)

    def _any(self, here: bool) -> bool:
        """Whether something is so on any rank."""
        told = torch.tensor(int(here), device=self.device)
        return here if self.ranks.devices is None else bool(self.ranks.sum(told, "dp", "pp", "tp"))

    def _check_finite(self, progress: Progress, metrics: Metrics, checkpoint: Checkpointer | None) -> None:
        if not metrics.skipped:
            return
        _log.warning("update %d skipped: loss %s, gradient norm %s", metrics.update, metrics.loss, metrics.grad_norm)
        if progress.in_row >= self.config.patience:
            if checkpoint is not None:
                checkpoint.wait()
            last = checkpoint.newest() if checkpoint is not None else None
            raise NonFinite(
                f"{progress.in_row} updates in a row were not finite, the last of them number {metrics.update}",
                value=f"loss {metrics.loss}, trajectories {', '.join(progress.skipped[-1][1][:8])}",
                hint=f"lower train.lr; the last good checkpoint is {last.name if last else 'not there'}",
            )

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Training mode and a random state of its own, both put back; and the weights that learn."""
        devices = [self.device.index or 0] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self.trained.learning():
            torch.manual_seed(self.seed & (2**63 - 1))
            was = self._model.training
            self._model.train()
            try:
                yield
            finally:
                self._model.train(was)
