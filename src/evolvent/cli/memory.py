"""`evolvent memory`: what others thought, saw and did at a like moment, kept in a folder and asked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from evolvent.cli.console import table
from evolvent.cli.extensions import encoder
from evolvent.cli.parsing import Parser, choose, verbs_help, whole
from evolvent.errors import ConfigError, EvolventError, Problem
from evolvent.view.escape import clip, plain

if TYPE_CHECKING:
    from evolvent.memory.encoders import Encoder
    from evolvent.memory.records import Demonstration
    from evolvent.trajectory import Trajectory

__all__ = ["run"]

_ABOUT = {
    "build": "make a memory of recorded episodes, or add some to one",
    "query": "the remembered steps that are nearest to a text",
}
_TOLD, _SHOWN = 5, 160


def run(words: Sequence[str], console: Console) -> int:
    """Run one of the verbs about memories; returns the exit code: 1 where episodes were refused."""
    verbs: Mapping[str, Callable[[Sequence[str], Console], int]] = {"build": _build, "query": _query}
    if words and words[0] in ("-h", "--help"):
        console.print(verbs_help("evolvent memory", _ABOUT), soft_wrap=True)
        return 0
    verb, rest = choose("evolvent memory", words, verbs)
    return verbs[verb](rest, console)


def _add_encoder(parser: Parser) -> None:
    parser.add(
        "--encoder",
        default="",
        metavar="FOLDER",
        help="a model of sentence-transformers, or an encoder's name; none: hashed n-grams",
    )


def _encoder(found: argparse.Namespace) -> Encoder | None:
    return encoder(found.encoder) if found.encoder else None


# ---------------------------------------------------------------------------------------------------- building


def _build(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent memory build", "Make a memory of episodes; a folder that holds one gets more.")
    parser.add("data", type=Path, help="a run, a .jsonl file of trajectories, or TRAD's folder or zip")
    parser.add("--to", type=Path, required=True, metavar="FOLDER", help="the folder of the memory")
    parser.add("--layout", choices=("trajectories", "trad"), default="trajectories", help="what the data is")
    parser.add(
        "--key",
        action="append",
        default=[],
        metavar="FIELD[/PART]",
        help="what steps are found by, more than once: thought, observation or metadata; the part is full, "
        "last_paragraph or after:MARKER (thought)",
    )
    parser.add(
        "--kind_words",
        type=whole,
        default=0,
        metavar="N",
        help="of a task's kind so many words are its type, for filters; 0: all",
    )
    parser.add("--every", action="store_true", help="failed episodes too; else those known as failed are left out")
    parser.add("--index", choices=("flat", "usearch"), default="flat", help="exact, or a graph for large memories")
    _add_encoder(parser)
    found = parser.read(words)
    from evolvent.memory.steps import Key, StepMemory

    refused: list[str] = []
    if (found.to / "memory.json").is_file():
        if found.key or found.index != "flat":
            raise ConfigError([Problem("--key, --index", f"{found.to} holds a memory already", "they are its own")])
        memory = StepMemory.load(found.to, _encoder(found))
    else:
        keys = [Key.of_name(name) for name in found.key] or [Key()]
        memory = StepMemory(_encoder(found), keys, index=found.index)
    added = memory.add(_episodes(found, refused))
    memory.save(found.to)
    new = f"{added.episodes} episodes, {added.steps} steps added to {found.to}; {added.known} were known"
    console.print(plain(new), soft_wrap=True)
    for name, count in added.skipped.items():
        if count:
            console.print(plain(f"{count} steps have no text for the key {name}"), soft_wrap=True)
    told = [f"encoder {memory.encoder.id}", f"{len(memory)} steps", f"digest {memory.digest}"]
    console.print(plain(", ".join(told)), soft_wrap=True)
    for line in refused[:_TOLD]:
        console.print(plain(clip(line, 300)), soft_wrap=True)
    if refused:
        console.print(f"episodes left out: {len(refused)}", soft_wrap=True)
    return 1 if refused else 0


def _episodes(found: argparse.Namespace, refused: list[str]) -> Iterable[Demonstration]:
    from evolvent.cli.runs import store_folder
    from evolvent.memory.loaders import read_trad
    from evolvent.memory.records import demonstration
    from evolvent.store.exchange import read_jsonl
    from evolvent.store.store import Store

    if found.layout == "trad":
        imported = read_trad(found.data)
        refused += [str(error) for error in imported.invalid]
        handed: Iterable[Trajectory] = imported.trajectories
    elif found.data.is_dir():
        handed = Store.open(store_folder(found.data)).trajectories()
    else:
        handed = read_jsonl(found.data)
    for one in handed:
        if one.error is not None or (one.success is False and not found.every):
            continue
        kind = " ".join(one.task.kind.split()[: found.kind_words or None])
        try:
            yield demonstration(one, kind=kind)
        except EvolventError as error:
            refused.append(str(error))


# ---------------------------------------------------------------------------------------------------- asking


def _query(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent memory query", "The remembered steps nearest to a text, best first.")
    parser.add("memory", type=Path, help="the folder of a memory")
    parser.add("text", help="what is looked for")
    parser.add("--k", type=whole, default=3, help="how many (3)")
    parser.add("--by", default="", metavar="FIELD[/PART]", help="one of the memory's keys; none: its first")
    parser.add("--kind", action="append", default=[], help="only tasks of this type; more than once")
    parser.add("--repeat", action="store_true", help="more than one step of an episode")
    parser.add("--json", action="store_true", help="print JSON lines instead of the table")
    _add_encoder(parser)
    found = parser.read(words)
    from evolvent.memory.steps import Key, StepMemory

    memory = StepMemory.load(found.memory, _encoder(found))
    (hits,) = memory.query(
        [found.text],
        found.k,
        by=Key.of_name(found.by) if found.by else None,
        where={"kind": found.kind} if found.kind else None,
        distinct=not found.repeat,
    )
    if found.json:
        for hit in hits:
            console.print(json.dumps({"score": hit.score, **asdict(hit.record)}), soft_wrap=True, markup=False)
        return 0
    rows = [
        (
            f"{hit.score:.3f}",
            f"{hit.record.trajectory_id} {hit.record.step}",
            clip(hit.record.action, _SHOWN),
            clip(" / ".join(hit.record.key.split("\n")), _SHOWN),
        )
        for hit in hits
    ]
    console.print(table(console, ("cosine", "step", "action", "found by"), rows, numbers=("cosine",)))
    return 0
