"""Comments proposed by a model: the request, the parser of answers, and filters of code and notes.

The model sees the code with numbered lines and answers `LINE: text`, one a line, or `SKIP` where the code is
not worth comments: the implicit filter of Song et al. (arXiv 2402.13013). The explicit filters are pure
functions that name a reason. `extract_comments` turns commented code into an example of the same form, so that
a generator of comments can be trained without other data. Wording and thresholds are ours; the paper's are not
published.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from evolvent.curate.comments import DIRECTIVE, Note, add_comments, density, find_refusal, is_same_code
from evolvent.curate.languages import get_language
from evolvent.curate.syntax import Span, parse_source
from evolvent.errors import ConfigError, Problem, SampleInvalid

__all__ = [
    "SKIP",
    "CommentExample",
    "CommentLimits",
    "Proposal",
    "Reject",
    "alignment",
    "extract_comments",
    "find_source_faults",
    "format_answer",
    "format_request",
    "is_generated",
    "parse_answer",
    "repeated_share",
]

SKIP = "SKIP"
MAX_ANSWER_CHARS = 200_000  # characters of an answer that are read
MAX_NOTES = 2_000
ALIGNMENT_LINES = 8  # lines below a note that it may speak of

_REQUEST = """Write comments for the {language} code below. Its lines are numbered.
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
_COMMENTED_OUT_CODE = re.compile(
    r"[;{}]\s*$|^[\w.\[\]]+\s*(?:[-+*/|&]?=|\(.*\)\s*$)|^(?:return|import|from|if|for|while|def)\b.*[:;(]\s*$"
)


@dataclass(frozen=True, slots=True)
class Reject:
    """A part of an answer that is not a note, and the reason."""

    text: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A parsed answer: its notes, the parts that could not be read, and whether it calls the code not worth
    comments.
    """

    notes: tuple[Note, ...]
    rejects: tuple[Reject, ...] = ()
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class CommentExample:
    """A training example for a generator of comments: `source` without the comments that `notes` hold.

    Directives, documentation with tags, and comments with code behind them stay in `source`.
    """

    source: str
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True)
class CommentLimits:
    """Bounds of the explicit filters; each bound is included.

    Args:
        chars: Minimum and maximum characters of a source.
        line: Maximum characters of a line.
        mean_line: Maximum mean characters of a line; minified code has longer lines.
        letters: Minimum share of letters and digits among all characters; tables of data have a smaller share.
        repeated: Maximum share of lines that occur in the source more than once (Gopher, arXiv 2112.11446, A1.1).
        density: Minimum and maximum comment density.
        aligned: Minimum share of notes that name something in the code near them.
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
        problems = [
            Problem(name, f"got {value}, expected 0 to 1") for name, value in shares.items() if not 0 <= value <= 1
        ]
        for name, (low, high) in {"chars": self.chars, "density": self.density}.items():
            if low > high:
                problems.append(Problem(name, f"the range from {low} to {high} is empty"))
        if problems:
            raise ConfigError(problems)


def format_request(source: str, language: str) -> str:
    """Formats the request for comments: the instruction and the code with line numbers."""
    lines = source.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    lines = lines if lines[-1] else lines[:-1]
    width = len(str(len(lines)))
    code = "\n".join(f"{number:>{width}}| {line}".rstrip() for number, line in enumerate(lines, 1))
    return _REQUEST.format(language=get_language(language).name, skip=SKIP, code=code)


def format_answer(notes: Sequence[Note]) -> str:
    """Formats notes as an answer, `SKIP` for none; `read_notes` parses it."""
    return "\n".join(f"{note.line}: {note.text}" for note in notes) or SKIP


def parse_answer(text: str, num_lines: int) -> Proposal:
    """Parses an answer: one `LINE: text` a line, or JSON: `[{"line", "text"}]`, or an object from line numbers to
    texts.

    A fence around the answer, bullets, and a comment mark before the text are removed. Nothing is evaluated. Insertion
    decides whether a note may stand at its line (`curate.comments.add_comments`).

    Args:
        text: The answer; an answer longer than 200,000 characters is rejected.
        num_lines: Number of lines of the source.
    """
    if len(text) > MAX_ANSWER_CHARS:
        return Proposal((), (Reject(text[:80], f"an answer of more than {MAX_ANSWER_CHARS:,} characters"),))
    content = "\n".join(line for line in text.split("\n") if not _FENCE.match(line)).strip()
    if content.rstrip(".").upper() == SKIP:
        return Proposal((), skipped=True)
    notes: list[Note] = []
    rejects: list[Reject] = []
    unique_notes: set[Note] = set()
    for raw, line, note_text in _split_answer(content):
        note = (
            Note(line, _MARK.sub("", note_text.strip()))
            if isinstance(line, int) and isinstance(note_text, str)
            else None
        )
        if note is None:
            rejects.append(Reject(raw, "no line number and text"))
        elif not 1 <= note.line <= num_lines:
            rejects.append(Reject(raw, f"line {note.line} of a source with {num_lines}"))
        elif not note.text:
            rejects.append(Reject(raw, "no text"))
        elif note in unique_notes:
            rejects.append(Reject(raw, "said before"))
        elif len(notes) == MAX_NOTES:
            rejects.append(Reject(raw, f"more than {MAX_NOTES:,} notes"))
        else:
            unique_notes.add(note)
            notes.append(note)
    return Proposal(tuple(notes), tuple(rejects))


def _split_answer(text: str) -> Iterator[tuple[str, object, object]]:
    """Yields (raw part, line, text) of every part of an answer; None for missing values."""
    if text[:1] in ("[", "{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict) and isinstance(value.get("notes"), list):
            value = value["notes"]
        if isinstance(value, dict):
            value = [
                {"line": int(key) if key.isascii() and key.isdigit() and len(key) < 10 else None, "text": note_text}
                for key, note_text in value.items()
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
def is_generated(source: str) -> bool:
    """Returns whether the first forty lines hold a mark of generated code."""
    return _GENERATED.search("\n".join(source[:8_000].split("\n")[:40])) is not None


def repeated_share(source: str) -> float:
    """Computes the share of lines with a letter or digit that occur more than once, ignoring blanks at their ends."""
    counts = Counter(line.strip() for line in source.split("\n") if any(map(str.isalnum, line)))
    total = sum(counts.values())
    return sum(count for count in counts.values() if count > 1) / total if total else 0.0


def _split_words(text: str) -> frozenset[str]:
    """Splits text into lowercase words, names at underscores and capitals, without the last s of plurals and verbs."""
    parts = (part.lower() for word in _WORD.findall(text.replace("_", " ")) for part in _PARTS.findall(word))
    return frozenset(part.removesuffix("s") if len(part) > 3 else part for part in parts if len(part) > 2)


def alignment(source: str, notes: Sequence[Note]) -> float:
    """Computes the share of notes with a word in common with the names in the next few lines below them; 1 without
    notes.

    This is a weak sign by itself: good comments often use other words than the code. It finds code whose comments
    share nothing with it.
    """
    lines = source.split("\n")
    hits = (
        not _split_words(note.text).isdisjoint(
            _split_words("\n".join(lines[note.line - 1 : note.line - 1 + ALIGNMENT_LINES]))
        )
        for note in notes
    )
    return sum(hits) / len(notes) if notes else 1.0


def find_source_faults(
    source: str, language: str, *, notes: Sequence[Note] = (), limits: CommentLimits | None = None
) -> tuple[str, ...]:
    """Returns every reason of the explicit filters against a source and its notes; () where it passes.

    Raises:
        ConfigError: for an unknown language. MissingExtra: where its packages are not installed.
    """
    limits = limits or CommentLimits()
    lines = source.split("\n")
    reasons = []
    if not limits.chars[0] <= len(source) <= limits.chars[1]:
        reasons.append("length")
    if max(map(len, lines)) > limits.line:
        reasons.append("long line")
    if len(source) / len(lines) > limits.mean_line:
        reasons.append("long lines")
    if source and sum(map(str.isalnum, source)) / len(source) < limits.letters:
        reasons.append("few letters")
    if repeated_share(source) > limits.repeated:
        reasons.append("repeated lines")
    if is_generated(source):
        reasons.append("generated")
    if alignment(source, notes) < limits.aligned:
        reasons.append("unaligned")
    if limits.density != (0.0, 1.0) and "length" not in reasons:
        try:
            comment_share = density(source, language).share
        except SampleInvalid:
            return (*reasons, "unreadable")
        if not limits.density[0] <= comment_share <= limits.density[1]:
            reasons.append("density")
    return tuple(reasons)


# ----------------------------------------------------------------------------------------------------------- pairs
def extract_comments(source: str, language: str) -> CommentExample:
    """Removes the comments of a source and returns them as notes: the input and target of a generator of comments.

    A comment on separate lines becomes a note above the next line of code; a comment behind code becomes a note above
    its line. Licenses and commented-out code are removed and are not notes. The code is verified to be equal, and every
    note can be inserted again.

    Raises:
        SampleInvalid: the source does not parse, or the code would change.
        ConfigError: an unknown language. MissingExtra: its packages are not installed.
    """
    name = get_language(language).name
    reading = parse_source(source, name)
    if reading.fault:
        raise SampleInvalid("cannot remove the comments of the source code", value=reading.fault)
    bare, comments_by_line = _remove_comments(source, reading.comments)
    if not is_same_code(reading, parse_source(bare, name)):
        raise SampleInvalid("removing the comments changes the source code", value=source[:80], expected="equal code")
    candidates = [Note(line, text) for line, texts in comments_by_line for text in texts if _is_useful_note(text, name)]
    commented_source = add_comments(bare, candidates, name)
    return CommentExample(bare, tuple(dict.fromkeys(commented_source.placed)))


def _is_useful_note(text: str, language: str) -> bool:
    return (
        not find_refusal(text, language) and not _COMMENTED_OUT_CODE.search(text) and sum(map(str.isalpha, text)) >= 3
    )


def _remove_comments(source: str, comments: Sequence[Span]) -> tuple[str, list[tuple[int, list[str]]]]:
    """Removes the removable comments; returns the source and (number of the code line below, texts) of each comment."""
    pieces: list[str] = []
    removed: list[tuple[int, list[str]]] = []  # where in the new source, texts
    copied_until = length = 0
    for start, end in comments:
        text = source[start:end]
        line_start, line_end = source.rfind("\n", 0, start) + 1, source.find("\n", end)
        line_end = len(source) if line_end < 0 else line_end + 1
        before, after = source[max(line_start, copied_until) : start], source[end:line_end]
        is_separate = line_start >= copied_until and not before.strip()  # on lines of its own: they go with it
        # Without the comment's line a backslash above it would join the next one, which no token shows.
        joins_next_line = is_separate and source[max(line_start - 4, 0) : line_start].rstrip().endswith("\\")
        must_stay = (
            DIRECTIVE.search(text) or _TAGGED.match(text) or after.strip() or text.endswith("\\") or joins_next_line
        )
        if must_stay or (not is_separate and "\n" in text):
            continue
        pieces.append(source[copied_until:line_start] if is_separate else source[copied_until:start].rstrip(" \t"))
        copied_until = line_end if is_separate else end
        length += len(pieces[-1])
        removed.append((length, [] if _LICENCE.search(text) else _comment_lines(text)))
    bare = "".join([*pieces, source[copied_until:]])
    return bare, _to_line_numbers(bare, removed)


def _to_line_numbers(source: str, removed: Sequence[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
    """Converts offsets to line numbers, each that of the first line from there on that is not blank."""
    lines = source.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)][:-1]
    next_code_lines = list(range(1, len(lines) + 1))
    for index in range(len(lines) - 2, -1, -1):
        next_code_lines[index] = next_code_lines[index] if lines[index].strip() else next_code_lines[index + 1]
    return [(next_code_lines[bisect_right(starts, offset) - 1], texts) for offset, texts in removed]


def _comment_lines(comment: str) -> list[str]:
    """Returns the lines of a comment without its marks."""
    if comment.startswith("/*"):
        comment = comment[2:].removesuffix("*/")
    lines = (re.sub(r"^\s*(?:[#/!*]|--)*\s*", "", line).strip() for line in comment.split("\n"))
    return [line for line in lines if line]
