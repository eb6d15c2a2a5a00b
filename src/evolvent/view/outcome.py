"""Results of a run: the panels, the arms compared on the same tasks, and the examples to show.

The page and the plain table both show these values, so that they cannot disagree.

The plain table at the end of a run: success per world and tier, base to last round, and the control.

Made of rich's `Text` only, never of its markup, with hidden characters shown as code points: a name in the run's files
can neither color the terminal nor send it a control sequence. ASCII throughout, but for what names hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import isnan

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evolvent.stats import Interval, paired_interval
from evolvent.trajectory import sample_rng
from evolvent.view.data import Episode, ReportData, Result
from evolvent.view.escape import clip, show_hidden

__all__ = [
    "Headline",
    "KindRow",
    "Pair",
    "Panel",
    "build_headline",
    "build_panels",
    "compare_kinds",
    "held_out_tiers",
    "main_arm",
    "select_pairs",
    "summary",
]


_TIER_ORDER = ("seen", "evo", "combo", "longer")
_SPLIT_ORDER = ("test", "dev", "train")
_PRIMARY_TIERS = ("evo", "combo")


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
    """The primary comparison: plain means over the panels of the held-out tiers (rates 0..1).

    `is_measurement`: one policy was measured, and nothing was compared.
    `has_control`: the run has an arm that its main arm can be compared with.
    """

    tiers: tuple[str, ...]
    worlds: tuple[str, ...]
    round: int | None
    base: float | None
    main: float | None
    control: float | None
    ceiling: float | None
    difference: Interval | None
    sentence: str
    is_measurement: bool = False
    has_control: bool = True


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
    """Returns the arm that the run is about: the first it names."""
    return next((arm for arm in data.info.arms if arm not in ("base", "control")), "evolve")


def build_panels(data: ReportData) -> list[Panel]:
    """Builds every panel that was evaluated, by world and by tier (nearest to the demonstrations first).

    Where a round was chosen on another split, that split is not shown: its numbers are too good.
    """
    splits = {row.split for row in data.results}
    main_split = next((split for split in _SPLIT_ORDER if split in splits), None)
    results_per_panel: dict[tuple[str, str, str], dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for row in data.results:
        if main_split not in (None, row.split):
            continue
        results_per_panel[row.world, row.tier, row.split][row.arm].append(row)
    return [
        _build_panel(key, results_per_panel[key], data)
        for key in sorted(results_per_panel, key=lambda key: (key[0], _tier_rank(key[1]), key))
    ]


def _tier_rank(tier: str) -> int:
    return _TIER_ORDER.index(tier) if tier in _TIER_ORDER else len(_TIER_ORDER)


def _build_panel(key: tuple[str, str, str], arms: Mapping[str, list[Result]], data: ReportData) -> Panel:
    curves = {arm: tuple(sorted(rows, key=lambda row: row.round)) for arm, rows in arms.items()}
    main, control = curves.get(main_arm(data), ()), curves.get("control", ())
    shared = {row.round for row in main} & {row.round for row in control}
    compared_result = next((row for row in reversed(main) if row.round in shared or not shared), None)
    control_result = next((row for row in reversed(control) if row.round in shared or not shared), None)
    difference, withheld = _paired_difference([(compared_result, control_result)], data)
    base = curves.get("base", (None,))[0]
    return Panel(*key, curves, base, main[-1] if main else None, compared_result, control_result, difference, withheld)


def _paired_difference(
    sides: Iterable[tuple[Result | None, Result | None]], data: ReportData
) -> tuple[Interval | None, str]:
    """Returns the paired difference over panels that count equally, or the reason why there is none."""
    main_scores: list[float] = []
    control_scores: list[float] = []
    kind_labels: list[str] = []
    strata: list[str] = []
    for result, control_result in sides:
        if result is None or control_result is None:
            return None, "not evaluated yet"
        if (
            result.errors
            or control_result.errors
            or any(success is None for _, _, success in (*result.outcomes, *control_result.outcomes))
        ):
            return None, "withheld: episodes with errors"
        scores = {task: success for task, _, success in control_result.outcomes if success is not None}
        matched = [(kind, success, scores[task]) for task, kind, success in result.outcomes if task in scores]
        if not matched or len(matched) != max(len(result.outcomes), len(control_result.outcomes)):
            return None, "the arms played different tasks"
        for kind, success, control in matched:
            main_scores.append(success or 0.0)
            control_scores.append(control)
            kind_labels.append(kind)
            strata.append(f"{result.world}\n{result.tier}\n{result.split}")
    if not main_scores:
        return None, "not evaluated yet"
    rng = sample_rng("report", data.info.seed, len(main_scores))
    return paired_interval(main_scores, control_scores, levels=[kind_labels], strata=strata, rng=rng).clip(
        -1.0, 1.0
    ), ""


def held_out_tiers(evaluated_panels: Sequence[Panel]) -> tuple[str, ...]:
    """Returns the tiers of the primary number: evo and combo, else all but seen, else all."""
    tiers = sorted({panel.tier for panel in evaluated_panels}, key=lambda tier: (_tier_rank(tier), tier))
    primary = tuple(tier for tier in tiers if tier in _PRIMARY_TIERS)
    return primary or tuple(tier for tier in tiers if tier != "seen") or tuple(tiers)


def _mean_or_none(values: Iterable[float | None]) -> float | None:
    all_values = list(values)
    numbers = [value for value in all_values if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(all_values) else None


def build_headline(data: ReportData, evaluated_panels: Sequence[Panel]) -> Headline:
    """Builds the primary comparison of the run, and the sentence that states its result and limits."""
    tiers = held_out_tiers(evaluated_panels)
    primary_panels = [panel for panel in evaluated_panels if panel.tier in tiers]
    difference, reason = _paired_difference([(panel.compared, panel.control) for panel in primary_panels], data)
    rounds = {panel.compared.round for panel in primary_panels if panel.compared}
    ceiling = _mean_or_none(data.floors.get((panel.world, panel.tier), {}).get("expert") for panel in primary_panels)
    main = main_arm(data)
    base = _mean_or_none(panel.base.mean if panel.base else None for panel in primary_panels)
    is_measurement = is_measured_alone(data)
    has_control = not data.info.arms or "control" in (*data.info.arms, *(row.arm for row in data.results))
    if is_measurement:
        sentence = _describe_measurement(base, [panel.base for panel in primary_panels if panel.base])
    elif has_control:
        sentence = _build_sentence(main, difference, reason)
    else:
        compared = [panel.compared for panel in primary_panels if panel.compared]
        success = _mean_or_none(result.mean for result in compared)
        sentence = _describe_measurement(success, compared, subject=main)
        sentence += f" This run has no control arm to compare {main} with."
    return Headline(
        tiers=tiers,
        worlds=tuple(dict.fromkeys(panel.world for panel in primary_panels)),
        round=max(rounds, default=None),
        base=base,
        main=_mean_or_none(panel.compared.mean if panel.compared else None for panel in primary_panels),
        control=_mean_or_none(panel.control.mean if panel.control else None for panel in primary_panels),
        ceiling=ceiling,
        difference=difference,
        sentence=sentence,
        is_measurement=is_measurement,
        has_control=has_control,
    )


def is_measured_alone(data: ReportData) -> bool:
    """Returns whether a run measured one policy, as `evolvent eval` does, and has no other arm."""
    return tuple(data.info.arms) == ("base",) and {row.arm for row in data.results} <= {"base"}


def _describe_measurement(success: float | None, results: Sequence[Result], *, subject: str = "The policy") -> str:
    if not results:
        return "Nothing was measured yet."
    num_tasks = sum(result.n for result in results)
    num_errors = sum(result.errors for result in results)
    tasks = f"{num_tasks} task{'s'[: num_tasks != 1]}"
    if success is None:
        return f"{num_errors} of {tasks} could not be scored, so no success is given."
    return f"{subject} succeeds in {100 * success:.1f} % of {tasks}."


def _build_sentence(main: str, difference: Interval | None, reason: str) -> str:
    if difference is None:
        reasons = {"": "nothing was evaluated yet", "not evaluated yet": "one of them has not been evaluated yet"}
        return f"Exploration: {main} and its train-matched control cannot be compared ({reasons.get(reason, reason)})."
    points = f"{abs(100 * difference.mean):.1f} points"
    direction = "above" if difference.mean > 0 else "below"
    outcome_text = f"ended {points} {direction}" if round(abs(100 * difference.mean), 1) else "ended level with"
    verdict = "the interval excludes 0 on this seed" if difference.excludes(0.0) else "no difference is shown"
    if isnan(difference.low):
        return (
            f"Exploration on one seed: {main} {outcome_text} its train-matched control; too few tasks for an interval."
        )
    interval_text = f"95 % interval {100 * difference.low:+.1f} to {100 * difference.high:+.1f}, paired by task"
    return (
        f"Exploration on one seed: {main} {outcome_text} its train-matched control ({interval_text}); {verdict}. "
        f"One seed is not proof: another may differ."
    )


def compare_kinds(panel: Panel) -> list[KindRow]:
    """Returns success per kind for base, main arm and control; kinds in which the arms differ most come first."""
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


def select_pairs(data: ReportData, *, max_pairs: int = 12) -> list[Pair]:
    """Selects tasks shown before and after, alternating between the worlds and between kinds of change."""
    main = main_arm(data)
    before = {(episode.world, episode.task): episode for episode in data.examples if episode.arm == "base"}
    after: dict[tuple[str, str], Episode] = {}
    for episode in data.examples:
        key = (episode.world, episode.task)
        if episode.arm == main and (key not in after or episode.round >= after[key].round):
            after[key] = episode
    queues: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for key, base_episode in before.items():
        if key in after:
            change = _describe_change(base_episode.success, after[key].success)
            queues[change, base_episode.world].append(Pair(base_episode, after[key], change))
    order = {"solved now": 0, "lost": 1, "still unsolved": 2, "solved before and after": 3, "not scored": 4}
    turns = zip_longest(*(queues[key] for key in sorted(queues, key=lambda key: (order[key[0]], key[1]))))
    return [pair for turn in turns for pair in turn if pair is not None][:max_pairs]


def _describe_change(before: bool | None, after: bool | None) -> str:
    if before is None or after is None:
        return "not scored"
    if before:
        return "solved before and after" if after else "lost"
    return "solved now" if after else "still unsolved"


_MIN_TABLE_WIDTH = 76  # columns that the table of one row a panel needs


def summary(data: ReportData, *, width: int = 80) -> RenderableType:
    """Builds the summary of `make evolve`: the sentence about the control, then a row (or a narrow block) per panel.

    Args:
        width: columns of the terminal; below 76 every panel is a block of lines of at most 36 columns.
    """
    evaluated_panels = build_panels(data)
    sentence = Text(_clip_line(build_headline(data, evaluated_panels).sentence, 600))
    if not evaluated_panels:
        return sentence
    arm_label = _clip_line(main_arm(data), 12)
    if width >= _MIN_TABLE_WIDTH:
        return Group(_build_table(evaluated_panels, arm_label), Text(), sentence)
    return Group(*(_build_block(panel, arm_label) for panel in evaluated_panels), Text(), sentence)


def _build_table(evaluated_panels: list[Panel], arm: str) -> Table:
    table = Table(box=box.ASCII2, show_edge=False, pad_edge=False, header_style="bold", padding=(0, 1))
    for name in ("world", "tier"):
        table.add_column(Text(name), overflow="fold", max_width=16)
    for name in ("tasks", "base", arm, "control"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    table.add_column(Text("difference, 95 %"), no_wrap=True)
    for panel in evaluated_panels:
        result = panel.compared or panel.base or panel.control
        cells = (
            _clip_line(panel.world),
            _clip_line(panel.tier),
            str(result.n) if result else "-",
            _format_rate(panel.base),
            _format_rate(panel.compared),
            _format_rate(panel.control),
            _format_difference(panel),
        )
        table.add_row(*map(Text, cells))
    return table


def _build_block(panel: Panel, arm: str) -> Text:
    lines = [f"{_clip_line(panel.world, 18)} {_clip_line(panel.tier, 16)}", f"  base {_format_rate(panel.base)}"]
    lines += [
        f"  {arm} {_format_rate(panel.compared)}, control {_format_rate(panel.control)}",
        f"  difference {_format_difference(panel)}",
    ]
    return Text("\n".join(lines))


def _clip_line(text: str, limit: int = 40) -> str:
    return clip(" ".join(show_hidden(text).split()), limit)


def _format_rate(result: Result | None) -> str:
    if result is None:
        return "-"
    return "withheld" if result.mean is None else f"{100 * result.mean:.1f} %"


def _format_difference(panel: Panel) -> str:
    if panel.difference is None:
        return {"not evaluated yet": "-"}.get(panel.withheld, panel.withheld)
    return _format_points(panel.difference)


def _format_points(interval: Interval) -> str:
    if isnan(interval.low):
        return f"{100 * interval.mean:+.1f}"
    return f"{100 * interval.mean:+.1f} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"
