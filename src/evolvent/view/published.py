"""A published policy of a run: the policy, the evaluations that measured it, and its cost.

An evaluation is shown for a policy only where the ledger says that it measured that very policy: one of the same arm
and round, after its fit and before the next one. The last one of a finished run measures what its method returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from evolvent.stats import Interval
from evolvent.view.data import ReportData, Result, StageRow
from evolvent.view.outcome import Headline, build_headline, build_panels, main_arm

__all__ = [
    "License",
    "PanelLine",
    "PolicyFacts",
    "PublishedPolicy",
    "build_lines",
    "compare_with_control",
    "find_final_evaluation",
    "find_lineage",
]

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class License:
    """A license by its SPDX id, by the Hub's id, and by a name where the Hub knows it as `other` only."""

    spdx: str
    hub: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """Facts about the loaded policy.

    Args:
        architecture: the class of its model, as `config.json` names it.
        parameters, vocabulary, context: how many weights, tokens known, and tokens of an episode.
        dtype, dialect: of its numbers; how it writes a conversation.
        shape: what else tells its size, such as layers and the width of its hidden states.
        version: how many fits it went through.
        merged: the kind of the adapter that was merged into the weights; "" where there was none.
    """

    architecture: str
    parameters: int
    vocabulary: int
    context: int
    dtype: str
    dialect: str
    shape: Mapping[str, int] = field(default_factory=dict)
    version: int = 0
    merged: str = ""


@dataclass(frozen=True, slots=True)
class PublishedPolicy:
    """A policy of a run, about to be published.

    Args:
        name: of the run.
        data: everything the run's files say.
        weights: the policy.
        source: where the run keeps it, such as `model`.
        fit: the stage that learned it; None where the ledger does not tell.
        result: whether it is what the run ended with (its `model` folder).
        license: None where none is stated.
    """

    name: str
    data: ReportData
    weights: PolicyFacts
    source: str
    fit: StageRow | None
    result: bool
    license: License | None = None

    @property
    def arm(self) -> str:
        """Returns the arm that it belongs to; "base" before any exploring."""
        return self.fit.arm if self.fit is not None else main_arm(self.data)


@dataclass(frozen=True, slots=True)
class PanelLine:
    """A panel that the policy was measured on, with the results to compare.

    Args:
        result: of this policy.
        base: after the cloning; None where that is this policy, or was not measured.
        control: at the same round; None where there is none.
        difference: result minus control, paired by task; None where it cannot be given.
        floors: success of policies that learn nothing, by name.
    """

    result: Result
    base: Result | None
    control: Result | None
    difference: Interval | None
    floors: Mapping[str, float]


def find_final_evaluation(data: ReportData) -> StageRow | None:
    """Returns the stage in which a finished run measured its result; None for a run whose end is not recorded."""
    arms = (main_arm(data), "base")
    if data.info.state != "finished":
        return None
    return next((row for row in reversed(data.stages) if row.verb == "evaluate" and row.arm in arms), None)


def find_lineage(published: PublishedPolicy) -> tuple[StageRow, ...]:
    """Returns the finished stages that led to the policy; for the result of a run, all stages of its arm."""
    arms = {"base", published.arm} | ({main_arm(published.data)} if published.result else set())
    arm_rows = [row for row in published.data.stages if row.arm in arms]
    if published.result or published.fit is None:
        return tuple(arm_rows)
    last_index = max(
        [
            published.fit.index,
            *(_evaluation_indices(published.data).get(row.stage, 0) for row in _policy_results(published)),
        ]
    )
    return tuple(row for row in arm_rows if row.index <= last_index)


def build_lines(published: PublishedPolicy) -> tuple[PanelLine, ...]:
    """Returns every panel that this policy was measured on, by world, tier and split; empty where there is none."""
    panel_lines: list[PanelLine] = []
    rows = _policy_results(published)
    for data, group in _snapshots(published.data, rows):
        panels_by_key = {(panel.world, panel.tier, panel.split): panel for panel in build_panels(data)}
        for row in group:
            panel = panels_by_key[_panel_key(row)]
            control_result = panel.control if row.arm not in ("base", "control") else None
            is_comparable = control_result is not None and panel.compared == row and control_result.round == row.round
            panel_lines.append(
                PanelLine(
                    row,
                    None if row.arm == "base" else panel.base,
                    control_result if is_comparable else None,
                    panel.difference if is_comparable else None,
                    _panel_floors(published.data, row),
                )
            )
    order = {_panel_key(row): position for position, row in enumerate(rows)}
    return tuple(sorted(panel_lines, key=lambda line: order[_panel_key(line.result)]))


def compare_with_control(published: PublishedPolicy) -> Headline | None:
    """Returns the policy against the control over the held-out tiers; None where the run has no control at its
    round.
    """
    for data, group in reversed(_snapshots(published.data, _policy_results(published))):
        panel_keys = {_panel_key(row) for row in group}
        measured_panels = [
            panel for panel in build_panels(data) if (panel.world, panel.tier, panel.split) in panel_keys
        ]
        primary = build_headline(data, measured_panels)
        is_same_round = all(
            panel.compared in group and panel.control is not None and panel.control.round == panel.compared.round
            for panel in measured_panels
            if panel.tier in primary.tiers and panel.compared is not None
        )
        if primary.difference is not None and is_same_round:
            return primary
    return None


def _policy_results(published: PublishedPolicy) -> list[Result]:
    """Returns the rows that measured this policy, one a panel; of the held-out split where there are several.

    The last evaluation of a finished run is of its result, though it bears the last round: that of another policy,
    which was measured before it then.
    """
    data, final = published.data, find_final_evaluation(published.data)
    fit_results = _results_after_fit(data, published.fit) if published.fit is not None else []
    final_results = [
        row for row in data.results if final is not None and (row.stage, row.arm) == (final.name, final.arm)
    ]
    candidates = (
        [*fit_results, *final_results]
        if published.result
        else [row for row in fit_results if row not in final_results] or fit_results
    )
    rows = {_panel_key(row): row for row in candidates}
    return [
        rows[panel.world, panel.tier, panel.split]
        for panel in build_panels(replace(data, results=tuple(rows.values())))
    ]


def _results_after_fit(data: ReportData, fit: StageRow) -> list[Result]:
    """Returns the rows of the fit's arm and round that were measured after it, and before the next fit of that
    round.
    """
    stage_indices, arm_and_round = _evaluation_indices(data), (fit.arm, fit.round)
    fits = [row.index for row in data.stages if row.verb == "fit" and (row.arm, row.round) == arm_and_round]
    next_fit = min((fit_index for fit_index in fits if fit_index > fit.index), default=inf)
    rows = [row for row in data.results if (row.arm, row.round) == arm_and_round]
    return [row for row in rows if fit.index < stage_indices.get(row.stage, -1) < next_fit]


def _snapshots(data: ReportData, rows: Sequence[Result]) -> list[tuple[ReportData, list[Result]]]:
    """Returns the run at the time when these rows were measured, by round, arm and split, with the rows of each
    group.
    """
    groups: dict[tuple[int, str, str], list[Result]] = {}
    for row in rows:
        groups.setdefault((row.round, row.arm, row.split), []).append(row)
    states = []
    for (number, arm, split), group in sorted(groups.items(), key=lambda item: item[0]):
        past = (row for row in data.results if row.arm in (arm, "control", "base") and row.round <= number)
        results = tuple(row for row in past if row.split == split)
        states.append((replace(data, info=replace(data.info, arms=(arm,)), results=results), group))
    return states


def _evaluation_indices(data: ReportData) -> dict[str, int]:
    return {row.name: row.index for row in data.stages if row.verb == "evaluate"}


def _panel_key(row: Result) -> _Key:
    return row.world, row.tier, row.split


def _panel_floors(data: ReportData, row: Result) -> Mapping[str, float]:
    """Returns the floors of a panel. They were measured on one split: the split of the run's settings."""
    panel = data.info.config.get("panel")
    split = panel.get("split") if isinstance(panel, Mapping) else None
    return data.floors.get((row.world, row.tier), {}) if split in (None, row.split) else {}
