"""BFCL's table: accuracy by category, the leaderboard's totals, and the accuracy lost on masked items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evolvent.curate.masking import MaskSpec, mask_sample
from evolvent.curate.renaming import NameMap, unmask_calls
from evolvent.errors import SampleInvalid
from evolvent.grade.calls import Form, encode_calls
from evolvent.messages import CallSample
from evolvent.stats import Interval, paired_interval
from evolvent.trajectory import Task, Trajectory, sample_rng
from evolvent.worlds.base import Env
from evolvent.worlds.bfcl.episode import CallEnv
from evolvent.worlds.bfcl.items import CATEGORIES, CallItem
from evolvent.worlds.bfcl.world import Bfcl

__all__ = ["SPEC", "CategoryRow", "MaskedBfcl", "category_rows", "compute_totals", "masking_loss"]

SPEC = MaskSpec(1.0, defaults="off", shuffle=False)
"""How the items are renamed: every function and parameter, at random, descriptions without the old names."""
_SIMPLE = ("simple_python", "simple_java", "simple_javascript")
_PLAIN = ("multiple", "parallel", "parallel_multiple")
_LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
_TURNS = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
_SHARES = {"non_live": 0.1, "live": 0.1, "irrelevance": 0.1, "multi_turn": 0.3, "agentic": 0.4}


class MaskedBfcl(Bfcl):
    """The single-turn items with masked functions and parameters; answers are graded in the original names.

    Args:
        folder: Folder of the data.
        form: Form of the calls.
        categories: Categories of the items.
        seed: Draws the names, together with the item's id.
    """

    name = "bfcl-masked"

    def __init__(self, folder: str | Path, *, form: Form = "python", categories: Sequence[str], seed: int = 0) -> None:
        super().__init__(folder, form=form, categories=categories)
        self._seed, self.version = seed, f"{self.version}, names of seed {seed}"

    def make(self, task: Task) -> Env:
        """Creates an Env for one task; raises SampleInvalid for an item that cannot be renamed, and errors of
        `Bfcl.make`.
        """
        item = self.item(task)
        if not isinstance(item, CallItem):
            return super().make(task)
        masked_sample, names = self._mask(item)
        return CallEnv(item, self.form, shown_sample=masked_sample, restore_calls=partial(unmask_calls, names=names))

    def _mask(self, item: CallItem) -> tuple[CallSample, NameMap]:
        return mask_sample(item.sample, sample_rng(self._seed, "bfcl masked", item.id), SPEC)

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns the actions of `Bfcl.expert`, in the masked names."""
        item, expert_actions = self.item(task), super().expert(task)
        if expert_actions is None or not isinstance(item, CallItem) or not item.sample.calls:
            return expert_actions
        names = self._mask(item)[1]
        return [encode_calls([names.rename_call(call) for call in item.sample.calls], form=self.form)]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the items of a group that can be renamed."""
        return tuple(task for task in super().tasks(split, tier) if self._is_renamable(task))

    def _is_renamable(self, task: Task) -> bool:
        try:
            self.make(task)
        except SampleInvalid:
            return False
        return True


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """One category: the numbers of all, correct and ungraded items."""

    category: str
    items: int
    correct: int
    ungraded: int

    @property
    def accuracy(self) -> float:
        """Returns the share of correct items among the graded ones; NaN where none is graded."""
        graded = self.items - self.ungraded
        return self.correct / graded if graded else float("nan")


def category_rows(trajectories: Iterable[Trajectory]) -> tuple[CategoryRow, ...]:
    """Counts a row for each category, in the order of their names."""
    items, correct, ungraded = Counter[str](), Counter[str](), Counter[str]()
    for trajectory in trajectories:
        items[trajectory.task.kind] += 1
        correct[trajectory.task.kind] += bool(trajectory.success)
        ungraded[trajectory.task.kind] += trajectory.success is None
    return tuple(CategoryRow(name, items[name], correct[name], ungraded[name]) for name in sorted(items))


def compute_totals(category_table: Sequence[CategoryRow]) -> Mapping[str, float]:
    """Computes the leaderboard's totals (v4): plain means over categories, live by version 4's items; missing ones
    count 0.

    `overall` is 10 % non-live, 10 % live, 10 % irrelevance, 30 % multi-turn, 40 % agentic tasks, which are not included
    here.
    """
    accuracies = {row.category: row.accuracy if row.accuracy == row.accuracy else 0.0 for row in category_table}
    num_live = sum(CATEGORIES[name] for name in _LIVE)
    group_totals = {
        "simple": _mean_accuracy(accuracies, _SIMPLE),
        "non_live": (_mean_accuracy(accuracies, _SIMPLE) + sum(accuracies.get(name, 0.0) for name in _PLAIN)) / 4,
        "live": sum(accuracies.get(name, 0.0) * CATEGORIES[name] for name in _LIVE) / num_live,
        "irrelevance": _mean_accuracy(accuracies, ("irrelevance", "live_irrelevance")),
        "multi_turn": _mean_accuracy(accuracies, _TURNS),
    }
    return {**group_totals, "overall": sum(weight * group_totals.get(name, 0.0) for name, weight in _SHARES.items())}


def _mean_accuracy(accuracies: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(accuracies.get(name, 0.0) for name in names) / len(names)


def masking_loss(plain: Iterable[Trajectory], masked: Iterable[Trajectory]) -> Interval | None:
    """Computes the accuracy on the original items minus that on the masked items; None where no item has both."""
    scores_by_panel = [
        {
            trajectory.task.spec["id"]: float(bool(trajectory.success))
            for trajectory in panel
            if trajectory.success is not None
        }
        for panel in (plain, masked)
    ]
    shared_ids = sorted(scores_by_panel[0].keys() & scores_by_panel[1].keys())
    if not shared_ids:
        return None
    plain_scores, masked_scores = ([panel[name] for name in shared_ids] for panel in scores_by_panel)
    return paired_interval(plain_scores, masked_scores, rng=sample_rng("bfcl names")).clip(-1.0, 1.0)
