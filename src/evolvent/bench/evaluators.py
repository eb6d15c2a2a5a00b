"""Evaluators: metrics of a policy on some data, as numbers with intervals. Pure functions of (policy, data).

There are four: perplexity, classification among given continuations, free generation against references, and
success in worlds. They do not depend on training: the watcher (`bench/watch.py`) calls them on snapshots, other
code on any policy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from evolvent.bench.measures import (
    LEVEL,
    RESAMPLES,
    Floats,
    Measure,
    check_lengths,
    engine_or_new,
    mean_measure,
    rate_measure,
    run_all_jobs,
    tokenize_bare,
)
from evolvent.bench.questions import ChoiceQuestion, Conversation, OpenQuestion, Text
from evolvent.bench.text_metrics import TEXT_METRICS, TextMetric, check_text_metrics, measure_texts
from evolvent.config import Config
from evolvent.engine.asks import Engine, Job, SampleAsk, Sampling, ScoreAsk
from evolvent.errors import ConfigError
from evolvent.rollout.episode import collect
from evolvent.rollout.evaluate import panel_starts, summarize_outcomes
from evolvent.stats import wilson_interval
from evolvent.trajectory import sample_rng, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.searchqa.answers import normalize_answer

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import TokenSequence
    from evolvent.models.policy import Policy

__all__ = [
    "ClassificationConfig",
    "GenerationConfig",
    "PerplexityConfig",
    "QuestionConfig",
    "SuccessConfig",
    "measure_classification",
    "measure_generation",
    "measure_perplexity",
    "measure_success",
]


# ---------------------------------------------------------------------- perplexity


class PerplexityConfig(Config):
    """Settings for texts that are longer than the context."""

    stride: int | None = Field(
        default=None, ge=1, description="new tokens of each window over a long text; none: half the context"
    )


def measure_perplexity(
    policy: Policy,
    data: Sequence[Text | Conversation | TokenSequence],
    config: PerplexityConfig | None = None,
    *,
    engine: Engine | None = None,
) -> list[Measure]:
    """Computes `exp(sum of -log p / count)` over all predicted tokens of all data; never a mean over batches or
    texts.

    Predicted tokens are: of a text all but the first token read, of a conversation those of the assistant (with the
    stop token), of a token sequence those with a learning weight. Control tokens spelled out in a text stay letters.
    The interval resamples whole texts (the ratio of sums, `stats.paired_interval`), n counts tokens.

    Raises:
        ConfigError: no token to predict. VocabularyMismatch: a word that the policy does not know. EngineError: the
            model's output is not finite.
    """
    engine = engine_or_new(policy, engine)
    sequences = [_predicted_tokens(policy, losses_of_span) for losses_of_span in data]
    stride = (config or PerplexityConfig()).stride or max(1, engine.context // 2)
    spans = [
        (index, *span)
        for index, (ids, _) in enumerate(sequences)
        for span in _iterate_windows(len(ids), engine.context, stride)
    ]
    spans = [span for span in spans if sequences[span[0]][1][span[2] : span[3]].any()]
    logprobs = run_all_jobs((_score_tokens(sequences[index][0][begin:end]) for index, begin, _, end in spans), engine)
    losses = [
        -losses_of_span[first_new - begin :][sequences[index][1][first_new:end]]
        for losses_of_span, (index, begin, first_new, end) in zip(logprobs, spans, strict=True)
    ]
    if not losses:
        raise ConfigError(
            "the texts contain no token to predict", value=f"{len(data)} texts", expected="texts of two or more tokens"
        )
    labels = np.repeat([index for index, *_ in spans], [len(losses_of_span) for losses_of_span in losses])
    mean_loss = mean_measure(np.concatenate(losses), labels, "perplexity")
    low, high = (None if end is None else _exp(end) for end in (mean_loss.low, mean_loss.high))
    return [Measure("perplexity", _exp(mean_loss.value or 0.0), low, high, mean_loss.n)]


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _predicted_tokens(
    policy: Policy, example: Text | Conversation | TokenSequence
) -> tuple[list[int], NDArray[np.bool_]]:
    """Returns the tokens of an example, and the mask of predicted tokens; the first never is."""
    if isinstance(example, Text):
        ids = tokenize_bare(policy, example.text)
        is_predicted = np.ones(len(ids), np.bool_)
    elif isinstance(example, Conversation):
        ids, flags = [], []
        for turn, (user_text, reply) in enumerate(example.exchanges):
            prompt_ids = (
                policy.dialect.turn(user_text, stopped=True) if turn else policy.dialect.open(example.system, user_text)
            )
            reply_ids = policy.dialect.action(reply)
            ids += [*prompt_ids, *reply_ids]
            flags += [False] * len(prompt_ids) + [True] * len(reply_ids)
        is_predicted = np.asarray(flags, np.bool_)
    else:
        ids, is_predicted = example.ids.tolist(), example.weight != 0
    is_predicted[:1] = False
    return ids, is_predicted


def _iterate_windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yields (begin, after, end) of windows over a text: tokens from `first_new` on are new, and each token is new
    once.
    """
    first_new, end = 0, min(length, context)
    while first_new < end:
        yield max(0, end - context), first_new, end
        first_new, end = end, min(length, end + min(stride, context - 1))


def _score_tokens(ids: Sequence[int]) -> Job[Floats]:
    (score,) = yield (ScoreAsk(None, ids),)
    return np.asarray(score.logprobs, np.float64)


# ---------------------------------------------------------------------- classification


class QuestionConfig(Config):
    """Settings for putting a question to a policy."""

    form: Literal["dialect", "text"] = Field(
        default="dialect", description="as a turn of the policy's dialect, or as bare text that is continued"
    )
    instructions: str = Field(default="", description="what the policy is told first, in its dialect")


class ClassificationConfig(QuestionConfig):
    """Settings for choosing among continuations."""

    score: Literal["sum", "mean"] = Field(
        default="sum", description="a choice's log-probability, or its mean over the choice's tokens"
    )


def measure_classification(
    policy: Policy,
    data: Sequence[ChoiceQuestion],
    config: ClassificationConfig | None = None,
    *,
    engine: Engine | None = None,
) -> list[Measure]:
    """Returns metrics of the choice with the highest log-probability: accuracy, macro-F1, and each class's F1.

    The classes are the texts of the choices where all questions have the same ones, otherwise their numbers (1, 2,
    ...). Macro-F1 is the mean of `2 tp / (2 tp + fp + fn)` over the classes that occur as a truth or a prediction; its
    interval resamples questions. The first choice wins among equal scores.

    Raises:
        ConfigError: no questions, or one that does not fit the context. VocabularyMismatch, EngineError: see
            `perplexity`.
    """
    config, engine = config or ClassificationConfig(), engine_or_new(policy, engine)
    continuations = [_split_continuations(policy, question, config) for question in data]
    check_lengths(
        [len(prefix) + max(map(len, choice_tokens)) for prefix, choice_tokens in continuations], engine.context
    )
    guesses = run_all_jobs(
        (_choose(prefix, choice_tokens, config.score) for prefix, choice_tokens in continuations), engine
    )
    labels = data[0].choices if len({frozenset(question.choices) for question in data}) == 1 else None
    pairs = [
        tuple(
            question.choices[choice_index] if labels else str(choice_index + 1)
            for choice_index in (question.answer, guess)
        )
        for question, guess in zip(data, guesses, strict=True)
    ]
    num_correct = sum(truth == guess for truth, guess in pairs)
    return [rate_measure("accuracy", wilson_interval(num_correct, len(pairs))), *_f1_measures(Counter(pairs))]


def _split_continuations(
    policy: Policy, question: ChoiceQuestion, config: QuestionConfig
) -> tuple[list[int], list[list[int]]]:
    """Returns the tokens before the choices differ, and those of each choice from there on."""
    if config.form == "dialect":
        prefix = policy.dialect.open(config.instructions, question.prompt)
        return prefix, [policy.dialect.action(choice) for choice in question.choices]
    complete_ids = [tokenize_bare(policy, question.prompt + choice) for choice in question.choices]
    prompt_ids = tokenize_bare(policy, question.prompt)
    limit = min(len(prompt_ids), *(len(ids) - 1 for ids in complete_ids))
    num_shared = next(
        (position for position in range(limit) if any(ids[position] != prompt_ids[position] for ids in complete_ids)),
        limit,
    )
    return prompt_ids[:num_shared], [ids[num_shared:] for ids in complete_ids]


def _choose(prefix: list[int], continuations: list[list[int]], score: str) -> Job[int]:
    node = None
    if prefix:
        (prefix_score,) = yield (ScoreAsk(None, prefix),)
        node = prefix_score.node
    answers = yield tuple(ScoreAsk(node, choice_ids) for choice_ids in continuations)
    sums = [float(np.sum(answer.logprobs, dtype=np.float64)) for answer in answers]
    if score == "mean":
        sums = [total / len(choice_ids) for total, choice_ids in zip(sums, continuations, strict=True)]
    return sums.index(max(sums))


def _f1_measures(pairs: Mapping[tuple[str, ...], int]) -> list[Measure]:
    """Computes macro-F1 with its interval, and F1, precision and recall of each class, from (truth, prediction)
    counts.
    """
    classes = sorted({label for pair in pairs for label in pair})
    cells, counts = sorted(pairs), np.asarray([pairs[pair] for pair in sorted(pairs)])
    truth = np.asarray([[pair[0] == label for label in classes] for pair in cells], np.float64)
    guess = np.asarray([[pair[1] == label for label in classes] for pair in cells], np.float64)
    total = int(counts.sum())
    resampled_counts = sample_rng("evaluators", "macro_f1").multinomial(total, counts / total, size=RESAMPLES)
    resampled = _macro_f1(resampled_counts, truth, guess)
    low, high = np.quantile(resampled, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist() if total > 1 else (None, None)
    rows = [Measure("macro_f1", float(_macro_f1(counts[None], truth, guess)[0]), low, high, total)]
    true_positives, num_truth, num_predicted = counts @ (truth * guess), counts @ truth, counts @ guess
    for class_index, label in enumerate(classes):
        values = {
            "f1": _ratio(2 * true_positives[class_index], num_truth[class_index] + num_predicted[class_index]),
            "precision": _ratio(true_positives[class_index], num_predicted[class_index]),
            "recall": _ratio(true_positives[class_index], num_truth[class_index]),
        }
        rows += [
            Measure(f"{name}/{label}", value, None, None, int(num_truth[class_index])) for name, value in values.items()
        ]
    return rows


def _macro_f1(counts: NDArray[np.int64], truth: Floats, guess: Floats) -> Floats:
    """Computes macro-F1 `[R]` of `[R, cells]` counts; `truth` and `guess` `[cells, classes]` describe a cell."""
    true_positives, sizes = counts @ (truth * guess), counts @ (truth + guess)
    occurs = sizes > 0
    f1 = np.divide(2 * true_positives, sizes, out=np.zeros_like(sizes), where=occurs)
    mean: Floats = f1.sum(axis=1) / occurs.sum(axis=1)
    return mean


def _ratio(part: float, total: float) -> float:
    return float(part / total) if total else 0.0


# ---------------------------------------------------------------------- generation


class GenerationConfig(QuestionConfig):
    """Settings for free answers."""

    max_tokens: int = Field(default=64, ge=1, description="longest answer")
    temperature: float = Field(default=0.0, ge=0, description="0: the likeliest token")
    samples: int = Field(default=1, ge=1, le=64, description="answers to each question")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    stop: tuple[str, ...] = Field(default=("\n",), description="texts that end an answer in bare text")
    normalise: bool = Field(default=True, description="compare without case, marks and articles, as SQuAD does")
    text_metrics: tuple[TextMetric, ...] = Field(
        default=(), description=f"also, by a library: {', '.join(TEXT_METRICS)} (evolvent[text])"
    )


def measure_generation(
    policy: Policy,
    data: Sequence[OpenQuestion],
    config: GenerationConfig | None = None,
    *,
    engine: Engine | None = None,
) -> list[Measure]:
    """Computes exact match and token F1 of the policy's answers, against the best matching reference of each
    question, and on request BLEU, chrF and ROUGE.

    Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016. A question with
        several
    samples counts their mean. The random numbers of a sample derive from the seed, the prompt and its number.

    Raises:
        ConfigError: no questions, or one that does not fit the context. VocabularyMismatch, EngineError: see
            `perplexity`. MissingExtra: a library of `text_metrics` is not installed.
    """
    config, engine = config or GenerationConfig(), engine_or_new(policy, engine)
    check_text_metrics(config.text_metrics)
    prompts = [
        policy.dialect.open(config.instructions, question.prompt)
        if config.form == "dialect"
        else tokenize_bare(policy, question.prompt)
        for question in data
    ]
    check_lengths([len(prompt) + 1 for prompt in prompts], engine.context)
    jobs = (_generate(policy, prompt, question, config) for prompt, question in zip(prompts, data, strict=True))
    answers = run_all_jobs(jobs, engine)
    normalize = normalize_answer if config.normalise else str.strip
    exact, overlap = [], []
    for question, texts in zip(data, answers, strict=True):
        references = [normalize(text) for text in question.references]
        answer_texts = [normalize(text) for text in texts]
        exact.append(sum(text in references for text in answer_texts) / len(answer_texts))
        overlap.append(
            sum(max(_token_f1(text, reference) for reference in references) for text in answer_texts)
            / len(answer_texts)
        )
    items = np.arange(len(data))
    is_single_sample = config.samples == 1
    return [
        rate_measure("exact_match", wilson_interval(int(sum(exact)), len(exact)))
        if is_single_sample
        else mean_measure(np.asarray(exact), items, "exact_match", upper=1.0),
        mean_measure(np.asarray(overlap), items, "token_f1", upper=1.0),
        *measure_texts(answers, [question.references for question in data], config.text_metrics),
    ]


def _generate(policy: Policy, prompt: list[int], question: OpenQuestion, config: GenerationConfig) -> Job[list[str]]:
    is_bare_text = config.form == "text"
    end = policy.tokenizer.eos_token_id
    seeds = tuple(sample_seed(config.seed, question.prompt, number) for number in range(config.samples))
    (generations,) = yield (
        SampleAsk(
            None,
            prompt,
            config.max_tokens,
            seeds=seeds,
            sampling=Sampling(config.temperature),
            stop_ids=policy.dialect.stop_ids if not is_bare_text else frozenset([] if end is None else [int(end)]),
            stop_strings=config.stop if is_bare_text else policy.dialect.stop_strings,
        ),
    )
    if not is_bare_text:
        return [policy.dialect.read_reply(sample.ids).text for sample in generations]
    texts = [str(policy.tokenizer.decode(sample.ids.tolist(), skip_special_tokens=True)) for sample in generations]
    return [min((text.partition(stop)[0] for stop in config.stop), key=len, default=text) for text in texts]


def _token_f1(text: str, reference: str) -> float:
    """Computes `2 |A n B| / (|A| + |B|)` of the bags of words A and B; 1 where both are empty."""
    words, reference_words = Counter(text.split()), Counter(reference.split())
    if not words and not reference_words:
        return 1.0
    return 2 * (words & reference_words).total() / (words.total() + reference_words.total())


# ---------------------------------------------------------------------- worlds


class SuccessConfig(Config):
    """Settings that select the panels to play."""

    split: Literal["train", "dev", "test"] = Field(default="dev", description="the split whose panels are played")
    tiers: tuple[str, ...] | None = Field(default=None, description="the tiers that are played; none: all of them")
    limit: int = Field(default=50, ge=2, description="most tasks of a panel")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")


def measure_success(
    policy: Policy, worlds: Mapping[str, World], config: SuccessConfig | None = None, *, engine: Engine | None = None
) -> list[Measure]:
    """Computes success on the panels of worlds, with Wilson intervals; withheld where an episode could not be
    scored.

    Raises:
        ConfigError: an unknown tier, or a panel too small for an interval.
    """
    from evolvent.agents.language import LanguageAgent

    config, engine = config or SuccessConfig(), engine_or_new(policy, engine)
    starts = panel_starts(worlds, split=config.split, tiers=config.tiers, limit=config.limit)
    agent = LanguageAgent(policy, Sampling(config.temperature), max_tokens=config.max_tokens)
    with closing(collect(worlds, starts, agent, engine=engine, seed=config.seed)) as trajectories:
        rows = summarize_outcomes(trajectories)
    rows.sort(key=lambda row: (row.world, row.tier))
    return [Measure(f"success/{row.world}/{row.tier}", row.mean, row.low, row.high, row.n) for row in rows]
