"""Code as tasks of a world: a generator is asked for notes on a source, and what it says is put in, or is not.

So whoever plays a world can write comments: a policy, an endpoint, in a run or without one; each source is an episode
of one step that is stored, found again after a stop, and depends on no other. What becomes of an answer is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from evolvent.curate.comments import Note, commented
from evolvent.curate.languages import language_named
from evolvent.curate.notes import Limits, alignment, asked, faults, read_notes
from evolvent.errors import SampleInvalid
from evolvent.trajectory import Start, Task, Trajectory
from evolvent.worlds.base import Play, TextWorld

__all__ = ["OUTCOMES", "Commenting", "Outcome", "Source", "Written", "against", "counted", "start_of", "written"]

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
        language_named(self.language)
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise SampleInvalid(
                "code with half a character",
                value=repr(self.text[error.start : error.end]),
                expected="text that UTF-8 can hold",
            ) from error


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a source.

    Args:
        source: as it was.
        text: with its notes; the source's own, character by character, unless `outcome` is "commented".
        notes: those that are in it. left_out: how many parts of the answer are not.
        outcome: "unchanged": no note could stand; "skipped": the generator calls the code not worth comments;
            "unparsable", "code_changed": see `curate.comments.Commented`; "too_long": the request does not fit the
            context; "failed": there was no answer, and `why` says what happened.
    """

    source: Source
    text: str
    notes: tuple[Note, ...]
    left_out: int
    outcome: Outcome
    why: str = ""


class Commenting(TextWorld):
    """A world whose tasks are sources. It has no panels: its tasks are those of `start_of`.

    The observation is the request of `curate.notes.asked`, the action the answer. The reward is the share of what was
    proposed that could be put in, 0 for no note.
    """

    name = "commenting"
    horizon = 1
    tiers: tuple[str, ...] = ()
    blocking = False

    def specs(self) -> Iterable[Mapping[str, Any]]:
        return ()

    def play(self, spec: Mapping[str, Any]) -> Play:
        source = Source("", spec["source"], spec["language"])
        answer = yield asked(source.text, source.language)
        done = _put(source, answer)
        return len(done.notes) / max(len(done.notes) + done.left_out, 1)


def start_of(source: Source) -> Start:
    """The episode in which a source is commented. Equal code of one language is one task, whatever its id."""
    spec = {"language": language_named(source.language).name, "source": source.text}
    return Start(Task(Commenting.name, Commenting.version, spec, kind=spec["language"]))


def written(source: Source, played: Trajectory, *, longest: int | None = None) -> Written:
    """What an episode of `Commenting` makes of its source.

    Args:
        longest: tokens of a reply, where an endpoint tells only how many it wrote. Of an answer that was cut off the
            last line is left out: it may end in the middle of a word.
    """
    if played.error is not None:
        return Written(source, source.text, (), 0, "failed", f"{played.error.kind}: {played.error.message}")
    if not played.steps:
        return Written(source, source.text, (), 0, "too_long")
    step = played.steps[0]
    cut = any(one.stop == "length" for one in step.generations)
    told = step.info.get("tokens")
    if not step.generations and longest is not None and isinstance(told, Mapping):
        cut = int(told.get("completion") or 0) >= longest
    answer = str(step.action)
    return _put(source, answer.rpartition("\n")[0] if cut else answer)


def _put(source: Source, answer: str) -> Written:
    """Read an answer and put its notes in; `commented` has proved that the code of what it returns is equal."""
    proposal = read_notes(answer, source.text.count("\n") + (not source.text.endswith("\n")))
    done = commented(source.text, proposal.notes, source.language)
    outcome: Outcome = "skipped" if proposal.skipped and done.outcome == "unchanged" else done.outcome
    return Written(source, done.source, done.placed, len(done.refused) + len(proposal.rejects), outcome)


def against(one: Written, limits: Limits) -> tuple[str, ...]:
    """Every reason of the implicit and the explicit filters to leave out a source with its notes; () where it stays.

    Length, lines, density and the like are those of the text as it is now; notes are compared with the code that they
    were written for.

    Raises:
        MissingExtra: the packages of its language are not installed.
    """
    found = faults(one.text, one.source.language, limits=limits)
    skipped = ("skipped",) if one.outcome == "skipped" else ()
    strange = ("unaligned",) if alignment(one.source.text, one.notes) < limits.aligned else ()
    return (*skipped, *found, *strange)


def counted(every: Iterable[Written]) -> dict[str, int]:
    """How many sources came to each outcome, how many notes were put in, and how many parts of answers were not."""
    outcomes: Counter[str] = Counter()
    notes = left_out = 0
    for one in every:
        outcomes[one.outcome] += 1
        notes, left_out = notes + len(one.notes), left_out + one.left_out
    return {**{name: outcomes[name] for name in OUTCOMES}, "notes": notes, "left_out": left_out}
