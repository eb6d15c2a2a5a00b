"""P3: the policy itself says what is easy, a pace lets in what is harder, and diversity chooses among what is let in.

Yang et al., "P3: A Policy-Driven, Pace-Adaptive, and Diversity-Promoted Framework for Data Pruning in LLM Training"
(arXiv 2408.05541). Per round e of E:

    s_i = exp((1/T) sum_t log p(y_t | x, y_<t))           how easy each answer is now; by spans: the mean over its lines
    keep i iff s_i >= percentile(s, 100 - 100 e/E)        the easier share grows until all are in
    choose k by greedy MAP of det L, L = diag(q) F F^T diag(q)      F: mean hidden states of answers, z-scored, unit
    fine-tune on what was chosen

Scores and features are recomputed every round with the policy as it is. `within` chooses lines inside of samples too:
those that are not chosen are read and not learned. The published code has q = s; easiness as quality on top of the pace
prefers the easy twice, so here quality is off unless asked for. Each part can be left out; the ablations are settings.
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
from evolvent.curate.select import Selector, dpp, span_choice, unit_features, with_spans
from evolvent.curate.selectors import random_choice, top_quality
from evolvent.errors import ConfigError, NothingToLearn
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.token_sequences import Parts
from evolvent.models.policy import Policy
from evolvent.run import Run
from evolvent.trajectory import sample_rng

__all__ = ["FULL", "NO_DIFFICULTY", "NO_DIVERSITY", "NO_PACE", "P3", "Chosen", "choose", "p3"]


class P3(Config):
    """What can be chosen about P3. The defaults are the paper's, but for `quality`, which is on there."""

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
class Chosen:
    """What a round learns.

    Args:
        places: `[m]`, of the samples in the pool.
        parts: they, with the weights of their spans.
        scores: `[n]`, how easy each sample of the pool is; ones without difficulty.
        let_in: how many the pace let in.
    """

    places: NDArray[np.int64]
    parts: tuple[Parts, ...]
    scores: NDArray[np.float64]
    let_in: int


def p3(policy: Policy, pool: Sequence[Parts], *, config: P3, run: Run[Policy], select: Selector = dpp) -> Policy:
    """Fine-tune on what the policy chooses; returns the policy of the last round.

    Args:
        pool: demonstrations: weights on their answers, spans on their lines (`curate.difficulty.by_lines`).
        select: how k of those that are let in are chosen; any of `curate.select` and `curate.selectors`.
    Raises:
        NothingToLearn: an empty pool, or a sample without answer tokens.
    """
    if not pool:
        raise NothingToLearn("an empty pool", value=0, expected="at least one demonstration")
    for number in run.rounds(config.rounds):
        chosen = choose(policy, pool, config, number=number, seed=run.seed, select=select)
        policy = run.fit(policy, chosen.parts, weighted_nll, tokens=config.tokens)
        run.evaluate(policy, number)
    return policy


def choose(
    policy: Policy, pool: Sequence[Parts], config: P3, *, number: int, seed: int, select: Selector = dpp
) -> Chosen:
    """What a round learns: difficulty, pace, diversity between samples and within them.

    Args:
        number: of the round, from 1 to `config.rounds`.
    Raises:
        ConfigError: a round that is not there. NothingToLearn: a sample without answer tokens.
    """
    if not 1 <= number <= config.rounds:
        raise ConfigError("a round of P3", value=number, expected=f"1 to {config.rounds}")
    scores = _scores(policy, pool, config)
    let_in = pace_mask(scores, number, config.rounds) if config.pace else np.ones(len(pool), np.bool_)
    inside = np.flatnonzero(let_in)
    features = _features(policy, [pool[int(place)] for place in inside], config)
    quality = scores[inside] if config.quality else None
    rng = sample_rng(seed, "p3", number)
    chooser = select if config.diverse or select is not dpp else top_quality if config.quality else random_choice
    found = inside[chooser(features, quality, config.count, rng=rng).indices]
    return Chosen(found, tuple(_within(policy, [pool[int(place)] for place in found], config)), scores, len(inside))


def _scores(policy: Policy, pool: Sequence[Parts], config: P3) -> NDArray[np.float64]:
    if config.difficulty == "none":
        return np.ones(len(pool))
    spans = [answer_spans(part) for part in pool] if config.difficulty == "spans" else None
    return mean_logprob_score(answer_logprobs(policy, pool), spans=spans)


def _features(policy: Policy, parts: Sequence[Parts], config: P3) -> NDArray[np.floating]:
    """Unit features `[n, hidden]`; one column of ones where diversity is off."""
    return _unit(answer_features(policy, parts)) if config.diverse and parts else np.ones((len(parts), 1))


def _unit(features: NDArray[np.floating]) -> NDArray[np.floating]:
    """Unit features; one column of ones where all rows are equal, and nothing tells them apart."""
    same = np.isfinite(features).all() and bool((features == features[:1]).all())
    return np.ones((len(features), 1)) if same else unit_features(features)


def _within(policy: Policy, parts: Sequence[Parts], config: P3) -> Sequence[Parts]:
    """The samples with weight on the chosen share of their spans; features are normalised over all spans together."""
    if config.within == 1 or not parts:
        return parts
    each = span_features(policy, parts)
    together = _unit(np.concatenate(each))
    ends = np.cumsum([len(one) for one in each])[:-1]
    kept = span_choice(np.split(together, ends), share=config.within)
    return [with_spans(part, chosen) for part, chosen in zip(parts, kept, strict=True)]
