"""What ending self-consistency early saves: accuracy against tokens with `Decided` and `Agreement`.

    python -m benchmarks.stopping [--json] [--tasks NAME ...] [--seeds N ...]   casts the votes that are not there yet
    python -m benchmarks.stopping --report [--json]                             only prints what is there
    python -m benchmarks.stopping --quick [--json]                              the machinery; supports no claim

A small policy for each task and seed imitates demonstrations (`benchmarks/search_bases.py`) and answers every problem a
number of times. Each detector then looks at the votes one by one, as self-consistency does, and stops. Both panels are
the same for all seeds. Tokens are those that were sampled.

- `decided` stops when the leader cannot be caught: its accuracy is that of the whole vote, problem by problem, or this
  program fails.
- `agreement:Q:least=K` stops when at least K votes were cast and the share Q of them agrees, and where it is decided.
- `... or scattered:P:least=L` gives up, too, where after at least L votes no answer has the share P.
- `first K` is a smaller whole vote: what saves tokens without any detector.

"At equal accuracy" is said of the detector that saves most on the dev panel and loses there none of the problems that
the whole vote solves, of any seed; what it saves, and what it loses after all, is measured on the test panel. Beside it
stands what saves most without being less accurate on dev on balance ("lenient"), which loses and wins by luck.
An answer that is wrong whenever it is given makes votes agree on it, so for each task the share of problems that any
sample solves and the number of different answers are told too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.reporting import RESULTS, about, command_line, finish, write
from benchmarks.stopping.votes import TASKS, Cell, Protocol, votes_of
from benchmarks.study import exit_on_problems, prepare_process, read_rows, study_run, summary_path, write_cell
from evolvent.belief.answers import AnswerBelief
from evolvent.belief.comparison import risk_coverage
from evolvent.belief.named import parse_detector
from evolvent.belief.outcomes import tabulate_outcomes
from evolvent.belief.stopping import Decided, Detector, StopDecision
from evolvent.belief.summary import BeliefSummary
from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.stats import crossed_interval
from evolvent.trajectory import sample_rng

FOLDER = RESULTS / "stopping"
PROTOCOL = Protocol()
QUICK = Protocol(seeds=(0,), dev=6, test=6, votes=5, temperatures=(1.0,), quick=True)
AGREEMENTS = tuple(f"agreement:{q}:least={least}" for q in (0.5, 0.6, 0.7, 0.8, 0.9, 1) for least in (2, 4, 6, 8))
SCATTERED = tuple(
    f"{one} or scattered:{q}:least={least}"
    for one in AGREEMENTS
    for q in (0.15, 0.2, 0.25, 0.3)
    for least in (6, 10, 15)
)


@dataclass(frozen=True)
class Looks:
    """A panel as self-consistency sees it: after each of T votes, on N tasks with S seeds.

    Args:
        leader, runner_up: [T, S, N] votes for the two most frequent answers.
        right: [T, S, N] whether the leader, the first seen of equal ones, is right. used: [T, S, N] tokens sampled.
    """

    leader: np.ndarray
    runner_up: np.ndarray
    right: np.ndarray
    used: np.ndarray

    def summaries(self) -> Iterator[BeliefSummary]:
        """What a detector looks at, vote by vote, all tasks and seeds at once."""
        votes = len(self.leader)
        for cast in range(1, votes + 1):
            leader, runner_up = (each[cast - 1].ravel().astype(np.float64) for each in (self.leader, self.runner_up))
            whole = np.ones(len(leader))
            yield BeliefSummary(
                entropy=0 * whole, leader=leader, runner_up=runner_up, cast=cast * whole, left=(votes - cast) * whole
            )


@dataclass(frozen=True)
class Replay:
    """A detector on a panel.

    Args:
        right: [S, N] whether the answer was right. used: [S, N] tokens sampled. votes: [S, N] votes cast.
        ceased: [S, N] whether it stopped before the whole vote.
    """

    right: np.ndarray
    used: np.ndarray
    votes: np.ndarray
    ceased: np.ndarray


def looks_of(cells: Sequence[Mapping[str, Any]], split: str) -> Looks:
    """The looks of all seeds on a panel."""
    rows = [[_looks(row) for row in cell[split]] for cell in cells]
    return Looks(*(np.moveaxis(np.array([[each[at] for each in own] for own in rows]), 2, 0) for at in range(4)))


def _looks(row: Mapping[str, Any]) -> list[list[int]]:
    """(leader, runner_up, right, used) of one problem, each by votes cast."""
    belief, found = AnswerBelief(len(row["answers"])), []
    used = np.cumsum(row["generated"]).tolist()
    for vote, tokens in zip(row["answers"], used, strict=True):
        belief = belief.add(None if vote < 0 else vote)
        counts = sorted((count for _, count in belief.votes), reverse=True)
        first, second = [*counts, 0, 0][:2]
        right = belief.leader is not None and row["right"][row["answers"].index(belief.leader)]
        found.append([first, second, int(right), tokens])
    return [list(each) for each in zip(*found, strict=True)]


def detector_of(name: str) -> Detector:
    """A detector of the table; one of agreement stops also where the vote is decided, which costs nothing."""
    return Decided() if name == "decided" else parse_detector(f"{name} or decided")


def replay(looks: Looks, name: str) -> Replay:
    """What a detector, or "first K" votes, would have come to."""
    votes, shape = len(looks.leader), looks.leader.shape[1:]
    word, _, rest = name.partition(" ")
    at = np.full(shape, int(rest) - 1 if word == "first" else votes - 1)
    if word != "first":
        detector, history = detector_of(name), list[StopDecision]()
        for summary in looks.summaries():
            history.append(detector(summary, history))
        stops = np.array([each.stop for each in history]).reshape(votes, *shape)
        at = np.where(stops.any(axis=0), stops.argmax(axis=0), votes - 1)
    right, used = (np.take_along_axis(each, at[None], axis=0)[0] for each in (looks.right, looks.used))
    return Replay(right.astype(bool), used, at + 1, at + 1 < votes)


def of_task(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of one task."""
    votes = cells[0]["votes"]
    whole = f"first {votes}"
    firsts = [f"first {k}" for k in range(1, votes + 1)]
    names = ["decided", *AGREEMENTS, *SCATTERED, *firsts]
    dev, test = (
        {name: replay(looks, name) for name in names} for looks in (looks_of(cells, "dev"), looks_of(cells, "test"))
    )
    if not (test["decided"].right == test[whole].right).all():
        raise ConfigError("a decided vote came out otherwise than the whole one", value=cells[0]["task"])
    ways = {
        "decided": ("decided",),
        "agreement": AGREEMENTS,
        "agreement or scattered": (*AGREEMENTS, *SCATTERED),
        "first": firsts,
    }
    chosen = {way: _chosen(dev, own, whole) for way, own in ways.items()}
    lenient = {way: _chosen(dev, own, whole, lenient=True) for way, own in ways.items()}
    kinds = [row["kind"] for row in cells[0]["test"]]
    shown = ["decided", *AGREEMENTS, *chosen.values(), *lenient.values(), *firsts]
    return {
        "at_equal_accuracy": {
            way: {"detector": name, **_against(test[name], test[whole], kinds)} for way, name in chosen.items()
        },
        "lenient": {
            way: {"detector": name, **_against(test[name], test[whole], kinds)} for way, name in lenient.items()
        },
        "curve": {name: _point(test[name], test[whole]) for name in dict.fromkeys(shown)},
        "outcomes": {
            name: _outcomes(test[name])
            for name in dict.fromkeys([*chosen.values(), "agreement:0.7:least=4"])
            if not name.startswith("first")
        },
        "risk_coverage": _risk(cells, test[whole]),
        **_answers(cells, test[whole]),
        "seeds": [cell["seed"] for cell in cells],
    }


def _chosen(dev: Mapping[str, Replay], names: Sequence[str], whole: str, *, lenient: bool = False) -> str:
    """What samples fewest tokens on dev and solves there all that the whole vote solves; lenient: as much of it."""
    right = dev[whole].right
    good = [
        name
        for name in names
        if (dev[name].right.sum() >= right.sum() if lenient else (dev[name].right | ~right).all())
    ]
    return min(good, key=lambda name: float(dev[name].used.sum()), default="decided")


def _against(own: Replay, whole: Replay, kinds: Sequence[str]) -> dict[str, Any]:
    """Share of tokens saved and accuracy lost or gained, each with the interval over other seeds and kinds of tasks."""
    rng, full = sample_rng("stopping benchmark"), float(whole.used.mean())
    saved = crossed_interval((whole.used / full).tolist(), (own.used / full).tolist(), kinds=kinds, rng=rng)
    gained = crossed_interval(
        own.right.astype(float).tolist(), whole.right.astype(float).tolist(), kinds=kinds, rng=rng
    )
    seeds = 1 - own.used.sum(axis=1) / whole.used.sum(axis=1)
    return {
        "saved": _ends(saved.mean, saved.low, saved.high),
        "gained": _ends(gained.mean, gained.low, gained.high),
        "changed": int((own.right != whole.right).sum()),
        "saved_by_seed": [round(float(each), 4) for each in seeds],
    }


def _ends(*ends: float) -> list[float | None]:
    return [round(each, 4) if np.isfinite(each) else None for each in ends]


def _point(own: Replay, whole: Replay) -> dict[str, float]:
    return {
        "accuracy": round(float(own.right.mean()), 4),
        "tokens": round(float(own.used.mean()), 1),
        "votes": round(float(own.votes.mean()), 2),
        "saved": round(1 - float(own.used.sum() / whole.used.sum()), 4),
    }


def _outcomes(own: Replay) -> dict[str, object]:
    """The outcome table over all seeds; a step is a vote."""
    told = (each.ravel().tolist() for each in (own.ceased, own.right, own.votes, own.used))
    ceased, right, votes, used = told
    return tabulate_outcomes(ceased, right, votes, generated=used).as_dict()


def _risk(cells: Sequence[Mapping[str, Any]], whole: Replay) -> dict[str, Any] | None:
    """Share of wrong answers among the surest problems, by the disagreement of the whole vote."""
    votes = [row["answers"] for cell in cells for row in cell["test"]]
    scores = [1 - max((own.count(each) for each in set(own) - {-1}), default=0) / len(own) for own in votes]
    curve = risk_coverage(scores, whole.right.ravel().tolist())
    if curve is None:
        return None
    points = zip(curve.threshold, curve.coverage, curve.risk, strict=True)
    return {"area": round(curve.area, 4), "points": [[round(float(each), 4) for each in point] for point in points]}


def _answers(cells: Sequence[Mapping[str, Any]], whole: Replay) -> dict[str, float]:
    """How the policies answer: one sample, the whole vote, any sample; how many different answers a problem gets."""
    rows = [row for cell in cells for row in cell["test"]]
    votes = [vote for row in rows for vote in row["answers"]]
    alike = [len(set(row["answers"])) == 1 for row in rows]
    found = {
        "single": np.mean([np.mean(row["right"]) for row in rows]),
        "majority": whole.right.mean(),
        "any": np.mean([max(row["right"]) for row in rows]),
        "different": np.mean([len(set(row["answers"]) - {-1}) for row in rows]),
        "unread": votes.count(-1) / len(votes),
        "unanimous": np.mean(alike),
        "unanimous_wrong": np.mean([one and not max(row["right"]) for one, row in zip(alike, rows, strict=True)]),
    }
    return {name: round(float(share), 4) for name, share in found.items()}


def report(cells: Sequence[Mapping[str, Any]], protocol: Protocol) -> dict[str, Any]:
    """All figures as one JSON object. The figure is the least over the tasks, at the first temperature."""
    at: dict[str, list[Mapping[str, Any]]] = {}
    for cell in cells:
        at.setdefault(f"{cell['task']}-{cell['temperature']}", []).append(cell)
    found = {name: of_task(own) for name, own in at.items()}
    by = {name: own["at_equal_accuracy"] for name, own in found.items()}
    first = [own for name, own in by.items() if name.endswith(f"-{protocol.temperatures[0]}")]
    bases = {(cell["task"], cell["seed"]): cell["base"]["cpu_s"] for cell in cells}
    return {
        "benchmark": "stopping",
        "quick": protocol.quick,
        "tokens_saved_at_equal_accuracy": _least(first, "agreement or scattered"),
        "tokens_saved_by_agreement": _least(first, "agreement"),
        "tokens_saved_by_decided": _least(first, "decided"),
        "at_equal_accuracy": by,
        "tasks": found,
        "votes": protocol.votes,
        "digest": {name: own[0]["digest"] for name, own in at.items()},
        "cpu_s": {"policies": round(sum(bases.values()), 1), "votes": round(sum(cell["cpu_s"] for cell in cells), 1)},
        "interval": "95 %, pigeonhole bootstrap over seeds and kinds of tasks, Student's t below 5 seeds",
        **about("evolvent", "torch", "numpy", threads=1),
    }


def _least(tasks: Sequence[Mapping[str, Any]], way: str) -> float | None:
    return min((own[way]["saved"][0] for own in tasks), default=None)


def show(found: Mapping[str, Any]) -> None:
    """The tables for people."""
    for task, own in found["tasks"].items():
        print(
            f"\n{task}, {found['votes']} votes, seeds {own['seeds']}: one sample {own['single']:.3f}, majority "
            f"{own['majority']:.3f}, any {own['any']:.3f}; {own['different']:.1f} different answers, all votes agree "
            f"on {own['unanimous']:.3f}, wrongly on {own['unanimous_wrong']:.3f}"
        )
        ways = [*own["at_equal_accuracy"].items(), *((f"lenient {way}", row) for way, row in own["lenient"].items())]
        for way, row in ways:
            saved, gained = (
                " ".join("-" if end is None else f"{100 * end:+.1f}" for end in row[name])
                for name in ("saved", "gained")
            )
            print(
                f"{way:30} {row['detector']:46} tokens saved, %: {saved}   accuracy, points: {gained}   "
                f"{row['changed']} answers of other worth"
            )
        print(f"{'':24}{'accuracy':>10}{'tokens':>10}{'votes':>8}{'saved':>8}")
        for name, point in own["curve"].items():
            few = name.startswith("first") and int(name.split()[1]) in (1, 3, 5, 10, 20, found["votes"])
            if few or name in ("decided", *AGREEMENTS):
                print(
                    f"{name:24}{point['accuracy']:>10.3f}{point['tokens']:>10.1f}{point['votes']:>8.1f}"
                    f"{point['saved']:>8.3f}"
                )


def _cells(folder: Path, protocol: Protocol, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The votes of all tasks and seeds that are asked for; those that are not there are cast, unless only reported."""
    wanted = [
        Cell(task, temperature, seed)
        for temperature in protocol.temperatures
        for seed in options.seeds or protocol.seeds
        for task in options.tasks or TASKS
    ]
    found, rows = [], read_rows(folder, "votes-*")
    for cell in wanted:
        row = rows.get(f"votes-{cell.key}")
        if row is None or row["digest"] != protocol.digest(cell.task, cell.temperature):
            if options.report:
                continue
            row = votes_of(protocol, folder, cell)
            write_cell(folder, cell.key, row, kind="votes")
        found.append(row)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command_line("stopping", __doc__, quick="tiny policies in a temporary folder: a smoke test")
    parser.add_argument("--report", action="store_true", help="cast no vote, print what is there")
    parser.add_argument("--tasks", nargs="+", help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", nargs="+", type=int, help="of policies and samples")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the votes are kept")
    options = parser.parse_args(arguments)
    wrong = [
        unknown_name_problem("task", task, TASKS, location="--tasks")
        for task in options.tasks or ()
        if task not in TASKS
    ]
    exit_on_problems(wrong)
    prepare_process()
    protocol = QUICK if options.quick else PROTOCOL
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.quick else options.folder
        with nullcontext() if options.report else study_run(folder):
            cells = _cells(folder, protocol, options)
        found = report(cells, protocol)
    if cells and not options.quick and not options.report:
        write(summary_path(options.folder, "stopping"), found)
    show(found)
    finish(found, options)


if __name__ == "__main__":
    main()
