"""Value models of a search: how a policy scores states, and the engine that serves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evolvent.engine.asks import Engine
from evolvent.engine.driver import MultiModelEngine
from evolvent.errors import ConfigError, VocabularyMismatch
from evolvent.learn.sources import vocabulary_digest
from evolvent.models.policy import Policy
from evolvent.reward.generative import GenerativeScorer, VerdictPrompt
from evolvent.reward.process import SpanScorer, default_tags
from evolvent.reward.values import OutcomeScorer, ValueScorer
from evolvent.search.scorers import Scorer
from evolvent.search.settings import SearchConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["JUDGE", "combine_engines", "default_verdict", "make_scorer"]

JUDGE = "judge"  # its name among several engines
_QUESTION = "\nIs the solution right so far? Answer Yes or No:"


def make_scorer(value_model: Policy, search: SearchConfig, *, model: str | None = None) -> Scorer:
    """Builds the scorer of spans, or of states where an agent acts, from a policy that was trained as a value
    model.

    Args:
        value_model: The policy.
        search: Settings of the search.
        model: Its name among several engines; None: the engine of the policy is its own.
    Raises:
        ConfigError: a policy without the head or the words that `how.score` requires.
    """
    if search.score == "process":
        return SpanScorer(default_tags(value_model.tokenizer), model)
    if search.score == "generative":
        return GenerativeScorer(default_verdict(value_model.tokenizer), model=model)
    if value_model.value_head is None:
        raise ConfigError(
            f"a judge with score {search.score!r} needs a value head, but this policy has none",
            expected="a policy with a value head, or score = 'process'",
            hint="set --judge FOLDER",
        )
    scorer = ValueScorer if search.score == "value" else OutcomeScorer
    return scorer(value_model.value_head, model=model)


def default_verdict(tokenizer: PreTrainedTokenizerBase) -> VerdictPrompt:
    """Returns a question in plain English, answered by " Yes" or " No".

    Raises:
        ConfigError: a tokenizer in which these are not one token each.
    """
    answer_ids = [tokenizer.encode(answer_word, add_special_tokens=False) for answer_word in (" Yes", " No")]
    if any(len(ids) != 1 or ids[0] == tokenizer.unk_token_id for ids in answer_ids):
        raise ConfigError(
            "a generative verifier needs ' Yes' and ' No' as single tokens",
            value=answer_ids,
            hint="set score to 'process'",
        )
    question = tokenizer.encode(_QUESTION, add_special_tokens=False)
    return VerdictPrompt(tuple(question), answer_ids[0][0], answer_ids[1][0])


def combine_engines(policy: Policy, value_model: Policy, *, engine: Engine, value_engine: Engine) -> Engine:
    """Combines the engines of a policy and of its value model into one.

    Raises:
        VocabularyMismatch: a judge that reads other tokens than the policy writes.
    """
    policy_vocabulary, judge_vocabulary = vocabulary_digest(policy.tokenizer), vocabulary_digest(value_model.tokenizer)
    if policy_vocabulary != judge_vocabulary:
        raise VocabularyMismatch(
            "the judge has another tokenizer than the policy",
            value=judge_vocabulary[:12],
            expected=policy_vocabulary[:12],
            hint="train the judge from the policy",
        )
    return MultiModelEngine({"policy": engine, JUDGE: value_engine})
