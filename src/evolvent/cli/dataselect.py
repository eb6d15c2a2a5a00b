"""`evolvent data select`: the rows worth learning from, by any selector, with a card that says who was left out."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from evolvent.cli.parsing import Parser, whole
from evolvent.errors import ConfigError, Problem
from evolvent.view.escape import clip, plain

if TYPE_CHECKING:
    from evolvent.curate.select import Selection
    from evolvent.curate.subset import Known, Measure
    from evolvent.models.policy import Policy

__all__ = ["run"]

_BY = ("dpp", "random", "top", "ifd", "rho", "d2", "facility", "k_centre")  # curate.subset.SELECTORS, not imported yet
_RANKED = {"top": "difficulty", "ifd": "ifd", "rho": "reducible"}  # selectors that need a quality, and which
_BLIND = ("random", "top", "ifd", "rho")  # selectors that look at no features
_ASKED = ("easiness", "difficulty", "ifd", "reducible")  # qualities that a policy is asked for
_FIELD = "field:"
_TOLD = 5


def run(words: Sequence[str], console: Console) -> int:
    """Choose rows and write them; returns the exit code: 1 where rows could not be used."""
    found = _read(words)
    from evolvent.curate.card import write_card
    from evolvent.curate.origins import read_all
    from evolvent.curate.shards import write_rows
    from evolvent.curate.subset import choose, known_of, written_rows

    refused: list[str] = []
    measure = _measure(found)
    known = known_of(
        read_all(found.data, refused),
        measure,
        cache=found.cache,
        block=found.block,
        progress=_progress(console, found.block),
    )
    count = found.k if found.k is not None else max(1, round(found.share * len(known.places)))
    chosen = choose(known, count, by=found.by, seed=found.seed, cells=found.cells)
    wrote, digest = write_rows(found.to, written_rows(read_all(found.data, []), known, chosen))
    told = _told(found.to)
    _, choice = write_rows(told, written_rows((), known, chosen, which="choice"))
    settings = {
        **measure.settings(),
        "by": found.by,
        "k": count,
        "seed": found.seed,
        "cells": found.cells,
        "rows_sha256": known.digest,
    }
    made = [
        _said(found, known, chosen),
        _left(known, chosen, refused),
        f"in which order, for what, and who was left out: {told.name}, SHA-256 {choice}",
    ]
    write_card(found.to, licence=found.licence, source=found.data.name, made=made, digest=digest, settings=settings)
    console.print(
        plain(
            f"{wrote} of {len(known.digests)} rows in {found.to}, chosen by {found.by}; "
            f"{known.reused} of {known.blocks} blocks were there already"
        ),
        soft_wrap=True,
    )
    for line in [*refused, *(f"row {at}: {why}" for at, why in known.refused.items())][:_TOLD]:
        console.print(plain(clip(line, 300)), soft_wrap=True)
    lost = len(refused) + len(known.refused)
    if lost:
        console.print(f"rows that could not be used: {lost}", soft_wrap=True)
    return 1 if lost else 0


def _told(to: Path) -> Path:
    """The file that says of every row what became of it."""
    return to.with_name(f"{to.stem}.choice.jsonl")


def _said(found: argparse.Namespace, known: Known, chosen: Selection) -> str:
    """What was chosen of what, for the card."""
    why = {"k": "", "empty": ", which are all", "rank": "; what is left adds nothing to them"}[chosen.stopped]
    return (
        f"{len(chosen.indices)} of {len(known.places)} rows chosen by {found.by}, features: {found.features}, "
        f"quality: {found.quality}{why}"
    )


def _left(known: Known, chosen: Selection, refused: Sequence[str]) -> str:
    """Who was left out, for the card."""
    reasons = Counter(why.partition(" (")[0].partition(":")[0][:80] for why in known.refused.values())
    parts = [f"{len(known.places) - len(chosen.indices)} not chosen"]
    parts += [f"{count} not used, {why}" for why, count in sorted(reasons.items())]
    return "left out: " + "; ".join(parts + ([f"{len(refused)} no rows"] if refused else []))


def _progress(console: Console, block: int) -> Callable[[int], None]:
    def told(done: int) -> None:
        if done % (40 * block) == 0:
            console.print(f"{done:,} rows measured", soft_wrap=True)

    return told


# ---------------------------------------------------------------------------------------------------- the settings


def _read(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("evolvent data select", "Choose rows of a data set, and write them with a card.")
    parser.add("data", type=Path, help="a file of rows, a folder of such, a saved data set, a run or a store")
    parser.add("--to", type=Path, required=True, metavar="PATH", help="a .jsonl or .parquet file")
    parser.add("--k", type=whole, help="how many rows")
    parser.add("--share", type=float, help="or which share of those that can be used")
    parser.add("--by", default="dpp", choices=_BY, help="the selector (dpp: greedy MAP of a determinant)")
    parser.add(
        "--features", choices=("text", "policy"), help="hashed runs of words, or a policy's hidden states (text)"
    )
    parser.add(
        "--quality",
        default="",
        metavar="Q",
        help="easiness, difficulty, ifd or reducible of a --policy, field:NAME, or none",
    )
    parser.add("--policy", default="", help="who judges rows: a model folder, or a run")
    parser.add("--reference", default="", help="for reducible: a policy trained on held-out data")
    parser.add("--lines", action="store_true", help="easiness and difficulty line by line (P3's steps)")
    parser.add("--truncate", action="store_true", help="cut rows longer than the context; else they are left out")
    parser.add("--field", action="append", default=[], help="a field whose text counts, more than once; none: all")
    parser.add("--width", type=whole, default=512, help="columns that n-grams are hashed into, 8 or more (512)")
    parser.add("--cells", type=whole, default=1, help="dpp: k-means cells that choose among their own (1)")
    parser.add("--seed", type=whole, default=0, help="all randomness derives from it")
    parser.add("--block", type=whole, default=256, help="rows that are measured, and kept, at a time (256)")
    parser.add("--licence", default="unknown", help="of what is written, by its SPDX name, for the card")
    parser.add("--cache", type=Path, default=Path("runs/data-cache"), help="where measured blocks are kept")
    found = parser.read(words)
    found.quality = found.quality or _RANKED.get(found.by, "none")
    found.features = "none" if found.by in _BLIND else found.features or "text"
    problems = list(_problems(found))
    if problems:
        raise ConfigError(problems)
    return found


def _problems(found: argparse.Namespace) -> list[Problem]:
    from evolvent.curate.origins import over_data

    wrong = []
    if (found.k is None) == (found.share is None):
        wrong.append(Problem("--k", "one says how many: --k N or --share X", "give one of them"))
    if found.k == 0 or not (found.share is None or 0 < found.share <= 1):
        wrong.append(Problem("--k" if found.k == 0 else "--share", "nothing can be chosen", "1 or more; a share to 1"))
    named = found.quality.removeprefix(_FIELD) if found.quality.startswith(_FIELD) else ""
    if found.quality not in ("none", *_ASKED) and not named:
        wrong.append(Problem("--quality", f"unknown quality {found.quality!r}", f"{', '.join(_ASKED)}, field:NAME"))
    if found.by in _RANKED and found.quality == "none":
        wrong.append(Problem("--quality", f"{found.by} ranks rows, and there is nothing to rank by", "name a quality"))
    if found.quality in _ASKED and not found.policy:
        wrong.append(
            Problem(
                "--policy",
                f"{found.quality} is what a policy says of a row, and none is named",
                "--policy FOLDER, or --quality field:NAME",
            )
        )
    if found.features == "policy" and not found.policy:
        wrong.append(Problem("--policy", "hidden states need a policy", "--policy FOLDER, or --features text"))
    if found.quality == "reducible" and not found.reference:
        wrong.append(Problem("--reference", "a reducible loss is over that of another model", "--reference FOLDER"))
    if found.cells > 1 and found.by != "dpp":
        wrong.append(Problem("--cells", f"{found.by} chooses in one piece", "leave it out, or --by dpp"))
    if found.to.suffix not in (".jsonl", ".parquet"):
        wrong.append(Problem("--to", f"{found.to.name} is no file of rows", "a name that ends in .jsonl or .parquet"))
    if not found.data.exists():
        wrong.append(Problem("data", f"there is nothing at {found.data}", "name rows, a run or a store"))
    wrong += over_data(found.data, found.to, _told(found.to))[:1]
    for name, least in (("width", 8), ("block", 1), ("cells", 1)):
        if getattr(found, name) < least:
            wrong.append(Problem(f"--{name}", f"got {getattr(found, name)}", f"{least} or more"))
    return wrong


def _measure(found: argparse.Namespace) -> Measure:
    from evolvent.curate.subset import TextMeasure

    asked = found.quality in _ASKED
    width = found.width if found.features == "text" else 0
    column = found.quality.removeprefix(_FIELD) if found.quality.startswith(_FIELD) else ""
    text = TextMeasure(tuple(found.field), width, column)
    if not asked and found.features != "policy":
        return text
    from evolvent.curate.judged import PolicyMeasure

    (policy, name), other = _policy(found.policy), _policy(found.reference) if found.reference else None
    return PolicyMeasure(
        policy,
        name,
        features=found.features,
        quality=found.quality if asked else "none",
        lines=found.lines,
        truncate=found.truncate,
        text=text,
        reference=other,
    )


def _policy(name: str) -> tuple[Policy, str]:
    """A policy that has learned something, and its digest."""
    from evolvent.cli.registry import POLICIES, model_folder, needs_train

    needs_train("evolvent data select --policy")
    from evolvent.models.policy import load_policy
    from evolvent.scale.local_backend import LocalVerbs

    if name in POLICIES:
        raise ConfigError(
            [
                Problem(
                    "--policy",
                    f"the size {name!r} is untrained and says nothing of a row",
                    "name a model folder or a run",
                )
            ]
        )
    policy = load_policy(model_folder(name))
    return policy, LocalVerbs({}).origin(policy)
