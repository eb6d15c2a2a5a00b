"""`evolvent data comment`: a model writes comments for rows of code; the code itself stays unchanged.

The model is asked about a whole shard of rows at once. A finished shard is cached under a fingerprint of its
bytes, the model and all settings, so a stopped run resumes at its unfinished shard. A shard in which the model
failed to answer (for example because an endpoint went away) is written but not cached: the next run asks again.
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

from evolvent.cli.terminal.parsing import Parser, add_model_options, parse_count, read_placement
from evolvent.engine.servers import ServerDialect, endpoint_type
from evolvent.errors import ConfigError, NothingToLearn, Problem, SampleInvalid, unknown_name_problem
from evolvent.view.escape import clip, show_hidden

if TYPE_CHECKING:
    from evolvent.agents.base import Agent
    from evolvent.curate.commenting import CommentResult, Source
    from evolvent.curate.kept import ShardResult, ShardSummary
    from evolvent.curate.notes import CommentLimits
    from evolvent.curate.shards import Row, Shard
    from evolvent.engine.asks import Engine

__all__ = ["OUTCOME", "run"]

OUTCOME = "comment_outcome"
"""The field of a written row that says what became of its code (`curate.commenting.Outcome`, or "no_code")."""
FORMAT = 1  # goes up whenever equal settings give other rows
_MAX_MESSAGES = 5
_KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True)
class _CommentWriter:
    """An agent with its engine, its name, and all settings that its answers depend on."""

    agent: Agent
    engine: Engine | None
    name: str
    settings: Mapping[str, Any]


def run(argv: Sequence[str], console: Console) -> int:
    """Writes comments for rows of code; returns the exit code: 1 where rows were refused or the model gave no
    answer.
    """
    args = _parse_arguments(argv)
    from evolvent.curate.card import write_card
    from evolvent.curate.kept import read_rows
    from evolvent.curate.notes import CommentLimits
    from evolvent.curate.shards import list_shards, write_rows

    limits = CommentLimits(density=(args.density, 1.0), aligned=args.aligned) if args.filter else None
    shards = list_shards(args.data, rows=args.shard_rows)
    counts: Counter[str] = Counter()
    messages: list[str] = []
    files: list[Path] = []
    with _open_writer(args) as writer:
        settings = {**writer.settings, "filter": args.filter, "density": args.density, "aligned": args.aligned}
        for number, shard in enumerate(shards, 1):
            file, summary = _comment_shard(shard, writer, args, settings=settings, limits=limits)
            files.append(file)
            counts.update(summary.counts)
            messages += summary.messages
            if len(shards) > 1:
                console.print(
                    show_hidden(f"shard {number} of {len(shards)}: {_format_counts(summary.counts)}"), soft_wrap=True
                )
    if not any(file.stat().st_size for file in files):
        raise NothingToLearn("no row is left", value=_format_counts(counts), expected="rows that pass the filters")
    num_rows, digest = write_rows(args.output_path, read_rows(files))
    changes = [f"comments written by {writer.name}: {_format_counts(counts)}", *(["filtered"] if args.filter else [])]
    write_card(
        args.output_path, licence=args.license, source=args.data.name, stages=changes, digest=digest, settings=settings
    )
    console.print(show_hidden(f"{num_rows} rows in {args.output_path}: {_format_counts(counts)}"), soft_wrap=True)
    for line in messages[:_MAX_MESSAGES]:
        console.print(show_hidden(clip(line, 300)), soft_wrap=True)
    return 1 if counts["refused"] or counts["failed"] else 0


def _parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser("evolvent data comment", "Let a model comment rows of code; proved: the code stays what it was.")
    parser.add("data", type=Path, help="a .jsonl, .json, .parquet or .arrow file, or a folder of such")
    parser.add("--to", dest="output_path", type=Path, required=True, metavar="PATH", help="a .jsonl or .parquet file")
    parser.add("--policy", default="", help="who writes: a model, or a run (its last policy)")
    parser.add("--endpoint", default="", metavar="URL", help="or a model behind one: http://127.0.0.1:8000/v1, say")
    parser.add("--model", default="", help="the model to ask there")
    parser.add("--dialect", default="openai", help="what it speaks: openai, vllm, sglang (openai)")
    parser.add(
        "--key_env", default=_KEY_VARIABLE, help=f"the environment variable that holds its key ({_KEY_VARIABLE})"
    )
    parser.add("--temperature", type=float, default=0.0, help="of the model (0: the likeliest token)")
    parser.add("--max_tokens", type=parse_count, default=1024, help="longest answer (1024)")
    parser.add("--seed", type=parse_count, default=0, help="all randomness derives from it")
    parser.add("--slots", type=parse_count, default=64, help="sources that are worked on at once (64)")
    add_model_options(parser)
    parser.add("--filter", action="store_true", help="leave out what the model skips and what rules find faulty")
    parser.add("--density", type=float, default=0.0, help="with --filter: smallest comment density (0)")
    parser.add("--aligned", type=float, default=0.0, help="with --filter: smallest share of notes on code near (0)")
    parser.add("--shard_rows", type=parse_count, default=200, help="rows of a shard (200)")
    parser.add(
        "--license",
        "--licence",
        dest="license",
        default="unknown",
        help="of what is written, by its SPDX name, for the card",
    )
    parser.add("--cache", type=Path, default=Path("runs/data-cache"), help="where finished shards are kept")
    args = parser.parse_argv(argv)
    from evolvent.curate.origins import check_outputs

    problems = []
    if bool(args.policy) == bool(args.endpoint):
        problems.append(
            Problem(
                "--policy",
                "expected exactly one model, got " + ("two" if args.policy else "none"),
                "give --policy P, or --endpoint URL --model NAME",
            )
        )
    if args.dialect not in get_args(ServerDialect):
        problems.append(unknown_name_problem("dialect", args.dialect, get_args(ServerDialect), location="--dialect"))
    if args.endpoint and not args.model:
        problems.append(Problem("--model", "the endpoint needs a model name", "set --model NAME"))
    if args.output_path.suffix not in (".jsonl", ".parquet"):
        problems.append(
            Problem("--to", f"{args.output_path.name} is not a row file", "use a name that ends in .jsonl or .parquet")
        )
    if (args.density or args.aligned) and not args.filter:
        problems.append(Problem("--filter", "--density and --aligned need it", "pass --filter as well"))
    for name in ("max_tokens", "slots", "shard_rows"):
        if not getattr(args, name):
            problems.append(Problem(f"--{name}", "got 0, expected 1 or more"))
    problems += check_outputs(args.data, args.output_path)
    if problems:
        raise ConfigError(problems)
    return args


# ------------------------------------------------------------------------------------------------------- who writes


@contextmanager
def _open_writer(args: argparse.Namespace) -> Iterator[_CommentWriter]:
    from evolvent.engine.asks import Sampling

    sampling = Sampling(temperature=args.temperature)
    settings = {"temperature": args.temperature, "max_tokens": args.max_tokens, "seed": args.seed}
    if args.policy:
        yield _policy_writer(args, sampling, settings)
        return
    from pydantic import SecretStr

    from evolvent.agents.chat import ChatAgent

    key = os.environ.get(args.key_env)
    secret = SecretStr(key) if key else None
    with endpoint_type(args.dialect)(args.endpoint, args.model, key=secret) as endpoint:
        endpoint.check()
        agent = ChatAgent(endpoint, sampling, max_tokens=args.max_tokens, hint="")
        yield _CommentWriter(agent, None, args.model, {**settings, "endpoint": endpoint.base_url, "model": args.model})


def _policy_writer(args: argparse.Namespace, sampling: Any, settings: Mapping[str, Any]) -> _CommentWriter:
    from evolvent.cli.setup.registry import require_train_extra, resolve_policy

    require_train_extra("evolvent data comment --policy")
    from evolvent.agents.language import LanguageAgent
    from evolvent.curate.commenting import Commenting
    from evolvent.engine.fitting import engine_for
    from evolvent.scale.local_backend import LocalBackend

    loaded_policy = resolve_policy(args.policy, [Commenting()], seed=args.seed, placement=read_placement(args))
    agent = LanguageAgent(loaded_policy, sampling, max_tokens=args.max_tokens)
    policy_settings = {**settings, "policy": LocalBackend({}).origin(loaded_policy)}
    return _CommentWriter(agent, engine_for(loaded_policy, slots=args.slots), Path(args.policy).name, policy_settings)


# ----------------------------------------------------------------------------------------------------------- a shard


def _comment_shard(
    shard: Shard,
    writer: _CommentWriter,
    args: argparse.Namespace,
    *,
    settings: Mapping[str, Any],
    limits: CommentLimits | None,
) -> tuple[Path, ShardSummary]:
    """Returns the file of a shard's rows and its summary, from the cache or commented now."""
    from evolvent.curate.commenting import Commenting
    from evolvent.curate.kept import cache_path, read_summary, write_shard

    file = cache_path(args.cache, [FORMAT, Commenting.version, dict(settings), shard.digest, shard.first])
    return file, read_summary(file) or write_shard(file, _comment_rows(shard, writer, args, limits=limits))


def _comment_rows(
    shard: Shard, writer: _CommentWriter, args: argparse.Namespace, *, limits: CommentLimits | None
) -> ShardResult:
    """Writes comments for all code of a shard. Rows without code stay; unreadable rows are left out."""
    from evolvent.curate.commenting import count_outcomes, find_faults
    from evolvent.curate.kept import ShardResult
    from evolvent.curate.shards import read_shard

    rows: list[tuple[Row, Source | None]] = []
    messages: list[str] = []
    counts: Counter[str] = Counter()
    for row_index, row in read_shard(shard):
        try:
            if isinstance(row, SampleInvalid):
                raise row
            rows.append((row, _extract_source(row, str(row_index))))
        except SampleInvalid as error:
            counts["refused"] += 1
            messages.append(f"{shard.path.name}, row {row_index}: {error}")
    results_by_source = {
        comment_result.source.id: comment_result
        for comment_result in _query_model(
            [comment_result for _, comment_result in rows if comment_result is not None], writer, args
        )
    }
    counts.update(count_outcomes(results_by_source.values()))
    messages += [
        f"{shard.path.name}, row {name}: {comment_result.failure}"
        for name, comment_result in results_by_source.items()
        if comment_result.failure
    ]
    output_rows: list[Row] = []
    for row, source in rows:
        comment_result = None if source is None else results_by_source[source.id]
        counts["no_code"] += comment_result is None
        if comment_result is not None and limits is not None and (reasons := find_faults(comment_result, limits)):
            counts["filtered"] += 1
            counts.update(f"filtered, {reason}" for reason in reasons)
            continue
        output_rows.append(_build_row(row, comment_result))
    return ShardResult(output_rows, +counts, messages[:_MAX_MESSAGES], final=not counts["failed"])


def _extract_source(row: Row, name: str) -> Source | None:
    """Returns the code of a row; None where it has none, or none in a known language. Raises SampleInvalid."""
    from evolvent.curate.card import code_of_row
    from evolvent.curate.commenting import Source

    code = code_of_row(row)
    try:
        return None if code is None else Source(name, *code)
    except ConfigError:
        return None


def _query_model(sources: Sequence[Source], writer: _CommentWriter, args: argparse.Namespace) -> list[CommentResult]:
    """Returns the model's result for every source, in order; equal code is asked about once."""
    from evolvent.curate.commenting import Commenting, make_start, read_episode
    from evolvent.rollout.episode import collect

    starts = [make_start(source) for source in sources]
    world = Commenting()
    episodes = collect(
        {world.name: world},
        list(dict.fromkeys(starts)),
        writer.agent,
        engine=writer.engine,
        seed=args.seed,
        slots=args.slots,
    )
    with closing(episodes) as episode_stream:
        trajectories = {trajectory.task.id: trajectory for trajectory in episode_stream}
    return [
        read_episode(source, trajectories[start.task.id], max_tokens=args.max_tokens)
        for source, start in zip(sources, starts, strict=True)
    ]


def _build_row(row: Row, comment_result: CommentResult | None) -> Row:
    from evolvent.curate.card import CODE

    if comment_result is None:
        return {**row, OUTCOME: "no_code"}
    field = next(name for name in CODE if isinstance(row.get(name), str))
    return {**row, field: comment_result.text, OUTCOME: comment_result.outcome}


# ------------------------------------------------------------------------------------------------------ what is told


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count) or "no row"
