"""NTPO: naive token-wise policy optimisation, the baseline that POAD corrects.

Wen et al., "Reinforcing Language Agents via Policy Optimization with Action Decomposition" (arXiv 2405.15821).

Every token is taken for an action of its own, so the discount falls between tokens as it does between actions:
`gamma_part = gamma`. A token far from its action's end is then worth less only for being far: the error is
proportional to 1 - gamma_part^(n - j), and short actions are preferred to long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pydantic import Field, model_validator

from evolvent.methods.poad import POAD, poad
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["NTPO", "ntpo"]

P = TypeVar("P")


class NTPO(POAD):
    """What can be chosen about NTPO: POAD's settings, whose inner discount is the outer one where it is not given."""

    gamma_part: float = Field(default=0.99, ge=0, le=1, description="discount between tokens; not given: gamma")

    @model_validator(mode="before")
    @classmethod
    def _one_discount(cls, given: object) -> object:
        if isinstance(given, dict) and "gamma" in given and "gamma_part" not in given:
            return {**given, "gamma_part": given["gamma"]}
        return given


def ntpo(policy: P, tasks: Sequence[Task], *, config: NTPO, run: Run[P]) -> P:
    """Practise on these tasks. The handed-in policy is left as it was."""
    return poad(policy, tasks, config=config, run=run, name="ntpo")
