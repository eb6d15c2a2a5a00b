"""`evolvent runs list | show | export | import | recover | track | push | pull`: the contents of recorded runs."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from evolvent.cli.setup.record import RUNS
from evolvent.cli.setup.tracking import run_track
from evolvent.cli.terminal.console import format_rate, render_table
from evolvent.cli.terminal.parsing import Parser, choose_verb, format_verbs_help, parse_count
from evolvent.cli.terminal.progress import format_duration
from evolvent.data.agentgym_files import find_task_files
from evolvent.data.forms import UNKNOWN_FORM, describe_forms, detect_form
from evolvent.data.tables import find_saved_files, iterate_rows
from evolvent.errors import ConfigError, Problem, SampleInvalid, StoreUnavailable, unknown_name_problem
from evolvent.files import atomic_writer, disk_errors
from evolvent.rollout.episode import FailureCounts
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory
from evolvent.view.escape import clip, show_hidden

__all__ = ["FORMATS", "find_store", "run", "run_pull", "run_push"]


if TYPE_CHECKING:
    from evolvent.store.exchange import TaskInstructions
    from evolvent.store.objects_push import TransferProgress


_ADDRESS_HELP = "s3://BUCKET/PATH, gs://BUCKET/PATH, hdfs://HOST:PORT/PATH or file:///PATH"
_REDRAW_INTERVAL_S, _LINE_INTERVAL_S = 0.2, 60.0  # between two pictures on a terminal, between two lines elsewhere
_DEFAULT_WORKERS = 8
_MAX_MESSAGES = 5  # episodes left out of which the reason is told


def run_push(argv: Sequence[str], console: Console) -> int:
    """Copies a run or a store to an address; returns the exit code."""
    parser = Parser("evolvent runs push", "Copy a run that nobody writes to an object store. Again: it goes on.")
    parser.add("run", type=Path, help="the folder of a run or a store")
    parser.add("address", help=_ADDRESS_HELP)
    parser.add("--replace", action="store_true", help="take the place of another copy that is there")
    parser.add("--check", action="store_true", help="read back what is there; send again what is damaged")
    parser.add("--workers", type=parse_count, default=_DEFAULT_WORKERS, help=f"transfers at once ({_DEFAULT_WORKERS})")
    args = parser.parse_argv(argv)
    _check_workers(args.workers)
    from evolvent.store.objects_place import parse_storage_url
    from evolvent.store.objects_push import push_copy

    storage_url = parse_storage_url(args.address)
    with _display_transfer(console) as transfer_display:
        result = push_copy(
            args.run,
            storage_url,
            replace=args.replace,
            check=args.check,
            workers=args.workers,
            progress=transfer_display.update,
        )
    files = len(result.manifest.files)
    console.print(
        show_hidden(
            f"{files} files, {_format_bytes(result.manifest.size)} at {storage_url.address}; "
            f"sent {result.objects} objects, {_format_bytes(result.bytes)}"
        ),
        soft_wrap=True,
    )
    return 0


def run_pull(argv: Sequence[str], console: Console) -> int:
    """Fetches a copy from an address to a folder; returns the exit code."""
    parser = Parser("evolvent runs pull", "Bring a copy that was pushed to a new folder, checked. Again: it goes on.")
    parser.add("address", help=_ADDRESS_HELP)
    parser.add("folder", type=Path, help="a folder that does not exist yet")
    parser.add("--workers", type=parse_count, default=_DEFAULT_WORKERS, help=f"transfers at once ({_DEFAULT_WORKERS})")
    args = parser.parse_argv(argv)
    _check_workers(args.workers)
    from evolvent.store.objects_place import parse_storage_url
    from evolvent.store.objects_pull import fetch_copy, open_copy

    copy = open_copy(parse_storage_url(args.address))
    console.print(
        show_hidden(f"{len(copy.manifest.files)} files, {_format_bytes(copy.manifest.size)} at {copy.url.address}"),
        soft_wrap=True,
    )
    with _display_transfer(console) as transfer_display:
        result = fetch_copy(copy, args.folder, workers=args.workers, progress=transfer_display.update)
    console.print(show_hidden(f"in {args.folder}; fetched {_format_bytes(result.bytes)}"), soft_wrap=True)
    return 0


def _check_workers(workers: int) -> None:
    if not 1 <= workers <= 64:
        raise ConfigError([Problem("--workers", f"got {workers}", "expected 1 to 64")])


def _format_bytes(count: float) -> str:
    """Formats a number of bytes with its unit: 812 B, 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class _TransferDisplay:
    """A progress display: one updating line on a terminal, elsewhere a line a minute."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console, self._live = console, live
        self._phase, self._began, self._last = "", 0.0, 0.0

    def update(self, transfer: TransferProgress) -> None:
        """Shows the progress of a transfer when the next redraw is due."""
        now_s = time.monotonic()
        if transfer.phase != self._phase:
            self._phase, self._began, self._last = transfer.phase, now_s, now_s
        if now_s - self._last < (_LINE_INTERVAL_S if self._live is None else _REDRAW_INTERVAL_S):
            return
        self._last = now_s
        rate = transfer.bytes / max(now_s - self._began, 1e-9)
        parts = [
            f"{transfer.phase} {_format_bytes(transfer.bytes)} of {_format_bytes(transfer.of_bytes)}",
            f"{transfer.files} of {transfer.of_files} files",
            f"{_format_bytes(rate)}/s",
        ]
        if rate:
            parts.append(f"about {format_duration((transfer.of_bytes - transfer.bytes) / rate)} left")
        if self._live is None:
            self._console.print(", ".join(parts), soft_wrap=True)
        else:
            self._live.update(Text(", ".join(parts), overflow="ellipsis", no_wrap=True), refresh=True)


@contextmanager
def _display_transfer(console: Console) -> Iterator[_TransferDisplay]:
    if not console.is_terminal:
        yield _TransferDisplay(console, None)
        return
    with Live(Text(), console=console, auto_refresh=False, transient=True) as live:
        yield _TransferDisplay(console, live)


FORMATS = ("jsonl", "messages", "agenttraj", "parquet", "csv", "minari")
_VERB_HELP = {
    "list": "the runs in a folder",
    "show": "what a run holds, or one of its episodes",
    "export": "write the episodes of a run to a file",
    "import": "add the episodes of a file to a run",
    "recover": "put a run's store in order after a kill",
    "track": "hand a run's numbers to trackio, wandb or TensorBoard",
    "push": "copy a run to an object store (s3, gs, hdfs)",
    "pull": "bring a copy back, every file checked",
}


def run(argv: Sequence[str], console: Console) -> int:
    """Runs one of the verbs about recorded runs; returns the exit code."""
    verbs = {
        "list": _run_list,
        "show": _run_show,
        "export": _run_export,
        "import": _run_import,
        "recover": _run_recover,
        "track": run_track,
        "push": run_push,
        "pull": run_pull,
    }
    if argv and argv[0] in ("-h", "--help"):
        console.print(format_verbs_help("evolvent runs", _VERB_HELP), soft_wrap=True)
        return 0
    verb, verb_argv = choose_verb("evolvent runs", argv, verbs)
    return verbs[verb](verb_argv, console)


def find_store(run: Path) -> Path:
    """Finds the folder of a run's trajectories; a store's own folder is returned unchanged.

    Raises:
        ConfigError: the folder holds neither.
    """
    for folder in (run / "trajectories", run):
        if (folder / "log").is_dir() or (folder / "manifest.jsonl").exists():
            return folder
    if _read_record(run):
        raise ConfigError([Problem("run", f"{run} does not hold episodes", "pass a run that collected or played some")])
    raise ConfigError([Problem("run", f"{run} is neither a run nor a store", "see: evolvent runs list")])


def _read_record(run: Path) -> Mapping[str, Any]:
    """Returns the contents of `run.json`, or nothing."""
    try:
        row = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) else {}


def _run_list(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs list", "The runs in a folder.")
    parser.add("folder", nargs="?", type=Path, default=RUNS, help="default: runs")
    folder: Path = parser.parse_argv(argv).folder
    with disk_errors(folder):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    rows = []
    for path in paths:
        record = _read_record(path)
        if record or (path / "trajectories").is_dir():
            rows.append((path, *(record.get(name, "-") for name in ("state", "method", "seed", "created"))))
    if rows:
        console.print(render_table(console, ("run", "state", "method", "seed", "created"), rows, numbers=("seed",)))
    else:
        console.print(f"no runs in {show_hidden(str(folder))}")
    return 0


def _run_show(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs show", "What a run holds; or one of its episodes.")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add("--trajectory", help="the id of an episode to show")
    args = parser.parse_argv(argv)
    record = _read_record(args.run)
    if not record:
        find_store(args.run)
    if args.trajectory is not None:
        _show_episode(Store.open(find_store(args.run)).get(args.trajectory), console)
        return 0
    for name in (name for name in ("state", "method", "seed", "created") if name in record):
        console.print(f"{name:8} {show_hidden(str(record[name]))}", soft_wrap=True)
    for name in (name for name in ("model", "policy", "report.html") if (args.run / name).exists()):
        console.print(f"{name.partition('.')[0]:8} {show_hidden(str(args.run / name))}", soft_wrap=True)
    for name, text in _describe_training(args.run):
        console.print(f"{name:8} {show_hidden(text)}", soft_wrap=True)
    counts: dict[tuple[str, ...], Counter[str]] = {}
    returns: dict[tuple[str, ...], list[float]] = {}
    failures = FailureCounts()
    for trajectory in _read_episodes(args.run):
        failures.record(trajectory)
        stage, slash, _ = trajectory.id.rpartition(f"/{trajectory.task.id}")
        task = trajectory.task
        stage = stage.partition("/")[0]  # iterations of a practice are one stage
        panel_key = (stage if slash else "-", f"{task.world}/{task.tier}/{task.split}")
        count = counts.setdefault(panel_key, Counter())
        count.update(episodes=1, steps=len(trajectory.steps), tokens=trajectory.count_generated_tokens())
        count.update({f"success {trajectory.success}": 1})
        if trajectory.score.raw is not None:
            returns.setdefault(panel_key, []).append(trajectory.score.raw)
    has_returns = any(len({*values, 0.0, 1.0}) > 2 for values in returns.values())  # these say more than success
    columns = ("stage", "panel", "played", "success", *(("return",) if has_returns else ()), "steps", "tokens")
    rows = [
        (
            *panel_key,
            count["episodes"],
            format_rate(count["success True"] / scored) if (scored := _count_scored(count)) else "-",
            *([f"{fmean(returns[panel_key]):.3f}" if panel_key in returns else "-"] if has_returns else []),
            count["steps"],
            count["tokens"],
        )
        for panel_key, count in counts.items()
    ]
    console.print(render_table(console, columns, rows, numbers=columns[2:]) if rows else "no episodes")
    unscored = sum(count["success None"] for count in counts.values())
    if unscored:
        console.print(f"{unscored} of them not scored")
        console.print(show_hidden(failures.describe()), soft_wrap=True)
    return 0


def _describe_training(run: Path) -> Iterator[tuple[str, str]]:
    """Yields lines about the RL training of a run: its progress, and the first sign of trouble."""
    from evolvent.view.data import read_run
    from evolvent.view.reinforcement import format_number, summarize_training

    summary = summarize_training(read_run(run))
    if summary is None:
        return
    goal = f" of {summary.goal}" if summary.goal else ""
    parts = [summary.method, f"{summary.iterations}{goal} iterations"]
    if summary.success is not None:
        parts.append(f"success {format_number('success', summary.success.last)} in the last {summary.ends}")
    yield "practice", ", ".join(parts)
    for reading in summary.readings[: min(summary.beyond, 1)]:
        yield "sign", f"{reading.sign.title} {reading.shown} (trouble {reading.limit}): {reading.sign.means}"
        yield "try", reading.sign.try_
    if summary.readings and not summary.beyond:
        yield "sign", "none is beyond its threshold"


def _read_episodes(run: Path) -> Iterator[Trajectory]:
    try:
        return Store.open(find_store(run)).trajectories()
    except ConfigError:
        return iter(())


def _count_scored(count: Counter[str]) -> int:
    return count["success True"] + count["success False"]


def _show_episode(trajectory: Trajectory, console: Console) -> None:
    task = trajectory.task
    lines = [f"{task.world}/{task.tier}/{task.split} {task.kind}", f"ended by {trajectory.ended_by}"]
    if trajectory.error is not None:
        lines.append(f"error {trajectory.error.kind}: {trajectory.error.message}")
    for step in trajectory.steps:
        lines += [clip(str(step.observation), 2000), *([f"# {step.thought}"] if step.thought else [])]
        lines.append(f"> {step.action}" + ("" if not step.reward else f"   reward {step.reward:g}"))
    lines += [clip(str(trajectory.final_observation), 2000), f"success {trajectory.success}"]
    console.print("\n".join(show_hidden(line) for line in lines), soft_wrap=True)


def _resolve_format(name: str | None, path: Path, formats: Sequence[str]) -> str:
    """Returns the requested format, or the one of the file's suffix."""
    selected = name or {".json": "agenttraj", ".parquet": "parquet", "": "parquet", ".csv": "csv"}.get(
        path.suffix, "jsonl"
    )
    if selected in formats:
        return selected
    if name:
        raise ConfigError([unknown_name_problem("format", selected, formats, location="--format")])
    raise ConfigError(
        [
            Problem(
                "--format",
                f"cannot infer the format from the name of {path}",
                f"set --format to one of {', '.join(formats)}",
            )
        ]
    )


def _run_export(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs export", "Write a run's episodes to a file (parquet, minari: to a folder).")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add("--to", dest="output_path", metavar="FILE", type=Path, required=True, help="the file to write")
    parser.add("--format", help=f"{' | '.join(FORMATS)} (default: by the name)")
    parser.add("--success", action="store_true", help="only episodes that succeeded")
    parser.add("--world", help="only episodes of this world")
    parser.add("--ends_with_reply", action="store_true", help="messages: leave out what follows the last reply")
    parser.add(
        "--instructions", action="store_true", help="messages, agenttraj: begin with the rules of the run's worlds"
    )
    args = parser.parse_argv(argv)
    store = Store.open(find_store(args.run))
    filters = {**({"success": True} if args.success else {}), **({"world": args.world} if args.world else {})}
    format = _resolve_format(args.format, args.output_path, FORMATS)
    _check_export_options(args, format)
    problems = list[Problem]()
    count = _write_episodes(store, args, format, filters=filters, problems=problems)
    for problem in problems[:_MAX_MESSAGES]:
        console.print(f"left out: {show_hidden(str(problem))}", soft_wrap=True)
    if len(problems) > _MAX_MESSAGES:
        console.print(f"left out: {len(problems) - _MAX_MESSAGES} more")
    console.print(f"{count} episodes to {show_hidden(str(args.output_path))}", soft_wrap=True)
    return 0


def _check_export_options(args: argparse.Namespace, format: str) -> None:
    problems = [
        Problem(f"--{name}", f"format {format} does not have it", f"set --format {' or '.join(formats)}")
        for name, formats in (("ends_with_reply", ("messages",)), ("instructions", ("messages", "agenttraj")))
        if getattr(args, name) and format not in formats
    ]
    if problems:
        raise ConfigError(problems)


def _write_episodes(
    store: Store, args: argparse.Namespace, format: str, *, filters: Mapping[str, Any], problems: list[Problem]
) -> int:
    from evolvent.store import exchange

    path: Path = args.output_path
    if format == "parquet":
        return _write_parquet(store, path, filters)
    episodes = store.trajectories(filters=filters)
    instructions = _load_instructions(args.run) if args.instructions else None
    if format == "messages":
        return exchange.write_messages(episodes, path, instructions=instructions, ends_with_reply=args.ends_with_reply)
    if format == "agenttraj":
        return exchange.write_agenttraj(episodes, path, instructions=instructions)
    if format == "minari":
        from evolvent.store.minari import write_minari

        return write_minari(episodes, path, dataset_id=f"evolvent/{_dataset_name(args.run)}-v0", problems=problems)
    return exchange.write_jsonl(episodes, path) if format == "jsonl" else exchange.write_csv(episodes, path)


def _dataset_name(run: Path) -> str:
    """Returns the name of a run in the characters that Minari allows."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", run.resolve().name).strip("-") or "episodes"


def _load_instructions(run: Path) -> TaskInstructions:
    """Returns a function from a task to the rules of its world, of the worlds that the run records.

    Raises:
        ConfigError: the run records no worlds, or they cannot be loaded.
    """
    from evolvent.cli.setup.record import read_recorded_worlds
    from evolvent.cli.setup.registry import load_worlds

    names = read_recorded_worlds(run)
    if not names:
        raise ConfigError([Problem("--instructions", f"{run} does not record its worlds", "leave the option out")])
    worlds_by_name = load_worlds(names)
    return lambda task: worlds_by_name[task.world].instructions if task.world in worlds_by_name else None


def _write_parquet(store: Store, output_dir: Path, filters: Mapping[str, Any]) -> int:
    """Writes `trajectories.parquet` into the folder `output_dir`; returns the number of its rows."""
    import pyarrow.parquet as pq

    batches = store.scan(filters=filters)
    first = next(batches, None)
    if first is None:
        raise StoreUnavailable(f"{store.path} has no episodes to export", value=dict(filters) or None)
    count = int(first.num_rows)
    with atomic_writer(output_dir / "trajectories.parquet") as file, pq.ParquetWriter(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _run_import(argv: Sequence[str], console: Console) -> int:
    formats = FORMATS[:3]
    parser = Parser(
        "evolvent runs import",
        "Add the episodes of a file to a run: records, or rows of any form (docs/data.md).",
    )
    parser.add(
        "file", type=Path, help="JSON lines, JSON, Parquet or CSV; a saved data set; AgentGym's folder of trajectories"
    )
    parser.add(
        "--to",
        dest="output_dir",
        metavar="DIR",
        type=Path,
        required=True,
        help="the folder of the run, made where it is missing",
    )
    parser.add("--format", help=f"{' | '.join(formats)} (default: by the content)")
    args = parser.parse_argv(argv)
    if args.format is not None and args.format not in formats:
        raise ConfigError([unknown_name_problem("format", args.format, formats, location="--format")])
    imports = [_EpisodeImport(file, args.format) for file in _find_import_files(args.file)]
    episodes = chain.from_iterable(imported.read_episodes() for imported in imports)
    first_episode = next(episodes, None)  # a file that cannot be read leaves no run behind
    counts: Counter[str] = Counter()
    with Store.open(args.output_dir / "trajectories", writing=True) as store:
        for trajectory in chain([] if first_episode is None else [first_episode], episodes):
            store.append(trajectory)
            counts[trajectory.task.world] += 1
    if forms := sum((imported.forms for imported in imports), Counter[str]()):
        console.print(describe_forms(forms), soft_wrap=True)
    if args.file.is_dir() and len(counts) > 1:
        console.print("; ".join(f"{show_hidden(world)} {count:,}" for world, count in counts.items()), soft_wrap=True)
    errors = [error for imported in imports for error in imported.errors]
    for error in errors:
        console.print(f"left out: {show_hidden(error)}", soft_wrap=True)
    console.print(f"{counts.total()} episodes imported, {len(errors)} rows left out", soft_wrap=True)
    return 1 if errors else 0


def _find_import_files(path: Path) -> list[Path]:
    """Finds the files of episodes: the path itself, or those of AgentGym's folder of trajectories (AgentTraj-L).

    Raises:
        ConfigError: neither a file nor such a folder.
    """
    if path.is_file() or find_saved_files(path):
        return [path]
    if not path.is_dir():
        raise ConfigError([Problem("file", f"{path} is not a file", "pass the file to import")])
    try:
        files = [file for group in find_task_files(path).values() for file in group]
    except ConfigError:
        hint = "pass the file to import, or AgentGym's folder with files such as webshop_train.json"
        raise ConfigError([Problem("file", f"{path} is not a file", hint)]) from None
    files_of_episodes = [file for file in files if file.stem.endswith("_train")]
    if not files_of_episodes:
        message = f"{path} names tasks but holds no episodes ({files[0].name})"
        raise ConfigError([Problem("file", message, f"play them: evolvent bench agent-eval --tasks {path}")])
    return files_of_episodes


class _EpisodeImport:
    """The episodes of a file, and the rows that are left out.

    Args:
        path: the file.
        format: the requested format; None: by the content.
    Attributes:
        forms: rows of each form so far, where no format was requested.
        errors: the rows that were left out so far, each with its reason.
    """

    def __init__(self, path: Path, format: str | None) -> None:
        self._path, self._format = path, format
        self.forms: Counter[str] = Counter()
        self.errors: list[str] = []

    def read_episodes(self) -> Iterator[Trajectory]:
        """Yields the episodes of the file in order.

        Raises:
            ConfigError, SampleInvalid, StoreError: the file as a whole cannot be read.
        """
        from evolvent.store import exchange

        if self._format == "jsonl" or (self._format is None and self._holds_records()):
            yield from exchange.read_jsonl(self._path)
        elif self._format is None:
            yield from self._read_rows()
        else:
            read_file = exchange.read_messages if self._format == "messages" else exchange.read_agenttraj
            imported = read_file(self._path)
            self.errors += map(str, imported.invalid)
            yield from imported.trajectories

    def _holds_records(self) -> bool:
        first_row = next(iterate_rows(self._path), ("", None))[1]
        return isinstance(first_row, dict) and {"v", "crc"} <= set(first_row)

    def _read_rows(self) -> Iterator[Trajectory]:
        from evolvent.curate.origins import row_to_trajectories

        id_counts: dict[str, int] = {}
        for number, (location, row) in enumerate(iterate_rows(self._path)):
            try:
                if isinstance(row, SampleInvalid):
                    raise row
                self.forms[detect_form(row) or UNKNOWN_FORM] += 1
                yield from row_to_trajectories(row, f"{self._path.name.partition('.')[0]}-{number}", id_counts)
            except SampleInvalid as error:
                self.errors.append(f"{location}: {error}")


def _run_recover(argv: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs recover", "Put a run's store in order after a kill; says what was kept.")
    parser.add("run", type=Path, help="the folder of a run")
    recovery = Store.open(find_store(parser.parse_argv(argv).run)).recover()
    console.print(
        f"{recovery.num_finished} episodes kept, {recovery.num_interrupted} interrupted, {recovery.dropped_bytes} torn "
        f"bytes dropped"
    )
    return 0
