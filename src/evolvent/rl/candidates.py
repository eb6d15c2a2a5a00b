"""Decisions among listed actions: `P(a) = softmax_a(sum_j log p(w_j) / words(a))`, played and learned as one choice.

The policy of TWOSOME (Tan et al., arXiv 2401.14151). Candidates are scored as branches of one conversation, so that
what they share is computed once, in playing (the engine's trie) and in learning (`learn/trees.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.identity import version_1_text
from evolvent.learn.objectives import Need, Objective, Outputs, given
from evolvent.learn.packing import Batch
from evolvent.learn.token_sequences import Parts
from evolvent.learn.trees import branched
from evolvent.rl import policy_losses as losses
from evolvent.rl.objective import Clip, ValueLoss
from evolvent.trajectory import Trajectory

__all__ = ["Choice", "choice_objective", "chosen_logprobs", "decisions", "with_candidates"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The settings of `choice_objective`: clip of a decision's ratio, entropy bonus over candidates, value loss."""

    surrogate: Clip = field(default_factory=Clip)
    entropy: float = 0.0
    value: ValueLoss | None = None
    stop_kl: float | None = None
    heat: float = 1.0


def with_candidates(played: Sequence[Trajectory], chains: Sequence[Parts]) -> list[Parts]:
    """The chains with the candidates that were not taken as branches, from what the steps noted.

    Columns: "candidate", a number of its own for each in the chain (0: none); "decision", the step's number plus 1;
    "chosen", 1 on tokens of what was taken; "words", what a candidate's summed log-probabilities are divided by.

    Raises:
        BatchMismatch: a learned step that did not note its candidates.
    """
    known = {one.id: one for one in played}
    return [_grown(known[chain.trajectory], chain) for chain in chains]


def _grown(trajectory: Trajectory, chain: Parts) -> Parts:
    size = len(chain)
    names = {"candidate": np.int64, "decision": np.int64, "chosen": np.float32, "words": np.float32}
    trunk = {name: np.zeros(size, kind) for name, kind in names.items()}
    branches: list[tuple[int, Sequence[int]]] = []
    more: dict[str, list[float]] = {name: [] for name in names}
    learned = np.flatnonzero((chain.weight != 0) & chain.sampled)
    number = 0
    for step in np.unique(chain.step[learned]).tolist():
        info = trajectory.steps[step].info
        if "candidates" not in info:
            raise BatchMismatch(
                f"step {step} of {trajectory.id!r} does not say what it chose from",
                hint="play it with agents.candidates.CandidateAgent",
            )
        places = learned[chain.step[learned] == step]
        number += 1
        for name, value in (
            ("candidate", number),
            ("decision", step + 1),
            ("chosen", 1.0),
            ("words", info["words"][info["chosen"]]),
        ):
            trunk[name][places] = value
        others = [at for at in range(len(info["candidates"])) if at != info["chosen"]]
        for at in others:
            ids = info["candidates"][at]
            number += 1
            branches.append((int(places[0]) - 1, ids))
            for name, value in (
                ("candidate", number),
                ("decision", step + 1),
                ("chosen", 0.0),
                ("words", info["words"][at]),
            ):
                more[name] += [value] * len(ids)
    tails = {name: np.asarray(values, names[name]) for name, values in more.items()}
    return branched(replace(chain, columns={**chain.columns, **trunk}), branches, tails)


# ------------------------------------------------------------------ one number a decision


def decisions(logprobs: Tensor, batch: Batch, *, heat: float) -> tuple[Tensor, Tensor, Tensor]:
    """For each of D decisions: `log P` of what was taken `[D]`, entropy over its candidates `[D]`, and the target at
    which what was taken begins `[D]`."""
    if batch.sequence is None or "candidate" not in batch.columns:
        raise BatchMismatch("a batch without candidates", value=sorted(batch.columns), expected="with_candidates(...)")
    unit = losses.units(batch.sequence, batch.columns["candidate"])
    first = losses.first_of_unit(unit).nonzero().squeeze(-1)
    sums = logprobs.new_zeros(len(first)).index_add(0, unit, logprobs)
    score = sums / batch.columns["words"][first] / heat
    keys = batch.sequence[first] * (1 << 32) + batch.columns["decision"][first]
    names, decision = torch.unique(keys, return_inverse=True)
    count = len(names)
    top = score.detach().new_full((count,), -torch.inf).scatter_reduce(0, decision, score.detach(), "amax")
    weights = (score - top[decision]).exp()
    lse = top + score.new_zeros(count).index_add(0, decision, weights).log()
    logp = score - lse[decision]
    entropy = -score.new_zeros(count).index_add(0, decision, logp.exp() * logp)
    taken = (batch.columns["chosen"][first] > 0).nonzero().squeeze(-1)
    order = taken[decision[taken].argsort()]
    return logp[order], entropy, first[order]


def chosen_logprobs(logprobs: Tensor, batch: Batch, *, heat: float) -> Tensor:
    """`[N]`: `log P` of a decision at the first token of what was taken, 0 elsewhere: their sum is the action's."""
    logp, _, first = decisions(logprobs, batch, heat=heat)
    return torch.zeros_like(logprobs).index_copy(0, first, logp)


def choice_objective(settings: Choice) -> Objective:
    """PPO over decisions: the mean over decisions of the clipped surrogate - entropy bonus + value loss.

    Columns: "old" (`log P` before the update, at the first token of what was taken), "advantages", "returns" and, where
    values are clipped, "old_values".
    """
    needs: tuple[Need, ...] = ("logprobs", "values") if settings.value is not None else ("logprobs",)
    return Objective(
        "choice",
        partial(_loss, settings=settings),
        _count,
        needs,
        settings=(("settings", version_1_text(settings)),),
        stats=partial(_stats, settings=settings),
        measured=("kl", "clip_low", "clip_high", "entropy"),
        stop=None if settings.stop_kl is None else ("kl", settings.stop_kl),
    )


def _count(batch: Batch) -> int:
    chosen = batch.columns["chosen"] > 0
    if batch.sequence is None:
        return 0
    unit = losses.units(batch.sequence, batch.columns["candidate"])
    return int((losses.first_of_unit(unit) & chosen).sum())


def _loss(outputs: Outputs, batch: Batch, *, settings: Choice) -> tuple[Tensor, int]:
    logp, entropy, first = decisions(given(outputs.logprobs, "logprobs"), batch, heat=settings.heat)
    old, advantages = batch.columns["old"][first], batch.columns["advantages"][first]
    how = settings.surrogate
    terms = losses.clipped(logp - old, advantages, low=how.low, high=how.high, dual=how.dual)
    loss = (terms - settings.entropy * entropy).sum()
    if settings.value is not None:
        value = settings.value
        before = batch.columns["old_values"][first] if value.clip is not None else None
        errors = losses.value_terms(
            given(outputs.values, "values")[first],
            batch.columns["returns"][first],
            before,
            clip=value.clip,
            huber=value.huber,
        )
        loss = loss + value.coefficient * errors.sum()
    return loss, len(first)


@torch.no_grad()
def _stats(outputs: Outputs, batch: Batch, *, settings: Choice) -> Mapping[str, tuple[Tensor, int]]:
    logp, entropy, first = decisions(given(outputs.logprobs, "logprobs"), batch, heat=settings.heat)
    ratio, advantages = logp - batch.columns["old"][first], batch.columns["advantages"][first]
    how = settings.surrogate
    low = ((ratio.exp() < 1 - how.low) & (advantages < 0)).sum()
    high = ((ratio.exp() > 1 + how.high) & (advantages > 0)).sum()
    kl = (torch.expm1(ratio) - ratio).sum()
    return {
        "kl": (kl, len(first)),
        "clip_low": (low, len(first)),
        "clip_high": (high, len(first)),
        "entropy": (entropy.sum(), len(first)),
    }
