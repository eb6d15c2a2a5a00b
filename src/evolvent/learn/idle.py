"""Iterations of a practice that teach nothing: how many in a row, and what was true of their episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from evolvent.errors import NothingToLearn
from evolvent.learn.advantages import Credit
from evolvent.learn.flat import Flat

__all__ = ["Idle"]

_PATIENCE = 20  # iterations in a row that teach nothing
_COUNTED = ("masked_horizon", "masked_cut", "groups_equal", "groups_single")  # as credit counts them
_CUT = "raise max_tokens, the policy's context or the horizon, or take a kind that learns from cut episodes too"
_EQUAL = "choose tasks of other difficulty, more samples of a task, or imitate demonstrations first"


class Idle:
    """Counts iterations that taught nothing; an iteration that teaches begins anew.

    Attributes:
        count: how many they are in a row.
        why: over them, how many `episodes` and `groups` there were, and of these how many are among each reason.
    """

    def __init__(self, count: int = 0, why: Mapping[str, int] | None = None) -> None:
        self.count, self.why = count, Counter(why or {})

    def note(self, found: Flat, credit: Credit, *, taught: bool) -> None:
        """One more iteration, and whether anything is learned from it."""
        if taught:
            self.count, self.why = 0, Counter()
            return
        self.count += 1
        groups = len(np.unique(found.group))
        self.why.update({"episodes": len(found.group), "groups": groups})
        self.why.update({name: int(credit.counts[name]) for name in _COUNTED if name in credit.counts})

    def check(self, success: float) -> None:
        """Give up after so many of them.

        Args:
            success: the share of episodes that were solved in the last one.
        Raises:
            NothingToLearn: says why, with counts.
        """
        if self.count < _PATIENCE:
            return
        reasons, hints = self._reasons()
        raise NothingToLearn(
            f"nothing was learned in {self.count} iterations in a row: {'; '.join(reasons)}",
            value=f"success {success:.0%}",
            expected="groups of episodes that differ, some of them whole",
            hint="; ".join(hints),
        )

    def _reasons(self) -> tuple[list[str], list[str]]:
        why, reasons, hints = self.why, [], []
        if cut := why["masked_horizon"] + why["masked_cut"]:
            horizon, others = why["masked_horizon"], why["masked_cut"]
            told = f"{horizon} at the horizon, {others} by the context or in their last reply"
            reasons.append(f"{cut} of {why['episodes']} episodes were left out because they were cut: {told}")
            hints.append(_CUT)
        if why["groups_equal"]:
            reasons.append(f"in {why['groups_equal']} of {why['groups']} groups all episodes earned the same")
            hints.append(_EQUAL)
        if why["groups_single"]:
            reasons.append(f"{why['groups_single']} of {why['groups']} groups had one episode, compared with none")
            hints.append("take 2 samples of a task or more")
        if not reasons:
            reasons.append(f"no part of {why['episodes']} episodes had an advantage other than 0")
            hints.append("look at what the method's credit compares")
        return reasons, hints
