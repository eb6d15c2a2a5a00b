"""What a run's results say: the panels, the arms compared on the same tasks, and the examples worth showing.

The page and the plain table both show these values, so that they cannot disagree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isnan

from evolvent.stats import Interval, paired
from evolvent.trajectory import sample_rng
from evolvent.view.data import Episode, ReportData, Result

__all__ = ["Headline", "KindRow", "Pair", "Panel", "headline", "held_out_tiers", "kinds", "main_arm", "pairs", "panels"]

_TIER_ORDER = ("seen", "evo", "combo", "longer")
_SPLIT_ORDER = ("test", "dev", "train")
_PRIMARY = ("evo", "combo")


@dataclass(frozen=True, slots=True)
class Panel:
    """One world, tier and split: every evaluation of it, and the arms compared at the last round they share.

    Args:
        curves: per arm its results by round.
        base, last, control: round 0, the main arm's last round, and the control's at the round of comparison.
        compared: the main arm's result that the control is held against (its last, or the last one both have).
        difference: `compared - control`, paired by task; None where it cannot be given, `withheld` then says why.
    """

    world: str
    tier: str
    split: str
    curves: Mapping[str, tuple[Result, ...]]
    base: Result | None
    last: Result | None
    compared: Result | None
    control: Result | None
    difference: Interval | None
    withheld: str


@dataclass(frozen=True, slots=True)
class Headline:
    """The primary comparison: plain means over the panels of the held-out tiers (rates 0..1)."""

    tiers: tuple[str, ...]
    worlds: tuple[str, ...]
    round: int | None
    base: float | None
    main: float | None
    control: float | None
    ceiling: float | None
    difference: Interval | None
    sentence: str


@dataclass(frozen=True, slots=True)
class KindRow:
    """Success of one kind of task: tasks, and (wins, scored) per arm."""

    kind: str
    rates: Mapping[str, tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Pair:
    """One task before (base) and after (the main arm's last round); `change` is what happened to its success."""

    before: Episode
    after: Episode
    change: str


def main_arm(data: ReportData) -> str:
    """The arm the run is about: the first one it names."""
    return next((arm for arm in data.info.arms if arm not in ("base", "control")), "evolve")


def panels(data: ReportData) -> list[Panel]:
    """Every panel that was evaluated, by world and by tier (nearest to the demonstrations first).

    Where a round was chosen on another split, that split is not shown: its numbers are too good.
    """
    splits = {row.split for row in data.results}
    measured = next((split for split in _SPLIT_ORDER if split in splits), None)
    found: dict[tuple[str, str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for row in data.results:
        if measured not in (None, row.split):
            continue
        found[row.world, row.tier, row.split][row.arm].append(row)
    return [_panel(key, found[key], data) for key in sorted(found, key=lambda key: (key[0], _tier_place(key[1]), key))]


def _tier_place(tier: str) -> int:
    return _TIER_ORDER.index(tier) if tier in _TIER_ORDER else len(_TIER_ORDER)


def _panel(key: tuple[str, str, str], arms: Mapping[str, list[Result]], data: ReportData) -> Panel:
    curves = {arm: tuple(sorted(rows, key=lambda row: row.round)) for arm, rows in arms.items()}
    main, control = curves.get(main_arm(data), ()), curves.get("control", ())
    shared = {row.round for row in main} & {row.round for row in control}
    compared = next((row for row in reversed(main) if row.round in shared or not shared), None)
    against = next((row for row in reversed(control) if row.round in shared or not shared), None)
    difference, withheld = _difference([(compared, against)], data)
    base = curves.get("base", (None,))[0]
    return Panel(*key, curves, base, main[-1] if main else None, compared, against, difference, withheld)


def _difference(sides: Iterable[tuple[Result | None, Result | None]], data: ReportData) -> tuple[Interval | None, str]:
    """The paired difference over panels that count equally, or why there is none."""
    a: list[float] = []
    b: list[float] = []
    kind_labels: list[str] = []
    strata: list[str] = []
    for one, other in sides:
        if one is None or other is None:
            return None, "not evaluated yet"
        if one.errors or other.errors or any(success is None for _, _, success in (*one.outcomes, *other.outcomes)):
            return None, "withheld: episodes with errors"
        scores = {task: success for task, _, success in other.outcomes if success is not None}
        matched = [(kind, success, scores[task]) for task, kind, success in one.outcomes if task in scores]
        if not matched or len(matched) != max(len(one.outcomes), len(other.outcomes)):
            return None, "the arms played different tasks"
        for kind, success, control in matched:
            a.append(success or 0.0)
            b.append(control)
            kind_labels.append(kind)
            strata.append(f"{one.world}\n{one.tier}\n{one.split}")
    if not a:
        return None, "not evaluated yet"
    rng = sample_rng("report", data.info.seed, len(a))
    return paired(a, b, levels=[kind_labels], strata=strata, rng=rng).within(-1.0, 1.0), ""


def held_out_tiers(shown: Sequence[Panel]) -> tuple[str, ...]:
    """The tiers of the primary number: evo and combo, else all but seen, else all."""
    tiers = sorted({panel.tier for panel in shown}, key=lambda tier: (_tier_place(tier), tier))
    primary = tuple(tier for tier in tiers if tier in _PRIMARY)
    return primary or tuple(tier for tier in tiers if tier != "seen") or tuple(tiers)


def _mean(values: Iterable[float | None]) -> float | None:
    known = list(values)
    numbers = [value for value in known if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(known) else None


def headline(data: ReportData, shown: Sequence[Panel]) -> Headline:
    """The primary comparison of the run, and the sentence that says what it does and does not show."""
    tiers = held_out_tiers(shown)
    chosen = [panel for panel in shown if panel.tier in tiers]
    difference, reason = _difference([(panel.compared, panel.control) for panel in chosen], data)
    rounds = {panel.compared.round for panel in chosen if panel.compared}
    ceiling = _mean(data.floors.get((panel.world, panel.tier), {}).get("expert") for panel in chosen)
    main = main_arm(data)
    return Headline(
        tiers=tiers,
        worlds=tuple(dict.fromkeys(panel.world for panel in chosen)),
        round=max(rounds, default=None),
        base=_mean(panel.base.mean if panel.base else None for panel in chosen),
        main=_mean(panel.compared.mean if panel.compared else None for panel in chosen),
        control=_mean(panel.control.mean if panel.control else None for panel in chosen),
        ceiling=ceiling,
        difference=difference,
        sentence=_sentence(main, difference, reason),
    )


def _sentence(main: str, difference: Interval | None, reason: str) -> str:
    if difference is None:
        why = {"": "nothing was evaluated yet", "not evaluated yet": "one of them has not been evaluated yet"}
        return f"Exploration: {main} and its train-matched control cannot be compared ({why.get(reason, reason)})."
    points = f"{abs(100 * difference.mean):.1f} points"
    side = "above" if difference.mean > 0 else "below"
    ended = f"ended {points} {side}" if round(abs(100 * difference.mean), 1) else "ended level with"
    verdict = "the interval excludes 0 on this seed" if difference.excludes(0.0) else "no difference is shown"
    if isnan(difference.low):
        return f"Exploration on one seed: {main} {ended} its train-matched control; too few tasks for an interval."
    between = f"95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}, paired by task"
    return (
        f"Exploration on one seed: {main} {ended} its train-matched control ({between}); {verdict}. "
        f"One seed is no proof: another may differ."
    )


def kinds(panel: Panel) -> list[KindRow]:
    """Success per kind for base, main arm and control; kinds in which the arms differ most come first."""
    sides = {"base": panel.base, "main": panel.compared, "control": panel.control}
    table: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for arm, result in sides.items():
        for _, kind, success in result.outcomes if result else ():
            if success is not None:
                table[kind][arm].append(success)
    rows = [KindRow(kind, {arm: (sum(wins), len(wins)) for arm, wins in arms.items()}) for kind, arms in table.items()]

    def gap(row: KindRow) -> tuple[float, str]:
        (a, n), (b, m) = row.rates.get("main", (0.0, 0)), row.rates.get("control", (0.0, 0))
        return (-(a / n - b / m) if n and m else 0.0, row.kind)

    return sorted(rows, key=gap)


def pairs(data: ReportData, *, most: int = 12) -> list[Pair]:
    """Tasks shown before and after, taking turns between the worlds and between what changed."""
    main = main_arm(data)
    before = {(one.world, one.task): one for one in data.examples if one.arm == "base"}
    after: dict[tuple[str, str], Episode] = {}
    for one in data.examples:
        key = (one.world, one.task)
        if one.arm == main and (key not in after or one.round >= after[key].round):
            after[key] = one
    queues: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for key, first in before.items():
        if key in after:
            change = _change(first.success, after[key].success)
            queues[change, first.world].append(Pair(first, after[key], change))
    order = {"solved now": 0, "lost": 1, "still unsolved": 2, "solved before and after": 3, "not scored": 4}
    turns = zip_longest(*(queues[key] for key in sorted(queues, key=lambda key: (order[key[0]], key[1]))))
    return [pair for turn in turns for pair in turn if pair is not None][:most]


def _change(before: bool | None, after: bool | None) -> str:
    if before is None or after is None:
        return "not scored"
    if before:
        return "solved before and after" if after else "lost"
    return "solved now" if after else "still unsolved"
