"""What a data set holds: counts, lengths, doubles, densities, and the card that says so beside its files."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evolvent.curate.comments import density
from evolvent.curate.irrelevance import read_row
from evolvent.curate.languages import language_of
from evolvent.curate.shards import Row, read_shard, shards_of
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.files import write_atomic
from evolvent.trajectory import canonical_json

__all__ = ["CODE", "Lengths", "Stats", "card", "code_of_row", "describe", "picture", "rows_of", "write_card"]

CODE = ("source", "code", "content")
"""Fields in which the code of a row is looked for, in this order."""
_EDGES = tuple(2**power for power in range(4, 21))  # characters: 16 to a million
_BAR = 40
_NAME = re.compile(r"[\w+#. -]{1,30}")


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long rows are, in characters of all their texts.

    Args:
        counts: rows up to each of `edges`, and those above the last.
        edges: upper ends, included.
        total: all characters.
        longest: of a row.
    """

    counts: tuple[int, ...]
    edges: tuple[int, ...]
    total: int
    longest: int


@dataclass(frozen=True)
class Stats:
    """What `describe` found.

    Args:
        rows, doubles: how many rows, and how many of them repeat an earlier one exactly.
        lengths: of their texts.
        fields: field -> how many rows have it.
        calls: function-calling samples: how many calls are to be made -> rows; -1: rows that are no sample.
        tools: different tools.
        languages: of code: language -> (rows, comment characters, docstring characters, characters).
        unread: rows of code that could not be read, by reason.
    """

    rows: int
    doubles: int
    lengths: Lengths
    fields: Mapping[str, int]
    calls: Mapping[int, int] = field(default_factory=dict)
    tools: int = 0
    languages: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)


def describe(rows: Iterable[Row]) -> Stats:
    """Counts over rows, in one pass; memory grows with the number of rows by a hash each."""
    seen: set[bytes] = set()
    tools: set[bytes] = set()
    fields: Counter[str] = Counter()
    calls: Counter[int] = Counter()
    unread: Counter[str] = Counter()
    languages: dict[str, list[int]] = {}
    sizes: list[int] = []
    for row in rows:
        seen.add(_hash(row))
        fields.update(map(str, row))
        sizes.append(_characters(row))
        if {"tools", "answers"} <= set(row):
            calls[_sampled(row, tools)] += 1
        elif (found := code_of_row(row)) is not None:
            _dense(found, languages, unread)
    counts = [0] * (len(_EDGES) + 1)
    for size in sizes:
        counts[bisect_left(_EDGES, size)] += 1
    return Stats(
        len(sizes),
        len(sizes) - len(seen),
        Lengths(tuple(counts), _EDGES, sum(sizes), max(sizes, default=0)),
        dict(sorted(fields.items())),
        dict(sorted(calls.items())),
        len(tools),
        {name: (own[0], own[1], own[2], own[3]) for name, own in sorted(languages.items())},
        dict(unread),
    )


def _hash(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).digest()[:16]


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_characters, value))
    return 0


def _sampled(row: Row, tools: set[bytes]) -> int:
    try:
        sample = read_row(row)
    except SampleInvalid:
        return -1
    tools.update(_hash([tool.name, tool.description, dict(tool.parameters)]) for tool in sample.tools)
    return len(sample.calls)


def code_of_row(row: Row) -> tuple[str, str] | None:
    """The code of a row and its language: as the row says, by the name of its file, or by its first line; or None."""
    name = next((name for name in CODE if isinstance(row.get(name), str)), None)
    if name is None:
        return None
    source = str(row[name])
    language = row.get("language") or language_of(str(row.get("path", "")), source)
    if not language:
        return None
    return source, str(language).lower() if _NAME.fullmatch(str(language)) else "an unknown language"


def _dense(found: tuple[str, str], languages: dict[str, list[int]], unread: Counter[str]) -> None:
    source, language = found
    try:
        one = density(source, language)
    except (SampleInvalid, ConfigError) as error:
        unread[f"{language}: {error.what}"] += 1
        return
    own = languages.setdefault(language, [0, 0, 0, 0])
    for place, more in enumerate((1, one.comment_chars, one.docstring_chars, one.chars)):
        own[place] += more


def picture(lengths: Lengths) -> tuple[str, ...]:
    """The lengths as lines of text: an upper end, a bar, a count. Empty ends are left out."""
    most = max(lengths.counts, default=0)
    if not most:
        return ()
    used = [place for place, count in enumerate(lengths.counts) if count]
    ends = [f"{edge:,}" for edge in lengths.edges] + ["more"]
    lines = []
    for place in range(used[0], used[-1] + 1):
        count = lengths.counts[place]
        bar = "█" * max(round(_BAR * count / most), 1 if count else 0)
        lines.append(f"{ends[place]:>9} {bar} {count:,}".rstrip())
    return tuple(lines)


def card(
    stats: Stats,
    *,
    title: str,
    licence: str,
    source: str,
    made: Sequence[str],
    files: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
) -> str:
    """The card of a data set, `README.md` beside its files: what it is, how it was made, and what is in it.

    Args:
        licence: its SPDX name. source: what it was made of. made: the stages, in order.
        files: path -> SHA-256.
        settings: of the stages (JSON values).
    Raises:
        ConfigError: no licence or no source.
    """
    for name, value in (("licence", licence), ("source", source)):
        if not value.strip() or "\n" in value:
            raise ConfigError(f"a card without {name}", value=value, expected="one line that says it")
    front = {
        "license": licence,
        "pretty_name": title,
        "configs": [
            {"config_name": "default", "data_files": [{"split": "train", "path": path}]} for path in sorted(files)
        ][:1],
    }
    lines = [
        "---",
        *(f"{key}: {json.dumps(value)}" for key, value in front.items()),
        "---",
        "",
        f"# {title}",
        "",
        f"Made of: {source}",
        "",
    ]
    lines += [f"{number}. {one}" for number, one in enumerate(made, 1)] + [""]
    if settings:
        lines += ["Settings: `" + canonical_json(dict(settings)) + "`", ""]
    lines += ["| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows_of(stats)), ""]
    lines += ["Characters of a row, up to:", "", *("    " + line for line in picture(stats.lengths)), ""]
    lines += [
        "| file | SHA-256 |",
        "|---|---|",
        *(f"| {path} | `{digest}` |" for path, digest in sorted(files.items())),
    ]
    return "\n".join((*lines, "", f"Licence: {licence}", ""))


def write_card(
    file: Path, *, licence: str, source: str, made: Sequence[str], digest: str, settings: Mapping[str, Any]
) -> None:
    """Write the card of a file of rows beside it, as `NAME.card.md`; see `card`."""
    rows = (row for shard in shards_of(file) for _, row in read_shard(shard) if not isinstance(row, SampleInvalid))
    text = card(
        describe(rows),
        title=file.stem,
        licence=licence,
        source=source,
        made=made,
        files={file.name: digest},
        settings=settings,
    )
    write_atomic(file.with_name(f"{file.stem}.card.md"), text)


def rows_of(stats: Stats) -> list[tuple[str, str]]:
    """What `describe` found as rows of a table: what, and how much."""
    mean = stats.lengths.total / stats.rows if stats.rows else 0.0
    found = [
        ("rows", f"{stats.rows:,}"),
        ("exact doubles", f"{stats.doubles:,}"),
        ("characters of a row, mean", f"{mean:,.0f}"),
        ("longest row", f"{stats.lengths.longest:,}"),
    ]
    if stats.calls:
        found.append(("different tools", f"{stats.tools:,}"))
    for count, rows in stats.calls.items():
        what = "no sample" if count < 0 else "nothing to call" if not count else f"{count} call{'s' * (count > 1)}"
        found.append((what, f"{rows:,}"))
    for name, (rows, comments, docstrings, chars) in stats.languages.items():
        share, both = comments / max(chars, 1), (comments + docstrings) / max(chars, 1)
        found.append((name, f"{rows:,} rows, comments {share:.3f} of all characters, with docstrings {both:.3f}"))
    return found + [(f"unread, {why}", f"{count:,}") for why, count in stats.unread.items()]
