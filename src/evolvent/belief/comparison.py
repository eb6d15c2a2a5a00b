"""Comparison of policies and planners on the same searches: one sensor, sources, beliefs and detector for all.

Whatever chooses the moves, an episode ends by the detector or at its horizon. An episode is its task and its
sample: source, noise and particles derive from them, so all choosers face the same ones. A success is a right
stop: the agent ended the episode, and the estimate was within the preset's tolerance then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.belief.outcomes import OutcomeTable, tabulate_outcomes
from evolvent.belief.planners import PLANNERS, choose_candidate
from evolvent.belief.seeking import DetectorHistory, SourceSearch, StepResult, StopReward
from evolvent.belief.stopping import Detector, StopDecision
from evolvent.errors import BatchMismatch, ConfigError, ErrorRecord, NonFinite, unknown_name_problem
from evolvent.stats import Interval, paired_interval
from evolvent.trajectory import (
    Annotation,
    AnnotationTarget,
    EndedBy,
    Score,
    Start,
    Step,
    Task,
    Trajectory,
    sample_rng,
    trajectory_name,
)
from evolvent.worlds.plume.presets import MOVES
from evolvent.worlds.plume.world import PlumeWorld

__all__ = [
    "SCORER",
    "Chooser",
    "ChooserResult",
    "RiskCoverage",
    "ScoredRun",
    "annotations_to_scores",
    "compare_choosers",
    "make_chooser",
    "play_episodes",
    "replay_threshold",
    "risk_coverage",
    "scores_to_annotations",
    "summary_row",
    "sweep_thresholds",
]


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """An episode with its stored scores: T looks, each with the outcome of stopping there.

    Args:
        scores: [T]. Scores of one detector, lower is more certain; infinite or NaN: undefined at that look.
        correct: [T]. Whether the estimate was right at each look; None: unknown.
        steps, distance, generated, computed: [T]. Cost up to each look; steps None: one a look.
    Raises:
        BatchMismatch: no look, or lengths that differ.
    """

    scores: Sequence[float]
    correct: Sequence[bool | None]
    steps: Sequence[float] | None = None
    distance: Sequence[float] | None = None
    generated: Sequence[float] | None = None
    computed: Sequence[float] | None = None

    def __post_init__(self) -> None:
        columns = (self.correct, self.steps, self.distance, self.generated, self.computed)
        lengths = [len(self.scores), *(len(column) for column in columns if column is not None)]
        if len(set(lengths)) != 1 or not lengths[0]:
            raise BatchMismatch("observations of an episode and their outcomes differ in number", value=lengths)

    def find_stop(self, threshold: float, *, inclusive: bool = False) -> int | None:
        """Returns the first look with a score below the threshold (inclusive: or at it); None where there is none."""
        scores = np.asarray(self.scores, np.float64)
        stop_indices = np.flatnonzero(scores <= threshold if inclusive else scores < threshold)  # NaN is neither
        return int(stop_indices[0]) if len(stop_indices) else None


def replay_threshold(runs: Sequence[ScoredRun], threshold: float, *, inclusive: bool = False) -> OutcomeTable:
    """Computes the outcome table of a threshold; runs that it never stops count as they ended.

    Args:
        inclusive: a score at the threshold stops too, as with `Agreement`, whose threshold is 1 - q.
    Raises:
        BatchMismatch: no run; something that only some runs tell.
    """
    stops = [run.find_stop(threshold, inclusive=inclusive) for run in runs]
    ends = [
        len(run.scores) - 1 if stop_index is None else stop_index for run, stop_index in zip(runs, stops, strict=True)
    ]

    def costs_at_end(name: str) -> list[float] | None:
        cost_columns = [getattr(run, name) for run in runs]
        if all(cost_column is None for cost_column in cost_columns):
            return None
        if any(cost_column is None for cost_column in cost_columns):
            raise BatchMismatch(
                f"only some runs report their {name}", value=sum(cost_column is None for cost_column in cost_columns)
            )
        return [float(cost_column[end]) for cost_column, end in zip(cost_columns, ends, strict=True)]

    steps = [
        float(end + 1) if run.steps is None else float(run.steps[end]) for run, end in zip(runs, ends, strict=True)
    ]
    correct = [run.correct[end] for run, end in zip(runs, ends, strict=True)]
    return tabulate_outcomes(
        [stop_index is not None for stop_index in stops],
        correct,
        steps,
        distance=costs_at_end("distance"),
        generated=costs_at_end("generated"),
        computed=costs_at_end("computed"),
    )


def sweep_thresholds(
    runs: Sequence[ScoredRun], thresholds: Iterable[float], *, inclusive: bool = False
) -> list[tuple[float, OutcomeTable]]:
    """Runs `replayed` for each threshold, in order."""
    return [(threshold, replay_threshold(runs, threshold, inclusive=inclusive)) for threshold in thresholds]


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """The risk of answering only the most certain cases (El-Yaniv and Wiener, JMLR 11, 2010).

    Args:
        threshold, coverage, risk: [K]. For each score that occurs, the most certain first: the share of cases with
            that score or a lower one, and the share of wrong ones among them.
        area: Area under risk over coverage, each of the N cases counting once; lower is better.
        n: Number of cases with known truth.
    """

    threshold: Floats
    coverage: Floats
    risk: Floats
    area: float
    n: int


def risk_coverage(scores: Sequence[float], correct: Sequence[bool | None]) -> RiskCoverage | None:
    """Computes the curve over N cases, without those of unknown truth; None where no truth is known.

    Cases of one score are answered together. In the area they count as if they came in any order, each order as
    likely.

    Args:
        scores: [N]. Lower is more certain; infinite: undecided.
        correct: [N]. None: unknown.
    Raises:
        BatchMismatch: lengths differ. NonFinite: a score that is NaN.
    """
    if len(scores) != len(correct):
        raise BatchMismatch("scores and labels differ in number", value=(len(scores), len(correct)))
    known_indices = [index for index, truth in enumerate(correct) if truth is not None]
    if not known_indices:
        return None
    known_scores = np.array([scores[index] for index in known_indices], np.float64)
    if np.isnan(known_scores).any():
        raise NonFinite(
            "a score is not a number", value=float("nan"), expected="a number, infinite where the detector is silent"
        )
    is_wrong = np.array([not correct[index] for index in known_indices], np.float64)
    levels, group = np.unique(known_scores, return_inverse=True)
    sizes, errors = np.bincount(group), np.bincount(group, weights=is_wrong)
    cumulative_cases, cumulative_errors = np.cumsum(sizes), np.cumsum(errors)
    # In a tie of s cases with e errors, the i-th of them brings e/s errors on average.
    expected = np.cumsum(np.repeat(errors / sizes, sizes)) / np.arange(1, len(known_scores) + 1)
    return RiskCoverage(
        levels,
        cumulative_cases / len(known_scores),
        cumulative_errors / cumulative_cases,
        float(expected.mean()),
        len(known_scores),
    )


# ---------------------------------------------------------------- stored scores


def scores_to_annotations(
    trajectory: str, scorer: str, decisions: Sequence[StopDecision], *, row: int = 0
) -> list[Annotation]:
    """Converts the scores of an episode to annotations, look t at step t, without undefined scores.

    Args:
        trajectory: Id of the episode.
        scorer: Name of the scorer, such as "stop/std".
        decisions: Decisions of all looks.
        row: Index of the belief in the batch.
    """
    step_scores = ((step, float(decision.score[row])) for step, decision in enumerate(decisions))
    return [
        Annotation(trajectory, scorer, AnnotationTarget(step=step), score)
        for step, score in step_scores
        if np.isfinite(score)
    ]


def annotations_to_scores(annotations: Iterable[Annotation], trajectory: str, scorer: str, *, looks: int) -> Floats:
    """Collects the stored scores of an episode, [looks]; infinite where there is none.

    Raises:
        ConfigError: a score at a step that there is not, or one that is no number.
    """
    scores = np.full(looks, np.inf)
    for annotation in annotations:
        if annotation.trajectory != trajectory or annotation.scorer != scorer:
            continue
        step, value = annotation.target.step, annotation.value
        if step is None or not 0 <= step < looks or not isinstance(value, int | float):
            raise ConfigError(
                f"a score of {trajectory} does not belong to any observation",
                value=(step, value),
                expected=f"a number at a step below {looks}",
            )
        scores[step] = value
    return scores


Chooser = Callable[[SourceSearch], NDArray[np.generic]]
"""Chooses for [B] searches what `PlumeBatch.step` takes, by `observe()`, beliefs and places, not by `right()`."""

SCORER = "stop"
"""The scorer of the rows that hold the detector's score after each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooserResult:
    """The episodes of one chooser.

    Args:
        name: Name of the chooser.
        sensor: Id of the sensor.
        trajectories: [N]. `success` says whether the estimate was right at the end, `ended_by` "agent" whether the
            agent stopped; `meta` has the error and the traveled distance, in meters.
        scores: The detector's score after each step, as annotations.
        decision_ms: CPU milliseconds of choosing for one episode, without the belief update that all share; the mean
            over decisions of a whole batch.
    """

    name: str
    sensor: str
    trajectories: Sequence[Trajectory]
    scores: Sequence[Annotation]
    decision_ms: Interval

    @property
    def table(self) -> OutcomeTable:
        """Returns the outcome table; lost episodes count as unknown."""
        trajectories = self.trajectories
        return tabulate_outcomes(
            [trajectory.ended_by == "agent" for trajectory in trajectories],
            [trajectory.success for trajectory in trajectories],
            [len(trajectory.steps) for trajectory in trajectories],
            distance=[float(trajectory.meta["travelled_m"]) for trajectory in trajectories],
        )


def make_chooser(name: str, *, nz: int = 25) -> Chooser:
    """Builds a chooser from a planner of `PLANNERS`; raises ConfigError for another name, or nz below 1."""
    if name not in PLANNERS:
        raise ConfigError([unknown_name_problem("planner", name, PLANNERS)])
    if nz < 1:
        raise ConfigError("number of readings out of range", value=nz, expected="nz of at least 1")

    def choose(search: SourceSearch) -> NDArray[Any]:
        positions, is_allowed = search.batch.candidates()
        moves = (
            choose_candidate(name, search.cloud, positions, sensor=search.batch.sensor, allowed=is_allowed, nz=nz)
            .cpu()
            .numpy()
        )
        return moves * (np.pi / 4) if search.preset.moves == "heading" else moves

    return choose


@dataclass(slots=True)
class _ActiveEpisode:
    """An episode in progress."""

    start: Start
    steps: list[Step] = field(default_factory=list)
    decisions: list[StopDecision] = field(default_factory=list)


def play_episodes(
    choose: Chooser,
    world: PlumeWorld,
    starts: Sequence[Start],
    *,
    name: str,
    detector: Detector,
    particles: int | None = None,
    batch_size: int = 64,
    fused: bool = False,
) -> ChooserResult:
    """Plays episodes in batches; the batch size does not change them.

    A belief that does not allow a reading ends its episode with an error: no reward, no stop, no truth. Recorded
    rewards are AGDC's default, for planners too.

    Args:
        choose: Chooses the moves.
        world: The plume world.
        starts: [N] tasks and samples, all different.
        name: Name of the chooser in the records.
        detector: Ends the episodes.
        particles: Particles of a belief (None: the preset's).
        batch_size: Number of simultaneous episodes.
        fused: See `particles.prior`.
    Raises:
        BatchMismatch: no start, or two equal ones.
    """
    if not starts or len({(start.task.id, start.sample) for start in starts}) != len(starts):
        raise BatchMismatch("invalid list of episodes", value=len(starts), expected="one or more different episodes")
    search = SourceSearch(world.batch(min(batch_size, len(starts))), particles=particles, fused=fused)
    active_table = _EpisodeTable(name, search, DetectorHistory(detector, world.horizon))
    active_table.start_episodes(range(search.size), queue := iter(starts))
    decision_times_ms = []
    while search.batch.running.any():
        start_time = time.process_time()
        actions = choose(search)
        decision_times_ms.append((time.process_time() - start_time) * 1e3 / search.size)
        if free_rows := active_table.step(actions):
            active_table.start_episodes(free_rows, queue)
    order = {(start.task.id, start.sample): i for i, start in enumerate(starts)}
    finished = sorted(active_table.done, key=lambda trajectory: order[trajectory.task.id, trajectory.sample])
    scores = [row for trajectory in finished for row in active_table.scores[trajectory.id]]
    decision_interval = paired_interval(
        decision_times_ms, [0.0] * len(decision_times_ms), rng=sample_rng("decision time", name)
    ).clip(0.0, np.inf)
    return ChooserResult(
        name=name, sensor=search.batch.sensor.id, trajectories=finished, scores=scores, decision_ms=decision_interval
    )


class _EpisodeTable:
    """The active episodes, one in each row of a search, and the finished ones."""

    def __init__(self, name: str, search: SourceSearch, lookout: DetectorHistory) -> None:
        self._name, self._search, self._lookout, self._pay = name, search, lookout, StopReward()
        self._open: list[_ActiveEpisode] = []
        self.done: list[Trajectory] = []
        self.scores: dict[str, list[Annotation]] = {}

    def start_episodes(self, rows: Sequence[int], queue: Iterator[Start]) -> None:
        """Starts the next episodes in free rows, while any are left."""
        assigned = list(zip(rows, queue, strict=False))
        if not assigned:
            return
        self._search.begin(
            [row for row, _ in assigned],
            [next_start.task for _, next_start in assigned],
            [next_start.sample for _, next_start in assigned],
        )
        self._open = self._open or [_ActiveEpisode(start) for _, start in assigned]
        is_new = np.zeros(self._search.size, np.bool_)
        for row, start in assigned:
            self._open[row], is_new[row] = _ActiveEpisode(start), True
        self._lookout.forget(is_new)

    def step(self, actions: NDArray[Any]) -> list[int]:
        """Runs one step of all active episodes; returns the rows that are free now."""
        search, batch = self._search, self._search.batch
        observations = np.concatenate([batch.position, batch.reading[:, None]], -1)
        step_result = search.step(actions)
        decision, right = self._lookout.decide(search.summary), search.is_right()
        ceased = decision.stop & step_result.was_running & ~step_result.is_lost
        rewards = self._pay.compute(ceased, right)
        for row in np.flatnonzero(step_result.was_running).tolist():
            episode, reward = self._open[row], None if step_result.is_lost[row] else float(rewards[row])
            episode.steps.append(
                Step(observations[row], self._format_action(actions[row]), reward, info=self._belief_info(row))
            )
            episode.decisions.append(StopDecision(decision.stop[[row]], decision.score[[row]], decision.reason))
        free_rows: list[int] = np.flatnonzero(
            ceased | step_result.is_over | (step_result.is_lost & step_result.was_running)
        ).tolist()
        batch.end(free_rows)
        for row in free_rows:
            self._close(row, step_result, ceased=bool(ceased[row]), right=bool(right[row]))
        return free_rows

    def _format_action(self, action: Any) -> str | NDArray[Any]:
        moves = self._search.preset.moves
        return np.array([float(action)]) if moves == "heading" else MOVES[moves][int(action)]

    def _belief_info(self, row: int) -> dict[str, Any]:
        """Returns the belief after the step as step info."""
        belief_summary = self._search.summary
        if belief_summary.mean is None or belief_summary.spread is None:
            return {}
        return {
            "mean": [float(value) for value in belief_summary.mean[row, :2]],
            "spread_m": float(belief_summary.spread[row]),
        }

    def _close(self, row: int, step_result: StepResult, *, ceased: bool, right: bool) -> None:
        episode, batch, is_lost = self._open[row], self._search.batch, bool(step_result.is_lost[row])
        ended_by: EndedBy = "error" if is_lost else "agent" if ceased else "horizon"
        total_reward = sum(step.reward for step in episode.steps if step.reward is not None)
        error = (
            ErrorRecord("BeliefCollapsed", "no particle allows the reading", len(episode.steps) - 1)
            if is_lost
            else None
        )
        trajectory = Trajectory(
            trajectory_name(episode.start, self._name),
            episode.start.task,
            tuple(episode.steps),
            np.array([*batch.position[row], batch.reading[row]]),
            ended_by,
            Score() if is_lost else Score(total_reward, float(right), right),
            episode.start.sample,
            error=error,
            meta={
                "error_m": float(self._search.errors()[row]),
                "travelled_m": float(batch.travelled[row]),
                "sensor": batch.sensor.id,
            },
        )
        self.done.append(trajectory)
        self.scores[trajectory.id] = scores_to_annotations(trajectory.id, SCORER, episode.decisions)


def summary_row(result: ChooserResult) -> dict[str, object]:
    """Returns a row of the report as JSON values; rates and means are [mean, low, high], 95 % intervals."""
    table = result.table
    row: dict[str, Any] = {**table.as_dict(), "name": result.name, "sensor": result.sensor}
    row["success"], row["false_cessation"] = (
        _interval_to_row(table.rate("right_stop")),
        _interval_to_row(table.rate("false_stop")),
    )
    return {**row, "decision_ms": _interval_to_row(result.decision_ms)}


def compare_choosers(
    choosers: dict[str, Chooser],
    world: PlumeWorld,
    tasks: Sequence[Task],
    *,
    detector: Detector,
    episodes: int = 512,
    particles: int | None = None,
    batch_size: int = 64,
    fused: bool = False,
) -> list[ChooserResult]:
    """Plays all choosers on the same episodes: the tasks in turn, each time with other noise (the next sample).

    Raises:
        ConfigError: no chooser or no task.
    """
    if not choosers or not tasks:
        raise ConfigError(
            "not enough to compare", value=(len(choosers), len(tasks)), expected="at least one chooser and one task"
        )
    starts = [Start(tasks[i % len(tasks)], i // len(tasks)) for i in range(episodes)]
    return [
        play_episodes(
            choose, world, starts, name=name, detector=detector, particles=particles, batch_size=batch_size, fused=fused
        )
        for name, choose in choosers.items()
    ]


def _interval_to_row(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [value if np.isfinite(value) else None for value in (interval.mean, interval.low, interval.high)]
