"""Statistics of a data set (counts, lengths, duplicates, densities) and the card beside its files that lists them."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evolvent.curate.comments import density
from evolvent.curate.irrelevance import row_to_sample
from evolvent.curate.languages import detect_language
from evolvent.curate.shards import Row, list_shards, read_shard
from evolvent.errors import ConfigError, SampleInvalid
from evolvent.files import write_atomic
from evolvent.trajectory import canonical_json

__all__ = [
    "CODE",
    "Lengths",
    "Stats",
    "code_of_row",
    "describe",
    "render_card",
    "render_histogram",
    "table_rows",
    "write_card",
]

CODE = ("source", "code", "content")
"""Fields in which the code of a row is looked for, in this order."""
_EDGES = tuple(2**power for power in range(4, 21))  # characters: 16 to a million
_BAR = 40
_NAME = re.compile(r"[\w+#. -]{1,30}")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Histogram of row lengths, in characters of all texts of a row.

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
    """Statistics that `describe` computes.

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
    """Computes statistics of rows in one pass; memory grows by one hash a row."""
    row_hashes: set[bytes] = set()
    tools: set[bytes] = set()
    fields: Counter[str] = Counter()
    calls: Counter[int] = Counter()
    unread: Counter[str] = Counter()
    languages: dict[str, list[int]] = {}
    sizes: list[int] = []
    for row in rows:
        row_hashes.add(_hash(row))
        fields.update(map(str, row))
        sizes.append(_characters(row))
        if {"tools", "answers"} <= set(row):
            calls[_count_calls(row, tools)] += 1
        elif (code := code_of_row(row)) is not None:
            _add_density(code, languages, unread)
    counts = [0] * (len(_EDGES) + 1)
    for size in sizes:
        counts[bisect_left(_EDGES, size)] += 1
    return Stats(
        len(sizes),
        len(sizes) - len(row_hashes),
        Lengths(tuple(counts), _EDGES, sum(sizes), max(sizes, default=0)),
        dict(sorted(fields.items())),
        dict(sorted(calls.items())),
        len(tools),
        {name: (totals[0], totals[1], totals[2], totals[3]) for name, totals in sorted(languages.items())},
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


def _count_calls(row: Row, tools: set[bytes]) -> int:
    try:
        sample = row_to_sample(row)
    except SampleInvalid:
        return -1
    tools.update(_hash([tool.name, tool.description, dict(tool.parameters)]) for tool in sample.tools)
    return len(sample.calls)


def code_of_row(row: Row) -> tuple[str, str] | None:
    """Returns the code of a row and its language: by its field, its file name or its first line; or None."""
    name = next((name for name in CODE if isinstance(row.get(name), str)), None)
    if name is None:
        return None
    source = str(row[name])
    language = row.get("language") or detect_language(str(row.get("path", "")), source)
    if not language:
        return None
    return source, str(language).lower() if _NAME.fullmatch(str(language)) else "an unknown language"


def _add_density(code: tuple[str, str], languages: dict[str, list[int]], unread: Counter[str]) -> None:
    source, language = code
    try:
        source_density = density(source, language)
    except (SampleInvalid, ConfigError) as error:
        unread[f"{language}: {error.what}"] += 1
        return
    totals = languages.setdefault(language, [0, 0, 0, 0])
    for index, increment in enumerate(
        (1, source_density.comment_chars, source_density.docstring_chars, source_density.chars)
    ):
        totals[index] += increment


def render_histogram(lengths: Lengths) -> tuple[str, ...]:
    """Renders the length histogram as lines of text: upper edge, bar and count. Empty ends are left out."""
    max_count = max(lengths.counts, default=0)
    if not max_count:
        return ()
    nonempty = [index for index, count in enumerate(lengths.counts) if count]
    ends = [f"{edge:,}" for edge in lengths.edges] + ["more"]
    lines = []
    for index in range(nonempty[0], nonempty[-1] + 1):
        count = lengths.counts[index]
        bar = "█" * max(round(_BAR * count / max_count), 1 if count else 0)
        lines.append(f"{ends[index]:>9} {bar} {count:,}".rstrip())
    return tuple(lines)


def render_card(
    stats: Stats,
    *,
    title: str,
    licence: str,
    source: str,
    stages: Sequence[str],
    files: Mapping[str, str],
    settings: Mapping[str, object] | None = None,
) -> str:
    """Renders the card of a data set, `README.md` beside its files: its origin, its stages and its contents.

    Args:
        licence: its SPDX name. source: what it was made of. stages: the stages, in order.
        files: path -> SHA-256.
        settings: of the stages (JSON values).
    Raises:
        ConfigError: no license or no source.
    """
    for name, value in (("licence", licence), ("source", source)):
        if not value.strip() or "\n" in value:
            raise ConfigError(f"the data card has no {name}", value=value, expected="one line of text")
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
    lines += [f"{number}. {stage}" for number, stage in enumerate(stages, 1)] + [""]
    if settings:
        lines += ["Settings: `" + canonical_json(dict(settings)) + "`", ""]
    lines += ["| | |", "|---|---|", *(f"| {label} | {value} |" for label, value in table_rows(stats)), ""]
    lines += ["Characters of a row, up to:", "", *("    " + line for line in render_histogram(stats.lengths)), ""]
    lines += [
        "| file | SHA-256 |",
        "|---|---|",
        *(f"| {path} | `{digest}` |" for path, digest in sorted(files.items())),
    ]
    return "\n".join((*lines, "", f"License: {licence}", ""))


def write_card(
    file: Path, *, licence: str, source: str, stages: Sequence[str], digest: str, settings: Mapping[str, object]
) -> None:
    """Writes the card of a file of rows beside it, as `NAME.card.md`; see `render_card`."""
    rows = (row for shard in list_shards(file) for _, row in read_shard(shard) if not isinstance(row, SampleInvalid))
    text = render_card(
        describe(rows),
        title=file.stem,
        licence=licence,
        source=source,
        stages=stages,
        files={file.name: digest},
        settings=settings,
    )
    write_atomic(file.with_name(f"{file.stem}.card.md"), text)


def table_rows(stats: Stats) -> list[tuple[str, str]]:
    """Returns the statistics of `describe` as (label, text) rows of a table."""
    mean = stats.lengths.total / stats.rows if stats.rows else 0.0
    table = [
        ("rows", f"{stats.rows:,}"),
        ("exact doubles", f"{stats.doubles:,}"),
        ("characters of a row, mean", f"{mean:,.0f}"),
        ("longest row", f"{stats.lengths.longest:,}"),
    ]
    if stats.calls:
        table.append(("different tools", f"{stats.tools:,}"))
    for count, rows in stats.calls.items():
        label = "no sample" if count < 0 else "nothing to call" if not count else f"{count} call{'s' * (count > 1)}"
        table.append((label, f"{rows:,}"))
    for name, (rows, comments, docstrings, chars) in stats.languages.items():
        share, both = comments / max(chars, 1), (comments + docstrings) / max(chars, 1)
        table.append((name, f"{rows:,} rows, comments {share:.3f} of all characters, with docstrings {both:.3f}"))
    return table + [(f"unread, {why}", f"{count:,}") for why, count in stats.unread.items()]
