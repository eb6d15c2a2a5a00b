"""Evaluation of the results of a study: rates, paired differences with intervals, and one verdict.

Everything is a pure function of the results. Failures are listed, and there is no verdict while a primary arm
has failed or lacks a seed. Until then rates and differences are those of the finished seeds, with their number.

The verdict is about one number, fixed before the study ran: the primary arm minus its control, the mean over
worlds of the primary tiers, with equal weights of worlds. Everything else here is exploration.

A study may name gates, the preconditions without which it cannot show its mechanism. There is no verdict while one
of them fails or was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.bench.plan import Gate, Study, read_study
from evolvent.bench.results import ArmFailure, ArmResult, Key, Result, panel_sort_key
from evolvent.bench.study import read_results
from evolvent.errors import ConfigError
from evolvent.stats import Interval, crossed_interval, sign_flip_p_value
from evolvent.trajectory import JsonObject, sample_rng

__all__ = [
    "MIN_SEEDS",
    "ArmSummary",
    "Difference",
    "GateResult",
    "Rate",
    "StudySummary",
    "Unfinished",
    "check_gate",
    "read_summary",
    "summarize_study",
    "to_json",
]

MIN_SEEDS = 6  # 5 seeds cannot reach p < 0.05: the smallest two-sided sign-flip p of n seeds is 2 / 2^n
_MAX_SEEDS = 22  # of the exact sign-flip test
_ROUNDING = 1e-12  # a mean of exactly the threshold reaches it
Results = Mapping[Key, Result]


@dataclass(frozen=True)
class Rate:
    """The success rate of an arm on one panel: the mean over its seeds, with an interval over seeds and kinds."""

    arm: str
    world: str
    tier: str
    tasks: int
    seeds: int
    interval: Interval


@dataclass(frozen=True)
class Difference:
    """`arm - against` on the same tasks, over the seeds that both finished.

    `world` is empty for the mean over all worlds, `tier` for the mean over the primary tiers. `by_seed` holds the
    difference of each seed.
    """

    arm: str
    against: str
    world: str
    tier: str
    tasks: int
    interval: Interval
    by_seed: Mapping[int, float]


@dataclass(frozen=True)
class ArmSummary:
    """An arm as a whole: the primary number of its seeds (None: no seed finished its panels), and its costs.

    `tokens` and `cpu_s` are sums over the seeds it `finished`.
    """

    name: str
    question: str
    interval: Interval | None
    by_seed: Mapping[int, float]
    finished: int
    failed: int
    tokens: Mapping[str, int]
    cpu_s: float


@dataclass(frozen=True)
class Unfinished:
    """An arm and seed without a result, and the reason."""

    arm: str
    seed: int
    why: str


@dataclass(frozen=True)
class GateResult:
    """The result of a gate.

    Attributes:
        name, arm, figure, minimum, maximum: Values of the frozen gate.
        value: Mean over the seeds that reported the figure; None: no seed did.
        by_seed: The figure of each seed that reported it.
        missing: Seeds that finished without reporting the figure.
        passed: Whether the value lies within the bounds and no finished seed misses it.
        message: The figure and its bounds as text.
    """

    name: str
    arm: str
    figure: str
    minimum: float | None
    maximum: float | None
    value: float | None
    by_seed: Mapping[int, float]
    missing: tuple[int, ...]
    passed: bool
    message: str


@dataclass(frozen=True)
class StudySummary:
    """The results of a study.

    Attributes:
        study, digest, seeds, threshold, budget, primary: Values of the frozen study.
        verdict: "improves", "no difference shown" or "no verdict: ..." with the reasons.
        sentence: The verdict as a sentence, with its numbers.
        difference: The primary difference; None while no seed finished both arms.
        p: Two-sided sign-flip p of its seeds; None where there are no seeds, or more than 22.
        room: Share of the distance from the control to the upper arm that the primary arm covered; None without that
            arm or distance.
        differences: The primary arm against its control and its base, over all worlds, by world and by panel; every
            other arm against the control over all worlds.
        unfinished: Every arm and seed that failed or was not played yet.
        gates: Result of every gate, in the order of the study.
        gate_passed: Whether all gates passed; None: the study has no gates.
    """

    study: str
    digest: str
    seeds: tuple[int, ...]
    threshold: float
    budget: int | None
    primary: JsonObject
    verdict: str
    sentence: str
    difference: Difference | None
    p: float | None
    room: float | None
    arms: tuple[ArmSummary, ...]
    rates: tuple[Rate, ...]
    differences: tuple[Difference, ...]
    unfinished: tuple[Unfinished, ...]
    gates: tuple[GateResult, ...] = ()
    gate_passed: bool | None = None


def read_summary(folder: Path) -> StudySummary:
    """Reads the summary of the study frozen in a folder, as far as it was played. Errors: `read_study`,
    `read_results`.
    """
    study = read_study(folder)
    return summarize_study(study, read_results(study, folder))


def to_json(study_summary: StudySummary) -> JsonObject:
    """Converts the summary to JSON values; unknown values (NaN) become null."""
    json_values: dict[str, Any] = _replace_nan(asdict(study_summary))
    return json_values


def _replace_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _replace_nan(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replace_nan(child) for child in value]
    return None if isinstance(value, float) and isnan(value) else value


def summarize_study(study: Study, results: Results) -> StudySummary:
    """Evaluates the results of a study.

    Raises:
        ConfigError: two results of one panel with other tasks.
    """
    scores = _Scores(study, results)
    primary = study.primary
    difference = scores.difference(primary.arm, primary.control)
    seeds = list(difference.by_seed.values()) if difference else []
    gates = tuple(check_gate(gate, _read_figure(scores, gate)) for gate in study.gates)
    reasons = [f"gate {gate.message}" for gate in gates if not gate.passed]
    reasons += _list_reasons(scores, difference)
    verdict = f"no verdict: {'; '.join(reasons)}" if reasons else _decide(difference, study.threshold)
    p = sign_flip_p_value(seeds) if 1 <= len(seeds) <= _MAX_SEEDS else None
    return StudySummary(
        study=study.name,
        digest=study.digest(),
        seeds=study.seeds,
        threshold=study.threshold,
        budget=study.budget,
        primary=study.describe()["primary"],
        verdict=verdict,
        sentence=_format_sentence(study, verdict, difference, p=p),
        difference=difference,
        p=p,
        room=_covered_share(scores),
        arms=tuple(_summarize_arm(scores, name) for name in study.arm_names),
        rates=tuple(_iterate_rates(scores)),
        differences=tuple(_iterate_differences(scores)),
        unfinished=tuple(_unfinished(study, results)),
        gates=gates,
        gate_passed=all(gate.passed for gate in gates) if gates else None,
    )


# ---------------------------------------------------------------- scores


class _Scores:
    """The results as arrays: seeds by tasks."""

    def __init__(self, study: Study, results: Results) -> None:
        self.study, self.results = study, results
        self.tasks: dict[str, tuple[tuple[str, str], ...]] = {}
        for (arm, seed), result in results.items():
            for panel, rows in result.outcomes.items() if isinstance(result, ArmResult) else ():
                panel_tasks = tuple(sorted((task, kind) for task, kind, _ in rows))
                if self.tasks.setdefault(panel, panel_tasks) != panel_tasks:
                    raise ConfigError(
                        f"{arm} was evaluated on {panel} with different tasks than the other arms",
                        value=seed,
                        expected="the same tasks for all arms and seeds",
                    )
        self.panels = sorted(self.tasks, key=panel_sort_key)

    @property
    def decisive_panels(self) -> list[str]:
        """Returns the panels of the primary number: those of the primary tiers that the primary arm or its control
        played.
        """
        primary = self.study.primary
        primary_results = [r for (arm, _), r in self.results.items() if arm in (primary.arm, primary.control)]
        played_panels = {
            panel for result in primary_results if isinstance(result, ArmResult) for panel in result.outcomes
        }
        return [panel for panel in self.panels if panel in played_panels and _tier(panel) in primary.tiers]

    def finished_seeds(self, panels: Sequence[str], *arms: str) -> list[int]:
        """Returns the seeds with which all these arms played all these panels."""
        return [
            seed
            for seed in self.study.seeds
            if panels and all(self.has_outcomes(arm, seed, panel) for arm in arms for panel in panels)
        ]

    def has_outcomes(self, arm: str, seed: int, panel: str) -> bool:
        result = self.results.get((arm, seed))
        return isinstance(result, ArmResult) and panel in result.outcomes

    def array(self, arm: str, panels: Sequence[str], *, seeds: Sequence[int]) -> NDArray[np.float64]:
        """Returns the successes `[S, N]` of the tasks of these panels, in the order of `self.tasks`."""
        rows = []
        for seed in seeds:
            result = self.results[arm, seed]
            outcomes = result.outcomes if isinstance(result, ArmResult) else {}
            successes = {panel: {task: success for task, _, success in outcomes[panel]} for panel in panels}
            rows.append([float(successes[panel][task]) for panel in panels for task, _ in self.tasks[panel]])
        return np.array(rows, dtype=np.float64)

    def interval(self, scores: NDArray[np.float64], panels: Sequence[str], *, name: str, lower: float) -> Interval:
        """Computes the mean of `[S, N]` scores with equal weights of worlds, of tiers in a world and of tasks,
        within bounds.
        """
        kinds = [kind for panel in panels for _, kind in self.tasks[panel]]
        strata = [panel for panel in panels for _ in self.tasks[panel]]
        rng = sample_rng("study", self.study.digest(), name)
        estimate = crossed_interval(
            scores.tolist(),
            np.zeros_like(scores).tolist(),
            kinds=kinds,
            strata=strata,
            weights=_panel_weights(panels),
            rng=rng,
        )
        return (
            estimate
            if isnan(estimate.low)
            else Interval(estimate.mean, max(lower, estimate.low), min(1.0, estimate.high), estimate.n)
        )

    def by_seed(self, scores: NDArray[np.float64], panels: Sequence[str], *, seeds: Sequence[int]) -> dict[int, float]:
        """Computes the same mean for each seed."""
        shares, weighted_sums, begin = _panel_weights(panels), np.zeros(len(scores)), 0
        for panel in panels:
            end = begin + len(self.tasks[panel])
            weighted_sums += shares[panel] * scores[:, begin:end].mean(axis=1)
            begin = end
        return {seed: float(value) for seed, value in zip(seeds, weighted_sums / sum(shares.values()), strict=True)}

    def difference(
        self, arm: str, against: str, *, panels: Sequence[str] | None = None, world: str = "", tier: str = ""
    ) -> Difference | None:
        """Computes `arm - against` on these panels (None: the decisive ones); None where no seed finished both."""
        panels = self.decisive_panels if panels is None else panels
        seeds = self.finished_seeds(panels, arm, against)
        if not seeds:
            return None
        scores = self.array(arm, panels, seeds=seeds) - self.array(against, panels, seeds=seeds)
        interval = self.interval(scores, panels, name=f"{arm} - {against} {world}/{tier}", lower=-1.0)
        return Difference(
            arm, against, world, tier, scores.shape[1], interval, self.by_seed(scores, panels, seeds=seeds)
        )


def _world(panel: str) -> str:
    return panel.rpartition("/")[0]


def _tier(panel: str) -> str:
    return panel.rpartition("/")[2]


def _panel_weights(panels: Sequence[str]) -> dict[str, float]:
    """Returns the weight of each panel: equal for every world, divided among its tiers."""
    worlds = [_world(panel) for panel in panels]
    return {panel: 1 / worlds.count(_world(panel)) for panel in panels}


# ---------------------------------------------------------------- parts of the summary


def _summarize_arm(all_scores: _Scores, name: str) -> ArmSummary:
    arm_results = [
        all_scores.results[name, seed] for seed in all_scores.study.seeds if (name, seed) in all_scores.results
    ]
    finished = [result for result in arm_results if isinstance(result, ArmResult)]
    names = dict.fromkeys(token for result in finished for token in result.tokens)
    seeds, panels = all_scores.finished_seeds(all_scores.decisive_panels, name), all_scores.decisive_panels
    scores = all_scores.array(name, panels, seeds=seeds)
    question = next(arm.question for arm in all_scores.study.arms if arm.name == name)
    return ArmSummary(
        name,
        question,
        all_scores.interval(scores, panels, name=name, lower=0.0) if seeds else None,
        all_scores.by_seed(scores, panels, seeds=seeds) if seeds else {},
        len(finished),
        len(arm_results) - len(finished),
        {token: sum(result.tokens.get(token, 0) for result in finished) for token in names},
        sum(result.cpu_s for result in finished),
    )


def _iterate_rates(all_scores: _Scores) -> Iterator[Rate]:
    for panel in all_scores.panels:
        for name in all_scores.study.arm_names:
            seeds = all_scores.finished_seeds([panel], name)
            if seeds:
                scores = all_scores.array(name, [panel], seeds=seeds)
                interval = all_scores.interval(scores, [panel], name=f"{name} {panel}", lower=0.0)
                yield Rate(name, _world(panel), _tier(panel), scores.shape[1], len(seeds), interval)


def _iterate_differences(all_scores: _Scores) -> Iterator[Difference]:
    primary, names = all_scores.study.primary, all_scores.study.arm_names
    primary_pairs = [
        (primary.arm, reference_arm)
        for reference_arm in (primary.control, primary.base)
        if reference_arm in names and reference_arm != primary.arm
    ]
    exploratory_pairs = [(name, primary.control) for name in names if name not in (primary.arm, primary.control)]
    differences = [all_scores.difference(*pair) for pair in (*primary_pairs, *exploratory_pairs)]
    for pair in primary_pairs:
        for world in dict.fromkeys(map(_world, all_scores.decisive_panels)):
            panels = [panel for panel in all_scores.decisive_panels if _world(panel) == world]
            differences.append(all_scores.difference(*pair, panels=panels, world=world))
        for panel in all_scores.panels:
            differences.append(all_scores.difference(*pair, panels=[panel], world=_world(panel), tier=_tier(panel)))
    yield from (difference for difference in differences if difference is not None)


def _covered_share(all_scores: _Scores) -> float | None:
    primary, panels = all_scores.study.primary, all_scores.decisive_panels
    if primary.upper not in all_scores.study.arm_names:
        return None
    arms = (primary.arm, primary.control, primary.upper)
    seeds = all_scores.finished_seeds(panels, *arms)
    if not seeds:
        return None
    arm, control, upper = (
        sum(all_scores.by_seed(all_scores.array(name, panels, seeds=seeds), panels, seeds=seeds).values()) / len(seeds)
        for name in arms
    )
    return (arm - control) / (upper - control) if upper > control else None


def _unfinished(study: Study, results: Results) -> Iterator[Unfinished]:
    for arm in study.arm_names:
        for seed in study.seeds:
            result = results.get((arm, seed))
            if result is None:
                yield Unfinished(arm, seed, "not played yet")
            elif isinstance(result, ArmFailure):
                yield Unfinished(arm, seed, f"{result.kind}: {result.message}")


# ---------------------------------------------------------------- gates


def check_gate(gate: Gate, by_seed: Mapping[int, float | None]) -> GateResult:
    """Compares the mean of a figure over seeds with the bounds of its gate.

    Args:
        gate: The gate.
        by_seed: The figure of every finished seed; None or a number that is not finite: the seed did not report it.

    >>> gate = Gate("AUC of the judge", "search", "auc", minimum=0.75)
    >>> result = check_gate(gate, {0: 0.8, 1: 0.6})
    >>> result.passed, round(result.value, 2)
    (False, 0.7)
    >>> result.message
    'AUC of the judge failed: auc of search is 0.7, expected at least 0.75'
    """
    reported = {seed: value for seed, value in by_seed.items() if value is not None and isfinite(value)}
    missing = tuple(seed for seed in by_seed if seed not in reported)
    value = sum(reported.values()) / len(reported) if reported else None
    is_within = value is not None and (
        (gate.minimum is None or value >= gate.minimum - _ROUNDING)
        and (gate.maximum is None or value <= gate.maximum + _ROUNDING)
    )
    passed = is_within and not missing
    figure_text = "was not measured" if value is None else f"is {value:.3g}"
    if missing:
        figure_text += f", not reported by seed{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    message = (
        f"{gate.name} {'passed' if passed else 'failed'}: {gate.figure} of {gate.arm} {figure_text}, "
        f"expected {_format_bounds(gate)}"
    )
    return GateResult(
        gate.name, gate.arm, gate.figure, gate.minimum, gate.maximum, value, reported, missing, passed, message
    )


def _format_bounds(gate: Gate) -> str:
    if gate.minimum is not None and gate.maximum is not None:
        return f"{gate.minimum:g} to {gate.maximum:g}"
    return f"at least {gate.minimum:g}" if gate.minimum is not None else f"at most {gate.maximum:g}"


def _read_figure(all_scores: _Scores, gate: Gate) -> dict[int, float | None]:
    """Returns the figure of a gate for every seed that its arm finished."""
    arm_results = {seed: all_scores.results.get((gate.arm, seed)) for seed in all_scores.study.seeds}
    finished = {seed: result for seed, result in arm_results.items() if isinstance(result, ArmResult)}
    if gate.figure == "success":
        panels = all_scores.decisive_panels
        seeds = all_scores.finished_seeds(panels, gate.arm)
        scores = all_scores.array(gate.arm, panels, seeds=seeds)
        by_seed = all_scores.by_seed(scores, panels, seeds=seeds) if seeds else {}
        return {seed: by_seed.get(seed) for seed in finished}
    notes = {seed: result.notes.get(gate.figure) for seed, result in finished.items()}
    return {
        seed: float(note) if isinstance(note, (int, float)) and not isinstance(note, bool) else None
        for seed, note in notes.items()
    }


# ---------------------------------------------------------------- the verdict


def _list_reasons(all_scores: _Scores, difference: Difference | None) -> Iterator[str]:
    """Yields the reasons against a verdict."""
    study, panels = all_scores.study, all_scores.decisive_panels
    for name in (study.primary.arm, study.primary.control):
        arm_results = {seed: all_scores.results.get((name, seed)) for seed in study.seeds}
        failed = [seed for seed, result in arm_results.items() if isinstance(result, ArmFailure)]
        missing = [seed for seed, result in arm_results.items() if result is None]
        incomplete = [
            seed
            for seed, result in arm_results.items()
            if isinstance(result, ArmResult) and not all(panel in result.outcomes for panel in panels)
        ]
        for seeds, problem in (
            (failed, "failed on"),
            (missing, "is not played yet on"),
            (incomplete, "lacks a panel on"),
        ):
            if seeds:
                yield f"{name} {problem} seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    complete = len(difference.by_seed) if difference else 0
    if not panels:
        yield f"no panel of the tiers {', '.join(study.primary.tiers)} was played"
    if complete < MIN_SEEDS:
        yield f"{complete} complete seed{'' if complete == 1 else 's'}, at least {MIN_SEEDS} are needed"
    elif difference is not None and isnan(difference.interval.low):
        yield "a panel has only one task: there is no interval"


def _decide(difference: Difference | None, threshold: float) -> str:
    is_improvement = (
        difference is not None and difference.interval.low > 0 and difference.interval.mean >= threshold - _ROUNDING
    )
    return "improves" if is_improvement else "no difference shown"


def _format_sentence(study: Study, verdict: str, difference: Difference | None, *, p: float | None) -> str:
    arm, control, threshold_text = study.primary.arm, study.primary.control, f"{100 * study.threshold:g} points"
    if difference is None:
        return f"N{verdict[1:]}."
    estimate, seeds = difference.interval, len(difference.by_seed)
    difference_text = f"{arm} minus {control} is {100 * estimate.mean:+.1f} points"
    if not isnan(estimate.low):
        difference_text += f" (95 % interval {100 * estimate.low:+.1f} to {100 * estimate.high:+.1f}"
        difference_text += f", sign-flip p {p:.2g}, {seeds} seeds)" if p is not None else f", {seeds} seeds)"
    if verdict.startswith("no verdict"):
        return f"N{verdict[1:]}. So far {difference_text}: exploration, not a result."
    if verdict == "improves":
        return f"{arm} improves on {control}: {difference_text}, at or above the frozen threshold of {threshold_text}."
    reason = "the interval reaches 0 or below"
    if estimate.high < 0:
        reason = f"the whole interval lies below 0: {arm} is worse"
    elif estimate.low > 0:
        reason = f"the mean is below the frozen threshold of {threshold_text}"
    return f"No difference shown: {difference_text}; {reason}."
