"""Comparison of two results task by task: an arm of a run with one of another run, or two arms of studies with
all seeds.

A result is named by its folder, and where that is ambiguous by its arm and a number:

    RUN               the last round of the main arm of a run
    RUN:ARM           the last round of that arm
    RUN:ARM@ROUND     that round; round 0 is the arm `base`
    STUDY:ARM         all seeds of an arm of a study
    STUDY:ARM@SEED    one seed, to be compared with a run

Tasks are paired by their ids, so that two runs are comparable exactly where they played the same episodes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.bench.plan import read_study
from evolvent.bench.results import ArmFailure, ArmResult, panel_sort_key
from evolvent.bench.study import read_results
from evolvent.errors import ConfigError, CorruptRecord, Problem, unknown_name_problem
from evolvent.files import disk_errors
from evolvent.stats import Interval, crossed_interval, paired_interval
from evolvent.store.log import parse_rows
from evolvent.trajectory import sample_rng

__all__ = ["ComparedResult", "Comparison", "ComparisonRow", "compare_results", "read_result"]

_ADDRESS = re.compile(r"(.+?)(?::([^:@/]+))?(?:@(\d+))?", re.DOTALL)
_SPLITS = ("test", "dev", "train")
_Successes = tuple[bool | None, ...]


@dataclass(frozen=True)
class ComparedResult:
    """One of two compared results.

    Args:
        name: Name as it was requested.
        panels: Panel ("world/tier") -> task id -> (kind, successes). A run has one success a task, None where the
            episode could not be scored; an arm of a study has one a seed.
        seeds: Seeds of the study, in the order of the successes; empty for a run or a single seed.
        notes: Notes on the result, a sentence each.
    """

    name: str
    panels: Mapping[str, Mapping[str, tuple[str, _Successes]]]
    seeds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparisonRow:
    """One panel, or everything (`world` and `tier` empty: the mean over the panels that both played).

    `a` and `b` are the success rates of the paired tasks; they and the difference are None where `withheld` says why.
    """

    world: str
    tier: str
    tasks: int
    only_a: int
    only_b: int
    a: float | None = None
    b: float | None = None
    difference: Interval | None = None
    withheld: str = ""


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison: a row for each panel, the row over all of them, and notes."""

    a: str
    b: str
    rows: tuple[ComparisonRow, ...]
    overall: ComparisonRow
    seeds: tuple[int, ...]
    notes: tuple[str, ...]


def compare_results(a: ComparedResult, b: ComparedResult) -> Comparison:
    """Compares `a - b`, paired task by task, with 95 % intervals over kinds of tasks, and over several seeds.

    Raises:
        ConfigError: no tasks in common, with the reason; or a study's arm with all its seeds against a single run.
    """
    if bool(a.seeds) != bool(b.seeds):
        study_side = a if a.seeds else b
        raise ConfigError(
            f"{study_side.name} has {len(study_side.seeds)} seeds, but the other result has only one",
            hint=f"choose one seed, such as {study_side.name}@{study_side.seeds[0]}",
        )
    seeds = tuple(seed for seed in a.seeds if seed in b.seeds)
    if a.seeds and not seeds:
        raise ConfigError("the two results share no seed", value=f"seeds {list(a.seeds)} and {list(b.seeds)}")
    seed_indices = [a.seeds.index(seed) for seed in seeds] or [0], [b.seeds.index(seed) for seed in seeds] or [0]
    pairs = [
        _pair_panel(panel, a, b, seed_indices=seed_indices)
        for panel in sorted({*a.panels, *b.panels}, key=panel_sort_key)
    ]
    shared = [pair for pair in pairs if pair.tasks]
    if not shared:
        raise ConfigError(f"{a.name} and {b.name} share no task: {_explain_mismatch(a, b)}")
    notes = [*a.notes, *(note for note in b.notes if note not in a.notes)]
    unshared_seeds = sorted(set(a.seeds) ^ set(b.seeds))
    if unshared_seeds:
        notes.append(f"seeds {', '.join(map(str, unshared_seeds))} are in one of the two only and left out")
    rows = tuple(
        _compare_panels([pair], world=pair.panel.rpartition("/")[0], tier=pair.panel.rpartition("/")[2])
        for pair in pairs
    )
    return Comparison(a.name, b.name, rows, _compare_panels(shared), seeds, tuple(notes))


@dataclass(frozen=True)
class _PairedPanel:
    """One panel of both sides: paired task ids and kinds, successes `[S][N]`, tasks of one side only."""

    panel: str
    tasks: list[str]
    kinds: list[str]
    a: list[list[bool | None]]
    b: list[list[bool | None]]
    only_a: int
    only_b: int

    @property
    def unscored(self) -> int:
        return sum(success is None for rows in (self.a, self.b) for row in rows for success in row)


def _pair_panel(
    panel: str, a: ComparedResult, b: ComparedResult, *, seed_indices: tuple[Sequence[int], Sequence[int]]
) -> _PairedPanel:
    tasks_a, tasks_b = a.panels.get(panel, {}), b.panels.get(panel, {})
    tasks = sorted(tasks_a.keys() & tasks_b.keys())
    successes_a = [[tasks_a[task][1][index] for task in tasks] for index in seed_indices[0]]
    successes_b = [[tasks_b[task][1][index] for task in tasks] for index in seed_indices[1]]
    kinds = [tasks_a[task][0] for task in tasks]
    return _PairedPanel(
        panel, tasks, kinds, successes_a, successes_b, len(tasks_a) - len(tasks), len(tasks_b) - len(tasks)
    )


def _compare_panels(pairs: Sequence[_PairedPanel], *, world: str = "", tier: str = "") -> ComparisonRow:
    """Compares some panels: the plain mean of their means."""
    tasks, only_a, only_b = (
        sum(counts) for counts in zip(*((len(p.tasks), p.only_a, p.only_b) for p in pairs), strict=True)
    )
    unscored = sum(pair.unscored for pair in pairs)
    withheld = f"withheld: {unscored} episode{'' if unscored == 1 else 's'} not scored" if unscored else ""
    if not tasks:
        withheld = "in A only" if only_a else "in B only"
    if withheld:
        return ComparisonRow(world, tier, tasks, only_a, only_b, withheld=withheld)
    kinds = [kind for pair in pairs for kind in pair.kinds]
    strata = [pair.panel for pair in pairs for _ in pair.tasks]
    panels_a, panels_b = [pair.a for pair in pairs], [pair.b for pair in pairs]
    a, b = _concatenate(panels_a), _concatenate(panels_b)
    rng = sample_rng("compare", *strata[:1], len(strata), len(a))
    if len(a) == 1:
        difference = paired_interval(a[0], b[0], levels=[kinds], strata=strata, rng=rng)
    else:
        difference = crossed_interval(a, b, kinds=kinds, strata=strata, rng=rng)
    means = _mean_of_panels(panels_a), _mean_of_panels(panels_b)
    return ComparisonRow(world, tier, tasks, only_a, only_b, *means, difference.clip(-1.0, 1.0))


def _concatenate(panels: Sequence[Sequence[Sequence[bool | None]]]) -> list[list[float]]:
    """Joins several panels to `[S][N]` scores."""
    return [[float(bool(outcome)) for row in rows for outcome in row] for rows in zip(*panels, strict=True)]


def _mean_of_panels(panels: Sequence[Sequence[Sequence[bool | None]]]) -> float:
    means = [
        sum(map(bool, (outcome for row in rows for outcome in row))) / (len(rows) * len(rows[0])) for rows in panels
    ]
    return sum(means) / len(means)


def _explain_mismatch(a: ComparedResult, b: ComparedResult) -> str:
    worlds = [sorted({panel.rpartition("/")[0] for panel in side.panels}) for side in (a, b)]
    if not set(worlds[0]) & set(worlds[1]):
        return f"other worlds ({', '.join(worlds[0])} and {', '.join(worlds[1])})"
    if not a.panels.keys() & b.panels.keys():
        return f"other tiers ({', '.join(sorted(a.panels))} and {', '.join(sorted(b.panels))})"
    shared = ", ".join(sorted(a.panels.keys() & b.panels.keys()))
    return f"both played {shared}, but no task of it is the same: another version of the world, or another split"


# ---------------------------------------------------------------- readers


def read_result(address: str) -> ComparedResult:
    """Reads the result that an address names; see the module.

    Raises:
        ConfigError: no such folder, arm, round or seed (with the nearest or all there are). CorruptRecord,
        StoreUnavailable: a file that cannot be read.
    """
    match = None if Path(address).is_dir() else _ADDRESS.fullmatch(address)
    folder, arm, number = (match[1], match[2], match[3]) if match else (address, None, None)
    path, seed_or_round = Path(folder), None if number is None else int(number)
    if (path / "study.json").is_file():
        return _read_study_side(path, address, arm=arm, seed=seed_or_round)
    if (path / "results.jsonl").is_file():
        return _read_run_side(path, address, arm=arm, round=seed_or_round)
    missing = "the folder has neither results.jsonl (a run) nor study.json (a study)"
    problem = missing if path.is_dir() else f"{folder} is not a folder"
    raise ConfigError([Problem(address, problem, "name RUN, RUN:ARM@ROUND or STUDY:ARM")])


def _read_study_side(folder: Path, address: str, *, arm: str | None, seed: int | None) -> ComparedResult:
    study = read_study(folder)
    if arm is None:
        addresses = ", ".join(f"{folder}:{name}" for name in study.arm_names)
        raise ConfigError([Problem(address, "a study has several arms", f"name one: {addresses}")])
    if arm not in study.arm_names:
        raise ConfigError([unknown_name_problem("arm", arm, study.arm_names, location=address)])
    results = {
        result_seed: result for (name, result_seed), result in read_results(study, folder).items() if name == arm
    }
    finished = {
        result_seed: result
        for result_seed, result in results.items()
        if isinstance(result, ArmResult) and seed in (None, result_seed)
    }
    notes = [
        f"{address} failed on seed {result_seed}: {result.message}"
        for result_seed, result in results.items()
        if isinstance(result, ArmFailure)
    ]
    all_panels = {panel for result in finished.values() for panel in result.outcomes}
    complete = {result_seed: result for result_seed, result in finished.items() if result.outcomes.keys() == all_panels}
    notes += [
        f"{address} lacks a panel on seed {result_seed}: the seed is left out"
        for result_seed in finished
        if result_seed not in complete
    ]
    if not complete:
        finished_seeds = ", ".join(map(str, results)) or "none"
        raise ConfigError([Problem(address, "no seed has finished", f"seeds with a result: {finished_seeds}")])
    panels: dict[str, dict[str, tuple[str, _Successes]]] = {panel: {} for panel in sorted(all_panels)}
    for panel, tasks in panels.items():
        rows = zip(*(result.outcomes[panel] for result in complete.values()), strict=True)
        tasks.update({row[0][0]: (row[0][1], tuple(outcome[2] for outcome in row)) for row in rows})
    return ComparedResult(address, panels, tuple(complete) if seed is None else (), tuple(notes))


def _read_run_side(folder: Path, address: str, *, arm: str | None, round: int | None) -> ComparedResult:
    rows = [row for row in parse_rows(folder / "results.jsonl", _parse_evaluation) if row["outcomes"]]
    if not rows:
        raise ConfigError([Problem(address, f"{folder} has no evaluation yet", "wait for the first evaluation")])
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    selected_arm = _main_arm(folder, arms) if arm is None else arm
    if selected_arm not in arms:
        raise ConfigError([unknown_name_problem("arm", selected_arm, arms, location=address)])
    rounds = sorted({row["round"] for row in rows if row["arm"] == selected_arm})
    number = rounds[-1] if round is None else round
    if number not in rounds:
        hint = f"known: {', '.join(map(str, rounds))}" + ("; round 0 is the arm base" if number == 0 else "")
        raise ConfigError([Problem(address, f"arm {selected_arm} does not have round {number}", hint)])
    rows = [row for row in rows if (row["arm"], row["round"]) == (selected_arm, number)]
    split = next((split for split in _SPLITS if any(row["split"] == split for row in rows)), rows[0]["split"])
    panels: dict[str, dict[str, tuple[str, _Successes]]] = {}
    for row in rows:  # of two evaluations of one panel the later one counts
        if row["split"] == split:
            panels[f"{row['world']}/{row['tier']}"] = {
                task: (kind, (success,)) for task, kind, success in row["outcomes"]
            }
    return ComparedResult(
        address, panels, notes=(f"{address} is the arm {selected_arm}, round {number}, split {split}",)
    )


def _main_arm(folder: Path, arms: Sequence[str]) -> str:
    """Returns the main arm of a run: the first one that its record names, or the first that was evaluated."""
    path = folder / "run.json"
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else b"{}"
    try:
        recorded_arms = json.loads(raw).get("arms", [])
    except (ValueError, AttributeError) as error:
        raise CorruptRecord(f"{path} cannot be read", offset=0, hint="name the arm: RUN:ARM") from error
    candidates = [
        str(arm) for arm in (*(recorded_arms if isinstance(recorded_arms, list) else []), *arms) if arm in arms
    ]
    return next((arm for arm in candidates if arm not in ("base", "control")), candidates[0])


def _parse_evaluation(row: Mapping[str, Any]) -> Mapping[str, Any]:
    outcomes = [
        (str(task), str(kind), None if success is None else bool(success)) for task, kind, success in row["outcomes"]
    ]
    names = {name: str(row[name]) for name in ("arm", "world", "tier", "split")}
    return {**names, "round": int(row["round"]), "outcomes": outcomes}
