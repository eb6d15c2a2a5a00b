"""What is published of a run: which policy, which of the run's evaluations measured it, and what it cost.

An evaluation is shown for a policy only where the ledger says that it measured that very policy: one of the same arm
and round, after its fit and before the next one. The last one of a finished run measures what its method returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from evolvent.stats import Interval
from evolvent.view.data import ReportData, Result, StageRow
from evolvent.view.outcome import Headline, headline, main_arm, panels

__all__ = ["License", "Line", "Published", "Weights", "final_evaluation", "lineage", "lines", "overall"]

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class License:
    """A licence by its SPDX id, by the Hub's id, and by a name where the Hub knows it as `other` only."""

    spdx: str
    hub: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Weights:
    """What the loaded policy says about itself.

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
class Published:
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
    weights: Weights
    source: str
    fit: StageRow | None
    result: bool
    license: License | None = None

    @property
    def arm(self) -> str:
        """The arm that it belongs to; "base" before any exploring."""
        return self.fit.arm if self.fit is not None else main_arm(self.data)


@dataclass(frozen=True, slots=True)
class Line:
    """One panel that the policy was measured on, beside what it is to be compared with.

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


def final_evaluation(data: ReportData) -> StageRow | None:
    """The stage in which a finished run measured its result; None for a run whose end is not recorded."""
    arms = (main_arm(data), "base")
    if data.info.state != "finished":
        return None
    return next((row for row in reversed(data.stages) if row.verb == "evaluate" and row.arm in arms), None)


def lineage(published: Published) -> tuple[StageRow, ...]:
    """The finished stages that led to the policy; to a run's result all of its arm did, as they chose it."""
    arms = {"base", published.arm} | ({main_arm(published.data)} if published.result else set())
    own = [row for row in published.data.stages if row.arm in arms]
    if published.result or published.fit is None:
        return tuple(own)
    last = max([published.fit.index, *(_index(published.data).get(row.stage, 0) for row in _measured(published))])
    return tuple(row for row in own if row.index <= last)


def lines(published: Published) -> tuple[Line, ...]:
    """Every panel that this policy was measured on, by world, tier and split; empty where there is none."""
    found: list[Line] = []
    rows = _measured(published)
    for data, shared in _moments(published.data, rows):
        shown = {(panel.world, panel.tier, panel.split): panel for panel in panels(data)}
        for row in shared:
            panel = shown[_key(row)]
            against = panel.control if row.arm not in ("base", "control") else None
            same = against is not None and panel.compared == row and against.round == row.round
            found.append(
                Line(
                    row,
                    None if row.arm == "base" else panel.base,
                    against if same else None,
                    panel.difference if same else None,
                    _floors(published.data, row),
                )
            )
    order = {_key(row): place for place, row in enumerate(rows)}
    return tuple(sorted(found, key=lambda line: order[_key(line.result)]))


def overall(published: Published) -> Headline | None:
    """The policy against the control over the held-out tiers; None where the run has no control at its round."""
    for data, shared in reversed(_moments(published.data, _measured(published))):
        own = {_key(row) for row in shared}
        shown = [panel for panel in panels(data) if (panel.world, panel.tier, panel.split) in own]
        head = headline(data, shown)
        level = all(
            panel.compared in shared and panel.control is not None and panel.control.round == panel.compared.round
            for panel in shown
            if panel.tier in head.tiers and panel.compared is not None
        )
        if head.difference is not None and level:
            return head
    return None


def _measured(published: Published) -> list[Result]:
    """The rows that measured this policy, one a panel; of the held-out split where there are several.

    The last evaluation of a finished run is of its result, though it bears the last round: that of another policy,
    which was measured before it then.
    """
    data, final = published.data, final_evaluation(published.data)
    own = _after_fit(data, published.fit) if published.fit is not None else []
    ending = [row for row in data.results if final is not None and (row.stage, row.arm) == (final.name, final.arm)]
    chosen = [*own, *ending] if published.result else [row for row in own if row not in ending] or own
    rows = {_key(row): row for row in chosen}
    return [rows[panel.world, panel.tier, panel.split] for panel in panels(replace(data, results=tuple(rows.values())))]


def _after_fit(data: ReportData, fit: StageRow) -> list[Result]:
    """The rows of the fit's arm and round that were measured after it, and before the next fit of that round."""
    index, place = _index(data), (fit.arm, fit.round)
    fits = [row.index for row in data.stages if row.verb == "fit" and (row.arm, row.round) == place]
    end = min((later for later in fits if later > fit.index), default=inf)
    rows = [row for row in data.results if (row.arm, row.round) == place]
    return [row for row in rows if fit.index < index.get(row.stage, -1) < end]


def _moments(data: ReportData, rows: Sequence[Result]) -> list[tuple[ReportData, list[Result]]]:
    """The run as it stood when these rows were measured, by round, arm and split, with the rows of that moment."""
    moments: dict[tuple[int, str, str], list[Result]] = {}
    for row in rows:
        moments.setdefault((row.round, row.arm, row.split), []).append(row)
    found = []
    for (number, arm, split), shared in sorted(moments.items(), key=lambda item: item[0]):
        past = (row for row in data.results if row.arm in (arm, "control", "base") and row.round <= number)
        kept = tuple(row for row in past if row.split == split)
        found.append((replace(data, info=replace(data.info, arms=(arm,)), results=kept), shared))
    return found


def _index(data: ReportData) -> dict[str, int]:
    return {row.name: row.index for row in data.stages if row.verb == "evaluate"}


def _key(row: Result) -> _Key:
    return row.world, row.tier, row.split


def _floors(data: ReportData, row: Result) -> Mapping[str, float]:
    """Floors were measured on one split: that of the run's settings."""
    panel = data.info.config.get("panel")
    split = panel.get("split") if isinstance(panel, Mapping) else None
    return data.floors.get((row.world, row.tier), {}) if split in (None, row.split) else {}
