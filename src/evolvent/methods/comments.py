"""Code needs comments: a model writes comments for the code that it is then trained on, and its comments improve.

Song et al., "Code Needs Comments: Enhancing Code LLMs with Comment Augmentation" (arXiv 2402.13013).

    pairs = (code without its comments -> the comments), and (low-value code -> SKIP)
    for round = 1..rounds:
        generator = policy tuned on the pairs
        corpus    = code with the generator's comments; skipped and faulty code is left out
        policy    = policy, with the next token of the corpus learned
    the better model writes the comments of the next round: self-augmentation

The paper's generator writes the code again and may spoil it. Here it names lines and texts, the program inserts
them, and the code is proved to be equal (`curate.comments`). The paper tunes its generator on comments by
GPT-4; here the pairs come from code that has comments. Prompt, thresholds and continuing from round to round
are this library's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from evolvent.config import Config
from evolvent.curate.commenting import (
    Commenting,
    CommentResult,
    Source,
    count_outcomes,
    find_faults,
    make_start,
    read_episode,
)
from evolvent.curate.notes import (
    CommentLimits,
    alignment,
    extract_comments,
    find_source_faults,
    format_answer,
    format_request,
)
from evolvent.errors import ConfigError, EngineError, NothingToLearn, SampleInvalid, VocabularyMismatch
from evolvent.files import plain_json, write_atomic
from evolvent.learn.rows import ReadingConfig, read_rows
from evolvent.learn.taught import build_demonstration
from evolvent.learn.token_sequences import TokenSequence
from evolvent.learn.windows import Intake, fit_to_context
from evolvent.models.policy import Policy
from evolvent.run import Run
from evolvent.store.exchange import read_jsonl, write_jsonl
from evolvent.trajectory import Start, Trajectory, sample_seed

__all__ = [
    "COMMENTED",
    "COMMENTED_FILTERED",
    "FILTERED_RAW",
    "RAW",
    "CommentPlayer",
    "CommentsConfig",
    "ask_for_comments",
    "build_training_pairs",
    "comment_sources",
    "comments",
    "equal_budget",
]

CommentPlayer = Callable[[Sequence[Start]], Iterable[Trajectory]]
"""Plays the starts of `Commenting` in order, as an endpoint does."""
_STARTS_PER_FILE_WRITE = 256


class CommentsConfig(Config):
    """Settings of comment augmentation."""

    rounds: int = Field(default=1, ge=1, description="rounds of commenting and learning; more: self-augmentation")
    augment: bool = Field(default=True, description="write comments; else the code is learned as it is")
    filter: bool = Field(default=True, description="leave out what the generator skips and what rules find faulty")
    teach: bool = Field(default=True, description="tune a generator on pairs; else the policy itself is asked")
    skips: float = Field(default=0.1, ge=0, lt=1, description="most of the pairs that show low-value code and SKIP")
    temperature: float = Field(default=0.0, ge=0, description="of the generator; 0: the likeliest token")
    chars: tuple[int, int] = Field(default=(20, 1_000_000), description="fewest and most characters of a text")
    repeated: float = Field(default=0.3, ge=0, le=1, description="largest share of repeated lines")
    density: tuple[float, float] = Field(default=(0.0, 1.0), description="smallest and largest comment density")
    aligned: float = Field(default=0.0, ge=0, le=1, description="smallest share of notes that name something near")
    pair_tokens: int | None = Field(default=None, ge=1, description="learned tokens of a tuning; none: the epochs")
    tokens: int | None = Field(default=None, ge=1, description="learned tokens of a corpus; none: the epochs")
    equal: Literal["", "tokens", "code"] = Field(
        default="",
        description="what arms have in common: as many learned tokens as `passes` through the raw code, or as much "
        "code; empty: `tokens`, or the epochs",
    )
    passes: int = Field(default=1, ge=1, description="passes through the raw code that `equal` counts")

    @property
    def limits(self) -> CommentLimits:
        """Returns the explicit filters; raises ConfigError for empty ranges."""
        return CommentLimits(chars=self.chars, repeated=self.repeated, density=self.density, aligned=self.aligned)


RAW: Mapping[str, object] = {"augment": False, "filter": False}
"""The first control: the code as it is, as many rounds and tokens."""
FILTERED_RAW: Mapping[str, object] = {"augment": False, "filter": True}
COMMENTED: Mapping[str, object] = {"augment": True, "filter": False}
COMMENTED_FILTERED: Mapping[str, object] = {"augment": True, "filter": True}
"""The paper's arm."""


def comments(
    policy: Policy,
    sources: Sequence[Source],
    *,
    config: CommentsConfig,
    run: Run[Policy],
    examples: Sequence[Source] | None = None,
    extra_sequences: Sequence[TokenSequence] = (),
    play: CommentPlayer | None = None,
) -> Policy:
    """Writes comments for the code and trains on it, in rounds; returns the policy of the last round.

    The run's `comments.json` reports the outcome of every source by round. Everything resumes after a stop:
    answered sources and finished fits are read from the run.

    Args:
        sources: the corpus, near-duplicates dropped (`curate.duplicates`), without evaluation data.
        run: its worlds include `Commenting`, by its name, unless nothing is commented; its longest action is the
            longest answer.
        examples: code with comments that the generator learns from; None: the sources.
        extra_sequences: trained on with every corpus, so that they are not forgotten.
        play: another generator, behind an endpoint say, that answers the starts in order; it is not tuned. Its answers
            are stored in the run, so that a stopped run asks for the others only. None: the policy.
    Raises:
        NothingToLearn: no pair, or no code is left.
        EngineError: the other generator did not answer.
        ConfigError: two sources share an id, the run lacks the world, or a range is empty.
    """
    from evolvent.learn.objectives import weighted_nll

    _check_ids(sources)
    pairs = [] if play else _build_pairs(sources if examples is None else examples, config, policy, seed=run.seed)
    round_rows: list[Mapping[str, object]] = []
    for number in run.rounds(config.rounds):
        written_sources = [CommentResult(source, source.text, (), 0, "unchanged") for source in sources]
        if config.augment and play is not None:
            written_sources = ask_for_comments(sources, play, run.folder / f"answers-{number}.jsonl")
        elif config.augment:
            generator = run.fit(policy, pairs, weighted_nll, tokens=config.pair_tokens) if pairs else policy
            written_sources = comment_sources(sources, generator, run=run, temperature=config.temperature)
        reasons = (
            {source.source.id: find_faults(source, config.limits) for source in written_sources}
            if config.filter
            else {}
        )
        sequences, row = _build_corpus(policy, written_sources, reasons)
        round_rows.append({"round": number, **row, **count_outcomes(written_sources)})
        write_atomic(run.folder / "comments.json", plain_json(round_rows) + "\n")
        if not sequences:
            raise NothingToLearn("no source code is left to learn", value=row, expected="sources that pass the filters")
        tokens = _find_budget(policy, config, sources, sequences, reasons=reasons, extra_sequences=extra_sequences)
        policy = run.fit(policy, [*sequences, *extra_sequences], weighted_nll, tokens=tokens)
        run.evaluate(policy, number)
    return policy


def _check_ids(sources: Sequence[Source]) -> None:
    duplicates = [name for name, count in Counter(source.id for source in sources).items() if count > 1]
    if duplicates:
        raise ConfigError("two sources have the same id", value=duplicates[:5], expected="unique ids")


def _build_pairs(
    sources: Sequence[Source], config: CommentsConfig, policy: Policy, *, seed: int
) -> list[TokenSequence]:
    """Builds the pairs that generators are tuned on; empty where none is tuned."""
    if not (config.augment and config.teach):
        return []
    pairs = build_training_pairs(sources, config, policy, seed=seed)
    if not pairs:
        raise NothingToLearn(
            "no pair of code and comments to train the generator on",
            value=f"{len(sources)} sources",
            expected="code with comments that fits the context",
            hint="set teach=False to use the policy itself",
        )
    return pairs


def comment_sources(
    sources: Sequence[Source], generator: Policy, *, run: Run[Policy], temperature: float = 0.0
) -> list[CommentResult]:
    """Asks a generator for the comments of every source, and inserts the valid ones; in the order of the sources.

    Equal code is asked about once. Sources that cannot be commented are returned unchanged, with their outcome.

    Raises:
        ConfigError: the run has no world `Commenting`.
    """
    starts = [make_start(source) for source in sources]
    distinct_starts = list(dict.fromkeys(starts))
    trajectory_by_start = dict(
        zip(distinct_starts, run.collect(generator, distinct_starts, temperature=temperature), strict=True)
    )
    return [read_episode(source, trajectory_by_start[start]) for source, start in zip(sources, starts, strict=True)]


def ask_for_comments(sources: Sequence[Source], play: CommentPlayer, path: Path) -> list[CommentResult]:
    """Asks another generator for the comments of every source; answers are stored in a file and not asked for again.

    Args:
        play: answers the starts in order, an episode each.
        path: the file of the answers, as JSON lines.
    Raises:
        EngineError: some sources were not answered. Those that were are stored.
    """
    starts = [make_start(source) for source in sources]
    answers = {trajectory.task.id: trajectory for trajectory in (read_jsonl(path) if path.exists() else ())}
    open_starts = [start for start in dict.fromkeys(starts) if start.task.id not in answers]
    failures = list[Trajectory]()
    for first in range(0, len(open_starts), _STARTS_PER_FILE_WRITE):
        for trajectory in play(open_starts[first : first + _STARTS_PER_FILE_WRITE]):
            if trajectory.error is None:
                answers[trajectory.task.id] = trajectory
            else:
                failures.append(trajectory)
        write_jsonl(answers.values(), path)
    if failures:
        raise EngineError(
            f"the generator did not answer {len(failures)} of {len(open_starts)} requests for comments",
            value=failures[0].error.message if failures[0].error else None,
            hint="resume the run: only these are asked for again",
        )
    return [read_episode(source, answers[start.task.id]) for source, start in zip(sources, starts, strict=True)]


def equal_budget(kind: Literal["tokens", "code"], *, raw: int, code: int, corpus: int) -> int:
    """Computes the learned tokens of an arm that has as many tokens, or as much code, as the raw code has.

    Args:
        kind: "tokens": `raw`. "code": `raw corpus / code`, so that the arm learns `raw` tokens of code, whatever its
            comments add and its filters take away.
        raw: tokens of all sources without comments by a generator, times the passes.
        code: tokens of the sources that are left, also without these comments.
        corpus: tokens of the sources that are left, as they are learned.

    >>> equal_budget("tokens", raw=1000, code=500, corpus=600), equal_budget("code", raw=1000, code=500, corpus=600)
    (1000, 1200)
    """
    return raw if kind == "tokens" else max(1, round(raw * corpus / max(1, code)))


def _find_budget(
    policy: Policy,
    config: CommentsConfig,
    sources: Sequence[Source],
    sequences: Sequence[TokenSequence],
    *,
    reasons: Mapping[str, Sequence[str]],
    extra_sequences: Sequence[TokenSequence],
) -> int | None:
    """Returns the learned tokens of a fit; None: the epochs. Extra sequences come on top in proportion."""
    if not config.equal:
        return config.tokens
    unchanged = [CommentResult(source, source.text, (), 0, "unchanged") for source in sources]
    code = _count_learned(_build_corpus(policy, unchanged, reasons)[0])
    raw = _count_learned(_build_corpus(policy, unchanged, {})[0]) * config.passes
    corpus = _count_learned(sequences)
    budget = equal_budget(config.equal, raw=raw, code=code, corpus=corpus)
    return round(budget * (corpus + _count_learned(extra_sequences)) / max(1, corpus))


def _count_learned(sequences: Sequence[TokenSequence]) -> int:
    return sum(int((sequence.weight != 0).sum()) for sequence in sequences)


def build_training_pairs(
    sources: Sequence[Source], config: CommentsConfig, policy: Policy, *, seed: int
) -> list[TokenSequence]:
    """Builds pairs for a generator of comments, in the form of its prompts: code without its comments, and the
    comments.

    Code that the rules find faulty has the answer SKIP; of such pairs a share is kept, sampled by the seed and the
    names. Left out are code without comments, code whose comments do not refer to it, and code that does not parse
    or fit the context or the vocabulary.

    Raises:
        MissingExtra: the packages of a language are not installed.
    """
    limits, commented_pairs, skip_pairs = config.limits, list[TokenSequence](), list[TokenSequence]()
    for source in sources:
        try:
            pair = extract_comments(source.text, source.language)
            faulty = bool(find_source_faults(source.text, source.language, limits=limits))
            if not faulty and (not pair.notes or alignment(pair.source, pair.notes) < limits.aligned):
                continue
            prompt = policy.dialect.open(Commenting.instructions, format_request(pair.source, source.language))
            answer_ids = policy.dialect.action(format_answer(() if faulty else pair.notes))
            (skip_pairs if faulty else commented_pairs).extend(
                fit_to_context(build_demonstration(source.id, prompt, answer_ids), policy.context)
            )
        except (SampleInvalid, VocabularyMismatch):
            continue
    max_skips = int(len(commented_pairs) * config.skips / (1 - config.skips))
    kept_skips = {
        sequence.trajectory
        for sequence in sorted(skip_pairs, key=lambda sequence: sample_seed(seed, "skip", sequence.trajectory))[
            :max_skips
        ]
    }
    return [*commented_pairs, *(sequence for sequence in skip_pairs if sequence.trajectory in kept_skips)]


def _build_corpus(
    policy: Policy, written_sources: Sequence[CommentResult], reasons: Mapping[str, Sequence[str]]
) -> tuple[list[TokenSequence], dict[str, object]]:
    """Builds the corpus: unfiltered code as raw documents, every token learned, long ones in windows; and counts."""
    unfiltered = [written for written in written_sources if not reasons.get(written.source.id)]
    intake = Intake()
    rows = ((written.source.id, {"text": written.text}) for written in unfiltered)
    sequences = list(read_rows(rows, policy, ReadingConfig(kind="text", overlong="split"), intake=intake))
    reason_counts = dict(Counter(reason for source_reasons in reasons.values() for reason in source_reasons))
    return sequences, {
        "sources": len(written_sources),
        "kept": len(unfiltered),
        "filtered": reason_counts,
        "not_encoded": intake.refused,
    }
