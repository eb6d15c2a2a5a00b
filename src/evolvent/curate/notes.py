"""What a model proposes as comments: how it is asked, how its answer is read, which code and which notes are worth it.

The model sees the code with numbered lines and answers `LINE: text`, one a line, or `SKIP` where the code is not worth
comments: the implicit filter of Song et al. (arXiv 2402.13013). The explicit filters are pure functions that name a
reason. `pairs_of` turns code that has comments into an example of the same form, so that a generator of comments can be
trained without any other data. Wording and thresholds are ours; the paper's are not published.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from evolvent.curate.comments import DIRECTIVE, Note, commented, density, refusal, same_code
from evolvent.curate.languages import language_named
from evolvent.curate.syntax import Span, read
from evolvent.errors import ConfigError, Problem, SampleInvalid

__all__ = [
    "SKIP",
    "Limits",
    "Pair",
    "Proposal",
    "Reject",
    "alignment",
    "answer",
    "asked",
    "faults",
    "generated",
    "pairs_of",
    "read_notes",
    "repeated_share",
]

SKIP = "SKIP"
MOST_ANSWER = 200_000  # characters of an answer that are read
MOST_NOTES = 2_000
NEAR = 8  # lines below a note that it may speak of

_ASKED = """Write comments for the {language} code below. Its lines are numbered.
Answer with one comment a line, as `LINE: text`: the number of the line above which the comment belongs, a colon, and
one sentence that says what the code there is for. Do not repeat the code. Where the code is not worth comments, answer
{skip}.

{code}"""
_LINE = re.compile(r"(?i)^\s*(?:[-*]\s+)?(?:line\s+|L)?(\d{1,9})\s*[:|](.*)$")
_MARK = re.compile(r"^(?:#|//|--)\s*(?=\w)")
_FENCE = re.compile(r"^\s*```[\w+-]*\s*$")
_GENERATED = re.compile(
    r"(?i)@generated\b|\bdo not edit\b|<auto-?generated|\b(?:auto(?:matically|-)?\s?|code\s)generated\b"
    r"|\bgenerated (?:by|from|file|code|automatically)\b|\bthis file (?:was|is) (?:auto\w*[ -])?generated\b"
)
_WORD = re.compile(r"[^\W\d_]+|\d+")
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+|\d+")
_LICENCE = re.compile(r"(?i)copyright|\(c\)\s*\d{4}|licen[sc]ed? |all rights reserved|spdx-")
# Documentation with tags: tools read it, and in PHP programs do.
_TAGGED = re.compile(r"/\*\*[^@]*@\w")
# Comments that are code switched off: a statement's end, a call, an assignment.
_CODE = re.compile(
    r"[;{}]\s*$|^[\w.\[\]]+\s*(?:[-+*/|&]?=|\(.*\)\s*$)|^(?:return|import|from|if|for|while|def)\b.*[:;(]\s*$"
)


@dataclass(frozen=True, slots=True)
class Reject:
    """A part of an answer that is no note, and why."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """What an answer says: its notes, what could not be read, and whether it calls the code not worth comments."""

    notes: tuple[Note, ...]
    rejects: tuple[Reject, ...] = ()
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """An example for a generator of comments: `source` without the comments that `notes` hold.

    Directives, documentation with tags, and comments with code behind them stay in `source`.
    """

    source: str
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the explicit filters let through; each bound is included.

    Args:
        chars: the fewest and most characters of a source.
        line: the longest line, in characters.
        mean_line: the longest mean line; minified code has longer ones.
        letters: the smallest share of letters and digits among all characters; tables of data have less.
        repeated: the largest share of lines that stand in the source more than once (Gopher, arXiv 2112.11446, A1.1).
        density: the smallest and largest comment density.
        aligned: the smallest share of notes that name something in the code near them.
    """

    chars: tuple[int, int] = (20, 1_000_000)
    line: int = 1_000
    mean_line: float = 100.0
    letters: float = 0.25
    repeated: float = 0.3
    density: tuple[float, float] = (0.0, 1.0)
    aligned: float = 0.0

    def __post_init__(self) -> None:
        shares = {"letters": self.letters, "repeated": self.repeated, "aligned": self.aligned}
        shares |= {"density": self.density[0], "density[1]": self.density[1]}
        wrong = [
            Problem(name, f"{value} is no share", "0 to 1") for name, value in shares.items() if not 0 <= value <= 1
        ]
        for name, (low, high) in {"chars": self.chars, "density": self.density}.items():
            if low > high:
                wrong.append(Problem(name, f"nothing lies between {low} and {high}"))
        if wrong:
            raise ConfigError(wrong)


def asked(source: str, language: str) -> str:
    """The request for comments: what to do, and the code with its line numbers."""
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    lines = lines if lines[-1] else lines[:-1]
    width = len(str(len(lines)))
    code = "\n".join(f"{number:>{width}}| {line}".rstrip() for number, line in enumerate(lines, 1))
    return _ASKED.format(language=language_named(language).name, skip=SKIP, code=code)


def answer(notes: Sequence[Note]) -> str:
    """The answer that says these notes, `SKIP` for none; `read_notes` reads it back."""
    return "\n".join(f"{note.line}: {note.text}" for note in notes) or SKIP


def read_notes(text: str, lines: int) -> Proposal:
    """Reads an answer: `LINE: text` a line, or JSON: `[{"line", "text"}]`, or an object from line numbers to texts.

    A fence around it, bullets, and a comment mark before the text are taken off. Nothing is evaluated. Whether a note
    may stand where it wants to is decided where it is put in (`evolvent.curate.comments.commented`).

    Args:
        text: the answer; of a longer one than 200,000 characters nothing is read.
        lines: how many lines the source has.
    """
    if len(text) > MOST_ANSWER:
        return Proposal((), (Reject(text[:80], f"an answer of more than {MOST_ANSWER:,} characters"),))
    kept = "\n".join(line for line in text.split("\n") if not _FENCE.match(line)).strip()
    if kept.rstrip(".").upper() == SKIP:
        return Proposal((), skipped=True)
    notes: list[Note] = []
    rejects: list[Reject] = []
    seen: set[Note] = set()
    for raw, line, said in _said(kept):
        note = Note(line, _MARK.sub("", said.strip())) if isinstance(line, int) and isinstance(said, str) else None
        if note is None:
            rejects.append(Reject(raw, "no line number and text"))
        elif not 1 <= note.line <= lines:
            rejects.append(Reject(raw, f"line {note.line} of a source with {lines}"))
        elif not note.text:
            rejects.append(Reject(raw, "no text"))
        elif note in seen:
            rejects.append(Reject(raw, "said before"))
        elif len(notes) == MOST_NOTES:
            rejects.append(Reject(raw, f"more than {MOST_NOTES:,} notes"))
        else:
            seen.add(note)
            notes.append(note)
    return Proposal(tuple(notes), tuple(rejects))


def _said(text: str) -> Iterator[tuple[str, object, object]]:
    """(as written, line, text) of every part of an answer; None for what is missing."""
    if text[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and isinstance(value.get("notes"), list):
            value = value["notes"]
        if isinstance(value, dict):
            value = [
                {"line": int(key) if key.isascii() and key.isdigit() and len(key) < 10 else None, "text": said}
                for key, said in value.items()
            ]
        if isinstance(value, list):
            for part in value:
                fields = part if isinstance(part, dict) else {}
                line = fields.get("line")
                yield str(part)[:200], None if isinstance(line, bool) else line, fields.get("text")
            return
    for line in filter(str.strip, text.split("\n")):
        match = _LINE.match(line)
        yield line[:200], int(match[1]) if match else None, match[2] if match else None


# --------------------------------------------------------------------------------------------------------- filters
def generated(source: str) -> bool:
    """Whether the first forty lines carry a mark of generated code."""
    return _GENERATED.search("\n".join(source[:8_000].split("\n")[:40])) is not None


def repeated_share(source: str) -> float:
    """The share of lines with a letter or digit that stand in the source more than once, blanks at their ends apart."""
    counts = Counter(line.strip() for line in source.split("\n") if any(map(str.isalnum, line)))
    every = sum(counts.values())
    return sum(count for count in counts.values() if count > 1) / every if every else 0.0


def _words(text: str) -> frozenset[str]:
    """Words in lower case, names taken apart at underscores and capitals, without a plural's or verb's last s."""
    parts = (part.lower() for word in _WORD.findall(text.replace("_", " ")) for part in _PARTS.findall(word))
    return frozenset(part.removesuffix("s") if len(part) > 3 else part for part in parts if len(part) > 2)


def alignment(source: str, notes: Sequence[Note]) -> float:
    """The share of notes with a word in common with the names in the next few lines below them; 1 without notes.

    A weak sign by itself: good comments often use other words than the code. Code whose comments share nothing with it
    is what it finds.
    """
    lines = source.split("\n")
    hits = (
        not _words(note.text).isdisjoint(_words("\n".join(lines[note.line - 1 : note.line - 1 + NEAR])))
        for note in notes
    )
    return sum(hits) / len(notes) if notes else 1.0


def faults(source: str, language: str, *, notes: Sequence[Note] = (), limits: Limits | None = None) -> tuple[str, ...]:
    """Every reason of the explicit filters against a source, and against its notes as a whole; () where it passes.

    Raises:
        ConfigError: for an unknown language. MissingExtra: where its packages are not installed.
    """
    limits = limits or Limits()
    lines = source.split("\n")
    found = []
    if not limits.chars[0] <= len(source) <= limits.chars[1]:
        found.append("length")
    if max(map(len, lines)) > limits.line:
        found.append("long line")
    if len(source) / len(lines) > limits.mean_line:
        found.append("long lines")
    if source and sum(map(str.isalnum, source)) / len(source) < limits.letters:
        found.append("few letters")
    if repeated_share(source) > limits.repeated:
        found.append("repeated lines")
    if generated(source):
        found.append("generated")
    if alignment(source, notes) < limits.aligned:
        found.append("unaligned")
    if limits.density != (0.0, 1.0) and "length" not in found:
        try:
            share = density(source, language).share
        except SampleInvalid:
            return (*found, "unreadable")
        if not limits.density[0] <= share <= limits.density[1]:
            found.append("density")
    return tuple(found)


# ----------------------------------------------------------------------------------------------------------- pairs
def pairs_of(source: str, language: str) -> Pair:
    """Takes the comments out of a source and gives them as notes: what a generator is shown, and what it should say.

    A comment on lines of its own becomes a note above the next line of code, one behind code a note above its line.
    Licences and code that was commented out are removed and are no notes. The code is verified to be equal, and every
    note may be put back.

    Raises:
        SampleInvalid: where the source does not parse, or the code would change.
        ConfigError: for an unknown language. MissingExtra: where its packages are not installed.
    """
    name = language_named(language).name
    before = read(source, name)
    if before.fault:
        raise SampleInvalid("a source whose comments cannot be taken out", value=before.fault)
    bare, found = _without(source, before.comments)
    if not same_code(before, read(bare, name)):
        raise SampleInvalid("a source that would change without its comments", value=source[:80], expected="equal code")
    wanted = [Note(line, text) for line, texts in found for text in texts if _worth(text, name)]
    placed = commented(bare, wanted, name)
    return Pair(bare, tuple(dict.fromkeys(placed.placed)))


def _worth(text: str, language: str) -> bool:
    return not refusal(text, language) and not _CODE.search(text) and sum(map(str.isalpha, text)) >= 3


def _without(source: str, comments: Sequence[Span]) -> tuple[str, list[tuple[int, list[str]]]]:
    """The source without the comments that can go, and (number of the line of code below, texts) of each of them."""
    out: list[str] = []
    taken: list[tuple[int, list[str]]] = []  # where in the new source, texts
    place = length = 0
    for start, end in comments:
        text = source[start:end]
        line_start, line_end = source.rfind("\n", 0, start) + 1, source.find("\n", end)
        line_end = len(source) if line_end < 0 else line_end + 1
        before, after = source[max(line_start, place) : start], source[end:line_end]
        whole = line_start >= place and not before.strip()  # on lines of its own: they go with it
        # Without the comment's line a backslash above it would join the next one, which no token shows.
        joined = whole and source[max(line_start - 4, 0) : line_start].rstrip().endswith("\\")
        stays = DIRECTIVE.search(text) or _TAGGED.match(text) or after.strip() or text.endswith("\\") or joined
        if stays or (not whole and "\n" in text):
            continue
        out.append(source[place:line_start] if whole else source[place:start].rstrip(" \t"))
        place = line_end if whole else end
        length += len(out[-1])
        taken.append((length, [] if _LICENCE.search(text) else _texts(text)))
    bare = "".join([*out, source[place:]])
    return bare, _above(bare, taken)


def _above(source: str, taken: Sequence[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Places as numbers of lines, each that of the first line from there on that is not blank."""
    lines = source.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)][:-1]
    below = list(range(1, len(lines) + 1))
    for at in range(len(lines) - 2, -1, -1):
        below[at] = below[at] if lines[at].strip() else below[at + 1]
    return [(below[bisect_right(starts, place) - 1], texts) for place, texts in taken]


def _texts(comment: str) -> list[str]:
    """The lines of a comment without its marks."""
    if comment.startswith("/*"):
        comment = comment[2:].removesuffix("*/")
    lines = (re.sub(r"^\s*(?:[#/!*]|--)*\s*", "", line).strip() for line in comment.split("\n"))
    return [line for line in lines if line]
