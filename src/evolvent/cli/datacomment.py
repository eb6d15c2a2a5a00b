"""`evolvent data comment`: a model writes comments for rows of code; the code stays what it was.

A model is asked about a whole shard of rows at once. A finished shard is kept under a fingerprint of its bytes, of the
model and of all settings, so that a run which was stopped goes on at the shard where it was. A shard for whose sources
the model gave no answer (an endpoint that went away, say) is written, but not kept: the next run asks again.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from rich.console import Console

from evolvent.cli.parsing import Parser, whole
from evolvent.engine.servers import ServerDialect, endpoint_type
from evolvent.errors import ConfigError, NothingToLearn, Problem, SampleInvalid, unknown
from evolvent.view.escape import clip, plain

if TYPE_CHECKING:
    from evolvent.agents.base import Agent
    from evolvent.curate.commenting import Source, Written
    from evolvent.curate.kept import Made, Summary
    from evolvent.curate.notes import Limits
    from evolvent.curate.shards import Row, Shard
    from evolvent.engine.asks import Engine

__all__ = ["OUTCOME", "run"]

OUTCOME = "comment_outcome"
"""The field of a written row that says what became of its code (`curate.commenting.Outcome`, or "no_code")."""
FORMAT = 1  # goes up whenever equal settings give other rows
_TOLD = 5
_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True)
class _Writer:
    """Who writes: an agent with its engine, what it is called, and all that its answers depend on."""

    agent: Agent
    engine: Engine | None
    name: str
    settings: Mapping[str, Any]


def run(words: Sequence[str], console: Console) -> int:
    """Comment the code of rows; returns the exit code: 1 where rows were refused or a model gave no answer."""
    found = _read(words)
    from evolvent.curate.card import write_card
    from evolvent.curate.kept import joined
    from evolvent.curate.notes import Limits
    from evolvent.curate.shards import shards_of, write_rows

    limits = Limits(density=(found.density, 1.0), aligned=found.aligned) if found.filter else None
    shards = shards_of(found.data, rows=found.shard_rows)
    counts: Counter[str] = Counter()
    told: list[str] = []
    files: list[Path] = []
    with _writing(found) as writer:
        settings = {**writer.settings, "filter": found.filter, "density": found.density, "aligned": found.aligned}
        for number, shard in enumerate(shards, 1):
            file, summary = _shard(shard, writer, found, settings=settings, limits=limits)
            files.append(file)
            counts.update(summary.counts)
            told += summary.told
            if len(shards) > 1:
                console.print(plain(f"shard {number} of {len(shards)}: {_said(summary.counts)}"), soft_wrap=True)
    if not any(file.stat().st_size for file in files):
        raise NothingToLearn("no row is left", value=_said(counts), expected="rows that pass the filters")
    kept, digest = write_rows(found.to, joined(files))
    made = [f"comments written by {writer.name}: {_said(counts)}", *(["filtered"] if found.filter else [])]
    write_card(found.to, licence=found.licence, source=found.data.name, made=made, digest=digest, settings=settings)
    console.print(plain(f"{kept} rows in {found.to}: {_said(counts)}"), soft_wrap=True)
    for line in told[:_TOLD]:
        console.print(plain(clip(line, 300)), soft_wrap=True)
    return 1 if counts["refused"] or counts["failed"] else 0


def _read(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser("evolvent data comment", "Let a model comment rows of code; proved: the code stays what it was.")
    parser.add("data", type=Path, help="a .jsonl, .json, .parquet or .arrow file, or a folder of such")
    parser.add("--to", type=Path, required=True, metavar="PATH", help="a .jsonl or .parquet file")
    parser.add("--policy", default="", help="who writes: a model folder, or a run (its last policy)")
    parser.add("--endpoint", default="", metavar="URL", help="or a model behind one: http://127.0.0.1:8000/v1, say")
    parser.add("--model", default="", help="the model to ask there")
    parser.add("--dialect", default="openai", help="what it speaks: openai, vllm, sglang (openai)")
    parser.add("--key_env", default=_KEY, help=f"the environment variable that holds its key ({_KEY})")
    parser.add("--temperature", type=float, default=0.0, help="of the model (0: the likeliest token)")
    parser.add("--max_tokens", type=whole, default=1024, help="longest answer (1024)")
    parser.add("--seed", type=whole, default=0, help="all randomness derives from it")
    parser.add("--slots", type=whole, default=64, help="sources that are worked on at once (64)")
    parser.add("--filter", action="store_true", help="leave out what the model skips and what rules find faulty")
    parser.add("--density", type=float, default=0.0, help="with --filter: smallest comment density (0)")
    parser.add("--aligned", type=float, default=0.0, help="with --filter: smallest share of notes on code near (0)")
    parser.add("--shard_rows", type=whole, default=200, help="rows of a shard (200)")
    parser.add("--licence", default="unknown", help="of what is written, by its SPDX name, for the card")
    parser.add("--cache", type=Path, default=Path("runs/data-cache"), help="where finished shards are kept")
    found = parser.read(words)
    from evolvent.curate.origins import over_data

    problems = []
    if bool(found.policy) == bool(found.endpoint):
        problems.append(
            Problem(
                "--policy",
                "one model writes, got " + ("two" if found.policy else "none"),
                "give --policy P, or --endpoint URL --model NAME",
            )
        )
    if found.dialect not in get_args(ServerDialect):
        problems.append(unknown("dialect", found.dialect, get_args(ServerDialect), where="--dialect"))
    if found.endpoint and not found.model:
        problems.append(Problem("--model", "no model is named for the endpoint", "--model NAME"))
    if found.to.suffix not in (".jsonl", ".parquet"):
        problems.append(
            Problem("--to", f"{found.to.name} is no file of rows", "a name that ends in .jsonl or .parquet")
        )
    if (found.density or found.aligned) and not found.filter:
        problems.append(Problem("--filter", "--density and --aligned belong to it", "give it as well"))
    for name in ("max_tokens", "slots", "shard_rows"):
        if not getattr(found, name):
            problems.append(Problem(f"--{name}", "got 0", "1 or more"))
    problems += over_data(found.data, found.to)
    if problems:
        raise ConfigError(problems)
    return found


# ------------------------------------------------------------------------------------------------------- who writes


@contextmanager
def _writing(found: argparse.Namespace) -> Iterator[_Writer]:
    from evolvent.engine.asks import Sampling

    sampling = Sampling(temperature=found.temperature)
    settings = {"temperature": found.temperature, "max_tokens": found.max_tokens, "seed": found.seed}
    if found.policy:
        yield _policy(found, sampling, settings)
        return
    from pydantic import SecretStr

    from evolvent.agents.chat import ChatAgent

    key = os.environ.get(found.key_env)
    secret = SecretStr(key) if key else None
    with endpoint_type(found.dialect)(found.endpoint, found.model, key=secret) as asked:
        asked.check()
        agent = ChatAgent(asked, sampling, max_tokens=found.max_tokens, hint="")
        yield _Writer(agent, None, found.model, {**settings, "endpoint": asked.base_url, "model": found.model})


def _policy(found: argparse.Namespace, sampling: Any, settings: Mapping[str, Any]) -> _Writer:
    from evolvent.cli.registry import needs_train, policy

    needs_train("evolvent data comment --policy")
    from evolvent.agents.language import LanguageAgent
    from evolvent.curate.commenting import Commenting
    from evolvent.engine.fitting import engine_for
    from evolvent.scale.local_backend import LocalVerbs

    chosen = policy(found.policy, [Commenting()], seed=found.seed)
    agent = LanguageAgent(chosen, sampling, max_tokens=found.max_tokens)
    own = {**settings, "policy": LocalVerbs({}).origin(chosen)}
    return _Writer(agent, engine_for(chosen, slots=found.slots), Path(found.policy).name, own)


# ----------------------------------------------------------------------------------------------------------- a shard


def _shard(
    shard: Shard, writer: _Writer, found: argparse.Namespace, *, settings: Mapping[str, Any], limits: Limits | None
) -> tuple[Path, Summary]:
    """The file of a shard's rows and its counts: as they are kept, or made now."""
    from evolvent.curate.commenting import Commenting
    from evolvent.curate.kept import keep, kept, place

    file = place(found.cache, [FORMAT, Commenting.version, dict(settings), shard.digest, shard.first])
    return file, kept(file) or keep(file, _made(shard, writer, found, limits=limits))


def _made(shard: Shard, writer: _Writer, found: argparse.Namespace, *, limits: Limits | None) -> Made:
    """Ask about all code of a shard, and put the notes in. Rows without code stay; what is no row is left out."""
    from evolvent.curate.commenting import against, counted
    from evolvent.curate.kept import Made
    from evolvent.curate.shards import read_shard

    rows: list[tuple[Row, Source | None]] = []
    told: list[str] = []
    counts: Counter[str] = Counter()
    for place, row in read_shard(shard):
        try:
            if isinstance(row, SampleInvalid):
                raise row
            rows.append((row, _source(row, str(place))))
        except SampleInvalid as error:
            counts["refused"] += 1
            told.append(f"{shard.path.name}, row {place}: {error}")
    every = {one.source.id: one for one in _asked([one for _, one in rows if one is not None], writer, found)}
    counts.update(counted(every.values()))
    told += [f"{shard.path.name}, row {name}: {one.why}" for name, one in every.items() if one.why]
    made: list[Row] = []
    for row, source in rows:
        one = None if source is None else every[source.id]
        counts["no_code"] += one is None
        if one is not None and limits is not None and (reasons := against(one, limits)):
            counts["filtered"] += 1
            counts.update(f"filtered, {reason}" for reason in reasons)
            continue
        made.append(_row(row, one))
    return Made(made, +counts, told[:_TOLD], final=not counts["failed"])


def _source(row: Row, name: str) -> Source | None:
    """The code of a row; None where it has none, or none in a language that is known. Raises SampleInvalid."""
    from evolvent.curate.card import code_of_row
    from evolvent.curate.commenting import Source

    code = code_of_row(row)
    try:
        return None if code is None else Source(name, *code)
    except ConfigError:
        return None


def _asked(sources: Sequence[Source], writer: _Writer, found: argparse.Namespace) -> list[Written]:
    """What the model makes of every source, in their order; equal code is asked about once."""
    from evolvent.curate.commenting import Commenting, start_of, written
    from evolvent.rollout.collect import collect

    starts = [start_of(source) for source in sources]
    world = Commenting()
    episodes = collect(
        {world.name: world},
        list(dict.fromkeys(starts)),
        writer.agent,
        engine=writer.engine,
        seed=found.seed,
        slots=found.slots,
    )
    with closing(episodes) as playing:
        played = {one.task.id: one for one in playing}
    return [
        written(source, played[start.task.id], longest=found.max_tokens)
        for source, start in zip(sources, starts, strict=True)
    ]


def _row(row: Row, one: Written | None) -> Row:
    from evolvent.curate.card import CODE

    if one is None:
        return {**row, OUTCOME: "no_code"}
    field = next(name for name in CODE if isinstance(row.get(name), str))
    return {**row, field: one.text, OUTCOME: one.outcome}


# ------------------------------------------------------------------------------------------------------ what is told


def _said(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "no row"
