"""MAT beside MAT-Dec, MAPPO and HAPPO at equal environment steps, and what a trained policy is worth elsewhere.

    python -m benchmarks.mat [--quick] [--report] [--json] [--save] [--only TASK ...] [--folder FOLDER]
    python -m benchmarks.mat --study sizes        by number of agents, with gates (`mat/sizes.py`)
    python -m benchmarks.mat --study foraging     longer trainings of foraging, with gates (`mat/sizes.py`)

Tasks: multi-agent MuJoCo (HalfCheetah 6x1, Ant 4x2, Walker2d 2x3; physics of -v5, episodes cut after 200 steps) and
level-based foraging, of the extra `marl`, and the grid rescue of this library. All methods have the same loop, network
width, rollouts, passes, clip and discount; the learning rate is chosen for each method and task from the same three, by
the area under the learning curve of one training of 40 % of the decisions with seed 100, which is none of the study's.
The area is the mean over twenty equal stretches of training of the return of the episodes that ended in each, while
exploring. Intervals are Student's, over training seeds.

Few-shot: policies of the study are taken to HalfCheetah with each joint in turn doing nothing, and to rescue teams of
2, 4 and 6 (trained with 3), and trained on there with 0, 1, 5 and 10 % of the decisions, beside MAT from scratch.
Episodes that are measured are the same for all, with drawn actions.

The JSON has `auc` (task -> method -> [mean, low, high]), `mat_first` (the greatest mean area on HalfCheetah 6x1; None
where that was not played), `above` (task -> method -> MAT's area minus its, [mean, low, high]), `few_shot` (task ->
place -> arm -> per cent -> [mean, low, high]), `few_shot_above` (task -> arm -> per cent -> MAT's minus its return,
the mean over places), learning rates, seeds, CPU seconds and versions. Cells that are finished are read back from the
folder, so a study that was interrupted goes on; `--report` makes no new ones. The whole study takes about 100 minutes
of CPU time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.mat.cell import (
    ARMS,
    GRID,
    METHODS,
    MOVES,
    PARTS,
    TASKS,
    Move,
    cell_of,
    digest,
    installed,
    protocol,
    settings_of,
    train,
    transfer,
)
from benchmarks.mat.sizes import FORAGING, QUICK_FORAGING, QUICK_SIZES, SIZES, run_sizes
from benchmarks.reporting import RESULTS, about, command_line, finish
from benchmarks.study import read_cells, study_run, write_cell
from evolvent.errors import ConfigError

FOLDER = RESULTS / "mat"
RESULT = RESULTS / "mat.json"
SEEDS, DEV_SEED, TUNED_ON = (0, 1, 2), 100, 0.4
HEAD = "halfcheetah_6x1"
STUDY, QUICK = (HEAD, "ant_4x2", "walker2d_2x3", "foraging", "rescue"), (HEAD, "distinct")
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # 97.5 % points of 1 to 9 degrees
_VERSIONS = ("torch", "numpy", "mujoco", "gymnasium", "gymnasium-robotics", "lbforaging")
GATED = {"sizes": (SIZES, QUICK_SIZES), "foraging": (FORAGING, QUICK_FORAGING)}
"""Plans by study: the whole one and the quick one."""


class Study:
    """The cells of a folder, made where they are missing.

    Args:
        making: whether cells are made; else what is missing is None.
        quick: few decisions, one seed, the middle learning rate.
    """

    def __init__(self, folder: Path, *, making: bool, quick: bool) -> None:
        self.folder, self.making, self.quick = folder, making, quick
        self.seeds = SEEDS[:1] if quick else SEEDS
        self.cells: list[dict[str, Any]] = []
        self.tuning: list[dict[str, Any]] = []

    def decisions(self, task: str) -> int:
        """Of a training."""
        return TASKS[task].quick if self.quick else TASKS[task].decisions

    def rate(self, task: str, method: str) -> float | None:
        """The learning rate of a method: of the greatest area with the seed for that, the lower one where equal."""
        if self.quick:
            return GRID[1]
        areas: dict[float, float] = {}
        for lr in GRID:
            row = self._trained(task, method, lr=lr, seed=DEV_SEED, decisions=self._tuned_on(task), policy=False)
            if row is None:
                return None
            self.tuning.append(row)
            areas[lr] = row["auc"]
        return max(GRID, key=lambda lr: areas[lr])

    def _tuned_on(self, task: str) -> int:
        return int(self.decisions(task) * TUNED_ON) // 1024 * 1024

    def trained(self, task: str, method: str) -> list[dict[str, Any]]:
        """The trainings of a method, one a seed."""
        lr = self.rate(task, method)
        if lr is None:
            return []
        rows = [
            self._trained(task, method, lr=lr, seed=seed, decisions=self.decisions(task), policy=True)
            for seed in self.seeds
        ]
        found = [row for row in rows if row is not None]
        self.cells += found
        return found

    def _trained(
        self, task: str, method: str, *, lr: float, seed: int, decisions: int, policy: bool
    ) -> dict[str, Any] | None:
        config = settings_of(task, method, lr=lr, seed=seed, decisions=decisions)
        said = protocol(task, config)
        row = self._kept(said)
        if row is None and self.making:
            row = self._keep(said, train(task, config, self._policy(said) if policy else None))
        return row

    def _policy(self, said: Mapping[str, Any]) -> Path:
        return self.folder / "policies" / digest(said)

    def moved(self, move: Move, pretrained: Mapping[str, Any]) -> dict[str, Any] | None:
        """One transfer from a training; "scratch" has no more of it than its learning rate and its seed."""
        own = pretrained["config"]
        config = settings_of(move.task, move.arm, lr=own["update"]["lr"], seed=own["seed"], decisions=1024)
        begins = move.arm != "scratch"
        said = protocol(move.task, config, place=move.place, start=pretrained["digest"] if begins else "", arm=move.arm)
        said["pretrained"] = own["decisions"]
        row = self._kept(said)
        if row is None and self.making:
            start = self.folder / "policies" / str(pretrained["digest"]) if begins else None
            row = self._keep(said, transfer(move, config, decisions=own["decisions"], start=start))
        if row is not None:
            self.cells.append(row)
        return row

    def _kept(self, said: Mapping[str, Any]) -> dict[str, Any] | None:
        return next(iter(read_cells(self.folder, digest(said))), None)

    def _keep(self, said: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
        row = cell_of(said, made)
        place = f"-{said['place']}".replace(" ", "") if said["place"] else ""
        write_cell(self.folder, f"{said['task']}{place}-{said['arm']}-{row['seed']}-{row['digest'][:6]}", row)
        print(f"{said['task']}{place} {said['arm']} seed {row['seed']}: {row['cpu_s']:.0f} CPU s", flush=True)
        return row


def spread(own: Sequence[float], other: Sequence[float] | None = None) -> list[float]:
    """[mean, low, high] of values, or of their differences from others, one a seed: Student's 95 % interval.

    So few seeds are too few to draw from again. The ends of a single one are the mean.
    """
    values = np.asarray(own, np.float64) - (0.0 if other is None else np.asarray(other, np.float64))
    n = len(values)
    reach = _STUDENT[n - 2] * float(values.std(ddof=1)) / n**0.5 if n > 1 else 0.0
    return [round(float(values.mean()) + side * reach, 4) for side in (0, -1, 1)]


def areas(trained: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    """`auc`, `above` and `mat_first` of the trainings, task -> method -> one a seed; methods without any are left out.

    Differences are between trainings of the same seed.
    """
    auc = {
        task: {method: spread([row["auc"] for row in rows]) for method, rows in each.items() if rows}
        for task, each in trained.items()
    }
    above = {
        task: {
            method: spread([row["auc"] for row in each["mat"]], [row["auc"] for row in rows])
            for method, rows in each.items()
            if method != "mat" and len(rows) == len(each["mat"]) > 0
        }
        for task, each in trained.items()
        if "mat" in each
    }
    first = {
        task: all(own[0] < each["mat"][0] for method, own in each.items() if method != "mat")
        for task, each in auc.items()
        if set(each) == set(METHODS)
    }
    return {"auc": auc, "above": above, "mat_first": first.get(HEAD), "mat_first_by_task": first}


def transfers(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`few_shot`, and `few_shot_above`: of each seed the mean over the places where MAT and the arm were measured."""
    at: dict[tuple[str, str, str], dict[int, Mapping[str, float]]] = {}
    for row in rows:
        at.setdefault((row["task"], row["place"], row["arm"]), {})[row["seed"]] = row["returns"]
    few: dict[str, Any] = {}
    gaps: dict[tuple[str, str, str], dict[int, list[float]]] = {}
    for (task, place, arm), seeds in at.items():
        parts = list(map(str, PARTS))
        few.setdefault(task, {}).setdefault(place, {})[arm] = {
            part: spread([own[part] for own in seeds.values()]) for part in parts
        }
        mine = at.get((task, place, "mat"), {})
        both = [seed for seed in seeds if seed in mine and arm != "mat"]
        for part, seed in product(parts, both):
            gaps.setdefault((task, arm, part), {}).setdefault(seed, []).append(mine[seed][part] - seeds[seed][part])
    above: dict[str, Any] = {}
    for (task, arm, part), of_seed in gaps.items():
        above.setdefault(task, {}).setdefault(arm, {})[part] = spread([float(np.mean(g)) for g in of_seed.values()])
    return {"few_shot": few, "few_shot_above": above}


def report(folder: Path, only: Sequence[str], *, quick: bool, making: bool) -> dict[str, Any]:
    """All figures of what is there, after making what is missing."""
    torch.set_num_threads(1)
    study = Study(folder, making=making, quick=quick)
    asked = [task for task in (QUICK if quick else STUDY) if not only or task in only]
    tasks = [task for task in asked if installed(task) or not making]
    trained = {task: {method: study.trained(task, method) for method in METHODS} for task in tasks}
    moved = []
    for move in MOVES:
        if move.task in trained and (not quick or move.task != HEAD):
            begun = trained[move.task]["mat" if move.arm == "scratch" else move.arm]
            moved += [row for row in (study.moved(move, one) for one in begun) if row is not None]
    rates = {
        task: {method: rows[0]["config"]["update"]["lr"] for method, rows in each.items() if rows}
        for task, each in trained.items()
    }
    spent = {
        "training": sum(row["cpu_s"] for row in study.cells if not row["place"]),
        "tuning": sum(row["cpu_s"] for row in study.tuning),
        "transfer": sum(row["cpu_s"] for row in moved),
    }
    return {
        **areas(trained),
        **transfers(moved),
        "learning_rates": rates,
        "grid": list(GRID),
        "seeds": list(study.seeds),
        "dev_seed": DEV_SEED,
        "decisions": {task: study.decisions(task) for task in tasks},
        "not_installed": [task for task in asked if task not in tasks],
        "cpu_s": {name: round(seconds, 1) for name, seconds in spent.items()},
        "cpu_minutes": round(sum(spent.values()) / 60, 1),
        "quick": quick,
        **about("python", *_VERSIONS, threads=1),
        "last": {
            task: {method: spread([row["last"] for row in rows]) for method, rows in each.items() if rows}
            for task, each in trained.items()
        },
    }


def shown(found: Mapping[str, Any]) -> list[str]:
    """The figures as lines."""
    lines = [
        f"{task:16} {method:8} area {mean:9.2f} [{low:.2f}, {high:.2f}]  "
        f"last {found['last'][task][method][0]:9.2f}  lr {found['learning_rates'][task][method]:g}"
        for task, each in found["auc"].items()
        for method, (mean, low, high) in each.items()
    ]
    lines += [
        f"{task:16} mat minus {method:8} {mean:+.2f} [{low:+.2f}, {high:+.2f}]"
        for task, each in found["above"].items()
        for method, (mean, low, high) in each.items()
    ]
    for task, places in found["few_shot"].items():
        for place, arms in places.items():
            for arm in (arm for arm in ARMS if arm in arms):
                told = "  ".join(f"{part} %: {arms[arm][str(part)][0]:8.2f}" for part in PARTS)
                lines.append(f"{task:16} {place:9} {arm:8} {told}")
    if found["not_installed"]:
        lines.append(f"not played: {', '.join(found['not_installed'])} (pip install 'evolvent[marl]')")
    return [*lines, f"MAT first on {HEAD}: {found['mat_first']}; {found['cpu_minutes']} CPU minutes"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing, print and, where asked, keep."""
    few = f"one seed and hardly any learning: {', '.join(QUICK)}"
    parser = command_line("mat", __doc__, quick=few, save=RESULT)
    parser.add_argument("--report", action="store_true", help="only what the folder holds")
    about_study = "these tasks, sizes of teams, or foraging alone"
    parser.add_argument("--study", choices=("tasks", *GATED), default="tasks", help=about_study)
    known = (*STUDY, *SIZES.tasks)
    parser.add_argument("--only", nargs="+", default=[], choices=known, metavar="TASK", help=f"of: {', '.join(known)}")
    parser.add_argument("--decisions", type=int, help="of each training of a study with gates")
    parser.add_argument("--folder", type=Path, help="where cells are kept")
    options = parser.parse_args(arguments)
    if options.study in GATED:
        _run_gated(options)
        return
    options.folder = options.folder or FOLDER
    folder = FOLDER / "quick" if options.quick and options.folder == FOLDER else options.folder
    with nullcontext() if options.report else study_run(folder):
        found = report(folder, options.only, quick=options.quick, making=not options.report)
    print("\n".join(shown(found)))
    finish(found, options)


def _run_gated(options: argparse.Namespace) -> None:
    whole, quick = GATED[options.study]
    plan = quick if options.quick else replace(whole, decisions=options.decisions or whole.decisions)
    if unknown := sorted({*options.only} - {*plan.tasks}):
        raise SystemExit(f"error: --only: got {', '.join(unknown)}, expected of: {', '.join(plan.tasks)}")
    name = f"mat_{options.study}" + ("" if plan.decisions == whole.decisions else f"_{plan.decisions}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / options.study if options.quick else options.folder or RESULTS / name
        try:
            figures = run_sizes(folder, plan, play=not options.report, tasks=options.only, quick=options.quick)
        except ConfigError as error:
            raise SystemExit(f"error: {error}") from error
    finish(figures, options)


if __name__ == "__main__":
    main()
