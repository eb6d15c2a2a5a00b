"""Decisions among listed actions: `P(a) = softmax_a(sum_j log p(w_j) / n(a))`, sampled and trained as one choice.

The divisor n(a) is the number of words of an action, of its tokens, or 1. This is the policy of TWOSOME (Tan et al.,
arXiv 2401.14151), and with 1 that of GLAM (Carta et al., arXiv 2302.02662). Candidates are scored as branches of one
conversation, so that their shared prefix is computed once, in rollouts (the engine's trie) and in training
(`learn/trees.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from evolvent.errors import BatchMismatch
from evolvent.identity import version_1_text
from evolvent.learn.objectives import Need, Objective, Outputs, require_output
from evolvent.learn.token_sequences import Batch, TokenSequence
from evolvent.learn.trees import add_branches
from evolvent.rl import policy_losses as losses
from evolvent.rl.settings import ChoiceConfig
from evolvent.trajectory import Trajectory

__all__ = ["ChoiceConfig", "add_candidates", "choice_objective", "chosen_logprobs", "score_decisions"]


def add_candidates(trajectories: Sequence[Trajectory], sequences: Sequence[TokenSequence]) -> list[TokenSequence]:
    """Adds the candidates that were not taken to the sequences as branches, from the notes of the steps.

    Columns: "candidate", a distinct number for each candidate in the sequence (0: none); "decision", the step's number
    plus 1; "chosen", 1 on tokens of the candidate that was taken; "words", the divisor of a candidate's summed
    log-probabilities.

    Raises:
        BatchMismatch: a learned step did not note its candidates.
    """
    trajectories_by_id = {trajectory.id: trajectory for trajectory in trajectories}
    return [_add_candidates(trajectories_by_id[sequence.trajectory], sequence) for sequence in sequences]


def _add_candidates(trajectory: Trajectory, sequence: TokenSequence) -> TokenSequence:
    size = len(sequence)
    names = {"candidate": np.int64, "decision": np.int64, "chosen": np.float32, "words": np.float32}
    trunk = {name: np.zeros(size, kind) for name, kind in names.items()}
    branches: list[tuple[int, Sequence[int]]] = []
    branch_columns: dict[str, list[float]] = {name: [] for name in names}
    learned = np.flatnonzero((sequence.weight != 0) & sequence.sampled)
    number = 0
    for step in np.unique(sequence.step[learned]).tolist():
        info = trajectory.steps[step].info
        if "candidates" not in info:
            raise BatchMismatch(
                f"step {step} of trajectory {trajectory.id!r} has no candidates",
                hint="collect episodes with agents.candidates.CandidateAgent",
            )
        positions = learned[sequence.step[learned] == step]
        number += 1
        for name, value in (
            ("candidate", number),
            ("decision", step + 1),
            ("chosen", 1.0),
            ("words", info["words"][info["chosen"]]),
        ):
            trunk[name][positions] = value
        rejected = [candidate for candidate in range(len(info["candidates"])) if candidate != info["chosen"]]
        for candidate in rejected:
            ids = info["candidates"][candidate]
            number += 1
            branches.append((int(positions[0]) - 1, ids))
            for name, value in (
                ("candidate", number),
                ("decision", step + 1),
                ("chosen", 0.0),
                ("words", info["words"][candidate]),
            ):
                branch_columns[name] += [value] * len(ids)
    tails = {name: np.asarray(values, names[name]) for name, values in branch_columns.items()}
    return add_branches(replace(sequence, columns={**sequence.columns, **trunk}), branches, tails)


# ------------------------------------------------------------------ one number a decision


def score_decisions(logprobs: Tensor, batch: Batch, *, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the log-probability and the entropy of each of D decisions.

    Args:
        logprobs: `[N]`, log-probabilities of the targets.
        batch: with the columns that `add_candidates` adds.
        temperature: divides the candidates' scores.

    Returns:
        log-probability `[D]` of the candidate that was taken, entropy `[D]` over its candidates, and the index `[D]` of
        the target at which the candidate that was taken begins.

    Raises:
        BatchMismatch: the batch has no candidates.
    """
    if batch.sequence is None or "candidate" not in batch.columns:
        raise BatchMismatch("the batch has no candidates", value=sorted(batch.columns), expected="with_candidates(...)")
    unit = losses.number_units(batch.sequence, batch.columns["candidate"])
    first = losses.is_first_of_unit(unit).nonzero().squeeze(-1)
    sums = logprobs.new_zeros(len(first)).index_add(0, unit, logprobs)
    score = sums / batch.columns["words"][first] / temperature
    keys = batch.sequence[first] * (1 << 32) + batch.columns["decision"][first]
    names, decision = torch.unique(keys, return_inverse=True)
    count = len(names)
    max_score = score.detach().new_full((count,), -torch.inf).scatter_reduce(0, decision, score.detach(), "amax")
    weights = (score - max_score[decision]).exp()
    log_sum_exp = max_score + score.new_zeros(count).index_add(0, decision, weights).log()
    logp = score - log_sum_exp[decision]
    entropy = -score.new_zeros(count).index_add(0, decision, logp.exp() * logp)
    chosen_candidates = (batch.columns["chosen"][first] > 0).nonzero().squeeze(-1)
    order = chosen_candidates[decision[chosen_candidates].argsort()]
    return logp[order], entropy, first[order]


def chosen_logprobs(logprobs: Tensor, batch: Batch, *, temperature: float) -> Tensor:
    """Returns `[N]`: log P of a decision at the first token of the candidate that was taken, 0 elsewhere.

    Their sum over an action is the action's log-probability.
    """
    logp, _, first = score_decisions(logprobs, batch, temperature=temperature)
    return torch.zeros_like(logprobs).index_copy(0, first, logp)


def choice_objective(settings: ChoiceConfig) -> Objective:
    """Builds the PPO objective over decisions: the mean of clipped surrogate - entropy bonus + value loss.

    Columns: "old" (`log P` before the update, at the first token of the candidate that was taken), "advantages",
    "returns" and, where values are clipped, "old_values".
    """
    needs: tuple[Need, ...] = ("logprobs", "values") if settings.value_loss is not None else ("logprobs",)
    return Objective(
        "choice",
        partial(_loss, settings=settings),
        _count,
        needs,
        settings=(("settings", version_1_text(settings)),),
        stats=partial(_stats, settings=settings),
        metric_names=("kl", "clip_low", "clip_high", "entropy"),
        limit=None if settings.target_kl is None else ("kl", settings.target_kl),
    )


def _count(batch: Batch) -> int:
    is_chosen = batch.columns["chosen"] > 0
    if batch.sequence is None:
        return 0
    unit = losses.number_units(batch.sequence, batch.columns["candidate"])
    return int((losses.is_first_of_unit(unit) & is_chosen).sum())


def _loss(outputs: Outputs, batch: Batch, *, settings: ChoiceConfig) -> tuple[Tensor, int]:
    logp, entropy, first = score_decisions(
        require_output(outputs.logprobs, "logprobs"), batch, temperature=settings.temperature
    )
    old, advantages = batch.columns["old"][first], batch.columns["advantages"][first]
    surrogate = settings.surrogate
    terms = losses.clipped_surrogate(
        logp - old, advantages, low=surrogate.low, high=surrogate.high, dual=surrogate.dual
    )
    loss = (terms - settings.entropy_coef * entropy).sum()
    if settings.value_loss is not None:
        value = settings.value_loss
        old_values = batch.columns["old_values"][first] if value.clip is not None else None
        errors = losses.value_losses(
            require_output(outputs.values, "values")[first],
            batch.columns["returns"][first],
            old_values,
            clip_range=value.clip,
            huber=value.huber,
        )
        loss = loss + value.coefficient * errors.sum()
    return loss, len(first)


@torch.no_grad()
def _stats(outputs: Outputs, batch: Batch, *, settings: ChoiceConfig) -> Mapping[str, tuple[Tensor, int]]:
    logp, entropy, first = score_decisions(
        require_output(outputs.logprobs, "logprobs"), batch, temperature=settings.temperature
    )
    ratio, advantages = logp - batch.columns["old"][first], batch.columns["advantages"][first]
    surrogate = settings.surrogate
    low = ((ratio.exp() < 1 - surrogate.low) & (advantages < 0)).sum()
    high = ((ratio.exp() > 1 + surrogate.high) & (advantages > 0)).sum()
    kl = (torch.expm1(ratio) - ratio).sum()
    return {
        "kl": (kl, len(first)),
        "clip_low": (low, len(first)),
        "clip_high": (high, len(first)),
        "entropy": (entropy.sum(), len(first)),
    }
