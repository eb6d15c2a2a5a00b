"""BFCL's table: right answers by category, the leaderboard's totals, and what the same items cost in other names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evolvent.curate.masking import MaskSpec, mask
from evolvent.curate.renaming import NameMap, unmask
from evolvent.errors import SampleInvalid
from evolvent.grade.calls import Form, encode_calls
from evolvent.messages import CallSample
from evolvent.stats import Interval, paired
from evolvent.trajectory import Task, Trajectory, sample_rng
from evolvent.worlds.base import Env
from evolvent.worlds.bfcl.episode import CallEnv
from evolvent.worlds.bfcl.items import CATEGORIES, CallItem
from evolvent.worlds.bfcl.world import Bfcl

__all__ = ["SPEC", "MaskedBfcl", "Row", "lost_to_names", "rows", "totals"]

SPEC = MaskSpec(1.0, defaults="off", shuffle=False)
"""How the items are renamed: every function and parameter, at random, descriptions without the old names."""
_SIMPLE = ("simple_python", "simple_java", "simple_javascript")
_PLAIN = ("multiple", "parallel", "parallel_multiple")
_LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
_TURNS = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
_SHARES = {"non_live": 0.1, "live": 0.1, "irrelevance": 0.1, "multi_turn": 0.3, "agentic": 0.4}


class MaskedBfcl(Bfcl):
    """The items of one turn with their functions and parameters in other names; answers are judged in the original's.

    Args:
        seed: draws the names, with the item's id. The others: see `Bfcl`.
    """

    name = "bfcl-masked"

    def __init__(self, folder: str | Path, *, form: Form = "python", categories: Sequence[str], seed: int = 0) -> None:
        super().__init__(folder, form=form, categories=categories)
        self._seed, self.version = seed, f"{self.version}, names of seed {seed}"

    def make(self, task: Task) -> Env:
        """An Env for one task; SampleInvalid for an item that cannot be renamed, and what `Bfcl.make` raises."""
        item = self.item(task)
        if not isinstance(item, CallItem):
            return super().make(task)
        shown, names = self._masked(item)
        return CallEnv(item, self.form, shown=shown, back=partial(unmask, names=names))

    def _masked(self, item: CallItem) -> tuple[CallSample, NameMap]:
        return mask(item.sample, sample_rng(self._seed, "bfcl masked", item.id), SPEC)

    def expert(self, task: Task) -> Sequence[str] | None:
        """As `Bfcl.expert`, in the names that are shown."""
        item, known = self.item(task), super().expert(task)
        if known is None or not isinstance(item, CallItem) or not item.sample.calls:
            return known
        names = self._masked(item)[1]
        return [encode_calls([names.call(call) for call in item.sample.calls], form=self.form)]

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The items of a group that can be renamed."""
        return tuple(task for task in super().tasks(split, tier) if self._renamable(task))

    def _renamable(self, task: Task) -> bool:
        try:
            self.make(task)
        except SampleInvalid:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Row:
    """One category: how many items, how many right, how many nobody could judge."""

    category: str
    items: int
    right: int
    lost: int

    @property
    def share(self) -> float:
        """Right of those that were judged; NaN of none."""
        judged = self.items - self.lost
        return self.right / judged if judged else float("nan")


def rows(played: Iterable[Trajectory]) -> tuple[Row, ...]:
    """A row a category, in the order of their names."""
    items, right, lost = Counter[str](), Counter[str](), Counter[str]()
    for one in played:
        items[one.task.kind] += 1
        right[one.task.kind] += bool(one.success)
        lost[one.task.kind] += one.success is None
    return tuple(Row(name, items[name], right[name], lost[name]) for name in sorted(items))


def totals(found: Sequence[Row]) -> Mapping[str, float]:
    """The leaderboard's totals (v4): plain means over categories, live by version 4's items; not played counts 0.

    `overall` is 10 % non-live, 10 % live, 10 % irrelevance, 30 % several turns, 40 % agentic tasks, which are not here.
    """
    share = {row.category: row.share if row.share == row.share else 0.0 for row in found}
    live = sum(CATEGORIES[name] for name in _LIVE)
    made = {
        "simple": _mean(share, _SIMPLE),
        "non_live": (_mean(share, _SIMPLE) + sum(share.get(name, 0.0) for name in _PLAIN)) / 4,
        "live": sum(share.get(name, 0.0) * CATEGORIES[name] for name in _LIVE) / live,
        "irrelevance": _mean(share, ("irrelevance", "live_irrelevance")),
        "multi_turn": _mean(share, _TURNS),
    }
    return {**made, "overall": sum(weight * made.get(name, 0.0) for name, weight in _SHARES.items())}


def _mean(share: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(share.get(name, 0.0) for name in names) / len(names)


def lost_to_names(plain: Iterable[Trajectory], masked: Iterable[Trajectory]) -> Interval | None:
    """Accuracy on the items as they are minus that on the same items in other names; None where no item has both."""
    sides = [
        {one.task.spec["id"]: float(bool(one.success)) for one in side if one.success is not None}
        for side in (plain, masked)
    ]
    both = sorted(sides[0].keys() & sides[1].keys())
    if not both:
        return None
    first, other = ([side[name] for name in both] for side in sides)
    return paired(first, other, rng=sample_rng("bfcl names")).within(-1.0, 1.0)
