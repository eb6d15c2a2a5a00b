"""`evolvent runs list | show | export | import | recover | track | push | pull`: what recorded runs hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.cli.console import rate, table
from evolvent.cli.parsing import Parser, choose, verbs_help
from evolvent.cli.record import RUNS
from evolvent.cli.runs_transfer import run_pull, run_push
from evolvent.cli.tracking import run_track
from evolvent.errors import ConfigError, Problem, StoreUnavailable, unknown
from evolvent.files import atomic_writer, disk_errors
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory
from evolvent.view.escape import clip, plain

__all__ = ["FORMATS", "run", "store_folder"]

FORMATS = ("jsonl", "messages", "agenttraj", "parquet", "csv")
_ABOUT = {
    "list": "the runs in a folder",
    "show": "what a run holds, or one of its episodes",
    "export": "write the episodes of a run to a file",
    "import": "add the episodes of a file to a run",
    "recover": "put a run's store in order after a kill",
    "track": "hand a run's numbers to trackio, wandb or TensorBoard",
    "push": "copy a run to an object store (s3, gs, hdfs)",
    "pull": "bring a copy back, every file checked",
}


def run(words: Sequence[str], console: Console) -> int:
    """Run one of the verbs about recorded runs; returns the exit code."""
    verbs = {
        "list": _list,
        "show": _show,
        "export": _export,
        "import": _import,
        "recover": _recover,
        "track": run_track,
        "push": run_push,
        "pull": run_pull,
    }
    if words and words[0] in ("-h", "--help"):
        console.print(verbs_help("evolvent runs", _ABOUT), soft_wrap=True)
        return 0
    verb, rest = choose("evolvent runs", words, verbs)
    return verbs[verb](rest, console)


def store_folder(run: Path) -> Path:
    """Where a run keeps its trajectories; a store's own folder is taken as it is.

    Raises:
        ConfigError: there is neither.
    """
    for folder in (run / "trajectories", run):
        if (folder / "log").is_dir() or (folder / "manifest.jsonl").exists():
            return folder
    raise ConfigError([Problem("run", f"{run} is neither a run nor a store", "see: evolvent runs list")])


def _described(run: Path) -> Mapping[str, Any]:
    """What `run.json` says, or nothing."""
    try:
        row = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return row if isinstance(row, dict) else {}


def _list(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs list", "The runs in a folder.")
    parser.add("folder", nargs="?", type=Path, default=RUNS, help="default: runs")
    folder: Path = parser.read(words).folder
    with disk_errors(folder):
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
    rows = []
    for path in paths:
        said = _described(path)
        if said or (path / "trajectories").is_dir():
            rows.append((path, *(said.get(name, "-") for name in ("state", "method", "seed", "created"))))
    if rows:
        console.print(table(console, ("run", "state", "method", "seed", "created"), rows, numbers=("seed",)))
    else:
        console.print(f"no runs in {plain(str(folder))}")
    return 0


def _show(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs show", "What a run holds; or one of its episodes.")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add("--trajectory", help="the id of an episode to show")
    found = parser.read(words)
    said = _described(found.run)
    if not str(said.get("method", "")).startswith("train "):  # a training plays nothing
        store_folder(found.run)
    if found.trajectory is not None:
        _show_episode(Store.open(store_folder(found.run)).get(found.trajectory), console)
        return 0
    for name in (name for name in ("state", "method", "seed", "created") if name in said):
        console.print(f"{name:8} {plain(str(said[name]))}", soft_wrap=True)
    for name in (name for name in ("model", "report.html") if (found.run / name).exists()):
        console.print(f"{name.partition('.')[0]:8} {plain(str(found.run / name))}", soft_wrap=True)
    for name, text in _practised(found.run):
        console.print(f"{name:8} {plain(text)}", soft_wrap=True)
    counts: dict[tuple[str, ...], Counter[str]] = {}
    for trajectory in _episodes(found.run):
        stage, slash, _ = trajectory.id.rpartition(f"/{trajectory.task.id}")
        task = trajectory.task
        stage = stage.partition("/")[0]  # iterations of a practice are one stage
        where = (stage if slash else "-", f"{task.world}/{task.tier}/{task.split}")
        count = counts.setdefault(where, Counter())
        count.update(episodes=1, steps=len(trajectory.steps), tokens=trajectory.generated())
        count.update({f"success {trajectory.success}": 1})
    columns = ("stage", "panel", "played", "success", "steps", "tokens")
    rows = [
        (
            *where,
            count["episodes"],
            rate(count["success True"] / scored) if (scored := _scored(count)) else "-",
            count["steps"],
            count["tokens"],
        )
        for where, count in counts.items()
    ]
    console.print(table(console, columns, rows, numbers=columns[2:]) if rows else "no episodes")
    unscored = sum(count["success None"] for count in counts.values())
    if unscored:
        console.print(f"{unscored} of them not scored")
    return 0


def _practised(run: Path) -> Iterator[tuple[str, str]]:
    """Of a run that practised: how far it came, and the first sign of why it does not learn."""
    from evolvent.view.data import read_run
    from evolvent.view.reinforcement import practised, told

    found = practised(read_run(run))
    if found is None:
        return
    goal = f" of {found.goal}" if found.goal else ""
    parts = [found.method, f"{found.iterations}{goal} iterations"]
    if found.success is not None:
        parts.append(f"success {told('success', found.success.last)} in the last {found.ends}")
    yield "practice", ", ".join(parts)
    for one in found.readings[: min(found.beyond, 1)]:
        yield "sign", f"{one.sign.title} {one.shown} (trouble {one.limit}): {one.sign.means}"
        yield "try", one.sign.try_
    if found.readings and not found.beyond:
        yield "sign", "none is beyond its threshold"


def _episodes(run: Path) -> Iterator[Trajectory]:
    try:
        return Store.open(store_folder(run)).trajectories()
    except ConfigError:
        return iter(())


def _scored(count: Counter[str]) -> int:
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
    console.print("\n".join(plain(line) for line in lines), soft_wrap=True)


def _format(name: str | None, path: Path, known: Sequence[str]) -> str:
    """The format asked for, or the one that a file name ends with."""
    chosen = name or {".json": "agenttraj", ".parquet": "parquet", "": "parquet", ".csv": "csv"}.get(
        path.suffix, "jsonl"
    )
    if chosen in known:
        return chosen
    if name:
        raise ConfigError([unknown("format", chosen, known, where="--format")])
    raise ConfigError([Problem("--format", f"the name of {path} does not tell it", f"give {', '.join(known)}")])


def _export(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs export", "Write a run's episodes to a file (parquet: to a folder).")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add("--to", type=Path, required=True, help="the file to write")
    parser.add("--format", help=f"{' | '.join(FORMATS)} (default: by the name)")
    parser.add("--success", action="store_true", help="only episodes that succeeded")
    parser.add("--world", help="only episodes of this world")
    found = parser.read(words)
    store = Store.open(store_folder(found.run))
    where = {**({"success": True} if found.success else {}), **({"world": found.world} if found.world else {})}
    count = _write(store, found.to, _format(found.format, found.to, FORMATS), where=where)
    console.print(f"{count} episodes to {plain(str(found.to))}", soft_wrap=True)
    return 0


def _write(store: Store, to: Path, format: str, *, where: Mapping[str, Any]) -> int:
    from evolvent.store import exchange

    if format == "parquet":
        return _write_parquet(store, to, where)
    writers: dict[str, Callable[[Iterator[Trajectory], Path], int]] = {
        "jsonl": exchange.write_jsonl,
        "messages": exchange.write_messages,
        "agenttraj": exchange.write_agenttraj,
        "csv": exchange.write_csv,
    }
    return writers[format](store.trajectories(where=where), to)


def _write_parquet(store: Store, to: Path, where: Mapping[str, Any]) -> int:
    """`trajectories.parquet` in the folder `to`; returns the number of its rows."""
    import pyarrow.parquet as pq

    batches = store.scan(where=where)
    first = next(batches, None)
    if first is None:
        raise StoreUnavailable(f"{store.path} has no episodes to export", value=dict(where) or None)
    count = int(first.num_rows)
    with atomic_writer(to / "trajectories.parquet") as file, pq.ParquetWriter(file, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _import(words: Sequence[str], console: Console) -> int:
    known = FORMATS[:3]
    parser = Parser("evolvent runs import", "Add the episodes of a file to a run.")
    parser.add("file", type=Path, help="the file to read")
    parser.add("--to", type=Path, required=True, help="the folder of the run, made where it is missing")
    parser.add("--format", help=f"{' | '.join(known)} (default: by the name)")
    found = parser.read(words)
    if not found.file.is_file():
        raise ConfigError([Problem("file", f"{found.file} is no file", "name the file to import")])
    format = _format(found.format, found.file, known)
    from evolvent.store import exchange

    bad: tuple[Exception, ...] = ()
    count = 0
    with Store.open(found.to / "trajectories", writing=True) as store:
        if format == "jsonl":
            rows: Iterator[Trajectory] = exchange.read_jsonl(found.file)
        else:
            read = exchange.read_messages if format == "messages" else exchange.read_agenttraj
            imported = read(found.file)
            rows, bad = iter(imported.trajectories), imported.invalid
        for trajectory in rows:
            store.append(trajectory)
            count += 1
    for error in bad:
        console.print(f"left out: {plain(str(error))}", soft_wrap=True)
    console.print(f"{count} episodes imported, {len(bad)} rows left out", soft_wrap=True)
    return 1 if bad else 0


def _recover(words: Sequence[str], console: Console) -> int:
    parser = Parser("evolvent runs recover", "Put a run's store in order after a kill; says what was kept.")
    parser.add("run", type=Path, help="the folder of a run")
    done = Store.open(store_folder(parser.read(words).run)).recover()
    console.print(f"{done.kept} episodes kept, {done.interrupted} interrupted, {done.dropped_bytes} torn bytes dropped")
    return 0
