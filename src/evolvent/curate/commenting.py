"""Code comments as tasks of a world: a generator proposes notes on a source, and valid notes are inserted.

Any player of worlds can therefore write comments: a policy or an endpoint, within a run or without one. Each
source is an episode of one step that is stored, reused after an interruption and independent of all others. The
outcomes of the answers are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from evolvent.curate.comments import Note, add_comments
from evolvent.curate.languages import get_language
from evolvent.curate.notes import CommentLimits, alignment, find_source_faults, format_request, parse_answer
from evolvent.errors import SampleInvalid
from evolvent.trajectory import JsonObject, Start, Task, Trajectory
from evolvent.worlds.base import Play, TextWorld

__all__ = [
    "OUTCOMES",
    "CommentResult",
    "Commenting",
    "Outcome",
    "Source",
    "count_outcomes",
    "find_faults",
    "make_start",
    "read_episode",
]

Outcome = Literal["commented", "unchanged", "skipped", "unparsable", "code_changed", "too_long", "failed"]
OUTCOMES: tuple[Outcome, ...] = (
    "commented",
    "unchanged",
    "skipped",
    "unparsable",
    "code_changed",
    "too_long",
    "failed",
)


@dataclass(frozen=True, slots=True)
class Source:
    """A piece of code.

    Args:
        id: unique among the sources. text: the code. language: a name that `curate.languages` knows.
    Raises:
        ConfigError: another language. SampleInvalid: a text with half a character, which UTF-8 cannot hold.
    """

    id: str
    text: str
    language: str

    def __post_init__(self) -> None:
        get_language(self.language)
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise SampleInvalid(
                "code contains a lone surrogate",
                value=repr(self.text[error.start : error.end]),
                expected="text that can be encoded as UTF-8",
            ) from error


@dataclass(frozen=True, slots=True)
class CommentResult:
    """The outcome of commenting a source.

    Args:
        source: The original source.
        text: The source with its notes; equal to the original unless `outcome` is "commented".
        notes: The notes that were inserted.
        left_out: Number of parts of the answer that were not inserted.
        outcome: "unchanged": no note was valid; "skipped": the generator calls the code not worth comments;
            "unparsable", "code_changed": see `curate.comments.CommentedSource`; "too_long": the request does not fit
            the context; "failed": there was no answer, and `failure` gives the reason.
        failure: Kind and message of the error for "failed".
    """

    source: Source
    text: str
    notes: tuple[Note, ...]
    left_out: int
    outcome: Outcome
    failure: str = ""


class Commenting(TextWorld):
    """A world whose tasks are sources. It has no panels; `make_start` makes its tasks.

    The observation is the request of `curate.notes.format_request`, the action is the answer. The reward is the
    share of proposed notes that were inserted, 0 for no note.
    """

    name = "commenting"
    horizon = 1
    tiers: tuple[str, ...] = ()
    run_in_thread = False

    def specs(self) -> Iterable[Mapping[str, object]]:
        return ()

    def play(self, spec: JsonObject) -> Play:
        source = Source("", spec["source"], spec["language"])
        answer = yield format_request(source.text, source.language)
        result = _insert_answer(source, answer)
        return len(result.notes) / max(len(result.notes) + result.left_out, 1)


def make_start(source: Source) -> Start:
    """Builds the episode start in which a source is commented. Equal code of one language is one task, whatever its
    id.
    """
    spec = {"language": get_language(source.language).name, "source": source.text}
    return Start(Task(Commenting.name, Commenting.version, spec, kind=spec["language"]))


def read_episode(source: Source, trajectory: Trajectory, *, max_tokens: int | None = None) -> CommentResult:
    """Returns the result of an episode of `Commenting` for its source.

    Args:
        source: The source of the episode.
        trajectory: The episode.
        max_tokens: Maximum tokens of a reply, where an endpoint reports only its number of tokens. The last line of a
            truncated answer is dropped, since it may end within a word.
    """
    if trajectory.error is not None:
        return CommentResult(
            source, source.text, (), 0, "failed", f"{trajectory.error.kind}: {trajectory.error.message}"
        )
    if not trajectory.steps:
        return CommentResult(source, source.text, (), 0, "too_long")
    step = trajectory.steps[0]
    is_truncated = any(generation.stop == "length" for generation in step.generations)
    token_counts = step.info.get("tokens")
    if not step.generations and max_tokens is not None and isinstance(token_counts, Mapping):
        is_truncated = int(token_counts.get("completion") or 0) >= max_tokens
    answer = str(step.action)
    return _insert_answer(source, answer.rpartition("\n")[0] if is_truncated else answer)


def _insert_answer(source: Source, answer: str) -> CommentResult:
    """Parses an answer and inserts its notes; `commented` verifies that the code stays equal."""
    proposal = parse_answer(answer, source.text.count("\n") + (not source.text.endswith("\n")))
    commented_source = add_comments(source.text, proposal.notes, source.language)
    outcome: Outcome = (
        "skipped" if proposal.skipped and commented_source.outcome == "unchanged" else commented_source.outcome
    )
    return CommentResult(
        source,
        commented_source.source,
        commented_source.placed,
        len(commented_source.refused) + len(proposal.rejects),
        outcome,
    )


def find_faults(result: CommentResult, limits: CommentLimits) -> tuple[str, ...]:
    """Returns every reason of the implicit and explicit filters against a commented source; () where it passes.

    Length, lines and density are those of the text with its notes; notes are compared with the code that they were
    written for.

    Raises:
        MissingExtra: the packages of its language are not installed.
    """
    explicit_faults = find_source_faults(result.text, result.source.language, limits=limits)
    skipped = ("skipped",) if result.outcome == "skipped" else ()
    alignment_faults = ("unaligned",) if alignment(result.source.text, result.notes) < limits.aligned else ()
    return (*skipped, *explicit_faults, *alignment_faults)


def count_outcomes(results: Iterable[CommentResult]) -> dict[str, int]:
    """Counts the sources of each outcome, the inserted notes, and the parts of answers that were left out."""
    outcomes: Counter[str] = Counter()
    notes = left_out = 0
    for result in results:
        outcomes[result.outcome] += 1
        notes, left_out = notes + len(result.notes), left_out + result.left_out
    return {**{name: outcomes[name] for name in OUTCOMES}, "notes": notes, "left_out": left_out}
