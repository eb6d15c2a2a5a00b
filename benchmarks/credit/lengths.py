"""Credit by length of action: the study of POAD, NTPO, PPO over actions, ETPO and TWOSOME on locks of free length.

    python -m benchmarks.credit --study lengths            plays what has no cell yet: rates, then the study; resumes
    python -m benchmarks.credit --study lengths --report   only prints what is there

Policies are tables (`credit/tables.py`): credit, losses and optimizer are those that models are trained with, and what
a network adds is left out. The lock (`credit/lock.py`) has two doors; right actions have 4, 16, 32 or 48 words, are
longer than all other legal ones, and which words are legal depends on the word before. All arms begin with the same
table, which writes legal words, and play as many episodes. Each arm chooses its rate of five, by the area of one
practice of a development seed, for every length. TWOSOME chooses among 10, 100 or 10,000 listed actions: another,
smaller problem.

What is compared is the area under the learning curve: the mean over iterations of the exact expected return. Frozen
before it was played: POAD minus PPO over actions is above 0, with its interval, at 16 words and more. Gates: the base
returns .02 to .3, POAD's critic explains .2 of the variance of returns, and the rates of both lie inside the grid.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.credit.lock import Lock
from benchmarks.credit.tables import ARMS, Practice, PracticePlan, measure_soft_optimum, practise
from benchmarks.frozen import describe_gate, freeze_plan, seed_interval, summarize_curves
from benchmarks.reporting import about, write
from benchmarks.study import play_once, read_cells, study_run, summary_path
from benchmarks.tuning.cell import sources
from evolvent.bench.plan import Gate
from evolvent.bench.verdict import GateResult, check_gate
from evolvent.trajectory import canonical_json, sample_seed

__all__ = [
    "LENGTHS_PLAN",
    "QUICK_PLAN",
    "LengthCell",
    "LengthsPlan",
    "play_lengths",
    "report_lengths",
    "run_lengths",
]

CLAIMED_AT = 16  # words: the claim is of actions at least so long
_STABLE = 0.1  # below the peak
_DECIDING = ("poad", "ppo")


@dataclass(frozen=True, order=True)
class LengthCell:
    """One practice: an arm on the lock of a length and a seed, at a rate."""

    length: int
    arm: str
    seed: int
    rate: float

    @property
    def key(self) -> str:
        """Returns the name of its file."""
        return f"{self.length}-{self.arm}-{self.seed}-{self.rate:g}"


@dataclass(frozen=True)
class LengthsPlan:
    """What the study fixes before it runs.

    Args:
        lengths: words of a right action. listed_lengths: those at which actions are listed.
        stable_length, stable_seeds: where POAD's runs are counted that end within .1 of their peak.
        rates: tried by every arm at every length with the seed `development`; `seeds` are the study's.
    """

    lengths: tuple[int, ...] = (4, 16, 32, 48)
    listed_lengths: tuple[int, ...] = (4, 16)
    stable_length: int = 12
    stable_seeds: tuple[int, ...] = tuple(range(8))
    rates: tuple[float, ...] = (1e-2, 3e-2, 1e-1, 3e-1, 1.0)
    development: int = 100
    seeds: tuple[int, ...] = tuple(range(5))
    practice: PracticePlan = field(default_factory=PracticePlan)

    @property
    def digest(self) -> str:
        """Returns 16 hex digits of the plan: cells of another plan are not read."""
        return f"{sample_seed(canonical_json({**asdict(self), 'arms': ARMS, 'edition': 1})):016x}"

    def list_arms(self, length: int) -> list[str]:
        """Lists the arms that practice at a length."""
        if length not in self.lengths:
            return ["poad"]
        return [arm for arm in ARMS if length in self.listed_lengths or not arm.startswith("twosome")]

    def list_seeds(self, length: int) -> tuple[int, ...]:
        """Lists the seeds of the study at a length."""
        return self.seeds if length in self.lengths else self.stable_seeds

    @property
    def all_lengths(self) -> tuple[int, ...]:
        """Returns the lengths of the study, with the one at which stability is counted."""
        return tuple(sorted({*self.lengths, self.stable_length}))


LENGTHS_PLAN = LengthsPlan()
QUICK_PLAN = LengthsPlan(
    lengths=(2, 3),
    listed_lengths=(2,),
    stable_length=3,
    stable_seeds=(0, 1),
    rates=(1e-2, 1e-1, 3e-1),
    seeds=(0, 1),
    practice=PracticePlan(iterations=4, episodes=4),
)


class LengthCells:
    """The kept cells of a plan."""

    def __init__(self, folder: Path, plan: LengthsPlan) -> None:
        self.plan = plan
        names = LengthCell.__dataclass_fields__
        rows = read_cells(folder, plan.digest) if folder.is_dir() else []
        self.rows = {LengthCell(**{name: row[name] for name in names}): row for row in rows}

    def tried(self, length: int, arm: str) -> dict[float, float]:
        """Returns the area of each rate that was tried."""
        cells = {rate: LengthCell(length, arm, self.plan.development, rate) for rate in self.plan.rates}
        return {rate: self.rows[cell]["area"] for rate, cell in cells.items() if cell in self.rows}

    def choose_rate(self, length: int, arm: str) -> float | None:
        """Returns the rate of the greatest area, the lowest of equals; None where not all were tried."""
        areas = self.tried(length, arm)
        return max(areas, key=lambda rate: (areas[rate], -rate)) if len(areas) == len(self.plan.rates) else None

    def list_missing(self) -> list[LengthCell]:
        """Lists the cells to play next: the rates first, then the study seed by seed with the chosen rates.

        The two arms that decide are played before the others.
        """
        pairs = [(length, arm) for length in self.plan.all_lengths for arm in self.plan.list_arms(length)]
        deciding = [pair for pair in pairs if pair[1] in _DECIDING]
        return self._list_missing_of(deciding) or self._list_missing_of(pairs)

    def _list_missing_of(self, pairs: Sequence[tuple[int, str]]) -> list[LengthCell]:
        tuning = [LengthCell(*pair, self.plan.development, rate) for pair in pairs for rate in self.plan.rates]
        study = [
            LengthCell(length, arm, seed, rate)
            for length, arm in pairs
            for seed in self.plan.list_seeds(length)
            if (rate := self.choose_rate(length, arm)) is not None
        ]
        missing = [cell for cell in tuning if cell not in self.rows]
        return missing or sorted((cell for cell in study if cell not in self.rows), key=lambda cell: cell.seed)

    def count_missing(self, arms: Sequence[str] = ARMS) -> int:
        """Counts the cells of these arms that are still to be played, with those whose rate is not chosen yet."""
        return sum(
            len(self.plan.rates)
            - len(self.tried(length, arm))
            + len(self.plan.list_seeds(length))
            - len(self.list_rows(length, arm))
            for length in self.plan.all_lengths
            for arm in self.plan.list_arms(length)
            if arm in arms
        )

    def list_rows(self, length: int, arm: str) -> dict[int, dict[str, Any]]:
        """Returns the rows of an arm at its rate, by seed of the study."""
        rate = self.choose_rate(length, arm)
        cells = {seed: LengthCell(length, arm, seed, rate or 0.0) for seed in self.plan.list_seeds(length)}
        return {seed: self.rows[cell] for seed, cell in cells.items() if cell in self.rows}


def play_lengths(folder: Path, plan: LengthsPlan) -> None:
    """Plays the cells that are missing, and keeps each."""
    with study_run(folder):
        freeze_plan(folder, asdict(plan), plan.digest)
        while missing := LengthCells(folder, plan).list_missing():
            for cell in missing:
                row = play_once(folder, cell.key, plan.digest, partial(_play_cell, plan, cell))
                if row is not None:
                    print(f"{cell.key:28} area {row['area']:.3f}  end {row['curve'][-1]:.3f}", flush=True)


def _play_cell(plan: LengthsPlan, cell: LengthCell) -> dict[str, Any]:
    began = time.process_time()
    result = practise(cell.arm, cell.length, seed=cell.seed, rate=cell.rate, plan=plan.practice)
    return {
        **asdict(cell),
        "digest": plan.digest,
        **describe_practice(result),
        "updates": plan.practice.updates,
        "sources": sources(),
        "cpu_s": round(time.process_time() - began, 2),
    }


def describe_practice(result: Practice) -> dict[str, Any]:
    """Returns what is kept of a practice.

    The area is the mean of the curve before its last value, which no iteration was played with. What the critic
    explains is the median over the iterations after the first tenth, in which it begins from nothing.
    """
    curve = [round(value, 4) for value in result.curve]
    explained = np.asarray(result.explained)[len(result.explained) // 10 :]
    explained = explained[np.isfinite(explained)]
    return {
        "curve": curve,
        "area": round(float(np.mean(result.curve[:-1])), 5),
        "explained_variance": round(float(np.median(explained)), 4) if explained.size else None,
        "actions": result.actions,
    }


# ------------------------------------------------------------------ figures


def report_lengths(folder: Path, plan: LengthsPlan) -> dict[str, Any]:
    """Computes all figures of the kept cells; what is not played yet is missing from them."""
    cells = LengthCells(folder, plan)
    rows = {n: {arm: cells.list_rows(n, arm) for arm in plan.list_arms(n)} for n in plan.all_lengths}
    areas = {
        length: {arm: {seed: row["area"] for seed, row in own.items()} for arm, own in rows[length].items() if own}
        for length in plan.lengths
    }
    gates = {length: _check_gates(cells, length, rows[length]) for length in plan.lengths if areas[length]}
    minus = {
        arm: {length: _compare(own, arm) for length, own in areas.items() if arm in own and "poad" in own}
        for arm in ARMS[1:]
    }
    stable = [_is_stable(row["curve"]) for row in rows[plan.stable_length]["poad"].values()]
    passed = {length: all(gate.passed for gate in own) for length, own in gates.items()}
    claimed = [length for length in plan.lengths if length >= min(CLAIMED_AT, max(plan.lengths))]
    undecided = cells.count_missing(_DECIDING)
    shown = {length: minus["ppo"].get(length) for length in claimed}
    spent = [row["cpu_s"] for row in cells.rows.values()]
    return {
        "benchmark": "credit_lengths",
        "digest": plan.digest,
        "policies": "tables, under the library's estimators, objectives and optimizer",
        "gate_passed": bool(gates) and not undecided and all(passed.get(length, False) for length in claimed),
        "gate_passed_by_length": {str(length): value for length, value in passed.items()},
        "gates": {str(length): [describe_gate(gate) for gate in own] for length, own in gates.items()},
        "verdict": _judge(passed, shown, undecided),
        "area": _by_length({n: {arm: seed_interval(own) for arm, own in each.items()} for n, each in areas.items()}),
        "end": _by_length(
            {n: {arm: _mean(own, -1) for arm, own in rows[n].items() if own} for n in plan.lengths}
        ),
        "curve": _by_length(
            {n: {arm: summarize_curves([row["curve"] for row in own.values()]) for arm, own in rows[n].items() if own}
             for n in plan.lengths}
        ),
        **{f"poad_minus_{'action' if arm == 'ppo' else arm}_ci": _by_length(own) for arm, own in minus.items() if own},
        "etpo_optimum": {str(n): _measure_optimum(plan, n) for n in plan.lengths if areas[n]},
        "stable_runs": sum(stable),
        "stable_of": len(plan.stable_seeds),
        "stable_length": plan.stable_length,
        "base": {str(n): round(fmean(row["curve"][0] for row in rows[n]["poad"].values()), 4)
                 for n in plan.lengths if rows[n]["poad"]},
        "rates": _by_length({n: {arm: cells.choose_rate(n, arm) for arm in rows[n]} for n in plan.all_lengths}),
        "at_grid_end": [
            f"{n}-{arm}" for n in plan.all_lengths for arm in rows[n] if _is_inside(cells, n, arm) is False
        ],
        "tried": _by_length(
            {n: {arm: {f"{rate:g}": area for rate, area in cells.tried(n, arm).items()} for arm in rows[n]}
             for n in plan.all_lengths}
        ),
        "updates": plan.practice.updates,
        "episodes": plan.practice.iterations * plan.practice.episodes,
        "seeds": list(plan.seeds),
        "missing": {arm: count for arm in ARMS if (count := cells.count_missing((arm,)))},
        "cells": len(cells.rows),
        "cpu_hours": round(sum(spent) / 3600, 3),
        "interval": "95 %, over seeds in pairs",
        "sources": sorted({row["sources"] for row in cells.rows.values()}),
        **about("evolvent", "torch", "numpy", threads=1),
    }  # fmt: skip


def _by_length(figures: Mapping[int, Any]) -> dict[str, Any]:
    return {str(length): value for length, value in figures.items() if value}


@cache
def _measure_optimum(plan: LengthsPlan, length: int) -> float:
    """Returns the mean return over seeds of the policies at which ETPO's objective is greatest."""
    practice = plan.practice
    locks = [Lock.draw(length, seed) for seed in plan.seeds]
    returns = [measure_soft_optimum(lock, beta=practice.beta, gamma=practice.gamma) for lock in locks]
    return round(fmean(returns), 4)


def _compare(own: Mapping[str, Mapping[int, float]], arm: str) -> list[float] | None:
    """Returns POAD's area minus an arm's; None where they share no seed."""
    return seed_interval(own["poad"], own[arm]) if set(own["poad"]) & set(own[arm]) else None


def _mean(own: Mapping[int, Mapping[str, Any]], index: int) -> float:
    return round(fmean(row["curve"][index] for row in own.values()), 4)


def _is_stable(curve: Sequence[float]) -> bool:
    """Returns whether a practice ends within a tenth of its peak, means of ten iterations."""
    means = np.convolve(curve, np.full(10, 0.1), mode="valid") if len(curve) >= 10 else np.asarray(curve)
    return bool(means[-1] >= means.max() - _STABLE)


def _is_inside(cells: LengthCells, length: int, arm: str) -> bool | None:
    rate = cells.choose_rate(length, arm)
    return None if rate is None else rate not in (min(cells.plan.rates), max(cells.plan.rates))


def _check_gates(
    cells: LengthCells, length: int, rows: Mapping[str, Mapping[int, Mapping[str, Any]]]
) -> list[GateResult]:
    """Checks the gates of one length."""
    poad = rows["poad"]
    results = [
        check_gate(
            Gate(f"return of the base, {length} words", "base", "return", minimum=0.02, maximum=0.3),
            {seed: row["curve"][0] for seed, row in poad.items()},
        ),
        check_gate(
            Gate(f"explained variance of the critic, {length} words", "poad", "explained_variance", minimum=0.2),
            {seed: row["explained_variance"] for seed, row in poad.items()},
        ),
    ]
    for arm in _DECIDING:
        gate = Gate(f"rate inside the grid, {length} words", arm, "rate_inside", minimum=1.0)
        results.append(check_gate(gate, {cells.plan.development: float(_is_inside(cells, length, arm) or 0)}))
    return results


def _judge(passed: Mapping[int, bool], shown: Mapping[int, list[float] | None], missing: int) -> str:
    """Returns the verdict in words; none while a gate fails or a cell is missing."""
    failed = [length for length in shown if not passed.get(length, False)]
    if missing:
        return f"no verdict: {missing} cells of POAD and PPO over actions are not played yet"
    if failed:
        return f"no verdict at {_join(failed)} words: a gate failed"
    above = [length for length, interval in shown.items() if interval is not None and interval[1] > 0]
    below = [length for length in shown if length not in above]
    text = f"POAD is above PPO over actions at {_join(above)} words" if above else "POAD is above PPO at no length"
    return f"{text}; not shown at {_join(below)} words" if below and above else text


def _join(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def show_lengths(figures: Mapping[str, Any]) -> None:
    """Prints the tables for people."""
    for length, own in figures["area"].items():
        print(f"\n{length} words, base {figures['base'][length]:.3f}, gates {figures['gate_passed_by_length'][length]}")
        for arm, (mean, low, high) in own.items():
            key = f"poad_minus_{'action' if arm == 'ppo' else arm}_ci"
            minus = figures.get(key, {}).get(length)
            difference = f"POAD - {arm}: {minus[0]:+.3f} [{minus[1]:+.3f}, {minus[2]:+.3f}]" if minus else ""
            end, rate = figures["end"][length][arm], figures["rates"][length][arm]
            print(f"  {arm:13} area {mean:.3f} [{low:.3f}, {high:.3f}]  end {end:.3f}  rate {rate:g}  {difference}")
    stable, count, length = (figures[name] for name in ("stable_runs", "stable_of", "stable_length"))
    print(f"\n{stable} of {count} runs at {length} words end near their peak")
    print(f"{figures['verdict']}; {figures['cells']} cells, {figures['cpu_hours']:.2f} CPU-hours")
    if figures["missing"]:
        print(f"cells still to be played: {figures['missing']}")
    if figures["at_grid_end"]:
        print(f"best rate at an end of the grid: {', '.join(figures['at_grid_end'])}")


def run_lengths(folder: Path, *, quick: bool, play: bool) -> dict[str, Any]:
    """Plays what is missing where asked, keeps the summary, and returns the figures."""
    plan = QUICK_PLAN if quick else LENGTHS_PLAN
    if play:
        play_lengths(folder, plan)
    figures = {**report_lengths(folder, plan), "quick": quick}
    if play and not quick:
        write(summary_path(folder, "credit_lengths"), figures)
    show_lengths(figures)
    return figures
