"""Code needs comments: a model writes comments for the code that it is then trained on, and writes them better.

Song et al., "Code Needs Comments: Enhancing Code LLMs with Comment Augmentation" (arXiv 2402.13013).

    pairs = (code without its comments -> the comments), and (low-value code -> SKIP)
    for round = 1..rounds:
        generator = policy tuned on the pairs
        corpus    = code with what the generator says; what it skips, and what rules find faulty, is left out
        policy    = policy, with the next token of the corpus learned
    the better model writes the comments of the next round: self-augmentation

The paper's generator writes the code again and may spoil it. Here it names lines and texts, the program puts them in,
and the code is proved to be equal (`curate.comments`). The paper tunes its generator on comments by GPT-4; here the
pairs come from code that has comments. Prompt, thresholds and continuing from round to round are this library's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import Field

from evolvent.config import Config
from evolvent.curate.commenting import Commenting, Source, Written, against, counted, start_of, written
from evolvent.curate.notes import Limits, alignment, answer, asked, faults, pairs_of
from evolvent.errors import ConfigError, NothingToLearn, SampleInvalid, VocabularyMismatch
from evolvent.files import plain_json, write_atomic
from evolvent.learn.objectives import weighted_nll
from evolvent.learn.rows import Reading, read_rows
from evolvent.learn.taught import taught
from evolvent.learn.token_sequences import Parts
from evolvent.learn.windows import Intake, fitted
from evolvent.models.policy import Policy
from evolvent.run import Run
from evolvent.trajectory import sample_seed

__all__ = ["COMMENTED", "COMMENTED_FILTERED", "FILTERED_RAW", "RAW", "Comments", "comment", "comments", "lessons"]


class Comments(Config):
    """What can be chosen about comment augmentation."""

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

    @property
    def limits(self) -> Limits:
        """The explicit filters. Raises ConfigError for bounds between which nothing lies."""
        return Limits(chars=self.chars, repeated=self.repeated, density=self.density, aligned=self.aligned)


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
    config: Comments,
    run: Run[Policy],
    examples: Sequence[Source] | None = None,
    beside: Sequence[Parts] = (),
) -> Policy:
    """Comment the code, learn it, and again; returns the policy of the last round.

    The run's `comments.json` says of every round what became of the sources. All of it goes on after a stop: each
    answered source and each finished fit is found in the run.

    Args:
        sources: the corpus, near-duplicates dropped (`curate.duplicates`), none of them what is measured.
        run: its worlds hold `Commenting`, by its name, unless nothing is commented; its longest action is the longest
            answer.
        examples: code with comments that the generator learns from; None: the sources.
        beside: what is learned among every corpus, so that it is not forgotten over it.
    Raises:
        NothingToLearn: no pair, or no code is left. ConfigError: two sources of one id, a run without the world,
            bounds between which nothing lies.
    """
    _check_ids(sources)
    pairs = _pairs(sources if examples is None else examples, config, policy, seed=run.seed)
    told: list[Mapping[str, object]] = []
    for number in run.rounds(config.rounds):
        every = [Written(one, one.text, (), 0, "unchanged") for one in sources]
        if config.augment:
            generator = run.fit(policy, pairs, weighted_nll, tokens=config.pair_tokens) if pairs else policy
            every = comment(sources, generator, run=run, temperature=config.temperature)
        reasons = {one.source.id: against(one, config.limits) for one in every} if config.filter else {}
        parts, row = _corpus(policy, every, reasons)
        told.append({"round": number, **row, **counted(every)})
        write_atomic(run.folder / "comments.json", plain_json(told) + "\n")
        if not parts:
            raise NothingToLearn("no code is left to learn", value=row, expected="sources that pass the filters")
        policy = run.fit(policy, [*parts, *beside], weighted_nll, tokens=config.tokens)
        run.evaluate(policy, number)
    return policy


def _check_ids(sources: Sequence[Source]) -> None:
    twice = [name for name, count in Counter(one.id for one in sources).items() if count > 1]
    if twice:
        raise ConfigError("two sources of one id", value=twice[:5], expected="each id once")


def _pairs(sources: Sequence[Source], config: Comments, policy: Policy, *, seed: int) -> list[Parts]:
    """What generators are tuned on; nothing where none is."""
    if not (config.augment and config.teach):
        return []
    pairs = lessons(sources, config, policy, seed=seed)
    if not pairs:
        raise NothingToLearn(
            "no pair of code and comments to tune a generator on",
            value=f"{len(sources)} sources",
            expected="code with comments that fits the context",
            hint="teach=False asks the policy itself",
        )
    return pairs


def comment(
    sources: Sequence[Source], generator: Policy, *, run: Run[Policy], temperature: float = 0.0
) -> list[Written]:
    """Ask a generator for the notes of every source, and put in those that may stand; in the order of the sources.

    Equal code is asked about once. Sources that cannot be commented come back as they are, with their outcome.

    Raises:
        ConfigError: the run has no world `Commenting`.
    """
    starts = [start_of(source) for source in sources]
    different = list(dict.fromkeys(starts))
    played = dict(zip(different, run.collect(generator, different, temperature=temperature), strict=True))
    return [written(source, played[start]) for source, start in zip(sources, starts, strict=True)]


def lessons(sources: Sequence[Source], config: Comments, policy: Policy, *, seed: int) -> list[Parts]:
    """Pairs for a generator of comments, as it will be asked: the code without its comments, and these.

    Code that the rules find faulty is shown with the answer SKIP; of such pairs a share is kept that the seed and the
    names draw. Code without comments, code whose comments do not speak of it, and what does not parse, fit the context
    or the vocabulary, teaches nothing.

    Raises:
        MissingExtra: the packages of a language are not installed.
    """
    limits, good, low = config.limits, list[Parts](), list[Parts]()
    for one in sources:
        try:
            pair = pairs_of(one.text, one.language)
            faulty = bool(faults(one.text, one.language, limits=limits))
            if not faulty and (not pair.notes or alignment(pair.source, pair.notes) < limits.aligned):
                continue
            prompt = policy.dialect.open(Commenting.instructions, asked(pair.source, one.language))
            said = policy.dialect.action(answer(() if faulty else pair.notes))
            (low if faulty else good).extend(fitted(taught(one.id, prompt, said), policy.context))
        except (SampleInvalid, VocabularyMismatch):
            continue
    most = int(len(good) * config.skips / (1 - config.skips))
    shown = {
        part.trajectory for part in sorted(low, key=lambda part: sample_seed(seed, "skip", part.trajectory))[:most]
    }
    return [*good, *(part for part in low if part.trajectory in shown)]


def _corpus(
    policy: Policy, every: Sequence[Written], reasons: Mapping[str, Sequence[str]]
) -> tuple[list[Parts], dict[str, object]]:
    """What no filter found faulty as raw documents, every token learned, long ones in windows; and counts."""
    kept = [one for one in every if not reasons.get(one.source.id)]
    intake = Intake()
    rows = ((one.source.id, {"text": one.text}) for one in kept)
    parts = list(read_rows(rows, policy, Reading(kind="text", too_long="split"), intake=intake))
    why = dict(Counter(reason for found in reasons.values() for reason in found))
    return parts, {"sources": len(every), "kept": len(kept), "filtered": why, "not_encoded": intake.refused}
