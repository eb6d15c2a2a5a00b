"""The policy trainer: reinforcement learning in iterations of rollout, scoring, advantage estimation and update.

The file of a method has the loop and the advantages. This module has everything around it: the weights that
play, scoring of episodes by policy, critic and reference, passes through the data, and resuming after a stop.

    with run.train_rl(policy, spec) as trainer:
        for _ in trainer.iterations():
            rollout = trainer.score(trainer.rollout(trainer.next_starts(tasks)))
            trainer.update(rollout, estimate_advantages(rollout))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from evolvent.agents.candidates import CandidateDivisor
from evolvent.engine.asks import Sampling
from evolvent.errors import ConfigError, NonFinite, Problem
from evolvent.learn.checkpoint import CheckpointContent, Checkpointer
from evolvent.learn.learner import Learner
from evolvent.learn.loader import split_over_ranks
from evolvent.learn.objectives import Objective
from evolvent.learn.prefix_sharing import build_batches, check_branches
from evolvent.learn.progress import OptimizerNumbers, check_resumes
from evolvent.learn.token_sequences import Batch, Row, TokenSequence, collate_packed, flatten, pack_rows
from evolvent.models.cpu_layers import release_heap
from evolvent.models.policy import Policy
from evolvent.models.tuned import kind_of
from evolvent.rl.advantages import Advantages
from evolvent.rl.candidates import add_candidates
from evolvent.rl.diagnostics import (
    DegenerateBatchMonitor,
    is_sampled_iteration,
    measure_episodes,
    measure_tokens,
    sample_credit,
)
from evolvent.rl.prefetch import RolloutPrefetcher
from evolvent.rl.rollout_batch import CUT_OFF, TRUNCATED, Rewards, add_columns, build_rollout_batch
from evolvent.rl.scored_rollout import HistoryTruncation, ScoredRollout, ScoringConfig, score_rollout
from evolvent.rl.settings import RLConfig
from evolvent.trajectory import Start, Task, Trajectory, sample_rng

__all__ = [
    "CheckpointedNetwork",
    "PlayFunction",
    "PolicyTrainer",
    "RLConfig",
    "RLSpec",
    "TaskSchedule",
    "UpdateStats",
    "build_minibatch",
    "check_reference_offload",
    "run_epochs",
]


_log = logging.getLogger(__name__)


class TaskSchedule:
    """Draws tasks in an order that is shuffled for every pass through them, some per iteration, each several times.

    Args:
        seed: seed of the orders.
        tasks_per_iteration: number of tasks that an iteration draws.
        group_size: number of episodes of each task.
    """

    def __init__(self, seed: int, *, tasks_per_iteration: int, group_size: int) -> None:
        self._seed, self._tasks_per_iteration, self._group_size = seed, tasks_per_iteration, group_size
        self._order: tuple[int, list[int]] = (-1, [])
        self._sample_counts: tuple[int, dict[str, int]] = (0, {})

    def starts_of(self, tasks: Sequence[Task], iteration: int) -> list[Start]:
        """Returns the starts of an iteration.

        Raises:
            ConfigError: there are no tasks.
        """
        if not tasks:
            raise ConfigError([Problem("tasks", "the list is empty", "use worlds with training tasks")])
        first = (iteration - 1) * self._tasks_per_iteration
        return self._repeat_tasks(
            [self._task_at(tasks, first + offset) for offset in range(self._tasks_per_iteration)], {}
        )

    def sample_more(self, tasks: Sequence[Task], iteration: int, *, turn: int, count: int) -> list[Start]:
        """Samples further starts for an iteration, from `count` tasks at random.

        Args:
            turn: 1, 2, ...: the number of this request in the iteration.
        """
        if turn == 1 or self._sample_counts[0] != iteration:
            sample_counts: dict[str, int] = {}
            self._sample_counts = (iteration, sample_counts)
            self._repeat_tasks(
                [start.task for start in self.starts_of(tasks, iteration)[:: self._group_size]], sample_counts
            )
        rng = sample_rng(self._seed, "more tasks", iteration, turn)
        return self._repeat_tasks(
            [tasks[int(index)] for index in rng.integers(len(tasks), size=count)], self._sample_counts[1]
        )

    def _task_at(self, tasks: Sequence[Task], position: int) -> Task:
        epoch, index = divmod(position, len(tasks))
        if self._order[0] != epoch or len(self._order[1]) != len(tasks):
            self._order = (epoch, sample_rng(self._seed, "tasks", epoch).permutation(len(tasks)).tolist())
        return tasks[self._order[1][index]]

    def _repeat_tasks(self, tasks: Sequence[Task], sample_counts: dict[str, int]) -> list[Start]:
        """Returns `group_size` starts of each task; samples of a task that was used before have further numbers."""
        starts = []
        for task in tasks:
            first = sample_counts.get(task.id, 0)
            starts += [Start(task, first + sample) for sample in range(self._group_size)]
            sample_counts[task.id] = first + self._group_size
        return starts


class CheckpointedNetwork:
    """The checkpointed state of one network: a Learner's weights and optimizer moments, or weights alone.

    Raises:
        ConfigError: the optimizer does not resume exactly from a checkpoint.
    """

    def __init__(self, learner: Learner | None, weights: Mapping[str, Tensor] | None = None) -> None:
        self._learner, self._weights = learner, dict(weights or {})
        if learner is not None:
            check_resumes(learner.optimizer_config)

    @property
    def learner(self) -> Learner | None:
        """Returns the Learner, where there is one."""
        return self._learner

    def tensor_groups(self, name: str) -> dict[str, Mapping[str, Tensor]]:
        """Returns named tensors, by the name of their group."""
        if self._learner is None:
            return {name: self._weights}
        return {name: self._learner.trained.named_weights(), f"{name}-optimizer": self._learner.trained.moments()}

    @property
    def optimizer_numbers(self) -> OptimizerNumbers:
        """Returns the numbers that the optimizer keeps for all weights together; empty without a learner."""
        return {} if self._learner is None else self._learner.trained.optimizer_numbers()

    def restore_numbers(self, numbers: OptimizerNumbers) -> None:
        """Restores the numbers of the optimizer.

        A checkpoint of an earlier version has the training weights in place of the averaged weights: they are
        converted.
        """
        if self._learner is not None:
            self._learner.trained.restore_numbers(numbers)
            self._learner.trained.use_averaged()

    def set_progress(self, share: float) -> None:
        """Sets the share of the training that is done, by which learning rates decay."""
        if self._learner is not None:
            self._learner.share = share

    def sync_weights(self) -> None:
        """Completes the weights after they were restored: copies of tied ones, and whole ones of several ranks."""
        if self._learner is not None:
            self._learner.trained.sync_tied_weights()
            self._learner.sync_whole()

    def create_state(self, moments: Iterable[str]) -> None:
        """Lets the optimizer create the state that is to be filled."""
        if self._learner is not None:
            self._learner.trained.create_state({moment.partition("/")[2] for moment in moments})


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Counts and means of the updates in several passes.

    Attributes:
        updates: updates that were applied.
        consecutive_nonfinite: number of the last updates in a row that were not finite, earlier passes included.
        stopped: whether a limit ended the passes.
        tokens: targets learned.
        fed_tokens: real tokens fed.
        skipped: updates that were not finite, and so were not applied.
        means: over the updates: loss, gradient norm, and the objective's metrics.
    """

    updates: int
    consecutive_nonfinite: int
    stopped: bool
    tokens: int = 0
    fed_tokens: int = 0
    skipped: int = 0
    means: Mapping[str, float] = field(default_factory=dict)


def run_epochs(
    learner: Learner,
    sequences: Sequence[TokenSequence],
    *,
    num_epochs: int,
    minibatches: int,
    rng: Generator,
    consecutive_nonfinite: int = 0,
) -> UpdateStats:
    """Trains a learner on these sequences: every pass shuffles them and cuts them into minibatches of nearly equal
    size.

    An update beyond the objective's limit is not applied, and ends all passes. A non-finite update is not applied
    either; `max_nonfinite_steps` of them in a row end the passes. Afterwards the policy has the weights that play
    (`TrainState.learning`).

    Args:
        sequences: token sequences.
        num_epochs: passes.
        minibatches: updates per pass.
        consecutive_nonfinite: number of updates in a row before these that were not finite.
    Raises:
        NothingToLearn: a minibatch has no learned targets.
    """
    sums: dict[str, list[float]] = {}
    order_rng, batch_rng = rng.spawn(2)  # apart, so that how batches are cut does not change what is in them
    updates, skipped, stopped, tokens, fed_tokens = 0, 0, False, 0, 0
    with learner.trained.learning():
        for _ in range(num_epochs):
            order = order_rng.permutation(len(sequences))
            for rows in np.array_split(order, min(minibatches, len(sequences))):
                metrics = learner.update(build_minibatch(learner, sequences, rows.tolist(), rng=batch_rng))
                stopped = metrics.stopped
                consecutive_nonfinite = consecutive_nonfinite + 1 if metrics.skipped else 0
                stats = dict(metrics.stats)
                fed_tokens += 0 if stopped else metrics.fed
                skipped += metrics.skipped
                if stopped or metrics.skipped:
                    learner.updates -= 1
                else:
                    updates, tokens = updates + 1, tokens + metrics.tokens
                    stats |= {"loss": metrics.loss, "grad_norm": metrics.grad_norm, "lr": metrics.lr}
                for name, value in stats.items():
                    sums.setdefault(name, []).append(value)
                if stopped or consecutive_nonfinite >= learner.config.max_nonfinite_steps:
                    break
            if stopped or consecutive_nonfinite >= learner.config.max_nonfinite_steps:
                break
    learner.sync_whole()
    means = {name: float(np.mean(values)) for name, values in sums.items()}
    return UpdateStats(
        updates, consecutive_nonfinite, stopped, tokens, fed_tokens, skipped, {**means, "stopped": float(stopped)}
    )


def build_minibatch(
    learner: Learner, sequences: Sequence[TokenSequence], selected: Sequence[int], *, rng: Generator
) -> list[Batch]:
    """Builds the micro-batches of one update in the learner's layout; over several ranks those of this rank."""
    max_tokens = learner.config.max_forward_tokens
    if learner.ranks.mesh.size > 1:
        return learner.batch_rows(sequences, deal_rows(learner, sequences, selected))
    if learner.layout == "packed" and all(sequences[index].parent is None for index in selected):
        lengths = [sequences[index].feed for index in selected]
        rows = pack_rows(lengths, max(max_tokens, *lengths))
        return [collate_packed(sequences, [[selected[position] for position in row]]) for row in rows]
    return build_batches(sequences, selected, max_tokens=max_tokens, rng=rng, sharing=learner.sharing)


def deal_rows(learner: Learner, sequences: Sequence[TokenSequence], selected: Sequence[int]) -> list[Row]:
    """Orders the rows of an update so that the shares of data ranks, neighbors of equal number, are equal work.

    Sequences with a common prefix are neighbors where rows are shared. Otherwise each rank gets short and long ones.
    """
    lengths = [sequences[index].feed for index in selected]
    if learner.layout == "packed" and all(sequences[index].parent is None for index in selected):
        rows = pack_rows(lengths, max(learner.config.max_forward_tokens, *lengths))
        return [[selected[position] for position in row] for row in rows]
    if learner.sharing is not None:
        return [[index] for index in sorted(selected, key=lambda index: (sequences[index].ids.tobytes(), index))]
    dp = learner.ranks.mesh.dp
    shares = split_over_ranks([[index] for index in selected], dp)
    capacities = [len(share) for share in shares]
    dealt: list[list[Row]] = [[] for _ in shares]
    for position in np.argsort(lengths, kind="stable").tolist():
        open_ranks = [rank for rank in range(dp) if len(dealt[rank]) < capacities[rank]]
        dealt[min(open_ranks, key=lambda rank: len(dealt[rank]))].append([selected[position]])
    return [row for share in dealt for row in share]


def check_reference_offload(*, device_type: str, adapter: str | None) -> list[Problem]:
    """Returns the reasons why a reference gains nothing from main memory; empty if it does.

    Args:
        device_type: type of the device that trains, as "cuda".
        adapter: kind of the adapter that is trained; None: all weights are.
    """
    if device_type == "cpu":
        message = "a reference of a policy on the CPU is in main memory already, so nothing would be gained"
        return [Problem("train.offload", message, "leave it out, or train on a device: --device cuda")]
    if adapter is not None:
        message = "a reference below an adapter shares its weights with the policy, so nothing would be gained"
        return [Problem("train.offload", message, "set it to 'optimizer', or leave it out")]
    return []


class HasWeights(Protocol):
    """Weights by name: a module, or what a method changes itself."""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Returns the weights with their names."""
        ...


Columns = Mapping[str, NDArray[np.generic]]
Log = Callable[[Mapping[str, object]], None]
LearnerFactory = Callable[[Policy, Objective, str], Learner]


class PlayFunction(Protocol):
    """Plays starts with a policy in an iteration, at most `horizon` steps each."""

    def __call__(
        self,
        policy: Policy,
        starts: Sequence[Start],
        iteration: int,
        /,
        *,
        parents: Mapping[str, Trajectory],
        horizon: int | None,
    ) -> Iterable[Trajectory]: ...


@dataclass(frozen=True, slots=True)
class RLSpec:
    """The specification of an RL training; its `repr` tells one training from another.

    Args:
        method: its name.
        config: settings that all methods share.
        objective: of the policy.
        critic: of the values, where there are any: minimized by a separate critic, or during warm-up.
        reference: whether log-probabilities under the initial policy are scored.
        action_level: whether actions are sampled as wholes among those that the world lists (`rl/candidates.py`).
        candidate_divisor: what the log-probability of a listed action is divided by.
        settings: of the method, as text.
        on_start: creates the other networks of a method, when its training begins.
        single_update_objective: minimized in place of `objective` where an iteration has one update, whose forward
            gives the log-probabilities before it: they are not scored first. None: they always are, as with optimizers
            that average weights.
    """

    method: str
    config: RLConfig
    objective: Objective
    critic: Objective | None = None
    reference: bool = False
    action_level: bool = False
    settings: str = ""
    on_start: Callable[[PolicyTrainer], None] | None = field(default=None, repr=False)
    single_update_objective: Objective | None = field(default=None, repr=False)
    candidate_divisor: CandidateDivisor = field(default="words", repr=False)  # part of `settings`, where it differs


class PolicyTrainer:
    """Trains a policy by acting; see the module. Created by `Run.train_rl`.

    Args:
        policy: unchanged; a copy is trained. With `offload="reference"` it is moved into main memory.
        spec: objective, critic and settings.
        build_learner: builds a Learner from a policy, an objective and a name, which sets its seed and learning rate.
        play: plays starts with a policy in an iteration.
        checkpointer: saves and loads checkpoints.
        log: appends numbers to the run's metrics.
        save_samples: is called with the advantages of two episodes, for inspection (`rl/diagnostics.py`); None: not.
        release_player: is called before an update, which replaces the weights that play: gives back the memory of what
            plays; None: not. It is not called where rollouts are prefetched meanwhile.
    Attributes:
        learner: of the policy.
        critic: learner of a separate critic, or None.
        iteration: the current iteration.
        horizon: step limit of the episodes that are begun from now on, or launched ahead; None: the world's.
        truncate_history: returns the prompt that agents read where a conversation is full (`ScoringConfig`); None: such
            episodes are over.
        parents: by id, the episodes that those of this iteration branch from.
    """

    truncate_history: HistoryTruncation | None = None

    def __init__(
        self,
        policy: Policy,
        spec: RLSpec,
        *,
        seed: int,
        build_learner: LearnerFactory,
        play: PlayFunction,
        checkpointer: Checkpointer,
        log: Log,
        save_samples: Log | None = None,
        release_player: Callable[[], None] | None = None,
    ) -> None:
        config = spec.config
        if spec.action_level:
            check_branches(policy.model)
        self.spec, self.initial_policy, self.iteration, self.horizon = spec, policy, 0, config.horizon
        self._seed, self._play, self._checkpointer, self._log, self._build_learner = (
            seed,
            play,
            checkpointer,
            log,
            build_learner,
        )
        self._save_samples, self._release_player = save_samples, release_player
        temperature = 1.0 if spec.action_level else config.temperature  # a choice has its own
        sampling_objective = replace(spec.objective, temperature=temperature)
        self.learner = build_learner(policy.clone(), sampling_objective, "policy")
        self._scores_policy = True
        if spec.single_update_objective is not None and self._update_gives_logprobs():
            self._scores_policy = False
            self.learner.set_objective(replace(spec.single_update_objective, temperature=temperature))
        self.critic: Learner | None = None
        if spec.critic is not None and config.critic == "separate":
            self.critic = build_learner(policy.clone(), spec.critic, "critic")
        self._networks: dict[str, CheckpointedNetwork] = {"policy": CheckpointedNetwork(self.learner)}
        if self.critic is not None:
            self._networks["critic"] = CheckpointedNetwork(self.critic)
        self.policy = replace(self.learner.policy, version=policy.version)
        self._metrics: dict[str, float] = {}
        self.parents: dict[str, Trajectory] = {}
        self._degenerate_batches = DegenerateBatchMonitor()
        self._schedule = TaskSchedule(
            seed, tasks_per_iteration=config.tasks_per_iteration, group_size=config.group_size
        )
        self._current_starts: tuple[Sequence[Task], list[Start]] = ((), [])
        self._prefetcher: RolloutPrefetcher | None = None
        self._pending_prefetches: Sequence[Mapping[str, Any]] = ()
        self._totals = {"episodes": 0, "env_steps": 0, "updates": 0}
        self._consecutive_nonfinite: dict[str, int] = {}  # by network, how many of its last updates were not finite
        if config.prefetch_rollouts:
            self._prefetcher = RolloutPrefetcher(policy, self._play_prefetched, depth=config.max_policy_lag)
            for name, copy in zip(self._names_of_copies(), self._prefetcher.policies, strict=True):
                self.track_weights(name, copy.model)
        if spec.on_start is not None:
            spec.on_start(self)
        self._offloads_reference = self._check_reference_offload()
        if self._offloads_reference:
            policy.to("cpu")

    def _update_gives_logprobs(self) -> bool:
        """Returns whether the update's forward computes what scoring before it would."""
        config = self.spec.config
        return config.ppo_epochs * config.minibatches == 1 and not self.learner.trained.averages

    def _check_reference_offload(self) -> bool:
        """Returns whether the initial policy waits in main memory.

        Raises:
            ConfigError: nothing would be gained.
        """
        if not self.learner.config.offloads_reference:
            return False
        if problems := check_reference_offload(
            device_type=self.learner.device.type, adapter=kind_of(self.initial_policy.model)
        ):
            raise ConfigError(problems)
        return True

    @contextmanager
    def reference_on_device(self) -> Iterator[None]:
        """Moves the initial policy to the learner's device inside the block, where it waits in main memory."""
        if not self._offloads_reference:
            yield
            return
        self.initial_policy.to(self.learner.device)
        try:
            yield
        finally:
            self.initial_policy.to("cpu")

    # ------------------------------------------------------------------ the loop

    def iterations(self) -> Iterator[int]:
        """Yields 1, 2, ... to the last iteration; a resumed training starts at the first iteration that is not
        saved.
        """
        count, config = self.spec.config.iterations, self.spec.config
        for number in range(self._restore() + 1, count + 1):
            self.iteration, self._metrics, self.parents = number, {}, {}
            for network in self._networks.values():
                network.set_progress((number - 1) / count)
            yield number
            self._log({"kind": "practise", "step": number, **self._totals, **self._metrics})
            if number % config.save_every == 0 or number == count:
                self._save(number)

    def next_starts(self, tasks: Sequence[Task], *, turn: int = 0, count: int = 0) -> list[Start]:
        """Returns the starts of this iteration (`rl/trainer.py`).

        Args:
            turn: the number of a further request in one iteration, 1, 2, ...: returns starts of `count` other tasks.
        Raises:
            ConfigError: there are no tasks.
        """
        if turn:
            return self._schedule.sample_more(tasks, self.iteration, turn=turn, count=count)
        self._current_starts = (tasks, self._schedule.starts_of(tasks, self.iteration))
        return self._current_starts[1]

    def rollout(self, starts: Sequence[Start], *, parents: Mapping[str, Trajectory] | None = None) -> list[Trajectory]:
        """Plays the starts with the current policy and returns the trajectories.

        Args:
            parents: by id, the episodes that starts with a branch point branch from.
        """
        parents_by_id = parents or {}
        self.parents |= parents_by_id
        is_whole_iteration = self._prefetcher is not None and starts is self._current_starts[1]
        trajectories = self._take_prefetched(starts) if is_whole_iteration else None
        if trajectories is None:
            trajectories = list(
                self._play(self.policy, starts, self.iteration, parents=parents_by_id, horizon=self.horizon)
            )
        if is_whole_iteration:
            self._launch_prefetches()
        self._totals["episodes"] += len(trajectories)
        self._totals["env_steps"] += sum(len(trajectory.steps) for trajectory in trajectories)
        return trajectories

    def _take_prefetched(self, starts: Sequence[Start]) -> list[Trajectory] | None:
        """Returns the prefetched episodes of this iteration's starts; None where they were not prefetched."""
        prefetcher, tasks = self._prefetcher, self._current_starts[0]
        if prefetcher is None:
            return None
        for pending in self._pending_prefetches:  # these were under way when the resumed training stopped
            iteration = pending["iteration"]
            if iteration >= self.iteration:
                horizon = pending.get("horizon", self.horizon)  # checkpoints of earlier versions do not say
                pending_starts = self._schedule.starts_of(tasks, iteration)
                prefetcher.relaunch(pending["version"], pending_starts, iteration, horizon=horizon)
        self._pending_prefetches = ()
        return prefetcher.take(starts, self.iteration)

    def _launch_prefetches(self) -> None:
        """Starts to play the following iterations that are not under way yet, with the present weights."""
        prefetcher, tasks = self._prefetcher, self._current_starts[0]
        if prefetcher is None:
            return
        last = min(self.iteration + prefetcher.depth, self.spec.config.iterations)
        for iteration in range(self.iteration + 1, last + 1):
            if not prefetcher.is_launched(iteration):
                starts = self._schedule.starts_of(tasks, iteration)
                prefetcher.launch(self.policy, starts, iteration, horizon=self.horizon)

    def _play_prefetched(
        self, policy: Policy, starts: Sequence[Start], iteration: int, /, *, horizon: int | None
    ) -> Iterable[Trajectory]:
        return self._play(policy, starts, iteration, parents={}, horizon=horizon)

    def _names_of_copies(self) -> list[str]:
        """Returns the names of the networks that play ahead."""
        depth = 0 if self._prefetcher is None else self._prefetcher.depth
        return [f"ahead-{index}" if index else "ahead" for index in range(depth)]

    def _fit_prefetcher(self, groups: Container[str]) -> None:
        """Plays as far ahead as the resumed checkpoint did.

        Version 0.1 played one iteration ahead whatever `max_policy_lag` allowed, so its checkpoints hold one copy.
        """
        *_, last_name = self._names_of_copies() or [""]
        if self._prefetcher is None or "ahead" not in groups or last_name in groups:
            return
        names = self._names_of_copies()
        num_stored = next(index for index, name in enumerate(names) if name not in groups)
        _log.warning(
            "the checkpoint was made with rollouts %d iteration ahead: training continues like that, and "
            "max_policy_lag %d only limits the age of episodes",
            num_stored,
            self.spec.config.max_policy_lag,
        )
        for name in names[num_stored:]:
            del self._networks[name]
        self._prefetcher.reduce_depth(num_stored)

    def wait_for_prefetches(self) -> None:
        """Waits until the iterations that were launched ahead have been played, except on the thread that plays them.

        Ranks play in the order in which they were asked to, so that each rank's share belongs to the same play.
        """
        if self._prefetcher is not None:
            self._prefetcher.wait()

    @property
    def is_closing(self) -> bool:
        """Returns whether this thread plays ahead for a training that ends, so that nobody needs what it plays."""
        return self._prefetcher is not None and self._prefetcher.is_closing

    def close(self) -> None:
        """Stops prefetching."""
        if self._prefetcher is not None:
            self._prefetcher.close()

    def score(
        self, trajectories: Sequence[Trajectory], *, rewards: Rewards | None = None, final: bool = False
    ) -> ScoredRollout:
        """Scores trajectories with policy, critic and reference.

        Args:
            rewards: returns the reward of each step; None: the environment's rewards.
            final: whether rewards judge an episode as it ended, so that nothing follows where the horizon cut it.
        Raises:
            NothingToLearn: no episode can be learned from, or too many could not be scored.
        """
        policy = self.policy
        release_heap(policy.parameters())
        sequences = flatten(
            trajectories, policy.dialect, instructions=lambda task: "", context=policy.context + 1, stops=True
        ).sequences
        min_version = policy.version - self.spec.config.max_policy_lag
        batch, report = build_rollout_batch(trajectories, sequences, rewards=rewards, min_version=min_version)
        if final:
            batch = replace(batch, ended=np.where(batch.ended == TRUNCATED, CUT_OFF, batch.ended))
        self._metrics |= measure_episodes(trajectories, report)
        with self.reference_on_device() if self.spec.reference else nullcontext():
            return score_rollout(self.scoring_config, trajectories, sequences, batch=batch, report=report)

    @property
    def scoring_config(self) -> ScoringConfig:
        """Returns the models that score a rollout, and how."""
        spec, config, train = self.spec, self.spec.config, self.learner.config
        dtype = torch.bfloat16 if train.dtype == "bfloat16" else torch.float32
        return ScoringConfig(
            self.policy,
            Sampling(config.temperature, config.top_k),
            self.initial_policy if spec.reference else None,
            self.value_policy,
            config.restrict_to_admissible,
            spec.action_level,
            train.max_forward_tokens,
            dtype,
            self.truncate_history,
            self.learner.sharing,
            self.learner.ranks,
            self._scores_policy,
        )

    @property
    def value_policy(self) -> Policy | None:
        """Returns the policy that estimates values: the critic's, the policy itself, or None."""
        if self.spec.critic is None:
            return None
        return self.policy if self.critic is None else self.critic.policy

    def update(self, rollout: ScoredRollout, advantages: Advantages, **extra_columns: NDArray[np.generic]) -> None:
        """Trains on a scored rollout with these advantages, and with further columns `[P]` that the objective reads.

        During the first `critic_warmup` iterations only values are learned. Where no episode gives a gradient (all
        groups have equal rewards, or all episodes were cut and masked), the weights stay, and the iteration is counted.

        Raises:
            NothingToLearn: too many iterations in a row gave no gradient; the message says why.
            NonFinite: too many updates in a row were not finite.
        """
        columns = {"advantages": advantages.advantage, "returns": advantages.returns, **extra_columns}
        release_heap(self.policy.parameters())
        self._metrics |= measure_tokens(rollout.batch, rollout.token_outputs, columns, version=self.policy.version)
        self._metrics |= {name: float(count) for name, count in advantages.counts.items()}
        if self._save_samples is not None and is_sampled_iteration(self.iteration, self.spec.config.iterations):
            self._save_samples(
                sample_credit(rollout, advantages, iteration=self.iteration, decode=self.policy.tokenizer.decode)
            )
        learned_mask = (
            np.ones(rollout.batch.num_tokens, np.bool_) if advantages.learned_mask is None else advantages.learned_mask
        )
        is_trained = learned_mask.any() and bool(np.any(advantages.advantage[learned_mask]))
        self._degenerate_batches.record(
            rollout.batch, advantages, is_trained=is_trained or self.spec.critic is not None
        )
        self._metrics["idle"] = float(self._degenerate_batches.count > 0)
        self._degenerate_batches.check(self._metrics.get("success", 0.0))
        if self._degenerate_batches.count == 0:
            if self._release_player is not None and self._prefetcher is None:
                self._release_player()
            self._update_networks(rollout, columns, learned_mask)
        release_heap(self.policy.parameters())
        self.advance_version()

    def _update_networks(self, rollout: ScoredRollout, columns: Columns, learned_mask: NDArray[np.bool_]) -> None:
        """Trains critic and policy on the rollout's sequences."""
        rollout_columns: dict[str, NDArray[Any]] = {
            **({"old": rollout.old} if "old" in rollout.token_outputs else {}),
            "behaviour": rollout.batch.logp,
            "action": rollout.batch.action,
            "span": rollout.batch.span,
            **{name: rollout.token_outputs[name] for name in ("reference",) if name in rollout.token_outputs},
            **({"old_values": rollout.values} if "values" in rollout.token_outputs else {}),
        }
        sequences = add_columns(
            rollout.sequences, rollout.batch, {**rollout_columns, **columns}, learned_mask=learned_mask
        )
        policy_sequences = add_candidates(rollout.trajectories, sequences) if self.spec.action_level else sequences
        values, is_warmup = self.spec.critic, self.iteration <= self.spec.config.critic_warmup
        if self.critic is not None:
            self._add_stats("critic_", self._train_network(self.critic, sequences, "critic"))
        if not is_warmup or values is None:
            self._add_stats("", self._train_network(self.learner, policy_sequences, "policy"))
        elif self.critic is None:
            with self.learner.with_objective(values):
                self._add_stats("critic_", self._train_network(self.learner, sequences, "critic"))

    def advance_version(self) -> None:
        """Raises the policy's version, so that later episodes are distinguished from earlier ones."""
        self.policy = replace(self.learner.policy, version=self.policy.version + 1)

    @property
    def metrics(self) -> Mapping[str, float]:
        """Returns the numbers of this iteration so far."""
        return self._metrics

    def add_metrics(self, values: Mapping[str, float]) -> None:
        """Adds numbers of a method to those of this iteration."""
        self._metrics |= values

    def _train_network(self, learner: Learner, sequences: Sequence[Any], name: str) -> UpdateStats:
        rng = sample_rng(self._seed, name, self.iteration)
        config = self.spec.config
        stats = run_epochs(
            learner,
            sequences,
            num_epochs=config.ppo_epochs,
            minibatches=config.minibatches,
            rng=rng,
            consecutive_nonfinite=self._consecutive_nonfinite.get(name, 0),
        )
        self._consecutive_nonfinite[name] = stats.consecutive_nonfinite
        self._totals["updates"] += stats.updates
        for metric, count in (("trained", stats.tokens), ("fed", stats.fed_tokens), ("skipped", stats.skipped)):
            self._metrics[metric] = self._metrics.get(metric, 0) + count
        if stats.consecutive_nonfinite >= learner.config.max_nonfinite_steps:
            raise NonFinite(
                f"{stats.consecutive_nonfinite} consecutive updates of the {name} were not finite, "
                f"up to iteration {self.iteration}",
                expected=f"at most {learner.config.max_nonfinite_steps - 1} (train.max_nonfinite_steps)",
                hint="lower --train.lr, or check rewards and log-probabilities of that iteration's episodes",
            )
        return stats

    def _add_stats(self, prefix: str, stats: UpdateStats) -> None:
        self._metrics |= {f"{prefix}{name}": value for name, value in stats.means.items()}
        clip_shares = [stats.means[name] for name in ("clip_low", "clip_high") if name in stats.means]
        self._metrics |= {f"{prefix}clipped": sum(clip_shares)} if clip_shares else {}

    def should_evaluate(self) -> bool:
        """Returns whether the policy is to be evaluated after this iteration."""
        interval, number = self.spec.config.measure_every, self.iteration
        return number == self.spec.config.iterations or (interval > 0 and number % interval == 0)

    # ------------------------------------------------------------------ networks of a method

    def add_network(self, name: str, policy: Policy, objective: Objective) -> Learner:
        """Adds a network that learns (such as a Q function); it is saved and restored with the rest."""
        learner = self._build_learner(policy, objective, name)
        self._networks[name] = CheckpointedNetwork(learner)
        return learner

    def update_network(self, name: str, rollout: ScoredRollout, columns: Columns) -> None:
        """Trains an added network on a scored rollout."""
        learner = self._networks[name].learner
        if learner is None:
            raise ConfigError(f"network {name!r} cannot be trained: it follows another network")
        sequences = add_columns(rollout.sequences, rollout.batch, {"action": rollout.batch.action, **columns})
        self._add_stats(f"{name}_", self._train_network(learner, sequences, name))

    def track_weights(self, name: str, module: HasWeights) -> None:
        """Tracks weights that a method changes itself (a target network) in checkpoints, except those below an
        adapter.
        """
        frozen_pointers = {
            weight.data_ptr() for weight in self.learner.policy.model.parameters() if not weight.requires_grad
        }
        tracked = {
            weight_name: weight
            for weight_name, weight in module.named_parameters()
            if weight.data_ptr() not in frozen_pointers
        }
        self._networks[name] = CheckpointedNetwork(None, tracked)

    # ------------------------------------------------------------------ going on after a stop

    def _save(self, number: int) -> None:
        groups = {
            group: tensors
            for name, network in self._networks.items()
            for group, tensors in network.tensor_groups(name).items()
        }
        values = {
            "iteration": number,
            "totals": self._totals,
            "version": self.policy.version,
            "idle": self._degenerate_batches.count,
            "why_idle": dict(self._degenerate_batches.why),
            "broken": self._consecutive_nonfinite,
            "ahead": [] if self._prefetcher is None else self._prefetcher.describe_pending(),
            "numbers": {name: network.optimizer_numbers for name, network in self._networks.items()},
            "updates": {
                name: network.learner.updates for name, network in self._networks.items() if network.learner is not None
            },
        }
        self._checkpointer.save(number, CheckpointContent(groups, values))

    def _restore(self) -> int:
        """Restores the newest checkpoint; returns its iteration, 0 where there is none."""
        stored = self._checkpointer.open()
        if stored is None:
            return 0
        self._fit_prefetcher(stored.groups)
        for name, network in self._networks.items():
            network.create_state(stored.groups.get(f"{name}-optimizer", ()))
        targets = {
            group: tensors
            for name, network in self._networks.items()
            for group, tensors in network.tensor_groups(name).items()
        }
        saved = self._checkpointer.load(stored.path, into=targets, groups=tuple(targets))
        values = stored.values if saved is None else saved.values
        for name, updates in values["updates"].items():
            learner = self._networks[name].learner
            if learner is not None:
                learner.updates = updates
        for name, numbers in values.get("numbers", {}).items():  # checkpoints of earlier versions have none
            self._networks[name].restore_numbers(numbers)
        for network in self._networks.values():
            network.sync_weights()
        self._totals.update(values["totals"])
        self.policy = replace(self.learner.policy, version=values["version"])
        pending = values["ahead"]
        if isinstance(pending, dict):  # checkpoints of earlier versions have one, or none
            pending = [pending] if pending else []
        self._pending_prefetches = sorted(pending, key=lambda prefetch: int(prefetch["iteration"]))
        self._degenerate_batches = DegenerateBatchMonitor(
            int(values["idle"]), values.get("why_idle")
        )  # checkpoints of earlier versions do not say why
        self._consecutive_nonfinite = {name: int(count) for name, count in values.get("broken", {}).items()}
        self.iteration = int(values["iteration"])
        return self.iteration
