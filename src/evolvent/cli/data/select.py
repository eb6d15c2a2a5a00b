"""`evolvent data select`: chooses the rows worth learning from by any selector, and writes a card about the choice."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from evolvent.cli.terminal.parsing import Parser, add_model_options, parse_count, read_placement
from evolvent.errors import ConfigError, Problem
from evolvent.models.placement import Placement
from evolvent.view.escape import clip, show_hidden

if TYPE_CHECKING:
    from evolvent.curate.select import Selection
    from evolvent.curate.subset import DatasetMeasurements, Measure
    from evolvent.models.policy import Policy

__all__ = ["run"]

_SELECTORS = (
    "dpp",
    "random",
    "top",
    "ifd",
    "rho",
    "d2",
    "facility",
    "k_centre",
)  # curate.subset.SELECTORS, not imported yet
_RANKING_QUALITIES = {"top": "difficulty", "ifd": "ifd", "rho": "reducible"}  # selectors that need a quality, and which
_FEATURELESS_SELECTORS = ("random", "top", "ifd", "rho")  # selectors that look at no features
_POLICY_QUALITIES = ("easiness", "difficulty", "ifd", "reducible")  # qualities that a policy is asked for
_FIELD_PREFIX = "field:"
_MAX_MESSAGES = 5


def run(argv: Sequence[str], console: Console) -> int:
    """Chooses rows and writes them; returns the exit code: 1 where rows could not be used."""
    args = _parse_arguments(argv)
    from evolvent.curate.card import write_card
    from evolvent.curate.origins import read_source
    from evolvent.curate.shards import write_rows
    from evolvent.curate.subset import iterate_selected, measure_rows, select_rows

    refused: list[str] = []
    measure = _build_measure(args)
    measurements = measure_rows(
        read_source(args.data, refused),
        measure,
        cache=args.cache,
        block=args.block,
        progress=_make_progress(console, args.block),
    )
    count = args.k if args.k is not None else max(1, round(args.share * len(measurements.row_indices)))
    selection = select_rows(measurements, count, selector=args.by, seed=args.seed, cells=args.cells)
    num_written, digest = write_rows(
        args.output_path, iterate_selected(read_source(args.data, []), measurements, selection)
    )
    choice_path = _choice_path(args.output_path)
    _, choice_digest = write_rows(choice_path, iterate_selected((), measurements, selection, output="choice"))
    settings = {
        **measure.settings(),
        "by": args.by,
        "k": count,
        "seed": args.seed,
        "cells": args.cells,
        "rows_sha256": measurements.digest,
    }
    changes = [
        _describe_selection(args, measurements, selection),
        _describe_unselected(measurements, selection, refused),
        f"in which order, for what, and who was left out: {choice_path.name}, SHA-256 {choice_digest}",
    ]
    write_card(
        args.output_path, licence=args.license, source=args.data.name, stages=changes, digest=digest, settings=settings
    )
    console.print(
        show_hidden(
            f"{num_written} of {len(measurements.digests)} rows in {args.output_path}, chosen by {args.by}; "
            f"{measurements.reused} of {measurements.blocks} blocks were there already"
        ),
        soft_wrap=True,
    )
    for line in [*refused, *(f"row {row_index}: {reason}" for row_index, reason in measurements.refused.items())][
        :_MAX_MESSAGES
    ]:
        console.print(show_hidden(clip(line, 300)), soft_wrap=True)
    num_unusable = len(refused) + len(measurements.refused)
    if num_unusable:
        console.print(f"rows that could not be used: {num_unusable}", soft_wrap=True)
    return 1 if num_unusable else 0


def _choice_path(output_path: Path) -> Path:
    """Returns the path of the file that records the decision about every row."""
    return output_path.with_name(f"{output_path.stem}.choice.jsonl")


def _describe_selection(args: argparse.Namespace, measurements: DatasetMeasurements, selection: Selection) -> str:
    """Describes the selection for the card."""
    stop_text = {"k": "", "empty": ", which are all", "rank": "; what is left adds nothing to them"}[selection.stopped]
    return (
        f"{len(selection.indices)} of {len(measurements.row_indices)} rows chosen by {args.by}, "
        f"features: {args.features}, "
        f"quality: {args.quality}{stop_text}"
    )


def _describe_unselected(measurements: DatasetMeasurements, selection: Selection, refused: Sequence[str]) -> str:
    """Describes the rows that were left out, for the card."""
    reasons = Counter(reason.partition(" (")[0].partition(":")[0][:80] for reason in measurements.refused.values())
    parts = [f"{len(measurements.row_indices) - len(selection.indices)} not chosen"]
    parts += [f"{count} not used, {reason}" for reason, count in sorted(reasons.items())]
    return "left out: " + "; ".join(parts + ([f"{len(refused)} no rows"] if refused else []))


def _make_progress(console: Console, block: int) -> Callable[[int], None]:
    def print_progress(num_measured: int) -> None:
        if num_measured % (40 * block) == 0:
            console.print(f"{num_measured:,} rows measured", soft_wrap=True)

    return print_progress


# ---------------------------------------------------------------------------------------------------- the settings


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("evolvent data select", "Choose rows of a data set, and write them with a card.")
    parser.add("data", type=Path, help="a file of rows, a folder of such, a saved data set, a run or a store")
    parser.add("--to", dest="output_path", type=Path, required=True, metavar="PATH", help="a .jsonl or .parquet file")
    parser.add("--k", type=parse_count, help="how many rows")
    parser.add("--share", type=float, help="or which share of those that can be used")
    parser.add("--by", default="dpp", choices=_SELECTORS, help="the selector (dpp: greedy MAP of a determinant)")
    parser.add(
        "--features", choices=("text", "policy"), help="hashed runs of words, or a policy's hidden states (text)"
    )
    parser.add(
        "--quality",
        default="",
        metavar="Q",
        help="easiness, difficulty, ifd or reducible of a --policy, field:NAME, or none",
    )
    parser.add("--policy", default="", help="who judges rows: a model, or a run")
    add_model_options(parser)
    parser.add("--reference", default="", help="for reducible: a policy trained on held-out data")
    parser.add("--lines", action="store_true", help="easiness and difficulty line by line (P3's steps)")
    parser.add("--truncate", action="store_true", help="cut rows longer than the context; else they are left out")
    parser.add("--field", action="append", default=[], help="a field whose text counts, more than once; none: all")
    parser.add("--width", type=parse_count, default=512, help="columns that n-grams are hashed into, 8 or more (512)")
    parser.add("--cells", type=parse_count, default=1, help="dpp: k-means cells that choose among their own (1)")
    parser.add("--seed", type=parse_count, default=0, help="all randomness derives from it")
    parser.add("--block", type=parse_count, default=256, help="rows that are measured, and kept, at a time (256)")
    parser.add(
        "--license",
        "--licence",
        dest="license",
        default="unknown",
        help="of what is written, by its SPDX name, for the card",
    )
    parser.add("--cache", type=Path, default=Path("runs/data-cache"), help="where measured blocks are kept")
    args = parser.parse_argv(argv)
    args.quality = args.quality or _RANKING_QUALITIES.get(args.by, "none")
    args.features = "none" if args.by in _FEATURELESS_SELECTORS else args.features or "text"
    problems = list(_find_problems(args))
    if problems:
        raise ConfigError(problems)
    return args


def _find_problems(args: argparse.Namespace) -> list[Problem]:
    from evolvent.curate.origins import check_outputs

    problems = []
    if (args.k is None) == (args.share is None):
        problems.append(Problem("--k", "set exactly one of --k N and --share X", "pass one of them"))
    if args.k == 0 or not (args.share is None or 0 < args.share <= 1):
        problems.append(
            Problem(
                "--k" if args.k == 0 else "--share",
                "selects nothing",
                "set --k to 1 or more, or --share above 0 and at most 1",
            )
        )
    field_name = args.quality.removeprefix(_FIELD_PREFIX) if args.quality.startswith(_FIELD_PREFIX) else ""
    if args.quality not in ("none", *_POLICY_QUALITIES) and not field_name:
        problems.append(
            Problem("--quality", f"unknown quality {args.quality!r}", f"{', '.join(_POLICY_QUALITIES)}, field:NAME")
        )
    if args.by in _RANKING_QUALITIES and args.quality == "none":
        problems.append(Problem("--quality", f"{args.by} needs a quality to rank rows by", "set --quality"))
    if args.quality in _POLICY_QUALITIES and not args.policy:
        problems.append(
            Problem(
                "--policy",
                f"{args.quality} needs a policy",
                "set --policy FOLDER, or --quality field:NAME",
            )
        )
    if args.features == "policy" and not args.policy:
        problems.append(Problem("--policy", "hidden states need a policy", "set --policy FOLDER, or --features text"))
    if args.quality == "reducible" and not args.reference:
        problems.append(Problem("--reference", "a reducible loss needs a reference model", "set --reference FOLDER"))
    if args.cells > 1 and args.by != "dpp":
        problems.append(Problem("--cells", f"{args.by} does not use cells", "leave it out, or set --by dpp"))
    if args.output_path.suffix not in (".jsonl", ".parquet"):
        problems.append(
            Problem("--to", f"{args.output_path.name} is not a row file", "use a name that ends in .jsonl or .parquet")
        )
    if not args.data.exists():
        problems.append(Problem("data", f"{args.data} does not exist", "pass rows, a run or a store"))
    problems += check_outputs(args.data, args.output_path, _choice_path(args.output_path))[:1]
    for name, minimum in (("width", 8), ("block", 1), ("cells", 1)):
        if getattr(args, name) < minimum:
            problems.append(Problem(f"--{name}", f"got {getattr(args, name)}", f"expected {minimum} or more"))
    return problems


def _build_measure(args: argparse.Namespace) -> Measure:
    from evolvent.curate.subset import TextMeasure

    needs_policy = args.quality in _POLICY_QUALITIES
    width = args.width if args.features == "text" else 0
    column = args.quality.removeprefix(_FIELD_PREFIX) if args.quality.startswith(_FIELD_PREFIX) else ""
    text = TextMeasure(tuple(args.field), width, column)
    if not needs_policy and args.features != "policy":
        return text
    from evolvent.curate.judged import PolicyMeasure

    placement = read_placement(args)
    policy, name = _load_judge(args.policy, placement)
    reference = _load_judge(args.reference, placement) if args.reference else None
    return PolicyMeasure(
        policy,
        name,
        features=args.features,
        quality=args.quality if needs_policy else "none",
        lines=args.lines,
        truncate=args.truncate,
        text=text,
        reference=reference,
    )


def _load_judge(name: str, placement: Placement) -> tuple[Policy, str]:
    """Loads a trained policy; returns it with its digest."""
    from evolvent.cli.setup.registry import POLICIES, require_train_extra, resolve_model_folder

    require_train_extra("evolvent data select --policy")
    from evolvent.models.policy import load_policy
    from evolvent.scale.local_backend import LocalBackend

    if name in POLICIES:
        raise ConfigError(
            [
                Problem(
                    "--policy",
                    f"{name!r} is an untrained model and cannot rate rows",
                    "pass a model folder or a run",
                )
            ]
        )
    policy = load_policy(
        resolve_model_folder(name), context=placement.context, device=placement.device, dtype=placement.dtype
    )
    return policy, LocalBackend({}).origin(policy)
