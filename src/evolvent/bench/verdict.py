"""What the results of a study show: rates, paired differences with intervals, and one verdict.

Everything is a pure function of the results. What failed is listed, and there is no verdict while a primary arm has
failed or misses a seed. Until then rates and differences are those of the seeds that finished, with their number.

The verdict is about one number, fixed before the study ran: the primary arm minus its control, the mean over worlds of
the primary tiers, every world counting alike. Everything else here is exploration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.bench.plan import Study, read_study
from evolvent.bench.results import Failed, Key, Played, Result, panel_place
from evolvent.bench.study import read_results
from evolvent.errors import ConfigError
from evolvent.stats import Interval, crossed, sign_flip
from evolvent.trajectory import sample_rng

__all__ = [
    "LEAST_SEEDS",
    "ArmSummary",
    "Difference",
    "Rate",
    "Summary",
    "Unfinished",
    "as_json",
    "read_summary",
    "summary",
]

LEAST_SEEDS = 6  # 5 seeds cannot reach p < 0.05: the smallest two-sided sign-flip p of n seeds is 2 / 2^n
_MOST_SEEDS = 22  # of the exact sign-flip test
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
    """An arm as a whole: the primary number of its seeds (None: no seed finished its panels), and what it cost.

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
    """An arm and seed without a result, and why."""

    arm: str
    seed: int
    why: str


@dataclass(frozen=True)
class Summary:
    """What a study shows.

    Attributes:
        study, digest, seeds, threshold, budget, primary: of the study, as they were frozen.
        verdict: "improves", "no difference shown" or "no verdict: ..." with the reasons.
        sentence: the verdict for people, with its numbers.
        difference: the primary one; None while no seed finished both arms.
        p: the two-sided sign-flip p of its seeds; None where there are no seeds, or more than 22.
        room: share of the way from the control to the upper arm that the primary arm went; None without such an arm
            or way.
        differences: the primary arm against its control and its base, over all worlds, by world and by panel; every
            other arm against the control over all worlds.
        unfinished: every arm and seed that failed or was not played yet.
    """

    study: str
    digest: str
    seeds: tuple[int, ...]
    threshold: float
    budget: int | None
    primary: Mapping[str, Any]
    verdict: str
    sentence: str
    difference: Difference | None
    p: float | None
    room: float | None
    arms: tuple[ArmSummary, ...]
    rates: tuple[Rate, ...]
    differences: tuple[Difference, ...]
    unfinished: tuple[Unfinished, ...]


def read_summary(folder: Path) -> Summary:
    """The summary of the study frozen in a folder, as far as it was played. Errors: of `read_study`, `read_results`."""
    study = read_study(folder)
    return summary(study, read_results(study, folder))


def as_json(found: Summary) -> dict[str, Any]:
    """The summary as JSON values; what is not known (NaN) is null."""
    plain: dict[str, Any] = _plain(asdict(found))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and isnan(value) else value


def summary(study: Study, results: Results) -> Summary:
    """Everything about a study that its results show.

    Raises:
        ConfigError: two results of one panel with other tasks.
    """
    at = _Scores(study, results)
    primary = study.primary
    difference = at.difference(primary.arm, primary.control)
    seeds = list(difference.by_seed.values()) if difference else []
    reasons = list(_reasons(at, difference))
    verdict = f"no verdict: {'; '.join(reasons)}" if reasons else _verdict(difference, study.threshold)
    p = sign_flip(seeds) if 1 <= len(seeds) <= _MOST_SEEDS else None
    return Summary(
        study=study.name,
        digest=study.digest(),
        seeds=study.seeds,
        threshold=study.threshold,
        budget=study.budget,
        primary=study.described()["primary"],
        verdict=verdict,
        sentence=_sentence(study, verdict, difference, p=p),
        difference=difference,
        p=p,
        room=_room(at),
        arms=tuple(_arm(at, name) for name in study.names),
        rates=tuple(_rates(at)),
        differences=tuple(_differences(at)),
        unfinished=tuple(_unfinished(study, results)),
    )


# ---------------------------------------------------------------- scores


class _Scores:
    """The results as arrays: seeds by tasks."""

    def __init__(self, study: Study, results: Results) -> None:
        self.study, self.results = study, results
        self.tasks: dict[str, tuple[tuple[str, str], ...]] = {}
        for (arm, seed), result in results.items():
            for panel, rows in result.outcomes.items() if isinstance(result, Played) else ():
                mine = tuple(sorted((task, kind) for task, kind, _ in rows))
                if self.tasks.setdefault(panel, mine) != mine:
                    raise ConfigError(
                        f"{arm} played {panel} with other tasks than the other arms",
                        value=seed,
                        expected="the same tasks for all arms and seeds",
                    )
        self.panels = sorted(self.tasks, key=panel_place)

    @property
    def decisive(self) -> list[str]:
        """The panels of the primary number: those of the primary tiers that the primary arm or its control played."""
        primary = self.study.primary
        both = [r for (arm, _), r in self.results.items() if arm in (primary.arm, primary.control)]
        known = {panel for result in both if isinstance(result, Played) for panel in result.outcomes}
        return [panel for panel in self.panels if panel in known and _tier(panel) in primary.tiers]

    def finished(self, panels: Sequence[str], *arms: str) -> list[int]:
        """The seeds with which all these arms played all these panels."""
        return [
            seed
            for seed in self.study.seeds
            if panels and all(self.played(arm, seed, panel) for arm in arms for panel in panels)
        ]

    def played(self, arm: str, seed: int, panel: str) -> bool:
        result = self.results.get((arm, seed))
        return isinstance(result, Played) and panel in result.outcomes

    def array(self, arm: str, panels: Sequence[str], *, seeds: Sequence[int]) -> NDArray[np.float64]:
        """`[S, N]` successes of the tasks of these panels, in the order of `self.tasks`."""
        rows = []
        for seed in seeds:
            result = self.results[arm, seed]
            outcomes = result.outcomes if isinstance(result, Played) else {}
            won = {panel: {task: success for task, _, success in outcomes[panel]} for panel in panels}
            rows.append([float(won[panel][task]) for panel in panels for task, _ in self.tasks[panel]])
        return np.array(rows, dtype=np.float64)

    def interval(self, scores: NDArray[np.float64], panels: Sequence[str], *, name: str, least: float) -> Interval:
        """The mean of `[S, N]` scores over worlds, tiers inside a world and tasks counting alike; inside least..1."""
        kinds = [kind for panel in panels for _, kind in self.tasks[panel]]
        strata = [panel for panel in panels for _ in self.tasks[panel]]
        rng = sample_rng("study", self.study.digest(), name)
        one = crossed(
            scores.tolist(),
            np.zeros_like(scores).tolist(),
            kinds=kinds,
            strata=strata,
            weights=_shares(panels),
            rng=rng,
        )
        return one if isnan(one.low) else Interval(one.mean, max(least, one.low), min(1.0, one.high), one.n)

    def by_seed(self, scores: NDArray[np.float64], panels: Sequence[str], *, seeds: Sequence[int]) -> dict[int, float]:
        """The same mean of each seed."""
        shares, found, begin = _shares(panels), np.zeros(len(scores)), 0
        for panel in panels:
            end = begin + len(self.tasks[panel])
            found += shares[panel] * scores[:, begin:end].mean(axis=1)
            begin = end
        return {seed: float(value) for seed, value in zip(seeds, found / sum(shares.values()), strict=True)}

    def difference(
        self, arm: str, against: str, *, panels: Sequence[str] | None = None, world: str = "", tier: str = ""
    ) -> Difference | None:
        """`arm - against` on these panels (None: those that decide); None where no seed finished both."""
        panels = self.decisive if panels is None else panels
        seeds = self.finished(panels, arm, against)
        if not seeds:
            return None
        scores = self.array(arm, panels, seeds=seeds) - self.array(against, panels, seeds=seeds)
        interval = self.interval(scores, panels, name=f"{arm} - {against} {world}/{tier}", least=-1.0)
        return Difference(
            arm, against, world, tier, scores.shape[1], interval, self.by_seed(scores, panels, seeds=seeds)
        )


def _world(panel: str) -> str:
    return panel.rpartition("/")[0]


def _tier(panel: str) -> str:
    return panel.rpartition("/")[2]


def _shares(panels: Sequence[str]) -> dict[str, float]:
    """How much each panel counts: every world as much as any other, however many of the tiers it has."""
    worlds = [_world(panel) for panel in panels]
    return {panel: 1 / worlds.count(_world(panel)) for panel in panels}


# ---------------------------------------------------------------- parts of the summary


def _arm(at: _Scores, name: str) -> ArmSummary:
    own = [at.results[name, seed] for seed in at.study.seeds if (name, seed) in at.results]
    played = [result for result in own if isinstance(result, Played)]
    names = dict.fromkeys(token for result in played for token in result.tokens)
    seeds, panels = at.finished(at.decisive, name), at.decisive
    scores = at.array(name, panels, seeds=seeds)
    question = next(arm.question for arm in at.study.arms if arm.name == name)
    return ArmSummary(
        name,
        question,
        at.interval(scores, panels, name=name, least=0.0) if seeds else None,
        at.by_seed(scores, panels, seeds=seeds) if seeds else {},
        len(played),
        len(own) - len(played),
        {token: sum(result.tokens.get(token, 0) for result in played) for token in names},
        sum(result.cpu_s for result in played),
    )


def _rates(at: _Scores) -> Iterator[Rate]:
    for panel in at.panels:
        for name in at.study.names:
            seeds = at.finished([panel], name)
            if seeds:
                scores = at.array(name, [panel], seeds=seeds)
                interval = at.interval(scores, [panel], name=f"{name} {panel}", least=0.0)
                yield Rate(name, _world(panel), _tier(panel), scores.shape[1], len(seeds), interval)


def _differences(at: _Scores) -> Iterator[Difference]:
    primary, names = at.study.primary, at.study.names
    sides = [
        (primary.arm, other) for other in (primary.control, primary.base) if other in names and other != primary.arm
    ]
    others = [(name, primary.control) for name in names if name not in (primary.arm, primary.control)]
    found = [at.difference(*pair) for pair in (*sides, *others)]
    for pair in sides:
        for world in dict.fromkeys(map(_world, at.decisive)):
            panels = [panel for panel in at.decisive if _world(panel) == world]
            found.append(at.difference(*pair, panels=panels, world=world))
        for panel in at.panels:
            found.append(at.difference(*pair, panels=[panel], world=_world(panel), tier=_tier(panel)))
    yield from (one for one in found if one is not None)


def _room(at: _Scores) -> float | None:
    primary, panels = at.study.primary, at.decisive
    if primary.upper not in at.study.names:
        return None
    arms = (primary.arm, primary.control, primary.upper)
    seeds = at.finished(panels, *arms)
    if not seeds:
        return None
    arm, control, upper = (
        sum(at.by_seed(at.array(name, panels, seeds=seeds), panels, seeds=seeds).values()) / len(seeds) for name in arms
    )
    return (arm - control) / (upper - control) if upper > control else None


def _unfinished(study: Study, results: Results) -> Iterator[Unfinished]:
    for arm in study.names:
        for seed in study.seeds:
            result = results.get((arm, seed))
            if result is None:
                yield Unfinished(arm, seed, "not played yet")
            elif isinstance(result, Failed):
                yield Unfinished(arm, seed, f"{result.kind}: {result.message}")


# ---------------------------------------------------------------- the verdict


def _reasons(at: _Scores, difference: Difference | None) -> Iterator[str]:
    """Why there is no verdict yet."""
    study, panels = at.study, at.decisive
    for name in (study.primary.arm, study.primary.control):
        own = {seed: at.results.get((name, seed)) for seed in study.seeds}
        failed = [seed for seed, result in own.items() if isinstance(result, Failed)]
        missing = [seed for seed, result in own.items() if result is None]
        short = [
            seed
            for seed, result in own.items()
            if isinstance(result, Played) and not all(panel in result.outcomes for panel in panels)
        ]
        for seeds, what in ((failed, "failed on"), (missing, "is not played yet on"), (short, "lacks a panel on")):
            if seeds:
                yield f"{name} {what} seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    complete = len(difference.by_seed) if difference else 0
    if not panels:
        yield f"no panel of the tiers {', '.join(study.primary.tiers)} was played"
    if complete < LEAST_SEEDS:
        yield f"{complete} complete seed{'' if complete == 1 else 's'}, at least {LEAST_SEEDS} are needed"
    elif difference is not None and isnan(difference.interval.low):
        yield "a panel has only one task: there is no interval"


def _verdict(difference: Difference | None, threshold: float) -> str:
    shown = difference is not None and difference.interval.low > 0 and difference.interval.mean >= threshold - _ROUNDING
    return "improves" if shown else "no difference shown"


def _sentence(study: Study, verdict: str, difference: Difference | None, *, p: float | None) -> str:
    arm, control, least = study.primary.arm, study.primary.control, f"{100 * study.threshold:g} points"
    if difference is None:
        return f"N{verdict[1:]}."
    one, seeds = difference.interval, len(difference.by_seed)
    found = f"{arm} minus {control} is {100 * one.mean:+.1f} points"
    if not isnan(one.low):
        found += f" (95 % interval {100 * one.low:+.1f} to {100 * one.high:+.1f}"
        found += f", sign-flip p {p:.2g}, {seeds} seeds)" if p is not None else f", {seeds} seeds)"
    if verdict.startswith("no verdict"):
        return f"N{verdict[1:]}. So far {found}: exploration, not a result."
    if verdict == "improves":
        return f"{arm} improves on {control}: {found}, at or above the frozen threshold of {least}."
    why = "the interval reaches 0 or below"
    if one.high < 0:
        why = f"the whole interval lies below 0: {arm} is worse"
    elif one.low > 0:
        why = f"the mean is below the frozen threshold of {least}"
    return f"No difference shown: {found}; {why}."
