"""Judges: how a policy values what a search looks at, and which engine answers for it."""

from __future__ import annotations

from typing import Any

from evolvent.engine.asks import Engine
from evolvent.engine.multi_model import Several
from evolvent.errors import ConfigError, VocabularyMismatch
from evolvent.learn.sources import vocabulary_digest
from evolvent.models.policy import Policy
from evolvent.reward.generative import GenerativeScorer, Verdict
from evolvent.reward.process import SpanScorer, default_tags
from evolvent.reward.values import OutcomeScorer, ValueScorer
from evolvent.search.scorers import Scorer
from evolvent.search.settings import SearchConfig

__all__ = ["JUDGE", "default_verdict", "judged", "scorer_of"]

JUDGE = "judge"  # its name among several engines
_QUESTION = "\nIs the solution right so far? Answer Yes or No:"


def scorer_of(judge: Policy, how: SearchConfig, *, model: str | None = None) -> Scorer:
    """What scores spans, or the places where an agent is to act, with a policy that was trained to judge.

    Args:
        model: the judge's name among several engines; None: the engine that writes is its own.
    Raises:
        ConfigError: a judge without the head or the words that `how.score` reads.
    """
    if how.score == "process":
        return SpanScorer(default_tags(judge.tokenizer), model)
    if how.score == "generative":
        return GenerativeScorer(default_verdict(judge.tokenizer), model=model)
    if judge.value_head is None:
        raise ConfigError(
            f"a judge of the form {how.score!r} needs a value head, and this policy has none",
            expected="a policy that was trained on values, or score = 'process'",
            hint="name the judge: --judge FOLDER",
        )
    scorer = ValueScorer if how.score == "value" else OutcomeScorer
    return scorer(judge.value_head, model=model)


def default_verdict(tokenizer: Any) -> Verdict:
    """A question in plain English, answered by " Yes" or " No".

    Raises:
        ConfigError: a tokenizer in which these are not one token each.
    """
    words = [tokenizer.encode(word, add_special_tokens=False) for word in (" Yes", " No")]
    if any(len(ids) != 1 or ids[0] == tokenizer.unk_token_id for ids in words):
        raise ConfigError(
            "a verifier that answers in words needs ' Yes' and ' No' as single tokens",
            value=words,
            hint="use score = 'process'",
        )
    question = tokenizer.encode(_QUESTION, add_special_tokens=False)
    return Verdict(tuple(question), words[0][0], words[1][0])


def judged(policy: Policy, judge: Policy, *, engine: Engine, judging: Engine) -> Engine:
    """The engines of a policy and of its judge as one.

    Raises:
        VocabularyMismatch: a judge that reads other tokens than the policy writes.
    """
    own, other = vocabulary_digest(policy.tokenizer), vocabulary_digest(judge.tokenizer)
    if own != other:
        raise VocabularyMismatch(
            "the judge has another tokenizer than the policy",
            value=other[:12],
            expected=own[:12],
            hint="train the judge from the policy",
        )
    return Several({"policy": engine, JUDGE: judging})
