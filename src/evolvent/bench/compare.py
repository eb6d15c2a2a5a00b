"""Two results compared task by task: an arm of a run with one of another run, or two arms of studies with all seeds.

A result is named by its folder, and where that is not enough by its arm and a number:

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.bench.plan import read_study
from evolvent.bench.results import Failed, Played, panel_place
from evolvent.bench.study import read_results
from evolvent.errors import ConfigError, CorruptRecord, Problem, unknown
from evolvent.files import disk_errors
from evolvent.stats import Interval, crossed, paired
from evolvent.trajectory import sample_rng

__all__ = ["Comparison", "Row", "Side", "compare", "read_side"]

_ADDRESS = re.compile(r"(.+?)(?::([^:@/]+))?(?:@(\d+))?", re.DOTALL)
_SPLITS = ("test", "dev", "train")
_Successes = tuple[bool | None, ...]


@dataclass(frozen=True)
class Side:
    """One of two results.

    Args:
        name: as it was asked for.
        panels: panel ("world/tier") -> task id -> (kind, successes). A run has one success a task, None where the
            episode could not be scored; an arm of a study has one a seed.
        seeds: of the study, in the order of the successes; empty for a run or a single seed.
        notes: what to know about it, a sentence each.
    """

    name: str
    panels: Mapping[str, Mapping[str, tuple[str, _Successes]]]
    seeds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
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
    """What came out: a row a panel, the row over all of them, and what to know about it."""

    a: str
    b: str
    rows: tuple[Row, ...]
    overall: Row
    seeds: tuple[int, ...]
    notes: tuple[str, ...]


def compare(a: Side, b: Side) -> Comparison:
    """`a - b`, paired task by task, with 95 % intervals over kinds of tasks, and over seeds where there are several.

    Raises:
        ConfigError: nothing in common, and why; or a study's arm with all its seeds against a single run.
    """
    if bool(a.seeds) != bool(b.seeds):
        many = a if a.seeds else b
        raise ConfigError(
            f"{many.name} is an arm with {len(many.seeds)} seeds, the other result has only one",
            hint=f"name one seed, such as {many.name}@{many.seeds[0]}",
        )
    seeds = tuple(seed for seed in a.seeds if seed in b.seeds)
    if a.seeds and not seeds:
        raise ConfigError("no seed in common", value=f"seeds {list(a.seeds)} and {list(b.seeds)}")
    places = [a.seeds.index(seed) for seed in seeds] or [0], [b.seeds.index(seed) for seed in seeds] or [0]
    pairs = [_pair(panel, a, b, places=places) for panel in sorted({*a.panels, *b.panels}, key=panel_place)]
    shared = [pair for pair in pairs if pair.tasks]
    if not shared:
        raise ConfigError(f"{a.name} and {b.name} have nothing in common: {_why_apart(a, b)}")
    notes = [*a.notes, *(note for note in b.notes if note not in a.notes)]
    alone = sorted(set(a.seeds) ^ set(b.seeds))
    if alone:
        notes.append(f"seeds {', '.join(map(str, alone))} are in one of the two only and left out")
    rows = tuple(
        _row([pair], world=pair.panel.rpartition("/")[0], tier=pair.panel.rpartition("/")[2]) for pair in pairs
    )
    return Comparison(a.name, b.name, rows, _row(shared), seeds, tuple(notes))


@dataclass(frozen=True)
class _Pair:
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


def _pair(panel: str, a: Side, b: Side, *, places: tuple[Sequence[int], Sequence[int]]) -> _Pair:
    mine, other = a.panels.get(panel, {}), b.panels.get(panel, {})
    tasks = sorted(mine.keys() & other.keys())
    mine_won = [[mine[task][1][place] for task in tasks] for place in places[0]]
    other_won = [[other[task][1][place] for task in tasks] for place in places[1]]
    kinds = [mine[task][0] for task in tasks]
    return _Pair(panel, tasks, kinds, mine_won, other_won, len(mine) - len(tasks), len(other) - len(tasks))


def _row(pairs: Sequence[_Pair], *, world: str = "", tier: str = "") -> Row:
    """The comparison over some panels: the plain mean of their means."""
    tasks, only_a, only_b = (
        sum(counts) for counts in zip(*((len(p.tasks), p.only_a, p.only_b) for p in pairs), strict=True)
    )
    unscored = sum(pair.unscored for pair in pairs)
    withheld = f"withheld: {unscored} episode{'' if unscored == 1 else 's'} not scored" if unscored else ""
    if not tasks:
        withheld = "in A only" if only_a else "in B only"
    if withheld:
        return Row(world, tier, tasks, only_a, only_b, withheld=withheld)
    kinds = [kind for pair in pairs for kind in pair.kinds]
    strata = [pair.panel for pair in pairs for _ in pair.tasks]
    mine, other = [pair.a for pair in pairs], [pair.b for pair in pairs]
    a, b = _joined(mine), _joined(other)
    rng = sample_rng("compare", *strata[:1], len(strata), len(a))
    if len(a) == 1:
        difference = paired(a[0], b[0], levels=[kinds], strata=strata, rng=rng)
    else:
        difference = crossed(a, b, kinds=kinds, strata=strata, rng=rng)
    means = _mean_of_panels(mine), _mean_of_panels(other)
    return Row(world, tier, tasks, only_a, only_b, *means, difference.within(-1.0, 1.0))


def _joined(panels: Sequence[Sequence[Sequence[bool | None]]]) -> list[list[float]]:
    """`[S][N]` scores of several panels side by side."""
    return [[float(bool(one)) for row in rows for one in row] for rows in zip(*panels, strict=True)]


def _mean_of_panels(panels: Sequence[Sequence[Sequence[bool | None]]]) -> float:
    means = [sum(map(bool, (one for row in rows for one in row))) / (len(rows) * len(rows[0])) for rows in panels]
    return sum(means) / len(means)


def _why_apart(a: Side, b: Side) -> str:
    worlds = [sorted({panel.rpartition("/")[0] for panel in side.panels}) for side in (a, b)]
    if not set(worlds[0]) & set(worlds[1]):
        return f"other worlds ({', '.join(worlds[0])} and {', '.join(worlds[1])})"
    if not a.panels.keys() & b.panels.keys():
        return f"other tiers ({', '.join(sorted(a.panels))} and {', '.join(sorted(b.panels))})"
    shared = ", ".join(sorted(a.panels.keys() & b.panels.keys()))
    return f"both played {shared}, but no task of it is the same: another version of the world, or another split"


# ---------------------------------------------------------------- readers


def read_side(address: str) -> Side:
    """The result that an address names; see the module.

    Raises:
        ConfigError: no such folder, arm, round or seed (with the nearest or all there are). CorruptRecord,
        StoreUnavailable: a file that cannot be read.
    """
    match = None if Path(address).is_dir() else _ADDRESS.fullmatch(address)
    folder, arm, number = (match[1], match[2], match[3]) if match else (address, None, None)
    path, at = Path(folder), None if number is None else int(number)
    if (path / "study.json").is_file():
        return _study_side(path, address, arm=arm, seed=at)
    if (path / "results.jsonl").is_file():
        return _run_side(path, address, arm=arm, round=at)
    what = "holds neither results.jsonl (a run) nor study.json (a study)" if path.is_dir() else "is no folder"
    raise ConfigError([Problem(address, f"{folder} {what}", "name RUN, RUN:ARM@ROUND or STUDY:ARM")])


def _study_side(folder: Path, address: str, *, arm: str | None, seed: int | None) -> Side:
    study = read_study(folder)
    if arm is None:
        known = ", ".join(f"{folder}:{name}" for name in study.names)
        raise ConfigError([Problem(address, "a study has several arms", f"name one: {known}")])
    if arm not in study.names:
        raise ConfigError([unknown("arm", arm, study.names, where=address)])
    results = {at: result for (name, at), result in read_results(study, folder).items() if name == arm}
    played = {at: result for at, result in results.items() if isinstance(result, Played) and seed in (None, at)}
    notes = [
        f"{address} failed on seed {at}: {result.message}"
        for at, result in results.items()
        if isinstance(result, Failed)
    ]
    wanted = {panel for result in played.values() for panel in result.outcomes}
    whole = {at: result for at, result in played.items() if result.outcomes.keys() == wanted}
    notes += [f"{address} lacks a panel on seed {at}: the seed is left out" for at in played if at not in whole]
    if not whole:
        there = ", ".join(map(str, results)) or "none"
        raise ConfigError([Problem(address, "has no finished seed", f"seeds with a result: {there}")])
    panels: dict[str, dict[str, tuple[str, _Successes]]] = {panel: {} for panel in sorted(wanted)}
    for panel, tasks in panels.items():
        rows = zip(*(result.outcomes[panel] for result in whole.values()), strict=True)
        tasks.update({row[0][0]: (row[0][1], tuple(one[2] for one in row)) for row in rows})
    return Side(address, panels, tuple(whole) if seed is None else (), tuple(notes))


def _run_side(folder: Path, address: str, *, arm: str | None, round: int | None) -> Side:
    rows = [row for row in _results(folder / "results.jsonl") if row["outcomes"]]
    if not rows:
        raise ConfigError([Problem(address, f"{folder} has no evaluation yet", "wait for its first one")])
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    chosen = _main(folder, arms) if arm is None else arm
    if chosen not in arms:
        raise ConfigError([unknown("arm", chosen, arms, where=address)])
    rounds = sorted({row["round"] for row in rows if row["arm"] == chosen})
    number = rounds[-1] if round is None else round
    if number not in rounds:
        hint = f"known: {', '.join(map(str, rounds))}" + ("; round 0 is the arm base" if number == 0 else "")
        raise ConfigError([Problem(address, f"the arm {chosen} has no round {number}", hint)])
    rows = [row for row in rows if (row["arm"], row["round"]) == (chosen, number)]
    split = next((split for split in _SPLITS if any(row["split"] == split for row in rows)), rows[0]["split"])
    panels: dict[str, dict[str, tuple[str, _Successes]]] = {}
    for row in rows:  # of two evaluations of one panel the later one counts
        if row["split"] == split:
            panels[f"{row['world']}/{row['tier']}"] = {task: (kind, (won,)) for task, kind, won in row["outcomes"]}
    return Side(address, panels, notes=(f"{address} is the arm {chosen}, round {number}, split {split}",))


def _main(folder: Path, arms: Sequence[str]) -> str:
    """The arm a run is about: the first one that its record names, or the first that was measured."""
    path = folder / "run.json"
    with disk_errors(path):
        raw = path.read_bytes() if path.exists() else b"{}"
    try:
        said = json.loads(raw).get("arms", [])
    except (ValueError, AttributeError) as error:
        raise CorruptRecord(f"{path} cannot be read", offset=0, hint="name the arm: RUN:ARM") from error
    known = [str(arm) for arm in (*(said if isinstance(said, list) else []), *arms) if arm in arms]
    return next((arm for arm in known if arm not in ("base", "control")), known[0])


def _results(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a run's evaluations; a torn last line is left out."""
    with disk_errors(path):
        lines = path.read_bytes().split(b"\n")[:-1]
    offset = 0
    for line in lines:
        try:
            row = json.loads(line)
            outcomes = [
                (str(task), str(kind), None if won is None else bool(won)) for task, kind, won in row["outcomes"]
            ]
            names = {name: str(row[name]) for name in ("arm", "world", "tier", "split")}
            yield {**names, "round": int(row["round"]), "outcomes": outcomes}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptRecord(f"{path} has a broken line", offset=offset, value=line[:80]) from error
        offset += len(line) + 1
