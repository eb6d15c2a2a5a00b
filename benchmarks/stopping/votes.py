"""The votes that `benchmarks.stopping` replays: samples of a small policy, in the order of their numbers, with tokens.

Self-consistency that ends early draws the first ones of the same samples (`tests/search/test_stopping.py` proves it of
the searches), so what a detector would have spent is a sum over a prefix, and no detector needs samples of its own.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.search_bases import BASES, QUICK, Base, base_of, made_by, panel, world_of
from evolvent.agents.language import LanguageAgent
from evolvent.engine.asks import Sampling
from evolvent.engine.local import LocalEngine
from evolvent.errors import ConfigError
from evolvent.grade.numbers import extract_number, parse_number
from evolvent.rollout.episode import collect
from evolvent.trajectory import Start, Trajectory, canonical_json, sample_seed

__all__ = ["TASKS", "Cell", "Protocol", "expression", "read_answer", "votes_of"]

TASKS = ("countdown", "problems")
_MOVE = re.compile(r"\s*(\d+)\s*([-+*/])\s*(\d+)\b.*")
_SLOTS = 128


@dataclass(frozen=True)
class Protocol:
    """All that is fixed before a vote is cast.

    Args:
        seeds: of policy and samples. dev, test: tasks of each panel. votes: samples of a task, the whole vote.
        temperatures: of sampling; the first is that of the figure. 40 votes at .7 are those of Wang et al. (2023).
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    dev: int = 100
    test: int = 150
    votes: int = 40
    temperatures: tuple[float, ...] = (0.7, 1.0)
    quick: bool = False

    @property
    def bases(self) -> Mapping[str, Base]:
        """The recipes of the policies."""
        return QUICK if self.quick else BASES

    def digest(self, task: str, temperature: float) -> str:
        """16 hex digits: votes of another protocol are not mixed with these."""
        own = {name: value for name, value in vars(self).items() if name not in ("seeds", "temperatures")}
        own["temperature"] = temperature
        return f"{sample_seed(canonical_json(own), self.bases[task].digest):016x}"


@dataclass(frozen=True)
class Cell:
    """The votes of a task at a temperature, with the policy of a seed."""

    task: str
    temperature: float
    seed: int

    @property
    def key(self) -> str:
        """The name of the cell in its folder."""
        return f"{self.task}-{self.temperature}-{self.seed}"


def votes_of(protocol: Protocol, folder: Path, cell: Cell) -> dict[str, Any]:
    """Cast the whole vote on both panels; the cell to keep, as JSON values.

    For each task of "dev" and "test": its id and kind, and in the order of the samples the answers as numbers (-1: none
    could be read; equal numbers: equal answers), whether each was right, and the tokens that were sampled for it.
    """
    task, seed = cell.task, cell.seed
    policy, world = base_of(task, seed, folder, bases=protocol.bases), world_of(task, bases=protocol.bases)
    agent = LanguageAgent(policy, Sampling(temperature=cell.temperature), protocol.bases[task].max_tokens)
    began, panels = time.process_time(), {}  # the policy is there by now
    for split, count in (("dev", protocol.dev), ("test", protocol.test)):
        tasks = panel(task, split, count, bases=protocol.bases)
        starts = [Start(one, number) for one in tasks for number in range(protocol.votes)]
        found: dict[str, list[Trajectory]] = {one.id: [] for one in tasks}
        engine = LocalEngine(policy, slots=_SLOTS)
        for one in collect({world.name: world}, starts, agent, engine=engine, seed=seed, slots=_SLOTS):
            if one.error is not None or one.success is None:
                raise ConfigError("a sample that could not be scored", value=str(one.error), expected="a verdict")
            found[one.task.id].append(one)
        panels[split] = [_row(task, sorted(found[one.id], key=lambda each: each.sample)) for one in tasks]
    return {
        **asdict(cell),
        "digest": protocol.digest(task, cell.temperature),
        "votes": protocol.votes,
        **panels,
        "base": made_by(task, seed, folder, bases=protocol.bases),
        "cpu_s": round(time.process_time() - began, 1),
    }


def _row(task: str, samples: Sequence[Trajectory]) -> dict[str, Any]:
    """A problem and its votes; an answer is right or wrong whoever gives it."""
    numbers: dict[Hashable, int] = {}
    answers = [read_answer(task, one) for one in samples]
    votes = [-1 if answer is None else numbers.setdefault(answer, len(numbers)) for answer in answers]
    right = [bool(one.success) for one in samples]
    split = [vote for vote, truths in _truths(votes, right).items() if vote >= 0 and len(truths) > 1]
    if split:
        raise ConfigError("one answer that was right and wrong", value=[answers[votes.index(each)] for each in split])
    first = samples[0].task
    return {
        "id": first.id,
        "kind": first.kind,
        "answers": votes,
        "right": [int(each) for each in right],
        "generated": [one.count_generated_tokens() for one in samples],
    }


def _truths(votes: Sequence[int], right: Sequence[bool]) -> dict[int, set[bool]]:
    found: dict[int, set[bool]] = {}
    for vote, each in zip(votes, right, strict=True):
        found.setdefault(vote, set()).add(each)
    return found


def read_answer(task: str, sample: Trajectory) -> Hashable | None:
    """What a sample votes for: the number of a word problem; of countdown the expression that its moves build."""
    if not sample.steps:
        return None
    if task == "countdown":
        numbers = [int(each) for each in sample.task.spec["numbers"]]
        return expression(numbers, [str(step.action) for step in sample.steps if not step.info.get("invalid")])
    written = extract_number(str(sample.steps[-1].action))
    return None if written is None else parse_number(written)


# ---------------------------------------------------------------- countdown's answers

Normal = tuple[str, Hashable]  # "number" and its value, or "sum" or "product" and its signed parts with their counts


def expression(numbers: Sequence[int], moves: Sequence[str]) -> Hashable | None:
    """The expression that moves build of numbers, so that those that differ in order alone are equal.

    A sum is its terms with their signs and a product its factors with theirs, in whatever order they were put together.
    None where not everything has become one number, or a move takes what is not left.
    """
    left: list[tuple[int, Normal]] = [(number, ("number", number)) for number in numbers]
    for move in moves:
        found = _MOVE.fullmatch(move)
        if found is None:
            return None
        a, b = (_taken(left, int(found[at])) for at in (1, 3))
        if a is None or b is None:
            return None
        made = _joined(a, b, found[2])
        if made is None:
            return None
        left.append(made)
    return left[0][1] if len(left) == 1 else None


def _taken(left: list[tuple[int, Normal]], value: int) -> tuple[int, Normal] | None:
    at = next((at for at, (own, _) in enumerate(left) if own == value), None)
    return None if at is None else left.pop(at)


def _joined(a: tuple[int, Normal], b: tuple[int, Normal], op: str) -> tuple[int, Normal] | None:
    if op in "+*" and a[0] < b[0]:
        a, b = b, a
    if op == "/" and (b[0] == 0 or a[0] % b[0]):
        return None
    values = {"+": a[0] + b[0], "-": a[0] - b[0], "*": a[0] * b[0], "/": a[0] // b[0] if b[0] else 0}
    kind, sign = ("sum" if op in "+-" else "product"), (1 if op in "+*" else -1)
    parts = Counter(_parts(a[1], kind, 1)) + Counter(_parts(b[1], kind, sign))
    return values[op], (kind, frozenset(parts.items()))


def _parts(normal: Normal, kind: str, sign: int) -> dict[tuple[int, Normal], int]:
    """The signed parts of an expression inside a sum or a product, with how often each is there."""
    if normal[0] != kind:
        return {(sign, normal): 1}
    items: Any = normal[1]
    return {(sign * own, part): count for (own, part), count in items}
