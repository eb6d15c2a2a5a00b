"""A backend whose episodes, searches and labelings run on a cluster, and whose learning happens in this
process.

    this process                                         players (`ray_player`), wherever Ray has free resources
    policy -> files, each put once  --- object store --> weights of a version, an engine, worlds
    starts (task, sample)           --- slices -------->
    the store                       <-- its lines ------ episodes, as they end

Episodes, their names and their random streams are those of `LocalBackend`, and so are the keys of stages: a run
may start here and continue there. Only the engines' counts besides written tokens (`computed`, `shared`,
`padded`) depend on which episodes share an engine.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from evolvent.agents.base import Agent
from evolvent.agents.candidates import CandidateAgent
from evolvent.agents.language import LanguageAgent
from evolvent.backend import RunStage
from evolvent.errors import ConfigError, ErrorRecord, Problem
from evolvent.models.policy import Policy
from evolvent.reward.labelling import LabellingConfig
from evolvent.rollout.episode import BranchedStarts, BranchOrigins, FailureCounts, Limits
from evolvent.rollout.search import SearchOutcome
from evolvent.scale.local_backend import LocalBackend, log_search
from evolvent.scale.ray_players import FinishedItem, PlayerPool
from evolvent.scale.ray_wire import agent_to_row, start_to_row, trajectory_from_line, trajectory_to_line
from evolvent.scale.ray_work import ClusterJob, WorkItem
from evolvent.search.records import Spent
from evolvent.search.settings import ForestConfig, SearchConfig
from evolvent.trajectory import Json, Start, Trajectory, trajectory_name

__all__ = ["RayBackend", "collect_on_cluster"]

_log = logging.getLogger(__name__)
_MAX_SEARCHES, _MAX_TREES = 64, 4  # as in `scale.local_backend`


def collect_on_cluster(
    players: PlayerPool,
    starts: Sequence[Start] | BranchedStarts,
    agent: Agent,
    *,
    seed: int = 0,
    slots: int = 192,
    limits: Limits | None = None,
    prefix: str = "",
    usage: Counter[str] | None = None,
) -> Generator[Trajectory, None, None]:
    """Plays every start on a cluster; yields trajectories in order of completion, the same ones as `collect`.

    An episode that kills its players ends in an error without a score; the others go on.

    Args:
        players: The players of the cluster.
        starts: Starts of episodes.
        agent: The agent.
        seed: Seed of the episodes.
        slots: Simultaneous episodes of a player.
        limits: Deadlines and horizon of the environments.
        prefix: Prefix of the ids, `prefix/task/sample`.
        usage: Counter to which the engines' counts are added.
    Raises:
        ConfigError: an agent that cannot be sent; two starts of one id. EndpointError: the cluster is gone; see
            `PlayerPool.run_job`.
    """
    starts, origins = (
        (starts.starts, starts.origins) if isinstance(starts, BranchedStarts) else (starts, BranchOrigins())
    )
    starts_by_name = {trajectory_name(start, prefix): start for start in starts}
    if len(starts_by_name) < len(starts):
        raise ConfigError(
            "two starts would produce the same trajectory id",
            value=f"{len(starts)} starts",
            expected=f"{len(starts_by_name)} ids",
            hint="give each sample of a task a different number",
        )
    items = [
        WorkItem(name, start_to_row(start), parent=start.branch.parent if start.branch else None)
        for name, start in starts_by_name.items()
    ]
    policy = getattr(agent, "policy", None)
    head = {
        "do": "play",
        "agent": agent_to_row(agent),
        "seed": seed,
        "name": prefix,
        "limits": asdict(limits or Limits()),
    }
    job = ClusterJob(
        head,
        items,
        {} if policy is None else {"policy": policy},
        slots,
        lambda parent: trajectory_to_line(origins.parents[parent]),
    )
    with closing(players.run_job(job, usage=usage)) as finished_items:
        for finished in finished_items:
            origins.replayed += int(finished.info.get("replayed", 0))
            yield _to_trajectory(finished, starts_by_name[finished.item.key])


def _to_trajectory(finished: FinishedItem, start: Start) -> Trajectory:
    """Returns the trajectory of a start; an error where every player that had it was lost."""
    if finished.line:
        return trajectory_from_line(finished.line, start)
    error = ErrorRecord("EnvLost", "every process that played it was lost", 0, True)
    return Trajectory(
        finished.item.key,
        start.task,
        (),
        ended_by="error",
        error=error,
        sample=start.sample,
        branch=start.branch,
        group=start.task.id,
    )


@dataclass(kw_only=True)
class RayBackend(LocalBackend):
    """A `LocalBackend` whose episodes, searches and labelings run on a cluster; learning stays in this process.

    Args:
        players: The players (`ray_players.open_players`). The caller closes them.
        slots: Simultaneous episodes of each player.
    """

    players: PlayerPool

    def _play_episodes(
        self,
        agent: LanguageAgent | CandidateAgent,
        starts: Sequence[Start] | BranchedStarts,
        stage: RunStage,
        *,
        horizon: int | None,
        failures: FailureCounts | None,
    ) -> Generator[Trajectory, None, None]:
        """Plays on the cluster the episodes that the agent would play here; stores nothing."""
        counts = FailureCounts() if failures is None else failures
        limits = self.limits if horizon is None else replace(self.limits, horizon=horizon)
        usage_counts: Counter[str] = Counter()
        with self._lock:
            playing = collect_on_cluster(
                self.players,
                starts,
                agent,
                seed=stage.seed,
                slots=self.slots,
                limits=limits,
                prefix=stage.name,
                usage=usage_counts,
            )
            with closing(playing) as trajectories:
                for trajectory in trajectories:
                    self._take_usage(usage_counts)
                    counts.record(trajectory)
                    yield trajectory
            self._take_usage(usage_counts)
        if failures is None and (description := counts.describe()):
            _log.warning("%s", description)

    def search(
        self,
        policy: Policy,
        starts: Sequence[Start],
        stage: RunStage,
        *,
        search: SearchConfig,
        value_model: Policy | None = None,
    ) -> Iterator[Trajectory]:
        """Searches from the starts on the cluster; each result is stored before it is yielded."""
        _check_sendable(search, SearchConfig, ForestConfig)
        starts_by_name = {trajectory_name(start, stage.name): start for start in starts}
        items = [
            WorkItem(name, {**start_to_row(start), "tree": index < _MAX_TREES})
            for index, (name, start) in enumerate(starts_by_name.items())
        ]
        policies = (
            {"policy": policy}
            if value_model is None or value_model is policy
            else {"policy": policy, "judge": value_model}
        )
        head = {
            "do": "search",
            "how": search.model_dump(mode="json"),
            "forest": isinstance(search, ForestConfig),
            "seed": stage.seed,
            "name": stage.name,
        }
        job = ClusterJob(head, items, policies, min(self.slots, _MAX_SEARCHES))
        with self._lock:
            for count, finished in enumerate(self._run_job(job), 1):
                outcome = _to_outcome(finished, starts_by_name[finished.item.key])
                stage.store.append(outcome.trajectory)
                log_search(stage.folder, outcome)
                if count % 20 == 0 or count == len(starts):
                    stage.log({"step": count, "of": len(starts), "episodes": count})
                yield outcome.trajectory

    def label(
        self, policy: Policy, data: Sequence[Trajectory], stage: RunStage, *, labeler: LabellingConfig
    ) -> Iterator[tuple[str, list[dict[str, Json]]]]:
        """Labels trajectories on the cluster, in order of completion."""
        _check_sendable(labeler, LabellingConfig)
        items = [WorkItem(trajectory.id, {}, trajectory_to_line(trajectory)) for trajectory in data]
        job = ClusterJob(
            {"do": "label", "how": labeler.model_dump(mode="json"), "seed": stage.seed},
            items,
            {"policy": policy},
            min(self.slots, _MAX_SEARCHES),
        )
        with self._lock:
            for count, finished in enumerate(self._run_job(job), 1):
                problem = (
                    "every process that labeled it was lost" if "lost" in finished.info else finished.info.get("error")
                )
                if problem is not None:
                    _log.warning("not labeled: %s: %s", finished.item.key, problem)
                if count % 20 == 0 or count == len(data):
                    stage.log({"step": count, "of": len(data), "episodes": count})
                yield finished.item.key, list(finished.info.get("rows", ()))

    def _run_job(self, job: ClusterJob) -> Iterator[FinishedItem]:
        usage_counts: Counter[str] = Counter()
        with closing(self.players.run_job(job, usage=usage_counts)) as finished_items:
            for finished in finished_items:
                self._take_usage(usage_counts)
                yield finished
        self._take_usage(usage_counts)

    def _take_usage(self, usage_counts: Counter[str]) -> None:
        """Moves the counts of the cluster's engines to the local counts."""
        for name, count in usage_counts.items():
            if hasattr(self._usage, name):
                setattr(self._usage, name, getattr(self._usage, name) + count)
        usage_counts.clear()


def _check_sendable(settings: object, *kinds: type) -> None:
    """Raises an error for settings that another process would read as other settings."""
    if type(settings) not in kinds:
        allowed = " or ".join(f"a {kind.__name__}" for kind in kinds)
        raise ConfigError([Problem("how", f"{type(settings).__name__} cannot be sent to Ray", allowed)])


def _to_outcome(finished: FinishedItem, start: Start) -> SearchOutcome:
    info: Mapping[str, Any] = finished.info
    if "lost" in info:
        return SearchOutcome(start, _to_trajectory(finished, start))
    return SearchOutcome(
        start,
        trajectory_from_line(finished.line, start),
        Spent(**info["spent"]),
        info["ended_by"],
        info["dropped"],
        tuple(info["answers"]),
        info["passed"],
        info["stopped"],
        info["spared"],
        info["tree"],
        tuple(info["forest"]),
    )
