"""Comments in code: real files keep their tokens, corruptions are seen, what that costs, and what comments teach.

    python -m benchmarks.comments [--json] [--save]                     both parts; learns what has no cell yet
    python -m benchmarks.comments --files [--src DIR ...]               real files only
    python -m benchmarks.comments --training [--models ...] [--arms ...] [--seeds ...] [--report]
    python -m benchmarks.comments --quick                               few files, tiny models: supports no claim

Files: sources of installed packages (Python's library and site-packages, headers, node modules, scripts, and DIR with
packages unpacked by hand), at most so many a language, chosen by the hash of their names. Each gets notes with awkward
texts above random legal lines. **unequal** counts files whose code is not what it was: the reader's tokens and tree,
`ast.dump`, the text without the new lines. **doubted** are those of every fourth file in which pygments, as a second
opinion, finds other tokens. **undetected** counts changes of one token (changed, dropped, doubled, exchanged with the
next) after which the reader still says "equal".
Speed in CPU seconds of one core: `density` beside a comment scan by pygments, and `commented`, which reads, inserts,
reads again and compares. Files that do not parse are left as they are and counted.

Training: `training.py`, whose cells (`cell.py`) learn and solve generated problems (`suites.py`).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import sys
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.token import Comment

from benchmarks.comments.training import arguments as training_arguments
from benchmarks.comments.training import training
from benchmarks.reporting import RESULTS, about, command_line, finish, show
from evolvent.curate.comments import Note, add_comments, density, find_open_lines, is_same_code
from evolvent.curate.languages import LANGUAGES, detect_language
from evolvent.curate.syntax import ParsedSource, parse_source
from evolvent.errors import SampleInvalid
from evolvent.trajectory import sample_rng

GOALS = {"files": 2000, "languages": 10, "unequal": 0, "undetected": 0, "mb_per_s": 1.0, "scan_over_pygments": 4.0}
RESULT = RESULTS / "comments.json"
ROOTS = ("/usr/include", "/usr/lib/node_modules", "/usr/share", "/usr/bin", "/usr/lib/go", "/usr/lib/ruby", "/usr/src")
SIZES = (200, 100_000)  # characters of a file
PER_LANGUAGE, PER_LANGUAGE_QUICK = 240, 12
NOTES, CORRUPTIONS = 12, 3  # a file
WORDS = (
    "keeps",
    "the",
    "widest",
    "row",
    '"quoted"',
    "it's",
    "(open",
    "[1",
    "{x",
    "größer",
    "→",
    "50%",
    "C:\\dir\\x",
    "$HOME",
    "${x}",
    "#{y}",
    "<b>",
    "&&",
    "0x1F",
    "日本",
    "e.g.",
    "\\n",
    "=begin",
    "'''",
)
LARGE = ("by_language", "by_suite", "notes", "gain", "pass_at_1")  # not shown to people once more
LEXERS = {"csharp": "csharp", "tsx": "tsx", "php": "php", "bash": "bash", "r": "splus"}


@dataclass
class Tally:
    """What was seen in the files of one language; times in CPU seconds."""

    files: int = 0
    unparsable: int = 0
    notes: int = 0
    code_changed: int = 0
    unequal: list[str] = field(default_factory=list)
    doubted: list[str] = field(default_factory=list)
    corruptions: int = 0
    undetected: list[str] = field(default_factory=list)
    megabytes: float = 0.0
    scan_s: float = 0.0
    pygments_s: float = 0.0
    comment_s: float = 0.0


def paths(roots: Iterable[str]) -> Iterator[Path]:
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in names:
                yield Path(folder, name)


def chosen(roots: Sequence[str], most: int) -> dict[str, list[tuple[str, str]]]:
    """Language -> (path, text) of at most `most` files, each text once, those whose path has the smallest hash."""
    found: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    for path in set(paths(roots)):
        if path.suffix and detect_language(path.name) is None:
            continue
        name = detect_language(path.name) or "?"
        found[name].append((hashlib.sha256(str(path).encode("utf-8", "surrogateescape")).hexdigest(), path))
    out: dict[str, list[tuple[str, str]]] = defaultdict(list)
    seen: set[bytes] = set()
    for name, places in sorted(found.items()):
        for _, path in sorted(places)[: None if name == "?" else 4 * most]:
            language = name if name != "?" else shell(path)
            if language is None or len(out[language]) >= most:
                continue
            text = text_of(path)
            language = detect_language(path.name, text or "") or language  # a header may be C or C++
            digest = hashlib.sha256((text or "").encode()).digest()
            if text is not None and digest not in seen and len(out[language]) < most:
                seen.add(digest)
                out[language].append((str(path), text))
    return {name: texts for name, texts in sorted(out.items()) if texts}


def shell(path: Path) -> str | None:
    """The language of a file without a suffix, by its first bytes."""
    try:
        with path.open("rb") as file:
            return detect_language(path.name, file.readline(200).decode("ascii", "replace"))
    except OSError:
        return None


def text_of(path: Path) -> str | None:
    """UTF-8 text of a usual size; None for anything else."""
    try:
        if not path.is_file() or not SIZES[0] <= path.stat().st_size <= SIZES[1]:
            return None
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def notes_for(lines: Sequence[int], rng: np.random.Generator) -> list[Note]:
    places = rng.choice(lines, size=min(NOTES, len(lines)), replace=False)
    return [Note(int(line), "Here " + " ".join(rng.choice(WORDS, size=rng.integers(1, 8)))) for line in places]


def same_outside(source: str, written: str, notes: Sequence[Note], mark: str) -> bool:
    """Whether the written text without the lines of the notes is the source, character by character."""
    wanted = Counter(f"{mark} {note.text}" for note in notes)
    kept = []
    for line in written.split("\n"):
        if wanted[line.strip()] > 0:
            wanted[line.strip()] -= 1
        else:
            kept.append(line)
    return "\n".join(kept) == source and not any(wanted.values())


def lexed(lexer: Lexer, source: str) -> list[tuple[str, str]]:
    """Pygments' tokens of code, blanks apart."""
    words = lexer.get_tokens_unprocessed(source)
    pieces = [(str(kind), text.strip()) for _, kind, text in words if kind not in Comment or kind in Comment.Preproc]
    return [piece for piece in pieces if piece[1]]


def positions(source: str, reading: ParsedSource) -> list[tuple[int, str]]:
    """(offset, text) of the tokens: between two of them lie blanks and comments only."""
    bare = list(source)
    for start, end in reading.comments:
        bare[start:end] = " " * (end - start)
    text, at, out = "".join(bare), 0, []
    if text.startswith("#!") and not text.startswith("#![") and not reading.tokens[0][1].startswith("#!"):
        at = text.find("\n")  # a shebang is neither comment nor, in most languages, a token
    for _, token in reading.tokens:
        if token.strip():
            at = text.index(token, at)
            out.append((at, token))
            at += len(token)
    return out


def corrupted(source: str, tokens: Sequence[tuple[int, str]], rng: np.random.Generator) -> str:
    """The source with one token changed, dropped, doubled, or exchanged with the next one."""
    at = int(rng.integers(len(tokens)))
    place, text = tokens[at]
    end = place + len(text)
    kind = int(rng.integers(4))
    if kind == 3 and at + 1 < len(tokens) and tokens[at + 1][1] != text:
        after, other = tokens[at + 1]
        return source[:place] + other + source[end:after] + text + source[after + len(other) :]
    if kind == 2:
        return source[:end] + " " + source[place:]
    if kind == 1:
        return source[:place] + " " + source[end:]
    middle = place + int(rng.integers(len(text)))
    return source[:middle] + ("x" if source[middle] != "x" else "y") + source[middle + 1 :]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    value = call()
    return value, time.process_time() - began


def one_file(path: str, source: str, language: str, tally: Tally) -> None:
    lexer = get_lexer_by_name(LEXERS.get(language, language))
    rng = sample_rng(0, language, hashlib.sha256(source.encode()).hexdigest())
    tally.files += 1
    lines = find_open_lines(source, language)
    if not lines:
        tally.unparsable += 1
        return
    notes = notes_for(lines, rng)
    _, scan_s = timed(lambda: density(source, language))
    done, comment_s = timed(lambda: add_comments(source, notes, language))
    _, pygments_s = timed(
        lambda: sum(len(text) for _, kind, text in lexer.get_tokens_unprocessed(source) if kind in Comment)
    )
    tally.megabytes += len(source.encode()) / 1e6
    tally.scan_s, tally.comment_s = tally.scan_s + scan_s, tally.comment_s + comment_s
    tally.pygments_s += pygments_s
    if done.outcome != "commented":
        tally.code_changed += 1
        return
    tally.notes += len(done.placed)
    before, after = parse_source(source, language), parse_source(done.source, language)
    equal = is_same_code(before, after) and same_outside(source, done.source, done.placed, LANGUAGES[language].mark)
    if equal and language == "python":
        equal = ast.dump(ast.parse(source)) == ast.dump(ast.parse(done.source))
    if not equal or len(done.placed) != len(notes):
        tally.unequal.append(path)
    elif tally.files % 4 == 1 and lexed(lexer, source) != lexed(lexer, done.source):
        tally.doubted.append(path)
    tokens = positions(source, before)
    for _ in range(CORRUPTIONS if tokens else 0):  # a file may be all comment
        wrong = corrupted(source, tokens, rng)
        tally.corruptions += 1
        if is_same_code(before, parse_source(wrong, language)):
            tally.undetected.append(path)


def files(options: argparse.Namespace) -> dict[str, Any]:
    """The first part: equality, detection, speed."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}
    roots = [*sorted(library), *ROOTS, *options.src]
    tallies: dict[str, Tally] = {}
    for language, texts in chosen(roots, PER_LANGUAGE_QUICK if options.quick else PER_LANGUAGE).items():
        tallies[language] = Tally()
        for path, source in texts:
            one_file(path, source, language, tallies[language])
        if not options.json:
            print(row(language, tallies[language]), flush=True)
    every = list(tallies.values())
    total = {
        name: sum(getattr(tally, name) for tally in every)
        for name in (
            "files",
            "unparsable",
            "notes",
            "code_changed",
            "corruptions",
            "megabytes",
            "scan_s",
            "pygments_s",
            "comment_s",
        )
    }
    return {
        **{name: total[name] for name in ("files", "unparsable", "code_changed", "notes", "corruptions")},
        "languages": len(tallies),
        "unequal": sum(len(tally.unequal) for tally in every),
        "undetected": sum(len(tally.undetected) for tally in every),
        "doubted_by_pygments": sum(len(tally.doubted) for tally in every),
        "mb_per_s": total["megabytes"] / total["comment_s"],
        "scan_mb_per_s": total["megabytes"] / total["scan_s"],
        "scan_over_pygments": total["pygments_s"] / total["scan_s"],
        "by_language": {name: figures(tally) for name, tally in tallies.items()},
    }


def figures(tally: Tally) -> dict[str, Any]:
    out: dict[str, Any] = {name: getattr(tally, name) for name in ("files", "unparsable", "code_changed", "notes")}
    out |= {name: len(getattr(tally, name)) for name in ("unequal", "doubted", "undetected")}
    if tally.megabytes:
        out["mb_per_s"] = round(tally.megabytes / tally.comment_s, 3)
        out["scan_mb_per_s"] = round(tally.megabytes / tally.scan_s, 3)
        out["scan_over_pygments"] = round(tally.pygments_s / tally.scan_s, 2)
    return out


def row(language: str, tally: Tally) -> str:
    shown = "  ".join(f"{name} {value}" for name, value in figures(tally).items())
    bad = "".join(f"\n  unequal {path}" for path in tally.unequal) + "".join(
        f"\n  undetected {path}" for path in tally.undetected
    )
    return f"{language:<11} {shown}{bad}"


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {"files": files, "training": training}


def main(words: Sequence[str] | None = None) -> int:
    parser = command_line("comments", __doc__, quick="few files, tiny models", save=RESULT)
    for name in PARTS:
        parser.add_argument(f"--{name}", action="store_true", help=f"only the part {name!r} (and others so named)")
    parser.add_argument("--src", action="append", default=[], help="a folder with more sources; may be repeated")
    training_arguments(parser)
    options = parser.parse_args(words)
    parts = [name for name in PARTS if getattr(options, name)] or list(PARTS)
    result: dict[str, Any] = {"benchmark": "comments", "goals": GOALS, "quick": options.quick}
    result |= about("evolvent", "torch", "pygments", threads=1)
    for name in parts:
        try:
            result |= PARTS[name](options)
        except SampleInvalid as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
    show(result, without=LARGE)
    finish(result, options)
    return 0 if result.get("unequal", 0) == result.get("undetected", 0) == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
