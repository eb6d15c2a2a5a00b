"""A backend over several ranks: episodes are dealt to ranks, and every update is one update of all ranks.

    every rank: the same method, the same seeds -> starts of an iteration
    its share of the starts -> its engine -> episodes --- lines of the store ---> all ranks, in the order of the starts
    scoring, credit: of the whole batch, the forward passes dealt to ranks
    update: this rank's micro-batches, in the layout of `learn.parallel` -> whole weights again, once per version

Each rank plays with whole weights, whatever part of them it trains: itself, or in players of its own. Episodes, names
and random streams are those of `LocalBackend`. Only the first rank stores them. Ranks exchange lines of the store and
safetensors; nothing is pickled.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.language import LanguageAgent
from evolvent.backend import RunStage
from evolvent.errors import ConfigError, Problem, RankFailed
from evolvent.identity import fingerprint
from evolvent.learn.parallel.ranks import Parallelism, Ranks
from evolvent.models.policy import Policy
from evolvent.reward.labelling import LabellingConfig
from evolvent.rl.trainer import PlayFunction, PolicyTrainer, RLConfig, RLSpec
from evolvent.rollout.episode import BranchedStarts, BranchOrigins, FailureCounts
from evolvent.run import Evaluation, Run, world_code
from evolvent.scale.local_backend import LocalBackend, policy_digest
from evolvent.scale.ray_backend import RayBackend
from evolvent.scale.ray_wire import build_message, parse_message, trajectory_from_line, trajectory_to_line
from evolvent.search.settings import SearchConfig
from evolvent.trajectory import Json, JsonObject, Start, Task, Trajectory, trajectory_name
from evolvent.worlds.base import World

__all__ = [
    "PlayerRanksBackend",
    "RanksBackend",
    "check_agreement",
    "check_practice",
    "deal_starts",
    "list_agreement_facts",
    "open_shared_run",
]

_log = logging.getLogger(__name__)
_SUMMED = ("generated", "computed", "recomputed", "padded", "shared", "forwards")  # counts of engines that add up


def deal_starts(starts: Sequence[Start], num_ranks: int) -> list[list[Start]]:
    """Deals starts to ranks, in shares whose sizes differ by at most 1; a rank may get none.

    Samples of one task are neighbors and stay together where that is possible, because an engine computes their prompt
    once. Tasks that are played once each are dealt in turn, so that each rank gets easy and hard ones.

    >>> from evolvent.trajectory import Task
    >>> tasks = [Task("w", "t", {"n": n}) for n in range(3)]
    >>> [[start.task.spec["n"] for start in share] for share in deal_starts([Start(task) for task in tasks], 2)]
    [[0, 2], [1]]
    >>> [len(share) for share in deal_starts([Start(tasks[0], sample) for sample in range(3)], 2)]
    [2, 1]
    """
    if len({start.task.id for start in starts}) == len(starts):
        return [list(starts[rank::num_ranks]) for rank in range(num_ranks)]
    size, remainder = divmod(len(starts), num_ranks)
    ends = [size * (rank + 1) + min(rank + 1, remainder) for rank in range(num_ranks)]
    return [list(starts[first:end]) for first, end in zip([0, *ends[:-1]], ends, strict=True)]


def check_agreement(ranks: Ranks, facts: Mapping[str, str]) -> None:
    """Checks that all ranks are about to do the same; all ranks call it.

    Args:
        ranks: this process among the ranks.
        facts: digests of everything that must be equal, by what it is.
    Raises:
        ConfigError: facts of a rank differ from those of the first rank.
    """
    first, *others = [json.loads(payload) for payload in ranks.gather(json.dumps(dict(facts)).encode())]
    for rank, other in enumerate(others, 1):
        differing = sorted(name for name in {*first, *other} if first.get(name) != other.get(name))
        if differing:
            message = f"rank {rank} has {', '.join(differing)} that differ from those of rank 0"
            hint = "use worlds that every process builds alike from their names, and the same files on every host"
            raise ConfigError([Problem("parallel", message, hint)])


def check_practice(
    config: RLConfig,
    parallelism: Parallelism,
    *,
    action_level: bool = False,
    is_limited: bool = False,
    needs_logits: bool = False,
) -> None:
    """Checks that reinforcement learning with these settings can run in a layout of several ranks.

    Args:
        config: the settings of the practice.
        parallelism: the layout.
        action_level: whether actions are chosen as wholes among listed ones.
        is_limited: whether a limit of the divergence may drop an update.
        needs_logits: whether the loss reads full distributions over the vocabulary.
    Raises:
        ConfigError: it cannot; lists all problems with the nearest setting that works.
    """
    tp, pp, problems = parallelism.tp, parallelism.pp, list[Problem]()
    data_ranks = f"use --parallel.shard {parallelism.mesh.size}"
    if config.critic_warmup and config.critic == "shared":
        message = "a critic on the policy's trunk cannot be trained alone over several ranks"
        problems.append(Problem("rl.practice.critic_warmup", message, "set it to 0, or --rl.practice.critic separate"))
    if action_level and tp * pp > 1:
        message = "listed actions are branches of a row, which need pure data parallelism"
        problems.append(Problem("parallel", message, data_ranks))
    elif (config.top_k or config.restrict_to_admissible) and tp > 1:
        name = "top_k" if config.top_k else "restrict_to_admissible"
        message = f"{name} needs the logits of all tokens, but each rank holds a part of the vocabulary"
        problems.append(Problem("parallel.tp", message, data_ranks))
    if is_limited and pp > 1:
        message = "a limit of the divergence may stop an update early, which pipeline parallelism does not support"
        problems.append(Problem("rl.target_kl", message, f"set it to none, or {data_ranks}"))
    if needs_logits and tp > 1:
        message = "the method needs full distributions, but each rank holds a part of the vocabulary"
        problems.append(Problem("parallel.tp", message, data_ranks))
    if problems:
        raise ConfigError(problems)


@contextmanager
def open_shared_run(ranks: Ranks | None, open_run: Callable[[bool], Run[Policy]]) -> Iterator[Run[Policy]]:
    """Opens a run on every rank; the first one writes it, the others open it after that. None goes on before all have.

    Args:
        ranks: this process among the ranks; None: it is alone.
        open_run: opens the run; is told whether this process writes it.
    """
    is_leader = ranks is None or ranks.is_leader
    if ranks is not None and not is_leader:
        ranks.wait()  # until the first one has recovered the store
    with open_run(is_leader) as run:
        if ranks is not None and is_leader:
            ranks.wait()
        if ranks is not None:
            ranks.wait()  # until all have read the store; it may change then
        yield run


def list_agreement_facts(
    settings: object, worlds_by_name: Mapping[str, World], *, policy: Policy, tasks: Sequence[Task]
) -> dict[str, str]:
    """Returns the digests of what ranks must have in common, by what it is, for `check_agreement`."""
    facts = {"settings": fingerprint(settings), "the weights of the policy": policy_digest(policy)}
    code = world_code(worlds_by_name)
    for name in worlds_by_name:
        ids = [task.id for task in tasks if task.world == name]
        facts[f"tasks or code of world {name!r}"] = fingerprint([code.get(name, ""), ids])
    return facts


@dataclass
class RanksBackend(LocalBackend):
    """A `LocalBackend` of one rank among several, which all call the same operations in the same order.

    Args:
        parallelism: Layout of the trained weights over the ranks.
        ranks: This process among the ranks.
    Raises:
        ConfigError: the ranks have another layout.
    """

    _trainer: PolicyTrainer | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parallelism is None or self.ranks.mesh != self.parallelism.mesh:
            raise ConfigError("the ranks have another layout", value=self.ranks.mesh, expected=self.parallelism)
        # What is played ahead is exchanged while the main thread updates.
        self._play_group = self.ranks.open_side_group(timeout_s=max(1.0, self.parallelism.timeout))

    def _gather(self, payload: bytes) -> list[bytes]:
        """Returns the bytes of every rank, exchanged beside the updates of the main thread."""
        return self.ranks.gather(payload, group=self._play_group)

    def _play_starts(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | BranchedStarts,
        stage: RunStage,
        *,
        horizon: int | None,
        failures: FailureCounts | None = None,
    ) -> Generator[Trajectory, None, None]:
        """Plays this rank's share, and yields the episodes of all ranks in the order of the starts."""
        self._wait_for_prefetches()
        branched = starts if isinstance(starts, BranchedStarts) else BranchedStarts(starts, BranchOrigins())
        counts = FailureCounts() if failures is None else failures
        with self._lock:
            trajectories = self._play_in_shares(agent, branched, stage, horizon=horizon)
            for start in branched.starts:
                trajectory = trajectories[trajectory_name(start, stage.name)]
                if self.ranks.is_leader:
                    stage.store.append(trajectory)
                counts.record(trajectory)
                yield trajectory
        if failures is None and (description := counts.describe()):
            _log.warning("%s", description)

    def _play_in_shares(
        self,
        agent: LanguageAgent | CandidateAgent,
        branched: BranchedStarts,
        stage: RunStage,
        *,
        horizon: int | None,
    ) -> dict[str, Trajectory]:
        """Plays this rank's share of the starts, and returns the episodes of all ranks by id.

        Raises:
            RankFailed: the training ends on some rank, so that what is played ahead is not needed.
        """
        starts_by_name = {trajectory_name(start, stage.name): start for start in branched.starts}
        share = deal_starts(branched.starts, self.ranks.mesh.size)[self.ranks.rank]
        usage_before, replayed_before = self._read_usage(), branched.origins.replayed
        playing = self._play_episodes(
            agent, BranchedStarts(share, branched.origins), stage, horizon=horizon, failures=FailureCounts()
        )
        lines = []
        with closing(playing) as episodes:
            for episode in episodes:
                lines.append(trajectory_to_line(episode))
                if self._is_closing():
                    break
        head = {
            "usage": self._read_usage() - usage_before,
            "replayed": branched.origins.replayed - replayed_before,
            "is_closing": self._is_closing(),
        }
        trajectories: dict[str, Trajectory] = {}
        is_closing = False
        for rank, payload in enumerate(self._gather(build_message(head, lines))):
            rank_head, rank_lines = parse_message(payload)
            is_closing = is_closing or bool(rank_head["is_closing"])
            if rank != self.ranks.rank:
                self._add_usage(rank_head["usage"])
                branched.origins.replayed += rank_head["replayed"]
            for line in rank_lines:
                trajectory = trajectory_from_line(line)
                trajectories[trajectory.id] = replace(trajectory, task=starts_by_name[trajectory.id].task)
        if is_closing:
            raise RankFailed("the training ends before an iteration that was played ahead is needed")
        return trajectories

    def _wait_for_prefetches(self) -> None:
        """Waits for what is played ahead: all ranks play in one order, that in which they were asked to."""
        if self._trainer is not None:
            self._trainer.wait_for_prefetches()

    def _is_closing(self) -> bool:
        return self._trainer is not None and self._trainer.is_closing

    def _make_player(self, stage: RunStage, spec: RLSpec, origins: BranchOrigins) -> PlayFunction:
        """Returns what plays the starts of an iteration, after what was asked for before."""
        play_iteration = super()._make_player(stage, spec, origins)

        def play(
            playing: Policy,
            starts: Sequence[Start],
            iteration: int,
            *,
            parents: Mapping[str, Trajectory],
            horizon: int | None,
        ) -> Iterator[Trajectory]:
            self._wait_for_prefetches()
            yield from play_iteration(playing, starts, iteration, parents=parents, horizon=horizon)

        return play

    def evaluate(
        self,
        policy: Policy,
        stage: RunStage,
        *,
        split: str | None = None,
        search: SearchConfig | None = None,
        value_model: Policy | None = None,
    ) -> tuple[list[Evaluation], list[JsonObject]]:
        """Plays the panel over all ranks, after what was asked for before; see `LocalBackend.evaluate`."""
        self._wait_for_prefetches()
        return super().evaluate(policy, stage, split=split, search=search, value_model=value_model)

    def _read_usage(self) -> Counter[str]:
        return Counter({name: getattr(self._usage, name) for name in _SUMMED})

    def _add_usage(self, counts: Mapping[str, int]) -> None:
        """Adds the counts of another rank's engine to the counts of this one."""
        for name in _SUMMED:
            setattr(self._usage, name, getattr(self._usage, name) + int(counts.get(name, 0)))

    def train_rl(self, policy: Policy, stage: RunStage, *, spec: RLSpec) -> PolicyTrainer:
        """Returns a trainer that plays, scores and updates together with those of the other ranks.

        Raises:
            ConfigError: settings that several ranks, or their layout, cannot run.
        """
        check_practice(
            spec.config,
            self.parallelism or Parallelism(),
            action_level=spec.action_level,
            is_limited=spec.objective.limit is not None,
            needs_logits="logits" in spec.objective.needs,
        )
        self._trainer = super().train_rl(policy, stage, spec=spec)
        return self._trainer

    def search(
        self,
        policy: Policy,
        starts: Sequence[Start],
        stage: RunStage,
        *,
        search: SearchConfig,
        value_model: Policy | None = None,
    ) -> Iterator[Trajectory]:
        """Refuses to search: a search is not dealt to ranks.

        Raises:
            ConfigError: always.
        """
        raise ConfigError([Problem("parallel", "a search cannot be dealt to ranks", "search in one process")])

    def label(
        self, policy: Policy, data: Sequence[Trajectory], stage: RunStage, *, labeler: LabellingConfig
    ) -> Iterator[tuple[str, list[dict[str, Json]]]]:
        """Refuses to label: labeling is not dealt to ranks.

        Raises:
            ConfigError: always.
        """
        raise ConfigError([Problem("parallel", "labeling cannot be dealt to ranks", "label in one process")])

    def save(self, policy: Policy, folder: Path) -> None:
        """Saves a policy on the first rank; the others go on when it is there."""
        if self.ranks.is_leader:
            super().save(policy, folder)
        self.ranks.wait()


@dataclass(kw_only=True)
class PlayerRanksBackend(RanksBackend, RayBackend):
    """A `RanksBackend` whose ranks play their shares in players, each in its own (`open_players`).

    A player that is lost is replaced by its rank, while the other ranks wait.
    """
