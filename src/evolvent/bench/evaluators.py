"""Evaluators: what a policy is worth by some data, as numbers with intervals. Pure functions of (policy, data).

Four of them: perplexity, classification among given continuations, free generation against references, and success in
worlds. Nothing here knows a training: the watcher (`bench/watch.py`) calls them on snapshots, anybody on any policy.
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
    asked,
    bare_tokens,
    check_lengths,
    mean_measure,
    rate_measure,
    serving,
)
from evolvent.bench.questions import Choice, Question, Said, Text
from evolvent.config import Config
from evolvent.engine.asks import Engine, SampleAsk, Sampling, ScoreAsk, Work
from evolvent.errors import ConfigError
from evolvent.rollout.collect import collect
from evolvent.rollout.evaluate import outcome_rows, panel_starts
from evolvent.stats import wilson
from evolvent.trajectory import sample_rng, sample_seed
from evolvent.worlds.base import World
from evolvent.worlds.searchqa.answers import normalised

if TYPE_CHECKING:
    from evolvent.learn.token_sequences import Parts
    from evolvent.models.policy import Policy

__all__ = [
    "Asking",
    "ClassificationConfig",
    "GenerationConfig",
    "PerplexityConfig",
    "SuccessConfig",
    "classification",
    "generation",
    "perplexity",
    "success",
]


# ---------------------------------------------------------------------- perplexity


class PerplexityConfig(Config):
    """How texts are predicted that are longer than the context."""

    stride: int | None = Field(
        default=None, ge=1, description="new tokens of each window over a long text; none: half the context"
    )


def perplexity(
    policy: Policy,
    data: Sequence[Text | Said | Parts],
    config: PerplexityConfig | None = None,
    *,
    engine: Engine | None = None,
) -> list[Measure]:
    """`exp(sum of -log p / count)` over all predicted tokens of all data; never a mean over batches or texts.

    Predicted are: of a text all tokens but the first thing read, of a conversation what the assistant wrote (with the
    stop token), of parts the tokens with a learning weight. Control tokens spelled out in a text stay letters. The
    interval draws whole texts again (the ratio of sums, `stats.paired`), n counts tokens.

    Raises:
        ConfigError: no token to predict. VocabularyMismatch: a word that the policy does not know. EngineError: the
            model's output is not finite.
    """
    engine = serving(policy, engine)
    pieces = [_predicted(policy, one) for one in data]
    stride = (config or PerplexityConfig()).stride or max(1, engine.context // 2)
    spans = [(at, *span) for at, (ids, _) in enumerate(pieces) for span in _windows(len(ids), engine.context, stride)]
    spans = [span for span in spans if pieces[span[0]][1][span[2] : span[3]].any()]
    scored = asked((_scored(pieces[at][0][begin:end]) for at, begin, _, end in spans), engine)
    losses = [
        -one[after - begin :][pieces[at][1][after:end]]
        for one, (at, begin, after, end) in zip(scored, spans, strict=True)
    ]
    if not losses:
        raise ConfigError("no token to predict", value=f"{len(data)} texts", expected="texts of two or more tokens")
    labels = np.repeat([at for at, *_ in spans], [len(one) for one in losses])
    found = mean_measure(np.concatenate(losses), labels, "perplexity")
    low, high = (None if end is None else _exp(end) for end in (found.low, found.high))
    return [Measure("perplexity", _exp(found.value or 0.0), low, high, found.n)]


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _predicted(policy: Policy, one: Text | Said | Parts) -> tuple[list[int], NDArray[np.bool_]]:
    """The tokens of a piece of data, and which of them are predicted; the first never is."""
    if isinstance(one, Text):
        ids = bare_tokens(policy, one.text)
        wanted = np.ones(len(ids), np.bool_)
    elif isinstance(one, Said):
        ids, marks = [], []
        for turn, (said, reply) in enumerate(one.exchanges):
            read = policy.dialect.turn(said, stopped=True) if turn else policy.dialect.open(one.system, said)
            written = policy.dialect.action(reply)
            ids += [*read, *written]
            marks += [False] * len(read) + [True] * len(written)
        wanted = np.asarray(marks, np.bool_)
    else:
        ids, wanted = one.ids.tolist(), one.weight != 0
    wanted[:1] = False
    return ids, wanted


def _windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, after, end) of windows over a text: in each the tokens from `after` on are new. Each is new once."""
    after, end = 0, min(length, context)
    while after < end:
        yield max(0, end - context), after, end
        after, end = end, min(length, end + min(stride, context - 1))


def _scored(ids: Sequence[int]) -> Work[Floats]:
    (found,) = yield (ScoreAsk(None, ids),)
    return np.asarray(found.logprobs, np.float64)


# ---------------------------------------------------------------------- classification


class Asking(Config):
    """How a question is put to a policy."""

    form: Literal["dialect", "text"] = Field(
        default="dialect", description="as a turn of the policy's dialect, or as bare text that is continued"
    )
    instructions: str = Field(default="", description="what the policy is told first, in its dialect")


class ClassificationConfig(Asking):
    """How a policy chooses among continuations."""

    score: Literal["sum", "mean"] = Field(
        default="sum", description="a choice's log-probability, or its mean over the choice's tokens"
    )


def classification(
    policy: Policy, data: Sequence[Choice], config: ClassificationConfig | None = None, *, engine: Engine | None = None
) -> list[Measure]:
    """The choice with the highest log-probability after the prompt: accuracy, macro-F1, and each class's F1.

    The classes are the texts of the choices where all questions have the same ones, else their places (1, 2, ...).
    Macro-F1 is the mean of `2 tp / (2 tp + fp + fn)` over the classes that occur as a truth or a prediction; its
    interval draws questions again. Of equal scores the first choice is taken.

    Raises:
        ConfigError: no questions, or one that does not fit the context. VocabularyMismatch, EngineError: see
            `perplexity`.
    """
    config, engine = config or ClassificationConfig(), serving(policy, engine)
    ways = [_continuations(policy, one, config) for one in data]
    check_lengths([len(before) + max(map(len, after)) for before, after in ways], engine.context)
    guesses = asked((_chosen(before, after, config.score) for before, after in ways), engine)
    labels = data[0].choices if len({frozenset(one.choices) for one in data}) == 1 else None
    pairs = [
        tuple(one.choices[at] if labels else str(at + 1) for at in (one.answer, guess))
        for one, guess in zip(data, guesses, strict=True)
    ]
    right = sum(truth == guess for truth, guess in pairs)
    return [rate_measure("accuracy", wilson(right, len(pairs))), *_f1_measures(Counter(pairs))]


def _continuations(policy: Policy, one: Choice, config: Asking) -> tuple[list[int], list[list[int]]]:
    """The tokens before the choices differ, and those of each choice from there on."""
    if config.form == "dialect":
        before = policy.dialect.open(config.instructions, one.prompt)
        return before, [policy.dialect.action(choice) for choice in one.choices]
    wholes = [bare_tokens(policy, one.prompt + choice) for choice in one.choices]
    alone = bare_tokens(policy, one.prompt)
    limit = min(len(alone), *(len(ids) - 1 for ids in wholes))
    same = next((at for at in range(limit) if any(ids[at] != alone[at] for ids in wholes)), limit)
    return alone[:same], [ids[same:] for ids in wholes]


def _chosen(before: list[int], ways: list[list[int]], score: str) -> Work[int]:
    node = None
    if before:
        (read,) = yield (ScoreAsk(None, before),)
        node = read.node
    answers = yield tuple(ScoreAsk(node, way) for way in ways)
    sums = [float(np.sum(answer.logprobs, dtype=np.float64)) for answer in answers]
    if score == "mean":
        sums = [total / len(way) for total, way in zip(sums, ways, strict=True)]
    return sums.index(max(sums))


def _f1_measures(pairs: Mapping[tuple[str, ...], int]) -> list[Measure]:
    """Macro-F1 with its interval, then F1, precision and recall of each class, from counts of (truth, prediction)."""
    classes = sorted({label for pair in pairs for label in pair})
    cells, counts = sorted(pairs), np.asarray([pairs[pair] for pair in sorted(pairs)])
    truth = np.asarray([[pair[0] == label for label in classes] for pair in cells], np.float64)
    guess = np.asarray([[pair[1] == label for label in classes] for pair in cells], np.float64)
    total = int(counts.sum())
    times = sample_rng("evaluators", "macro_f1").multinomial(total, counts / total, size=RESAMPLES)
    drawn = _macro_f1(times, truth, guess)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist() if total > 1 else (None, None)
    rows = [Measure("macro_f1", float(_macro_f1(counts[None], truth, guess)[0]), low, high, total)]
    right, occurs, guessed = counts @ (truth * guess), counts @ truth, counts @ guess
    for at, label in enumerate(classes):
        values = {
            "f1": _share(2 * right[at], occurs[at] + guessed[at]),
            "precision": _share(right[at], guessed[at]),
            "recall": _share(right[at], occurs[at]),
        }
        rows += [Measure(f"{name}/{label}", value, None, None, int(occurs[at])) for name, value in values.items()]
    return rows


def _macro_f1(times: NDArray[np.int64], truth: Floats, guess: Floats) -> Floats:
    """`[R]` macro-F1 of `[R, cells]` counts; `truth` and `guess` `[cells, classes]` say what a cell is."""
    both, sizes = times @ (truth * guess), times @ (truth + guess)
    there = sizes > 0
    f1 = np.divide(2 * both, sizes, out=np.zeros_like(sizes), where=there)
    mean: Floats = f1.sum(axis=1) / there.sum(axis=1)
    return mean


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0


# ---------------------------------------------------------------------- generation


class GenerationConfig(Asking):
    """How a policy answers freely."""

    max_tokens: int = Field(default=64, ge=1, description="longest answer")
    temperature: float = Field(default=0.0, ge=0, description="0: the likeliest token")
    samples: int = Field(default=1, ge=1, le=64, description="answers to each question")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")
    stop: tuple[str, ...] = Field(default=("\n",), description="texts that end an answer in bare text")
    normalise: bool = Field(default=True, description="compare without case, marks and articles, as SQuAD does")


def generation(
    policy: Policy, data: Sequence[Question], config: GenerationConfig | None = None, *, engine: Engine | None = None
) -> list[Measure]:
    """Exact match and token F1 of what the policy writes, against the best fitting reference of each question.

    Source: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", 2016. A question with
    several samples counts their mean. The random numbers of a sample come from the seed, the prompt and its number.

    Raises:
        ConfigError: no questions, or one that does not fit the context. VocabularyMismatch, EngineError: see
            `perplexity`.
    """
    config, engine = config or GenerationConfig(), serving(policy, engine)
    prompts = [
        policy.dialect.open(config.instructions, one.prompt)
        if config.form == "dialect"
        else bare_tokens(policy, one.prompt)
        for one in data
    ]
    check_lengths([len(prompt) + 1 for prompt in prompts], engine.context)
    works = (_written(policy, prompt, one, config) for prompt, one in zip(prompts, data, strict=True))
    answers = asked(works, engine)
    shown = normalised if config.normalise else str.strip
    exact, overlap = [], []
    for one, texts in zip(data, answers, strict=True):
        references = [shown(text) for text in one.references]
        said = [shown(text) for text in texts]
        exact.append(sum(text in references for text in said) / len(said))
        overlap.append(sum(max(_token_f1(text, right) for right in references) for text in said) / len(said))
    items = np.arange(len(data))
    one_each = config.samples == 1
    return [
        rate_measure("exact_match", wilson(int(sum(exact)), len(exact)))
        if one_each
        else mean_measure(np.asarray(exact), items, "exact_match", most=1.0),
        mean_measure(np.asarray(overlap), items, "token_f1", most=1.0),
    ]


def _written(policy: Policy, prompt: list[int], one: Question, config: GenerationConfig) -> Work[list[str]]:
    bare = config.form == "text"
    end = policy.tokenizer.eos_token_id
    seeds = tuple(sample_seed(config.seed, one.prompt, number) for number in range(config.samples))
    (found,) = yield (
        SampleAsk(
            None,
            prompt,
            config.max_tokens,
            seeds=seeds,
            sampling=Sampling(config.temperature),
            stop_ids=policy.dialect.stop_ids if not bare else frozenset([] if end is None else [int(end)]),
            stop_strings=config.stop if bare else (),
        ),
    )
    if not bare:
        return [policy.dialect.text(sample.ids) for sample in found]
    texts = [str(policy.tokenizer.decode(sample.ids.tolist(), skip_special_tokens=True)) for sample in found]
    return [min((text.partition(stop)[0] for stop in config.stop), key=len, default=text) for text in texts]


def _token_f1(text: str, reference: str) -> float:
    """`2 |A n B| / (|A| + |B|)` of the bags of words A and B; 1 where both are empty."""
    said, right = Counter(text.split()), Counter(reference.split())
    if not said and not right:
        return 1.0
    return 2 * (said & right).total() / (said.total() + right.total())


# ---------------------------------------------------------------------- worlds


class SuccessConfig(Config):
    """Which panels are played."""

    split: Literal["train", "dev", "test"] = Field(default="dev", description="the split whose panels are played")
    tiers: tuple[str, ...] | None = Field(default=None, description="the tiers that are played; none: all of them")
    limit: int = Field(default=50, ge=2, description="most tasks of a panel")
    temperature: float = Field(default=0.0, ge=0, description="of the policy; 0: the likeliest token")
    max_tokens: int = Field(default=32, ge=1, description="longest action in tokens")
    seed: int = Field(default=0, ge=0, description="all randomness derives from it")


def success(
    policy: Policy, worlds: Mapping[str, World], config: SuccessConfig | None = None, *, engine: Engine | None = None
) -> list[Measure]:
    """Success on the panels of worlds, with Wilson intervals; withheld where an episode could not be scored.

    Raises:
        ConfigError: an unknown tier, or a panel too small for an interval.
    """
    from evolvent.agents.language import LanguageAgent

    config, engine = config or SuccessConfig(), serving(policy, engine)
    starts = panel_starts(worlds, split=config.split, tiers=config.tiers, limit=config.limit)
    agent = LanguageAgent(policy, Sampling(config.temperature), max_tokens=config.max_tokens)
    with closing(collect(worlds, starts, agent, engine=engine, seed=config.seed)) as played:
        rows = outcome_rows(played)
    rows.sort(key=lambda row: (row.world, row.tier))
    return [Measure(f"success/{row.world}/{row.tier}", row.mean, row.low, row.high, row.n) for row in rows]
