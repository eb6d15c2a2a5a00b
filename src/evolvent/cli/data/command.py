"""`evolvent data`: describes, converts, masks and filters data sets, and writes a card that lists the changes."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.cli.data import comment, select
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.parsing import Parser, choose_verb, format_verbs_help, parse_count
from evolvent.data.forms import UNKNOWN_FORM, describe_forms, detect_form, standardize_row
from evolvent.errors import ConfigError, Problem, SampleInvalid
from evolvent.trajectory import JsonObject
from evolvent.view.escape import clip, show_hidden

__all__ = ["run"]

_VERB_HELP = {
    "stats": "what a set holds: rows, doubles, lengths, calls, comments",
    "convert": "between JSON, JSON lines, Parquet and published layouts",
    "comment": "let a model comment code, which stays what it was",
    "mask": "rename functions and parameters, invertibly (Hammer)",
    "irrelevance": "add requests that no tool answers, verified (Hammer)",
    "select": "choose the rows worth learning from, by any selector",
    "dedup": "drop near-duplicates, each with the row that it repeats",
}
_MAX_MESSAGES = 5
_DATA_HELP = "a file of rows (.jsonl, .json, .parquet, .arrow, .csv, .tsv, .gz), a folder of such, a run or a store"
Rows = Iterator[JsonObject]


def run(argv: Sequence[str], console: Console) -> int:
    """Runs one of the verbs about data; returns the exit code: 1 where rows were refused."""
    verbs: Mapping[str, Callable[[Sequence[str], Console], int]] = {
        "stats": _run_stats,
        "convert": _run_convert,
        "comment": comment.run,
        "mask": _run_mask,
        "irrelevance": _run_irrelevance,
        "select": select.run,
        "dedup": _run_dedup,
    }
    if argv and argv[0] in ("-h", "--help"):
        console.print(format_verbs_help("evolvent data", _VERB_HELP), soft_wrap=True)
        return 0
    verb, verb_argv = choose_verb("evolvent data", argv, verbs)
    return verbs[verb](verb_argv, console)


def _build_parser(verb: str, description: str, *, output_help: str = "") -> Parser:
    parser = Parser(f"evolvent data {verb}", description)
    parser.add("data", type=Path, help=_DATA_HELP)
    if output_help:
        parser.add("--to", dest="output_path", type=Path, required=True, metavar="PATH", help=output_help)
        parser.add(
            "--license",
            "--licence",
            dest="license",
            default="unknown",
            help="of what is written, by its SPDX name, for the card",
        )
    return parser


def _parse_arguments(parser: Parser, argv: Sequence[str], *extra_suffixes: str) -> argparse.Namespace:
    """Parses the arguments and checks that no output would overwrite the data.

    Args:
        extra_suffixes: endings of the files that are written beside the requested file.
    """
    from evolvent.curate.origins import check_outputs

    args = parser.parse_argv(argv)
    output_paths = [
        args.output_path,
        *(args.output_path.with_name(f"{args.output_path.stem}{ending}") for ending in extra_suffixes),
    ]
    if problems := check_outputs(args.data, *output_paths)[:1]:
        raise ConfigError(problems)
    return args


def _read_samples(path: Path, refused: list[str]) -> Iterator[Any]:
    """Yields all samples of function calls at a path; other rows are added to `refused`."""
    from evolvent.curate.irrelevance import row_to_sample
    from evolvent.curate.origins import read_located_rows

    for location, row in read_located_rows(path, refused):
        try:
            yield row_to_sample(row)
        except SampleInvalid as error:
            refused.append(f"{location}: {error}")


def _report_refused(console: Console, refused: Sequence[str]) -> int:
    for line in refused[:_MAX_MESSAGES]:
        console.print(show_hidden(clip(line, 300)), soft_wrap=True)
    if refused:
        console.print(f"rows left out: {len(refused)}", soft_wrap=True)
    return 1 if refused else 0


def _write_card(args: argparse.Namespace, *, changes: Sequence[str], digest: str, settings: Mapping[str, Any]) -> None:
    from evolvent.curate.card import write_card

    write_card(
        args.output_path, licence=args.license, source=args.data.name, stages=changes, digest=digest, settings=settings
    )


# ---------------------------------------------------------------------------------------------------- the verbs


def _run_stats(argv: Sequence[str], console: Console) -> int:
    parser = _build_parser("stats", "Count what a data set holds.")
    parser.add("--json", action="store_true", help="print JSON instead of the table")
    args = parser.parse_argv(argv)
    from evolvent.curate.card import describe, render_histogram, table_rows
    from evolvent.curate.origins import read_located_rows

    refused: list[str] = []
    forms: Counter[str] = Counter()
    stats = describe(_convert_rows(read_located_rows(args.data, refused), refused, forms, convert=None))
    if not stats.rows and not refused:
        raise ConfigError([Problem("data", f"{args.data} has no rows", "check that it is the right file or folder")])
    if args.json:
        figures = {**asdict(stats), "forms": dict(forms), "refused": len(refused)}
        console.print(json.dumps(figures, indent=1), soft_wrap=True)
        return 1 if refused else 0
    if forms:
        console.print(describe_forms(forms), soft_wrap=True)
    console.print(render_table(console, ("", "count"), table_rows(stats)))
    for line in ("characters of a row, up to", *render_histogram(stats.lengths)):
        console.print(line, soft_wrap=True)
    return _report_refused(console, refused)


def _run_convert(argv: Sequence[str], console: Console) -> int:
    layouts = ("rows", "messages", "code", "maths", "hammer", "nexus-raven", "seal-tools")
    parser = _build_parser("convert", "Write rows in another form.", output_help="a .jsonl or .parquet file")
    parser.add(
        "--layout",
        choices=layouts,
        default="rows",
        metavar="LAYOUT",
        help=f"what the file is: {', '.join(layouts)} (rows: taken as they are; messages: every form of conversations "
        "and preferences, written as OpenAI messages)",
    )
    parser.add("--tools", type=Path, metavar="FILE", help="the tools of seal-tools, the functions of nexus-raven")
    parser.add("--non_commercial", action="store_true", help="your word that you may use a set with such a license")
    args = _parse_arguments(parser, argv)
    from evolvent.curate.shards import write_rows

    refused: list[str] = []
    forms: Counter[str] = Counter()
    count, digest = write_rows(args.output_path, _read_layout(args, refused, forms))
    changes = [f"read as {args.layout}"]
    _write_card(args, changes=changes, digest=digest, settings={"layout": args.layout})
    if forms:
        console.print(describe_forms(forms), soft_wrap=True)
    console.print(show_hidden(f"{count} rows in {args.output_path}"), soft_wrap=True)
    return _report_refused(console, refused)


def _read_layout(args: argparse.Namespace, refused: list[str], forms: Counter[str]) -> Rows:
    if args.layout in ("rows", "messages"):
        from evolvent.curate.origins import read_located_rows

        rows = read_located_rows(args.data, refused)
        return _convert_rows(rows, refused, forms, convert=standardize_row if args.layout == "messages" else None)
    if args.layout in ("code", "maths"):
        return _read_problems(args, refused)
    from evolvent.curate.irrelevance import sample_to_row
    from evolvent.errors import AccessDenied
    from evolvent.worlds.calls.layouts import read_hammer, read_nexus_raven, read_seal_tools

    if args.layout != "hammer" and args.tools is None:
        raise ConfigError([Problem("--tools", f"layout {args.layout} needs a file of tools", "set --tools FILE")])
    if args.layout == "nexus-raven" and not args.non_commercial:
        raise AccessDenied(
            "the license of nexus-raven is CC-BY-NC-4.0",
            value="no consent",
            expected="confirmation that your use is non-commercial",
            hint="pass --non_commercial",
        )
    samples, problems = (
        read_hammer(args.data)
        if args.layout == "hammer"
        else read_seal_tools(args.data, args.tools)
        if args.layout == "seal-tools"
        else read_nexus_raven(args.data, args.tools)
    )
    refused += [str(problem) for problem in problems]
    return map(sample_to_row, samples)


def _convert_rows(
    rows: Iterable[tuple[str, JsonObject]],
    refused: list[str],
    forms: Counter[str],
    *,
    convert: Callable[[JsonObject], JsonObject] | None,
) -> Rows:
    for location, row in rows:
        forms[detect_form(row) or UNKNOWN_FORM] += 1
        try:
            yield row if convert is None else convert(row)
        except SampleInvalid as error:
            refused.append(f"{location}: {error}")


def _read_problems(args: argparse.Namespace, refused: list[str]) -> Rows:
    """Yields problems with their solutions as prompts and completions: HumanEval, MBPP and APPS, or MATH."""
    from evolvent.worlds.code.rows import read_code
    from evolvent.worlds.reasoning.mathsfiles import read_maths

    if args.layout == "maths":
        rows, problems = read_maths(args.data)
        refused += map(str, problems)
        refused += [f"{problem_row.where}: no solution" for problem_row in rows if not problem_row.solution]
        return (
            {
                "id": f"{problem_row.file}:{problem_row.index}",
                "prompt": problem_row.problem,
                "completion": problem_row.solution,
                "answer": problem_row.answer,
                "subject": problem_row.subject,
                "level": problem_row.level,
            }
            for problem_row in rows
            if problem_row.solution
        )
    programs, problems = read_code(args.data)
    refused += map(str, problems)
    refused += [f"{problem_row.where}: no solution" for problem_row in programs if not problem_row.solution]
    return (
        {
            "id": problem_row.name,
            "prompt": problem_row.text,
            "completion": problem_row.solution,
            "about": problem_row.about,
            "layout": problem_row.layout,
        }
        for problem_row in programs
        if problem_row.solution
    )


def _run_mask(argv: Sequence[str], console: Console) -> int:
    parser = _build_parser(
        "mask", "Mask function-calling samples: {id, query, tools, answers}.", output_help="a .jsonl or .parquet file"
    )
    parser.add("--ratio", type=float, default=2 / 3, help="share of samples that are masked (2/3)")
    parser.add("--style", default="random", choices=("random", "published", "snake", "camel"), help="how names look")
    parser.add("--defaults", default="whole_token", choices=("off", "whole_token"), help="whether defaults change")
    parser.add("--scrub", default="names", choices=("off", "names", "every"), help="old names in descriptions")
    parser.add("--seed", type=parse_count, default=0, help="all randomness derives from it")
    parser.add("--epoch", type=parse_count, default=0, help="another epoch draws other names")
    parser.add("--workers", type=parse_count, default=1, help="processes")
    parser.add("--cache", type=Path, default=Path("runs/data-cache"), help="where finished shards are kept")
    args = _parse_arguments(parser, argv)
    from evolvent.curate.masking import MaskSpec
    from evolvent.curate.shards import list_shards
    from evolvent.curate.stages import transform
    from evolvent.curate.transforms import Masking

    stage = Masking(
        MaskSpec(ratio=args.ratio, style=args.style, defaults=args.defaults, scrub=args.scrub),
        args.seed,
        args.epoch,
    )
    summary = transform(
        list_shards(args.data), [stage], args.output_path, cache=args.cache, workers=max(args.workers, 1)
    )
    _write_card(args, changes=["functions and parameters masked"], digest=summary.sha256, settings=stage.parameters())
    console.print(
        show_hidden(
            f"{summary.rows} of {summary.read} rows in {args.output_path}; {summary.reused} of {summary.shards} shards "
            f"were there already"
        ),
        soft_wrap=True,
    )
    for line in summary.messages[:_MAX_MESSAGES]:
        console.print(show_hidden(clip(line, 300)), soft_wrap=True)
    num_refused = sum(summary.refused.values())
    if num_refused:
        console.print(f"rows left out: {num_refused}", soft_wrap=True)
    return 1 if num_refused else 0


def _run_irrelevance(argv: Sequence[str], console: Console) -> int:
    parser = _build_parser(
        "irrelevance", "Add requests that no tool answers, and write a data set.", output_help="a folder"
    )
    parser.add("--share", type=float, default=1 / 9, help="of such requests among all (1/9)")
    parser.add("--only", action="store_true", help="write the added requests alone")
    parser.add("--seed", type=parse_count, default=0, help="all randomness derives from it")
    args = _parse_arguments(parser, argv)
    from evolvent.curate.irrelevance import mix_irrelevant, write_irrelevance

    refused: list[str] = []
    mixture = mix_irrelevant(list(_read_samples(args.data, refused)), args.share, seed=args.seed)
    samples = mixture.copies if args.only else mixture.samples
    write_irrelevance(args.output_path, samples, licence=args.license, source=args.data.name, report=mixture)
    console.print(
        show_hidden(
            f"{len(samples)} samples in {args.output_path}, {mixture.num_copies} of {mixture.num_requested} added "
            "requests"
        ),
        soft_wrap=True,
    )
    for reason, count in sorted(mixture.left_out.items()):
        console.print(show_hidden(f"{count} samples have none: {reason.replace('_', ' ')}"), soft_wrap=True)
    return _report_refused(console, refused)


def _run_dedup(argv: Sequence[str], console: Console) -> int:
    parser = _build_parser(
        "dedup", "Drop near-duplicates (MinHash, then the exact similarity).", output_help="a .jsonl or .parquet file"
    )
    parser.add("--threshold", type=float, default=0.7, help="Jaccard similarity from which a row is dropped (0.7)")
    parser.add("--field", action="append", default=[], help="a field that is compared, more than once; none: all texts")
    parser.add("--run", type=parse_count, default=5, help="tokens of a run (5)")
    args = _parse_arguments(parser, argv, ".dropped.jsonl")
    from evolvent.curate.duplicates import find_near_duplicates
    from evolvent.curate.origins import read_source
    from evolvent.curate.shards import write_rows
    from evolvent.files import plain_json

    refused: list[str] = []
    rows = list(read_source(args.data, refused))
    texts = {f"{row_index:012d}": _comparison_text(row, args.field) for row_index, row in enumerate(rows)}
    deduplicated = find_near_duplicates(texts, threshold=args.threshold, run=args.run)
    _, digest = write_rows(args.output_path, (rows[int(name)] for name in deduplicated.kept_ids))
    dropped_rows = (
        {"row": int(duplicate.id), "of": int(duplicate.kept_id), "similarity": round(duplicate.similarity, 4)}
        for duplicate in deduplicated.dropped
    )
    write_rows(args.output_path.with_name(f"{args.output_path.stem}.dropped.jsonl"), dropped_rows)
    settings = {"threshold": args.threshold, "run": args.run, "fields": args.field}
    changes = [f"near-duplicates dropped: {len(deduplicated.dropped)} of {len(rows)} rows"]
    _write_card(args, changes=changes, digest=digest, settings=settings)
    console.print(
        show_hidden(f"{len(deduplicated.kept_ids)} of {len(rows)} rows in {args.output_path}; {plain_json(settings)}"),
        soft_wrap=True,
    )
    return _report_refused(console, refused)


def _comparison_text(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    selected_fields = {name: row[name] for name in fields if name in row} if fields else row
    return "\n".join(str(value) for value in selected_fields.values() if value is not None)
