"""`evolvent memory`: builds and queries a memory of the thoughts, observations and actions of recorded episodes."""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console

from evolvent.cli.setup.extensions import load_encoder
from evolvent.cli.terminal.console import render_table
from evolvent.cli.terminal.parsing import Parser, choose_verb, format_verbs_help, parse_count
from evolvent.errors import ConfigError, EvolventError, Problem, unknown_name_problem
from evolvent.files import write_atomic
from evolvent.view.escape import clip, show_hidden

if TYPE_CHECKING:
    from evolvent.memory.encoders import Encoder
    from evolvent.memory.records import Demonstration
    from evolvent.memory.steps import Key
    from evolvent.trajectory import Trajectory

__all__ = ["run"]

_VERB_HELP = {
    "build": "make a memory of recorded episodes, or add some to one",
    "explain": "let a model write the thoughts of recorded steps, in hindsight",
    "query": "the remembered steps that are nearest to a text",
}
_MAX_MESSAGES, _MAX_CELL_LENGTH = 5, 160


def run(argv: Sequence[str], console: Console) -> int:
    """Runs one of the verbs about memories; returns the exit code: 1 where episodes were refused."""
    verbs: Mapping[str, Callable[[Sequence[str], Console], int]] = {
        "build": _run_build,
        "explain": _run_explain,
        "query": _run_query,
    }
    if argv and argv[0] in ("-h", "--help"):
        console.print(format_verbs_help("evolvent memory", _VERB_HELP), soft_wrap=True)
        return 0
    verb, verb_argv = choose_verb("evolvent memory", argv, verbs)
    return verbs[verb](verb_argv, console)


def _add_encoder(parser: Parser) -> None:
    parser.add(
        "--encoder",
        default="",
        metavar="FOLDER",
        help="a model of sentence-transformers, or an encoder's name; none: hashed n-grams",
    )
    parser.add("--device", default=None, metavar="NAME", help="where the encoder runs: cpu, cuda, cuda:N or mps")


def _open_encoder(args: argparse.Namespace) -> Encoder | None:
    if args.encoder:
        return load_encoder(args.encoder, device=args.device)
    if args.device is not None:
        message = f"hashed n-grams are computed without a model; got {args.device!r}"
        raise ConfigError([Problem("device", message, "leave out --device, or name an --encoder")])
    return None


# ---------------------------------------------------------------------------------------------------- building


def _run_build(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent memory build", "Make a memory of episodes; a folder that holds one gets more.")
    parser.add("data", type=Path, help="a run, a .jsonl file of trajectories, or TRAD's folder or zip")
    parser.add("--to", dest="output_dir", type=Path, required=True, metavar="FOLDER", help="the folder of the memory")
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
        type=parse_count,
        default=0,
        metavar="N",
        help="of a task's kind so many words are its type, for filters; 0: all",
    )
    parser.add("--every", action="store_true", help="failed episodes too; else those known as failed are left out")
    parser.add("--index", choices=("flat", "usearch"), default="flat", help="exact, or a graph for large memories")
    _add_encoder(parser)
    args = parser.parse_argv(argv)
    from evolvent.memory.steps import Key, StepMemory

    encoder = _open_encoder(args)
    refused: list[str] = []
    if (args.output_dir / "memory.json").is_file():
        if args.key or args.index != "flat":
            raise ConfigError(
                [Problem("--key, --index", f"{args.output_dir} holds a memory already", "they are its own")]
            )
        memory, demonstrations = StepMemory.load(args.output_dir, encoder), None
    else:
        demonstrations = None if args.key else list(_read_demonstrations(args, refused))
        keys = [Key.from_name(name) for name in args.key] or [_choose_key(demonstrations or [], console)]
        memory = StepMemory(encoder, keys, index=args.index)
    added = memory.add(_read_demonstrations(args, refused) if demonstrations is None else demonstrations)
    memory.save(args.output_dir)
    added_text = (
        f"{added.episodes} episodes, {added.steps} steps added to {args.output_dir}; {added.num_known} were known"
    )
    console.print(show_hidden(added_text), soft_wrap=True)
    for name, count in added.skipped.items():
        if count:
            console.print(show_hidden(f"{count} steps have no text for the key {name}"), soft_wrap=True)
    summary_parts = [f"encoder {memory.encoder.id}", f"{len(memory)} steps", f"digest {memory.digest}"]
    console.print(show_hidden(", ".join(summary_parts)), soft_wrap=True)
    for line in refused[:_MAX_MESSAGES]:
        console.print(show_hidden(clip(line, 300)), soft_wrap=True)
    if refused:
        console.print(f"episodes left out: {len(refused)}", soft_wrap=True)
    return 1 if refused else 0


def _choose_key(demonstrations: Sequence[Demonstration], console: Console) -> Key:
    """Returns the key of a new memory: thoughts, or where no step has one, observations; tells the latter."""
    from evolvent.memory.steps import Key

    if not demonstrations or any(step.thought for record in demonstrations for step in record.steps):
        return Key()
    console.print("no step has a thought: steps are found by their observation", soft_wrap=True)
    return Key.from_name("observation")


def _read_demonstrations(args: argparse.Namespace, refused: list[str]) -> Iterable[Demonstration]:
    from evolvent.memory.loaders import read_trad
    from evolvent.memory.records import make_demonstration

    if args.layout == "trad":
        imported = read_trad(args.data)
        refused += [str(error) for error in imported.invalid]
        trajectories: Iterable[Trajectory] = imported.trajectories
    else:
        trajectories = _read_episodes(args.data)
    for trajectory in trajectories:
        if trajectory.error is not None or (trajectory.success is False and not args.every):
            continue
        kind = " ".join(trajectory.task.kind.split()[: args.kind_words or None])
        try:
            yield make_demonstration(trajectory, kind=kind)
        except EvolventError as error:
            refused.append(str(error))


def _read_episodes(data: Path) -> Iterable[Trajectory]:
    from evolvent.cli.runs import find_store
    from evolvent.store.exchange import read_jsonl
    from evolvent.store.store import Store

    return Store.open(find_store(data)).trajectories() if data.is_dir() else read_jsonl(data)


# ---------------------------------------------------------------------------------------------------- explaining


def _run_explain(argv: Sequence[str], console: Console) -> int:
    """Writes thoughts with a model behind an endpoint; returns 1 where an episode's could not be written."""
    args = _parse_explain(argv)
    from pydantic import SecretStr

    from evolvent.agents.writers import KeptWriter, writer_for
    from evolvent.cli.setup.registry import load_worlds
    from evolvent.engine.asks import Sampling
    from evolvent.engine.servers import endpoint_type
    from evolvent.methods.trad import label_thoughts
    from evolvent.store.store import Store

    worlds = load_worlds(args.worlds)
    prompt_settings = {"max_steps": args.steps or None, "outcome": args.outcome}
    settings = {name: getattr(args, name) for name in ("model", "temperature", "seed", "overwrite")} | prompt_settings
    _check_explained(args.output_dir, settings)
    key = os.environ.get(args.key_env)
    counts: Counter[str] = Counter()
    errors: list[str] = []
    with (
        endpoint_type(args.dialect)(args.endpoint, args.model, key=SecretStr(key) if key else None) as endpoint,
        Store.open(args.output_dir / "trajectories", writing=True) as store,
    ):
        endpoint.check()
        sampling = Sampling(temperature=args.temperature)
        writer = KeptWriter(writer_for(endpoint, sampling), args.output_dir / "answers.jsonl", settings)
        stored_ids = set(store.ids())
        for chunk in _group(_read_episodes(args.data), args.slots):
            episodes = [episode for episode in chunk if episode.id not in stored_ids and episode.error is None]
            counts["kept"] += sum(episode.id in stored_ids for episode in chunk)
            labeled = label_thoughts(
                episodes,
                writer,
                worlds=worlds,
                overwrite=args.overwrite,
                max_steps=args.steps or None,
                outcome=args.outcome,
                seed=args.seed,
                slots=args.slots,
            )
            for trajectory in labeled.trajectories:
                if trajectory.id not in labeled.failed:
                    store.append(trajectory)
                    counts["episodes"] += 1
            counts["steps"] += labeled.written
            counts["missing"] += labeled.missing
            errors += [f"{name}: {error}" for name, error in labeled.failed.items()]
    summary = f"{counts['steps']} thoughts in {counts['episodes']} episodes, {counts['kept']} episodes were done before"
    console.print(show_hidden(f"{summary}; {args.output_dir}"), soft_wrap=True)
    console.print(f"{writer.num_asked} answers were asked for, {writer.num_found} were kept", soft_wrap=True)
    if counts["missing"]:
        console.print(f"{counts['missing']} steps have no thought: the model's answer was empty", soft_wrap=True)
    for line in errors[:_MAX_MESSAGES]:
        console.print(show_hidden(clip(line, 300)), soft_wrap=True)
    if errors:
        console.print(f"episodes without thoughts: {len(errors)}; the same command asks again", soft_wrap=True)
    return 1 if errors else 0


def _parse_explain(argv: Sequence[str]) -> argparse.Namespace:
    about = "Let a model say why each recorded action was taken (TRAD); the same command resumes."
    parser = Parser("evolvent memory explain", about)
    parser.add("data", type=Path, help="a run, or a .jsonl file of trajectories")
    parser.add("--worlds", nargs="+", required=True, metavar="NAME", help="its worlds, for their instructions")
    parser.add("--to", dest="output_dir", type=Path, required=True, metavar="FOLDER", help="for the episodes")
    parser.add("--endpoint", required=True, metavar="URL", help="the model's server: http://127.0.0.1:8000/v1, say")
    parser.add("--model", required=True, help="the model to ask there")
    parser.add("--dialect", default="openai", help="what it speaks: openai, vllm, sglang (openai)")
    parser.add("--key_env", default="OPENAI_API_KEY", help="the environment variable that holds its key")
    parser.add("--steps", type=parse_count, default=0, metavar="N", help="show the last N steps only; 0: all")
    parser.add("--outcome", action="store_true", help="also show what the action led to")
    parser.add("--overwrite", action="store_true", help="write thoughts anew where there are some")
    parser.add("--temperature", type=float, default=0.0, help="of the model (0: the likeliest token)")
    parser.add("--seed", type=parse_count, default=0, help="all randomness derives from it")
    parser.add("--slots", type=parse_count, default=64, help="episodes that are worked on at once (64)")
    args = parser.parse_argv(argv)
    from evolvent.engine.servers import ServerDialect

    problems = [] if args.data.exists() else [Problem("data", f"{args.data} does not exist", "pass a run or a file")]
    if args.dialect not in get_args(ServerDialect):
        problems.append(unknown_name_problem("dialect", args.dialect, get_args(ServerDialect), location="--dialect"))
    if not args.slots:
        problems.append(Problem("--slots", "got 0, expected 1 or more"))
    if problems:
        raise ConfigError(problems)
    return args


def _check_explained(folder: Path, settings: Mapping[str, object]) -> None:
    """Writes the settings of a folder of thoughts; raises ConfigError where it holds thoughts of other settings."""
    path = folder / "explain.json"
    if path.exists():
        earlier = json.loads(path.read_text(encoding="utf-8"))
        problems = [
            Problem(f"--{name}", f"got {value!r}, {folder} holds thoughts with {earlier.get(name)!r}", "change --to")
            for name, value in settings.items()
            if earlier.get(name) != value
        ]
        if problems:
            raise ConfigError(problems)
    write_atomic(path, json.dumps(settings, indent=1))


def _group(trajectories: Iterable[Trajectory], size: int) -> Iterator[list[Trajectory]]:
    """Yields the trajectories in lists of `size`."""
    iterator = iter(trajectories)
    while chunk := list(islice(iterator, size)):
        yield chunk


# ---------------------------------------------------------------------------------------------------- asking


def _run_query(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent memory query", "The remembered steps nearest to a text, best first.")
    parser.add("memory", type=Path, help="the folder of a memory")
    parser.add("text", help="what is looked for")
    parser.add("--k", type=parse_count, default=3, help="how many (3)")
    parser.add("--by", default="", metavar="FIELD[/PART]", help="one of the memory's keys; none: its first")
    parser.add("--kind", action="append", default=[], help="only tasks of this type; more than once")
    parser.add("--repeat", action="store_true", help="more than one step of an episode")
    parser.add("--json", action="store_true", help="print JSON lines instead of the table")
    _add_encoder(parser)
    args = parser.parse_argv(argv)
    from evolvent.memory.steps import Key, StepMemory

    memory = StepMemory.load(args.memory, _open_encoder(args))
    (hits,) = memory.query(
        [args.text],
        args.k,
        lookup_key=Key.from_name(args.by) if args.by else None,
        filters={"kind": args.kind} if args.kind else None,
        distinct=not args.repeat,
    )
    if not hits and not args.kind:
        key = Key.from_name(args.by) if args.by else memory.keys[0]
        raise ConfigError(
            f"no step of {args.memory} has a text for the key {key.name!r}",
            hint="build the memory with --key observation" if key.name.startswith("thought") else "",
        )
    if args.json:
        for hit in hits:
            console.print(json.dumps({"score": hit.score, **asdict(hit.record)}), soft_wrap=True, markup=False)
        return 0
    rows = [
        (
            f"{hit.score:.3f}",
            f"{hit.record.trajectory_id} {hit.record.step}",
            clip(hit.record.action, _MAX_CELL_LENGTH),
            clip(" / ".join(hit.record.key.split("\n")), _MAX_CELL_LENGTH),
        )
        for hit in hits
    ]
    console.print(render_table(console, ("cosine", "step", "action", "found by"), rows, numbers=("cosine",)))
    return 0
