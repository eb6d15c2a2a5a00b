"""`evolvent data`: sets of rows, described, converted, masked, thinned; with a card that says what was done."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.cli import datacomment, dataselect
from evolvent.cli.console import table
from evolvent.cli.parsing import Parser, choose, verbs_help, whole
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.view.escape import clip, plain

__all__ = ["run"]

_ABOUT = {
    "stats": "what a set holds: rows, doubles, lengths, calls, comments",
    "convert": "between JSON, JSON lines, Parquet and published layouts",
    "comment": "let a model comment code, which stays what it was",
    "mask": "rename functions and parameters, invertibly (Hammer)",
    "irrelevance": "add requests that no tool answers, verified (Hammer)",
    "select": "choose the rows worth learning from, by any selector",
    "dedup": "drop near-duplicates, each with the row that it repeats",
}
_TOLD = 5
_DATA = "a file of rows (.jsonl, .json, .parquet, .arrow), a folder of such, a run or a store"
Rows = Iterator[Mapping[str, Any]]


def run(words: Sequence[str], console: Console) -> int:
    """Run one of the verbs about data; returns the exit code: 1 where rows were refused."""
    verbs: Mapping[str, Callable[[Sequence[str], Console], int]] = {
        "stats": _stats,
        "convert": _convert,
        "comment": datacomment.run,
        "mask": _mask,
        "irrelevance": _irrelevance,
        "select": dataselect.run,
        "dedup": _dedup,
    }
    if words and words[0] in ("-h", "--help"):
        console.print(verbs_help("evolvent data", _ABOUT), soft_wrap=True)
        return 0
    verb, rest = choose("evolvent data", words, verbs)
    return verbs[verb](rest, console)


def _parser(verb: str, about: str, *, to: str = "") -> Parser:
    parser = Parser(f"evolvent data {verb}", about)
    parser.add("data", type=Path, help=_DATA)
    if to:
        parser.add("--to", type=Path, required=True, metavar="PATH", help=to)
        parser.add("--licence", default="unknown", help="of what is written, by its SPDX name, for the card")
    return parser


def _read(parser: Parser, words: Sequence[str], *beside: str) -> argparse.Namespace:
    """Read the words; nothing may be written over the data.

    Args:
        beside: endings of the files that are written beside the one that is asked for.
    """
    from evolvent.curate.origins import over_data

    found = parser.read(words)
    written = [found.to, *(found.to.with_name(f"{found.to.stem}{ending}") for ending in beside)]
    if problems := over_data(found.data, *written)[:1]:
        raise ConfigError(problems)
    return found


def _samples(path: Path, refused: list[str]) -> Iterator[Any]:
    """All samples of function calls of a path; rows that are none are told."""
    from evolvent.curate.irrelevance import read_row
    from evolvent.curate.origins import read_all

    for number, row in enumerate(read_all(path, refused)):
        try:
            yield read_row(row)
        except SampleInvalid as error:
            refused.append(f"row {number}: {error}")


def _told(console: Console, refused: Sequence[str]) -> int:
    for line in refused[:_TOLD]:
        console.print(plain(clip(line, 300)), soft_wrap=True)
    if refused:
        console.print(f"rows left out: {len(refused)}", soft_wrap=True)
    return 1 if refused else 0


def _card(found: argparse.Namespace, *, made: Sequence[str], digest: str, settings: Mapping[str, Any]) -> None:
    from evolvent.curate.card import write_card

    write_card(found.to, licence=found.licence, source=found.data.name, made=made, digest=digest, settings=settings)


# ---------------------------------------------------------------------------------------------------- the verbs


def _stats(words: Sequence[str], console: Console) -> int:
    parser = _parser("stats", "Count what a data set holds.")
    parser.add("--json", action="store_true", help="print JSON instead of the table")
    found = parser.read(words)
    from evolvent.curate.card import describe, picture, rows_of
    from evolvent.curate.origins import read_all

    refused: list[str] = []
    stats = describe(read_all(found.data, refused))
    if found.json:
        console.print(json.dumps({**asdict(stats), "refused": len(refused)}, indent=1), soft_wrap=True)
        return 1 if refused else 0
    console.print(table(console, ("", "count"), rows_of(stats)))
    for line in ("characters of a row, up to", *picture(stats.lengths)):
        console.print(line, soft_wrap=True)
    return _told(console, refused)


def _convert(words: Sequence[str], console: Console) -> int:
    layouts = ("rows", "code", "maths", "hammer", "nexus-raven", "seal-tools")
    parser = _parser("convert", "Write rows in another form.", to="a .jsonl or .parquet file")
    parser.add(
        "--layout",
        choices=layouts,
        default="rows",
        metavar="LAYOUT",
        help=f"what the file is: {', '.join(layouts)} (rows: taken as they are)",
    )
    parser.add("--tools", type=Path, metavar="FILE", help="the tools of seal-tools, the functions of nexus-raven")
    parser.add("--non_commercial", action="store_true", help="your word that you may use a set with such a licence")
    found = _read(parser, words)
    from evolvent.curate.shards import write_rows

    refused: list[str] = []
    count, digest = write_rows(found.to, _converted(found, refused))
    made = [f"read as {found.layout}"]
    _card(found, made=made, digest=digest, settings={"layout": found.layout})
    console.print(plain(f"{count} rows in {found.to}"), soft_wrap=True)
    return _told(console, refused)


def _converted(found: argparse.Namespace, refused: list[str]) -> Rows:
    if found.layout == "rows":
        from evolvent.curate.origins import read_all

        return read_all(found.data, refused)
    if found.layout in ("code", "maths"):
        return _lessons(found, refused)
    from evolvent.curate.irrelevance import row_of
    from evolvent.errors import AccessDenied
    from evolvent.worlds.calls.layouts import read_hammer, read_nexus_raven, read_seal_tools

    if found.layout != "hammer" and found.tools is None:
        raise ConfigError([Problem("--tools", f"{found.layout} needs its tools", "name the file")])
    if found.layout == "nexus-raven" and not found.non_commercial:
        raise AccessDenied(
            "the licence of nexus-raven is CC-BY-NC-4.0",
            value="no consent",
            expected="your word that you may use it",
            hint="--non_commercial",
        )
    samples, problems = (
        read_hammer(found.data)
        if found.layout == "hammer"
        else read_seal_tools(found.data, found.tools)
        if found.layout == "seal-tools"
        else read_nexus_raven(found.data, found.tools)
    )
    refused += [str(problem) for problem in problems]
    return map(row_of, samples)


def _lessons(found: argparse.Namespace, refused: list[str]) -> Rows:
    """Problems with their solutions, as prompts with completions: HumanEval, MBPP and APPS; or MATH."""
    from evolvent.worlds.code.rows import read_code
    from evolvent.worlds.reasoning.mathsfiles import read_maths

    if found.layout == "maths":
        rows, problems = read_maths(found.data)
        refused += map(str, problems)
        refused += [f"{one.where}: no solution" for one in rows if not one.solution]
        return (
            {
                "id": f"{one.file}:{one.place}",
                "prompt": one.problem,
                "completion": one.solution,
                "answer": one.answer,
                "subject": one.subject,
                "level": one.level,
            }
            for one in rows
            if one.solution
        )
    programs, problems = read_code(found.data)
    refused += map(str, problems)
    refused += [f"{one.where}: no solution" for one in programs if not one.solution]
    return (
        {"id": one.name, "prompt": one.text, "completion": one.solution, "about": one.about, "layout": one.layout}
        for one in programs
        if one.solution
    )


def _mask(words: Sequence[str], console: Console) -> int:
    parser = _parser(
        "mask", "Mask function-calling samples: {id, query, tools, answers}.", to="a .jsonl or .parquet file"
    )
    parser.add("--ratio", type=float, default=2 / 3, help="share of samples that are masked (2/3)")
    parser.add("--style", default="random", choices=("random", "published", "snake", "camel"), help="how names look")
    parser.add("--defaults", default="whole_token", choices=("off", "whole_token"), help="whether defaults change")
    parser.add("--scrub", default="names", choices=("off", "names", "every"), help="old names in descriptions")
    parser.add("--seed", type=whole, default=0, help="all randomness derives from it")
    parser.add("--epoch", type=whole, default=0, help="another epoch draws other names")
    parser.add("--workers", type=whole, default=1, help="processes")
    parser.add("--cache", type=Path, default=Path("runs/data-cache"), help="where finished shards are kept")
    found = _read(parser, words)
    from evolvent.curate.masking import MaskSpec
    from evolvent.curate.shards import shards_of
    from evolvent.curate.stages import transform
    from evolvent.curate.transforms import Masking

    stage = Masking(
        MaskSpec(ratio=found.ratio, style=found.style, defaults=found.defaults, scrub=found.scrub),
        found.seed,
        found.epoch,
    )
    done = transform(shards_of(found.data), [stage], found.to, cache=found.cache, workers=max(found.workers, 1))
    _card(found, made=["functions and parameters masked"], digest=done.sha256, settings=stage.parameters())
    console.print(
        plain(
            f"{done.rows} of {done.read} rows in {found.to}; {done.reused} of {done.shards} shards were there already"
        ),
        soft_wrap=True,
    )
    for line in done.told[:_TOLD]:
        console.print(plain(clip(line, 300)), soft_wrap=True)
    left = sum(done.refused.values())
    if left:
        console.print(f"rows left out: {left}", soft_wrap=True)
    return 1 if left else 0


def _irrelevance(words: Sequence[str], console: Console) -> int:
    parser = _parser("irrelevance", "Add requests that no tool answers, and write a data set.", to="a folder")
    parser.add("--share", type=float, default=1 / 9, help="of such requests among all (1/9)")
    parser.add("--only", action="store_true", help="write the added requests alone")
    parser.add("--seed", type=whole, default=0, help="all randomness derives from it")
    found = _read(parser, words)
    from evolvent.curate.irrelevance import irrelevant, write_irrelevance

    refused: list[str] = []
    mixed = irrelevant(list(_samples(found.data, refused)), found.share, seed=found.seed)
    chosen = mixed.copies if found.only else mixed.samples
    write_irrelevance(found.to, chosen, licence=found.licence, source=found.data.name, report=mixed)
    console.print(
        plain(f"{len(chosen)} samples in {found.to}, {mixed.made} of {mixed.wanted} added requests"), soft_wrap=True
    )
    for why, count in sorted(mixed.left_out.items()):
        console.print(plain(f"{count} samples have none: {why.replace('_', ' ')}"), soft_wrap=True)
    return _told(console, refused)


def _dedup(words: Sequence[str], console: Console) -> int:
    parser = _parser(
        "dedup", "Drop near-duplicates (MinHash, then the exact similarity).", to="a .jsonl or .parquet file"
    )
    parser.add("--threshold", type=float, default=0.7, help="Jaccard similarity from which a row is dropped (0.7)")
    parser.add("--field", action="append", default=[], help="a field that is compared, more than once; none: all texts")
    parser.add("--run", type=whole, default=5, help="tokens of a run (5)")
    found = _read(parser, words, ".dropped.jsonl")
    from evolvent.curate.duplicates import near_duplicates
    from evolvent.curate.origins import read_all
    from evolvent.curate.shards import write_rows
    from evolvent.files import plain_json

    refused: list[str] = []
    rows = list(read_all(found.data, refused))
    texts = {f"{place:012d}": _compared(row, found.field) for place, row in enumerate(rows)}
    kept = near_duplicates(texts, threshold=found.threshold, run=found.run)
    _, digest = write_rows(found.to, (rows[int(name)] for name in kept.kept))
    told = ({"row": int(one.id), "of": int(one.of), "similarity": round(one.similarity, 4)} for one in kept.dropped)
    write_rows(found.to.with_name(f"{found.to.stem}.dropped.jsonl"), told)
    settings = {"threshold": found.threshold, "run": found.run, "fields": found.field}
    made = [f"near-duplicates dropped: {len(kept.dropped)} of {len(rows)} rows"]
    _card(found, made=made, digest=digest, settings=settings)
    console.print(plain(f"{len(kept.kept)} of {len(rows)} rows in {found.to}; {plain_json(settings)}"), soft_wrap=True)
    return _told(console, refused)


def _compared(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    chosen = {name: row[name] for name in fields if name in row} if fields else row
    return "\n".join(str(value) for value in chosen.values() if value is not None)
