"""One cell of `benchmarks.prm`: labels by two ways on the same tasks, a reward model of each, samples to choose among.

A completion is right where it proves its answer (`prm_bases.Proofs`). The truth of a span is that nothing up to and
with it is wrong, by the rules of the task (`Deduction.check_steps`); of the last span, that the whole response is a
proof (`Deduction.proof_grade`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.prm.bases import RECIPES, Proofs, policy_of, took
from benchmarks.search_bases import Base, panel, world_of
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Sampling
from evolvent.engine.driver import run_jobs
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.identity import version_1_values
from evolvent.learn.learner import Learner, TrainConfig
from evolvent.learn.objectives import span_labels_objective
from evolvent.models.policy import Policy
from evolvent.reward.calibration import auc_within, label_accuracy
from evolvent.reward.labelling import LabellingConfig, rows_to_solutions
from evolvent.reward.process import default_tags, prepare_rows
from evolvent.reward.scoring import Floats, collect_solutions, make_span_splitter, score_spans
from evolvent.reward.solutions import Solution
from evolvent.rollout.episode import collect
from evolvent.search.aggregate import Span
from evolvent.trajectory import Start, Task, Trajectory, canonical_json, sample_seed
from evolvent.worlds.deduction.world import ANSWERS

__all__ = ["REDUCTIONS", "WAYS", "Protocol", "run_cell"]

WAYS = ("shepherd", "omega")
REDUCTIONS: tuple[Span, ...] = ("min", "last", "prod")
_LOOKED = 8  # samples of a task whose spans a judge's worth is measured on
_SLOTS = 96
Row = dict[str, Any]
Known = dict[tuple[str, tuple[int, ...]], tuple[float, float, bool]]


@dataclass(frozen=True)
class Protocol:
    """All that the benchmark fixes before it runs.

    Args:
        seeds: of base, labels, judges and samples.
        tasks: training tasks that are labelled, none of them demonstrated. solutions: of each, labeled by shepherd.
        completions: of a prefix, in both ways. rollouts: most completions of a task for omega.
        labels: that a reward model learns, repeats included. train: how it learns.
        temperature: of all that is sampled. panel: held-out tasks, of a split. budgets: samples that are chosen among.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    tasks: int = 48
    solutions: int = 2
    completions: int = 8
    rollouts: int = 64
    labels: int = 12_000
    train: TrainConfig = field(
        default_factory=lambda: TrainConfig(lr=2e-3, batch_tokens=1536, weight_decay=0.01, warmup_steps=20)
    )
    temperature: float = 1.3
    panel: int = 48
    budgets: tuple[int, ...] = (4, 8, 16, 32, 64)
    split: str = "test"
    quick: bool = False

    @property
    def bases(self) -> Mapping[str, Base]:
        """The recipes of the policies."""
        return RECIPES[self.quick]

    @property
    def digest(self) -> str:
        """16 hex digits: cells of another protocol are not mixed with these."""
        own = {name: value for name, value in vars(self).items() if name not in ("seeds", "train")}
        own |= {"train": version_1_values(self.train), "base": self.bases["deduction"].digest}
        return f"{sample_seed(canonical_json(own)):016x}"


@dataclass(frozen=True)
class _Place:
    """What all parts of a cell need."""

    protocol: Protocol
    seed: int
    policy: Policy
    world: Proofs

    @property
    def most(self) -> int:
        """Most tokens of a response."""
        return self.protocol.bases["deduction"].max_tokens

    def sampled(self, tasks: Sequence[Task], samples: int, name: str) -> dict[str, list[Trajectory]]:
        """Samples of tasks, by the task's id, in the order of their numbers."""
        agent = LanguageAgent(self.policy, Sampling(self.protocol.temperature), max_tokens=self.most)
        starts = [Start(one, number) for one in tasks for number in range(samples)]
        found: dict[str, list[Trajectory]] = {one.id: [] for one in tasks}
        seed, engine = sample_seed(name, self.seed), LocalEngine(self.policy, slots=_SLOTS)
        for one in collect({self.world.name: self.world}, starts, agent, engine=engine, seed=seed, slots=_SLOTS):
            if one.error is not None:
                raise ConfigError("a sample that failed", value=str(one.error), expected="a verdict on each")
            found[one.task.id].append(one)
        return {name: sorted(own, key=lambda one: one.sample) for name, own in found.items()}

    def proven(self, task: Task, said: str) -> bool:
        """Whether a response proves its answer."""
        return bool(self.world.grade_proof(task, said).correct)


def run_cell(protocol: Protocol, folder: Path, seed: int) -> Row:
    """Everything of one seed; the row to keep."""
    policy = policy_of("deduction", seed, folder, bases=protocol.bases)
    world, began = world_of("deduction", bases=protocol.bases), time.process_time()
    if not isinstance(world, Proofs):
        raise ConfigError("another world than the recipe's", value=world.name)
    place = _Place(protocol, seed, policy, world)
    tasks = panel("deduction", "train", protocol.tasks, bases=protocol.bases)
    tried = place.sampled(tasks, protocol.solutions, "solutions")
    ways, judges = {}, {}
    for way in WAYS:
        ways[way], rows = _labelled(place, way, tasks, tried)
        judges[way] = _judge(place, rows)
    asked = panel("deduction", protocol.split, protocol.panel, bases=protocol.bases)
    return {
        "seed": seed,
        "digest": protocol.digest,
        "ways": ways,
        **_votes(place, judges, asked),
        "base": took("deduction", seed, folder, bases=protocol.bases),
        "cpu_s": round(time.process_time() - began, 1),
    }


# ---------------------------------------------------------------------- labels


def _labelled(
    place: _Place, way: str, tasks: Sequence[Task], tried: Mapping[str, Sequence[Trajectory]]
) -> tuple[Row, list[Row]]:
    """What labeling came to, beside the truth, and its rows."""
    asked = place.protocol
    how = LabellingConfig(
        kind="omega" if way == "omega" else "shepherd",
        count=asked.completions,
        rollouts=asked.rollouts,
        temperature=asked.temperature,
        max_tokens=place.most,
    )
    wanted = [(task, one) for task in tasks for one in tried[task.id][: 1 if way == "omega" else None]]
    works = [
        how.work(place.policy, one, partial(place.proven, task), seed=sample_seed(way, place.seed, one.id))
        for task, one in wanted
    ]
    began, found = time.process_time(), dict[int, list[Row]]()
    for done in run_jobs(works, LocalEngine(place.policy, slots=_SLOTS), slots=_SLOTS):
        if done.error is not None:
            raise ConfigError("a task that could not be labelled", value=str(done.error), expected="labels")
        found[done.index] = done.value or []
    rows: list[Row] = []
    known: Known = {}
    following: Known = {}
    for number, (task, _) in enumerate(wanted):
        closed = [{**row, "labels": _closed(row["labels"])} for row in found[number]]
        rows += closed
        _held(place, task, found[number], known)
        _held(place, task, closed, following)
    own = len(wanted) if way == "shepherd" else 0  # omega's solutions are completions of the empty prefix
    spent = sum(row.get("rollouts", 0) for row in rows) + own
    told = {**_accuracy(known.values(), rollouts=spent), "following": _accuracy(following.values(), rollouts=spent)}
    return {
        **told,
        "solutions": sum(bool(row["spans"]) for row in rows),
        "generated": sum(row.get("generated", 0) for row in rows),
        "cpu_s": round(time.process_time() - began, 1),
    }, rows


def _closed(labels: Sequence[float | None]) -> list[float | None]:
    """Labels 1 and 0 of a solution, with those that follow: all before a good one is good, all after a bad one is bad.

    A right completion shows that everything it begins with was right, whatever luck completions had before.
    """
    good = max((at for at, label in enumerate(labels) if label), default=-1)
    bad = min((at for at, label in enumerate(labels) if label == 0 and at > good), default=len(labels))
    return [1.0 if at <= good else 0.0 if at >= bad else None for at in range(len(labels))]


def _held(place: _Place, task: Task, rows: Iterable[Row], known: Known) -> None:
    """Note label, truth, and whether it is of a whole response, of every labeled prefix of a task, each once.

    Where two solutions tell of one prefix, the higher label counts.
    """
    for solution, labels in rows_to_solutions(rows):
        ids: tuple[int, ...] = ()
        for span, label in zip(solution.spans, labels, strict=True):
            ids += span
            if label is None:
                continue
            before = known.get((task.id, ids))
            if before is not None:
                known[task.id, ids] = (max(label, before[0]), *before[1:])
                continue
            whole = ids[-1] in place.policy.dialect.stop_ids or len(ids) >= place.most
            known[task.id, ids] = (label, float(_true(place, task, ids, whole=whole)), whole)


def _true(place: _Place, task: Task, ids: Sequence[int], *, whole: bool) -> bool:
    stop = place.policy.dialect.stop_ids
    said = str(place.policy.tokenizer.decode([token for token in ids if token not in stop]))
    return place.proven(task, said) if whole else all(place.world.check_steps(task, said))


def _accuracy(known: Iterable[tuple[float, float, bool]], *, rollouts: int) -> Row:
    """Counts and accuracies: a label is good where any completion was right (Math-Shepherd's hard label)."""
    every = list(known)
    inside = [one for one in every if not one[2]]
    found: Row = {"rollouts": rollouts}
    for name, own in (("", every), ("inside_", inside)):
        labels, truth = [one[0] for one in own], [one[1] for one in own]
        right = sum((label > 0) == (known == 1) for label, known in zip(labels, truth, strict=True))
        good, bad = ([label for label, known in zip(labels, truth, strict=True) if known == each] for each in (1, 0))
        found |= {
            f"{name}labels": len(own),
            f"{name}right": right,
            f"{name}accuracy": _known(label_accuracy(labels, truth, above=0.0)),
            f"{name}good": _known(label_accuracy(good, np.ones(len(good)), above=0.0)),
            f"{name}bad": _known(label_accuracy(bad, np.zeros(len(bad)), above=0.0)),
            f"{name}rollouts_per_right": _known(rollouts / right if right else np.nan),
        }
    return found


def _known(value: float) -> float | None:
    return round(float(value), 4) if np.isfinite(value) else None


# ---------------------------------------------------------------------- the reward model, and what it chooses


def _judge(place: _Place, rows: Iterable[Row]) -> Policy:
    """A process reward model of the labels that follow, from a copy of the policy, as `methods/openr.py` fits it."""
    ready = prepare_rows(rows_to_solutions(rows), default_tags(place.policy.tokenizer), context=place.policy.context)
    config = place.protocol.train.model_copy(update={"tokens": place.protocol.labels})
    learner = Learner(
        place.policy.clone(), span_labels_objective(soft=False), config, seed=sample_seed("judge", place.seed) % 2**31
    )
    if ready.sequences:  # else nothing was labelled, and its scores say nothing
        learner.fit(ready.sequences)
    return learner.policy.next_version()


def _votes(place: _Place, judges: Mapping[str, Policy], asked: Sequence[Task]) -> Row:
    """What is chosen among: answers, proofs and scores of each task's samples, in their order; and the judges' worth.

    Answers are places in `ANSWERS`, -1: none could be read. Scores are those of a solution, by judge and reduction.
    """
    tried = place.sampled(asked, max(place.protocol.budgets), "choose")
    spans = make_span_splitter(place.policy, LabellingConfig().separators, max_tokens=place.most)
    solutions = collect_solutions((one for own in tried.values() for one in own), spans)
    scores = {way: score_spans(judge, solutions, default_tags(judge.tokenizer)) for way, judge in judges.items()}
    votes = []
    for task in asked:
        own = tried[task.id]
        question = place.world.question(task)
        answers = [
            place.world.grade(str(one.steps[-1].action), question).extracted if one.steps else None for one in own
        ]
        votes.append(
            {
                "id": task.id,
                "kind": task.kind,
                "truth": ANSWERS.index(question.answer),
                "answers": [-1 if said is None else ANSWERS.index(said) for said in answers],
                "proven": [int(bool(one.success)) for one in own],
                "scores": {
                    way: {name: [_score(found.get(one.id), name) for one in own] for name in REDUCTIONS}
                    for way, found in scores.items()
                },
            }
        )
    return {"votes": votes, "judges": {way: _worth(place, tried, solutions, own) for way, own in scores.items()}}


def _score(scores: Floats | None, name: Span) -> float | None:
    """A solution's score from those of its spans; None where the judge had no room to look."""
    if scores is None or not len(scores):
        return None
    value = {"min": scores.min(), "last": scores[-1], "prod": scores.prod()}[name]
    return round(float(value), 5)


def _worth(
    place: _Place,
    tried: Mapping[str, Sequence[Trajectory]],
    solutions: Mapping[str, Solution],
    scores: Mapping[str, Floats],
) -> dict[str, float | None]:
    """How well a judge tells right spans from wrong ones, and proofs from other responses, within tasks."""
    said: list[float] = []
    truth, ids, ends = [], [], []
    for own in tried.values():
        for one in own[:_LOOKED]:
            if one.id not in scores:
                continue
            written: tuple[int, ...] = ()
            for at, (span, score) in enumerate(zip(solutions[one.id].spans, scores[one.id].tolist(), strict=True)):
                written += span
                whole = at == len(scores[one.id]) - 1
                said.append(score)
                truth.append(float(_true(place, one.task, written, whole=whole)))
                ids.append(one.task.id)
                ends.append(whole)
    last = [at for at, end in enumerate(ends) if end]
    return {
        "accuracy": _known(label_accuracy(said, truth)),
        "auc": _known(auc_within(said, truth, ids)),
        "auc_end": _known(auc_within([said[at] for at in last], [truth[at] for at in last], [ids[at] for at in last])),
    }
