"""P3: the policy itself rates difficulty, a pace admits harder samples, and diversity selects among admitted
samples.

Yang et al., "P3: A Policy-Driven, Pace-Adaptive, and Diversity-Promoted Framework for Data Pruning in LLM
Training" (arXiv 2408.05541). Per round e of E:

    s_i = exp((1/T) sum_t log p(y_t | x, y_<t))           how easy each answer is now; by spans: the mean over its lines
    keep i iff s_i >= percentile(s, 100 - 100 e/E)        the easier share grows until all are in
    choose k by greedy MAP of det L, L = diag(q) F F^T diag(q)      F: mean hidden states of answers, z-scored, unit
    fine-tune on the selection

Scores and features are recomputed every round with the present policy. `within` selects lines inside of samples
too: other lines are read and not learned. The published code has q = s; easiness as quality on top of the pace
prefers the easy twice, so here quality is off by default. Each part can be left out; the ablations are
settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from evolvent.config import Config
from evolvent.curate.difficulty import answer_logprobs, answer_spans, mean_logprob_score
from evolvent.curate.features import answer_features, span_features
from evolvent.curate.pace import pace_mask
from evolvent.curate.select import Selector, dpp, mask_spans, select_spans, unit_features
from evolvent.curate.selectors import random_choice, top_quality
from evolvent.errors import ConfigError, NothingToLearn
from evolvent.learn.token_sequences import TokenSequence
from evolvent.models.policy import Policy
from evolvent.run import Run
from evolvent.trajectory import sample_rng

__all__ = ["FULL", "NO_DIFFICULTY", "NO_DIVERSITY", "NO_PACE", "P3Config", "Selection", "p3", "select_samples"]


class P3Config(Config):
    """Settings of P3. The defaults are the paper's, except `quality`, which is on there."""

    rounds: int = Field(default=5, ge=1, description="rounds of choosing and learning (E)")
    count: int = Field(default=1000, ge=1, description="samples chosen in a round (k)")
    difficulty: Literal["answer", "spans", "none"] = Field(
        default="answer", description="how easy a sample is: by its whole answer, or by its spans; none: all alike"
    )
    pace: bool = Field(default=True, description="let in the easier share first; else all from the beginning")
    diverse: bool = Field(default=True, description="choose by features; else at random, or the easiest with quality")
    quality: bool = Field(default=False, description="prefer easy samples among those that are let in")
    within: float = Field(default=1.0, gt=0, le=1, description="share of the spans of a sample that are learned")
    tokens: int | None = Field(default=None, ge=1, description="learned tokens of a round; none: the training's epochs")


NO_DIFFICULTY: Mapping[str, object] = {"difficulty": "none"}
NO_PACE: Mapping[str, object] = {"pace": False}
NO_DIVERSITY: Mapping[str, object] = {"diverse": False}
FULL: Mapping[str, object] = {"difficulty": "none", "pace": False, "diverse": False}
"""Nothing of P3 but rounds of k random samples: the control of equal tokens."""


@dataclass(frozen=True)
class Selection:
    """The selection of a round.

    Args:
        positions: `[m]`, of the samples in the pool.
        sequences: the samples, with the weights of their spans.
        scores: `[n]`, how easy each sample of the pool is; ones without difficulty.
        num_admitted: number of samples that the pace admitted.
    """

    positions: NDArray[np.int64]
    sequences: tuple[TokenSequence, ...]
    scores: NDArray[np.float64]
    num_admitted: int


def p3(
    policy: Policy, pool: Sequence[TokenSequence], *, config: P3Config, run: Run[Policy], select: Selector = dpp
) -> Policy:
    """Trains on the policy's selections; returns the policy of the last round.

    Args:
        pool: demonstrations: weights on their answers, spans on their lines (`curate.difficulty.split_by_lines`).
        select: selects k admitted samples; any function of `curate.select` and `curate.selectors`.
    Raises:
        NothingToLearn: the pool is empty, or a sample has no answer tokens.
    """
    from evolvent.learn.objectives import weighted_nll

    if not pool:
        raise NothingToLearn("the demonstration pool is empty", value=0, expected="at least one demonstration")
    for number in run.rounds(config.rounds):
        selection = select_samples(policy, pool, config, number=number, seed=run.seed, select=select)
        policy = run.fit(policy, selection.sequences, weighted_nll, tokens=config.tokens)
        run.evaluate(policy, number)
    return policy


def select_samples(
    policy: Policy, pool: Sequence[TokenSequence], config: P3Config, *, number: int, seed: int, select: Selector = dpp
) -> Selection:
    """Selects the samples of a round: difficulty, pace, diversity between samples and within them.

    Args:
        number: of the round, from 1 to `config.rounds`.
    Raises:
        ConfigError: the round does not exist.
        NothingToLearn: a sample has no answer tokens.
    """
    if not 1 <= number <= config.rounds:
        raise ConfigError("round of P3 out of range", value=number, expected=f"1 to {config.rounds}")
    scores = _score_samples(policy, pool, config)
    is_admitted = pace_mask(scores, number, config.rounds) if config.pace else np.ones(len(pool), np.bool_)
    admitted = np.flatnonzero(is_admitted)
    features = _compute_features(policy, [pool[int(position)] for position in admitted], config)
    quality = scores[admitted] if config.quality else None
    rng = sample_rng(seed, "p3", number)
    selector = select if config.diverse or select is not dpp else top_quality if config.quality else random_choice
    selected = admitted[selector(features, quality, config.count, rng=rng).indices]
    return Selection(
        selected,
        tuple(_select_spans(policy, [pool[int(position)] for position in selected], config)),
        scores,
        len(admitted),
    )


def _score_samples(policy: Policy, pool: Sequence[TokenSequence], config: P3Config) -> NDArray[np.float64]:
    if config.difficulty == "none":
        return np.ones(len(pool))
    spans = [answer_spans(sequence) for sequence in pool] if config.difficulty == "spans" else None
    return mean_logprob_score(answer_logprobs(policy, pool), spans=spans)


def _compute_features(policy: Policy, sequences: Sequence[TokenSequence], config: P3Config) -> NDArray[np.floating]:
    """Computes unit features `[n, hidden]`; one column of ones where diversity is off."""
    return (
        _normalize_features(answer_features(policy, sequences))
        if config.diverse and sequences
        else np.ones((len(sequences), 1))
    )


def _normalize_features(features: NDArray[np.floating]) -> NDArray[np.floating]:
    """Normalizes features to unit length; one column of ones where all rows are equal."""
    is_constant = np.isfinite(features).all() and bool((features == features[:1]).all())
    return np.ones((len(features), 1)) if is_constant else unit_features(features)


def _select_spans(policy: Policy, sequences: Sequence[TokenSequence], config: P3Config) -> Sequence[TokenSequence]:
    """Returns the samples with weight on the selected share of their spans; features are normalized over all spans."""
    if config.within == 1 or not sequences:
        return sequences
    features_by_sample = span_features(policy, sequences)
    all_features = _normalize_features(np.concatenate(features_by_sample))
    ends = np.cumsum([len(sample_features) for sample_features in features_by_sample])[:-1]
    selected_spans = select_spans(np.split(all_features, ends), share=config.within)
    return [mask_spans(sequence, selected) for sequence, selected in zip(sequences, selected_spans, strict=True)]
