"""NTPO: naive token-wise policy optimization, the baseline that POAD corrects.

Wen et al., "Reinforcing Language Agents via Policy Optimization with Action Decomposition" (arXiv 2405.15821).

Every token is treated as an action of its own, so the discount applies between tokens as it does between
actions: `token_gamma = gamma`. A token far from its action's end is then worth less only for being far: the
error is proportional to 1 - token_gamma^(n - j), and short actions are preferred to long ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from evolvent.methods.poad import POADConfig, poad
from evolvent.models.policy import Policy
from evolvent.run import Run
from evolvent.trajectory import Task

__all__ = ["NTPOConfig", "ntpo"]


class NTPOConfig(POADConfig):
    """Settings of NTPO: those of POAD, with an inner discount that defaults to the outer one."""

    token_gamma: float = Field(
        default=0.99,
        ge=0,
        le=1,
        description="Discount between the tokens of an action; not given: gamma, as NTPO has it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _share_discount(cls, values: object) -> object:
        if isinstance(values, dict) and "gamma" in values and not {"token_gamma", "gamma_part"} & values.keys():
            return {**values, "token_gamma": values["gamma"]}
        return values


def ntpo(policy: Policy, tasks: Sequence[Task], *, config: NTPOConfig, run: Run[Policy]) -> Policy:
    """Trains on these tasks; the policy that was passed in is unchanged."""
    return poad(policy, tasks, config=config, run=run, name="ntpo")
