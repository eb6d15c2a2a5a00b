"""Teams in worlds: rectangular rollouts for learning, whole episodes for evaluation, records and pictures.

Learning uses arrays and never a `Trajectory`; episodes are converted only for storage, display or comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isnan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, ErrorRecord, WorldError
from evolvent.stats import paired_interval
from evolvent.trajectory import (
    Array,
    EndedBy,
    JsonObject,
    Score,
    Start,
    Step,
    Trajectory,
    sample_rng,
    trajectory_name,
    unscored,
)
from evolvent.worlds.teams.base import (
    Resumable,
    Scene,
    SupportsScenes,
    TeamBatch,
    TeamStep,
    TeamView,
    TeamWorld,
    check_fit,
    episode_of,
)

if TYPE_CHECKING:  # the array rollout lives where it is learned from, and that room needs torch
    from evolvent.marl.rollout import ArrayRollout, TeamPlayer

__all__ = ["TeamCollector", "extract_trajectories", "outcome_row", "play_episodes", "record_scenes", "resume_collector"]


class TeamCollector:
    """Plays a batch continuously, `steps` decisions at a time; episodes continue from one rollout to the next.

    Args:
        batch: The batch; its creator closes it.
        first: Number of the first row's first episode; row e starts with `first + e`. Runs with other seeds use
            other numbers, or the same ones with another `seed` of the draws.
        seed: Seed of the player's draws.
    """

    def __init__(self, batch: TeamBatch, *, first: int = 0, seed: int = 0) -> None:
        self.batch, self.seed = batch, seed
        self.view = batch.reset(first + np.arange(batch.size))
        self.lost = 0  # episodes so far that an environment lost

    def collect(self, player: TeamPlayer, steps: int) -> ArrayRollout:
        """Collects T = `steps` decisions of every row.

        Decisions of an episode that was lost in this rollout are marked `lost` from its first decision here on; those
        of an earlier rollout were learned already and stay.

        Raises:
            ShapeMismatch: a player of other observations or actions. ConfigError: less than one step.
            EnvLost: a row whose environment fails repeatedly.
        """
        from evolvent.marl.rollout import ArrayRollout

        if steps < 1:
            raise ConfigError("number of rollout steps out of range", value=steps, expected="1 or more")
        check_fit(player.spec, self.batch.spec)
        views, decisions, results = [], [], []
        finals: list[tuple[int, int, TeamView]] = []
        lost = np.zeros((steps, self.batch.size), dtype=bool)
        for t in range(steps):
            decision = player.act(self.view, seed=self.seed)
            result = self.batch.step(decision.actions)
            views.append(self.view)
            decisions.append(decision)
            results.append(result)
            for row in result.errors:
                lost[: t + 1, row] |= np.array([view.number[row] == self.view.number[row] for view in views])
                self.lost += 1
            finals += [
                (t, int(row), result.final.select_rows(np.array([index])))
                for index, row in enumerate(result.ended)
                if result.final is not None and result.truncated[row]
            ]
            self.view = result.view
        successes = [result.success for result in results if result.success is not None]
        return ArrayRollout(
            spec=self.batch.spec,
            **_stack_views(views),
            **{name: np.stack([getattr(d, name) for d in decisions]) for name in ("actions", "logp", "value")},
            **{name: np.stack([getattr(r, name) for r in results]) for name in ("reward", "terminated", "truncated")},
            lost=lost,
            success=np.stack(successes) if len(successes) == steps else None,
            last=self.view,
            final=_concatenate_views([view for _, _, view in finals]),
            final_at=np.array([(t, row) for t, row, _ in finals], dtype=np.int64).reshape(-1, 2),
        )

    def snapshot(self) -> Mapping[str, Array]:
        """Returns the state for the next rollout as arrays, for resuming. Raises ConfigError for a batch without
        snapshots.
        """
        if not isinstance(self.batch, Resumable):
            raise ConfigError(
                "the batch cannot be resumed", value=type(self.batch).__name__, expected="a batch with snapshot()"
            )
        return {**self.batch.snapshot(), "collector_lost": np.array(self.lost, dtype=np.int64)}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Restores a snapshot, also in another process. Raises BatchMismatch for another batch, ConfigError as
        `snapshot` does.
        """
        if not isinstance(self.batch, Resumable):
            raise ConfigError(
                "the batch cannot be resumed", value=type(self.batch).__name__, expected="a batch with restore()"
            )
        if "collector_lost" not in state:
            raise BatchMismatch(
                "not the snapshot of a collector", value=sorted(state), expected="a snapshot with collector_lost"
            )
        self.view = self.batch.restore({name: array for name, array in state.items() if name != "collector_lost"})
        self.lost = int(state["collector_lost"])


def resume_collector(
    batch: TeamBatch,
    *,
    first: int,
    running: NDArray[np.float64],
    snapshot: Mapping[str, Array] | None,
    seed: int,
) -> tuple[TeamCollector, NDArray[np.float64]]:
    """Returns a collector in the state of a training, and the returns so far of its running episodes.

    Episodes that were not saved, or that an environment does not replay identically, start again: the training
    continues, but not bit for bit.

    Args:
        batch: The batch.
        first: A number greater than that of every episode so far.
        running: `[E]`, returns so far of the running episodes.
        snapshot: Of the collector; None: its episodes start again.
        seed: Seed of the player's draws.
    """
    collector = TeamCollector(batch, first=first, seed=seed)
    if snapshot is not None:
        try:
            collector.restore(snapshot)
        except WorldError:
            return TeamCollector(batch, first=first, seed=seed), np.zeros(batch.size)
        return collector, running
    return collector, np.zeros(batch.size)


def _stack_views(views: Sequence[TeamView]) -> dict[str, Any]:
    """Returns the arrays of T views with a leading axis `[T]`."""
    stacked: dict[str, Any] = {
        name: np.stack([getattr(view, name) for view in views]) for name in ("observation", "alive", "number", "time")
    }
    for name in ("available", "state"):
        view_arrays = [getattr(view, name) for view in views]
        stacked[name] = None if view_arrays[0] is None else np.stack(view_arrays)
    return stacked


def _concatenate_views(views: Sequence[TeamView]) -> TeamView | None:
    """Joins the rows of many views to one view, or returns None."""
    if not views:
        return None
    arrays: dict[str, Any] = {}
    for name in ("observation", "alive", "number", "time", "available", "state"):
        view_arrays = [getattr(view, name) for view in views]
        arrays[name] = None if view_arrays[0] is None else np.concatenate(view_arrays)
    return TeamView(**arrays)


def play_episodes(
    batch: TeamBatch,
    player: TeamPlayer,
    episodes: int,
    *,
    first: int = 0,
    seed: int = 0,
    greedy: bool = True,
    stage: str = "",
) -> tuple[Trajectory, ...]:
    """Plays whole episodes `first` to `first + episodes - 1`, in order, independent of the size of the batch.

    A lost episode is a trajectory with its error and no score.

    Raises:
        ShapeMismatch: a player of other observations or actions. ConfigError: less than one episode.
        EnvLost: a row whose environment fails again and again.
    """
    if episodes < 1:
        raise ConfigError("number of episodes out of range", value=episodes, expected="1 or more")
    check_fit(player.spec, batch.spec)
    view = batch.reset(first + np.arange(batch.size))
    running: list[list[Step]] = [[] for _ in range(batch.size)]
    finished: dict[int, Trajectory] = {}
    episode_numbers = range(first, first + episodes)
    while len(finished) < episodes:
        actions = player.act(view, seed=seed, greedy=greedy).actions
        result = batch.step(actions)
        for row in range(batch.size):
            if int(view.number[row]) in episode_numbers:
                running[row].append(_record_step(view, actions, result, row))
        for index, row in enumerate(result.ended.tolist()):
            number = int(view.number[row])
            if number in episode_numbers:
                finished[number] = _record_ended(batch, number, running[row], result, index=index, stage=stage)
            running[row] = []
        view = result.view
    return tuple(finished[number] for number in episode_numbers)


def _record_step(view: TeamView, actions: NDArray[Any], result: TeamStep, row: int) -> Step:
    info = {"alive": view.alive[row].tolist()}
    reward = None if row in result.errors else float(result.reward[row])
    return Step(view.observation[row].copy(), np.asarray(actions[row]).copy(), reward, info=info)


def _record_ended(
    batch: TeamBatch, number: int, steps: Sequence[Step], result: TeamStep, *, index: int, stage: str
) -> Trajectory:
    row = int(result.ended[index])
    error = result.errors.get(row)
    success = None if result.success is None else bool(result.success[row])
    ended_by: EndedBy = "error" if error else "world" if result.terminated[row] else "horizon"
    last = np.zeros(0, dtype=np.float32) if result.final is None else result.final.observation[index]
    return _make_trajectory(batch, number, steps, last, ended_by=ended_by, error=error, success=success, stage=stage)


def _make_trajectory(
    batch: TeamBatch,
    number: int,
    steps: Sequence[Step],
    last: NDArray[Any],
    *,
    ended_by: EndedBy,
    error: ErrorRecord | None,
    success: bool | None,
    stage: str,
) -> Trajectory:
    task, sample = episode_of(number, batch.tasks)
    raw = float(sum(step.reward or 0.0 for step in steps))
    score = unscored() if error else Score(raw, None if success is None else float(success), success)
    return Trajectory(
        trajectory_name(Start(task, sample), stage),
        task,
        tuple(steps),
        last,
        ended_by,
        score,
        sample,
        error=error,
        group=task.id,
        meta={"agents": batch.spec.agents},
    )


def extract_trajectories(rollout: ArrayRollout, batch: TeamBatch, *, stage: str = "") -> tuple[Trajectory, ...]:
    """Extracts the episodes that are completely in a rollout, by number: started in it (step 0) and ended in it.

    Args:
        rollout: The rollout.
        batch: The batch from which it was collected.
        stage: Name of the stage, for the ids.
    """
    records = []
    is_ended = rollout.terminated | rollout.truncated | rollout.lost_end
    finals = {(int(t), int(row)): final_index for final_index, (t, row) in enumerate(rollout.final_at)}
    for t, row in np.argwhere(is_ended).tolist():
        begin = t - int(rollout.time[t, row])
        if begin < 0:
            continue
        is_lost = bool(rollout.lost[t, row])
        steps = [
            Step(
                rollout.observation[k, row],
                rollout.actions[k, row],
                None if is_lost else float(rollout.reward[k, row]),
                info={"alive": rollout.alive[k, row].tolist()},
            )
            for k in range(begin, t + 1)
        ]
        final_index = finals.get((t, row))
        last = (
            np.zeros(0, np.float32)
            if final_index is None or rollout.final is None
            else rollout.final.observation[final_index]
        )
        ended_by: EndedBy = "error" if is_lost else "world" if rollout.terminated[t, row] else "horizon"
        error = ErrorRecord("EnvLost", "the environment was lost", int(rollout.time[t, row]), True) if is_lost else None
        success = None if rollout.success is None else bool(rollout.success[t, row])
        number = int(rollout.number[t, row])
        records.append(
            (
                number,
                _make_trajectory(
                    batch, number, steps, last, ended_by=ended_by, error=error, success=success, stage=stage
                ),
            )
        )
    return tuple(record for _, record in sorted(records, key=lambda pair: pair[0]))


def outcome_row(name: str, world: TeamWorld, records: Sequence[Trajectory]) -> JsonObject:
    """Returns a policy's results in episodes of a world as JSON values: a row of a table and of
    `view.teams.team_page`.

    `return` and `success` are [mean, low, high], 95 % bootstrap intervals over tasks (over episodes of a single
    task; low and high None where there are too few; success None where the world does not report it). `optimum` is
    [greatest return, whether that is exact], the mean over the episodes' tasks, or None. `lost` counts episodes
    without a score.

    Raises:
        ConfigError: no episode has a score.
    """
    scored = [record for record in records if record.score.raw is not None]
    if not scored:
        raise ConfigError("no episode has a score", value=f"{len(records)} episodes", expected="1 or more")
    tasks = [record.task.id for record in scored]

    def mean_interval(values: Sequence[float], low: float = -inf, high: float = inf) -> list[float | None]:
        rng = sample_rng("team outcome", name, world.name)
        interval = paired_interval(values, [0.0] * len(values), levels=[tasks], rng=rng).clip(low, high)
        return [interval.mean, *(None if isnan(end) else end for end in (interval.low, interval.high))]

    optima = [world.optimum(record.task) for record in scored]
    known_optima = [optimum for optimum in optima if optimum is not None]
    successes = [float(record.success) for record in scored if record.success is not None]
    return {
        "name": name,
        "world": world.name,
        "episodes": len(scored),
        "lost": len(records) - len(scored),
        "return": mean_interval([record.score.raw or 0.0 for record in scored]),
        "success": mean_interval(successes, 0.0, 1.0) if len(successes) == len(scored) else None,
        "optimum": [sum(o.value for o in known_optima) / len(known_optima), all(o.exact for o in known_optima)]
        if len(known_optima) == len(optima)
        else None,
    }


def record_scenes(
    batch: TeamBatch, player: TeamPlayer, number: int, *, seed: int = 0, greedy: bool = True
) -> tuple[Scene, ...]:
    """Returns the scenes of episode `number` before each of its decisions, played in the first row.

    Raises:
        ConfigError: the batch cannot be drawn. ShapeMismatch: a player of other observations or actions.
    """
    if not isinstance(batch, SupportsScenes):
        raise ConfigError("the batch cannot be drawn", value=type(batch).__name__, expected="a batch with scene()")
    check_fit(player.spec, batch.spec)
    view = batch.reset(number + np.arange(batch.size))
    scenes = []
    for _ in range(batch.spec.horizon):
        scenes.append(batch.scene(0))
        result = batch.step(player.act(view, seed=seed, greedy=greedy).actions)
        if 0 in result.ended:
            break
        view = result.view
    return tuple(scenes)
