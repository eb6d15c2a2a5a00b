"""Stores the cells of a resumable study, plays them in one process or several, and puts intervals over their seeds.

A run writes each finished cell as its own JSON file and packs these files into `cells.jsonl.gz` when it ends, with the
frozen study itself (`study.json`). Studies read both; a loose file replaces the archived row of the same key.

    python -m benchmarks.study --pack FOLDER ...      # after a run that was interrupted
    python -m benchmarks.study --unpack FOLDER ...    # the loose files again, for `evolvent bench study FOLDER`
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import io
import json
import logging
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.reporting import RESULTS
from evolvent.bench.results import hold_lock
from evolvent.errors import ConfigError, Locked, Problem
from evolvent.files import plain_json, write_atomic
from evolvent.models.policy import Policy, load_policy
from evolvent.stats import crossed_interval
from evolvent.trajectory import sample_rng

__all__ = [
    "ARCHIVE",
    "compute_interval",
    "exit_on_problems",
    "load_or_make_policy",
    "pack",
    "play_once",
    "prepare_process",
    "read_cells",
    "read_policy_note",
    "read_rows",
    "run_in_processes",
    "study_run",
    "summary_path",
    "unpack",
    "unpacked_copy",
    "write_cell",
]

ARCHIVE = "cells.jsonl.gz"
_FROZEN = ("study.json", "protocol.json")
_LOOSE = ("cell-*.json", "loop-*.json", "votes-*.json", "panels.json", *_FROZEN, "results/*/*.json")
_POLICY_WAIT_S = 1800.0  # for another process that makes the same policy
_NOTE = "note.json"

T = TypeVar("T")


def read_rows(folder: Path, pattern: str = "cell-*") -> dict[str, dict[str, Any]]:
    """Reads the rows whose key matches a pattern, sorted by key. A key is a file's path in the folder, without ".json".

    Loose files are read first: `pack` removes a file only after the archive holds it, so no row is missed meanwhile.
    """
    rows = {}
    for path in folder.glob(f"{pattern}.json"):
        try:
            rows[_key(folder, path)] = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:  # packed between the listing and the reading
            continue
    archived = {key: row for key, row in _read_archive(folder).items() if fnmatchcase(key, pattern)}
    return dict(sorted({**archived, **rows}.items()))


def _key(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix().removesuffix(".json")


def _read_archive(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        packed = (folder / ARCHIVE).read_bytes()
    except FileNotFoundError:
        return {}
    entries = [json.loads(line) for line in gzip.decompress(packed).decode().splitlines()]
    return {entry["key"]: entry["row"] for entry in entries}


def pack(folder: Path) -> int:
    """Moves all loose rows of a folder into its archive and returns their number.

    The bytes of the archive depend on the rows alone. The loose files are removed after the archive is on disk and
    reads back equal. Call it inside `playing` or when no process plays in the folder.

    Raises:
        ConfigError: the archive does not read back equal; no loose file is removed.
    """
    loose = {_key(folder, path): path for pattern in _LOOSE for path in folder.glob(pattern)}
    if not loose:
        return 0
    rows = _read_archive(folder) | {key: json.loads(path.read_text(encoding="utf-8")) for key, path in loose.items()}
    lines = [
        json.dumps({"key": key, "row": row}, allow_nan=False, separators=(",", ":")) + "\n"
        for key, row in sorted(rows.items())
    ]
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as file:
        file.write("".join(lines).encode())
    write_atomic(folder / ARCHIVE, buffer.getvalue())
    if _read_archive(folder) != rows:
        raise ConfigError(f"{folder / ARCHIVE} does not read back equal", hint="its loose files are still there")
    for path in loose.values():
        path.unlink()
    for place in sorted({path.parent for path in loose.values()} - {folder}):
        place.rmdir()
    if (folder / "results").is_dir() and not any((folder / "results").iterdir()):
        (folder / "results").rmdir()
    return len(loose)


def unpack(folder: Path) -> None:
    """Writes the rows of a folder's archive as loose files, except where a loose file exists."""
    _write_loose(_read_archive(folder), folder)


def _write_loose(rows: Mapping[str, Any], folder: Path) -> None:
    for key, row in rows.items():
        path = folder / f"{key}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n")


@contextmanager
def unpacked_copy(folder: Path) -> Iterator[Path]:
    """Gives a temporary folder that holds a controlled study as `evolvent.bench` reads it."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / folder.name
        for pattern in ("results/*/*", "panels", "study"):
            _write_loose(read_rows(folder, pattern), copy)
        yield copy


@contextmanager
def study_run(folder: Path) -> Iterator[None]:
    """Marks a folder as in use by a run and packs it after the last run that ends without an error.

    Several processes may play in one folder. None of them packs while another still plays.
    """
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    with (folder / "locks" / "players").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        pack(folder)


def summary_path(folder: Path, name: str) -> Path:
    """Where a study keeps the object that `--json` prints: in `benchmarks/results`, or inside any other `--folder`."""
    return (RESULTS if folder.parent == RESULTS else folder) / f"{name}.json"


def read_cells(folder: Path, digest: str) -> list[dict[str, Any]]:
    """Reads the cells in a folder that were played under the protocol of this digest."""
    return [row for row in read_rows(folder).values() if row["digest"] == digest]


def write_cell(folder: Path, key: str, row: Mapping[str, Any], *, kind: str = "cell") -> None:
    """Writes a cell as a loose file, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / f"{kind}-{key}.json", json.dumps(row, allow_nan=False) + "\n")


def play_once(folder: Path, key: str, digest: str, play: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Plays a cell and writes its row. Returns None if the folder holds the cell or another process plays it."""
    try:
        with hold_lock(folder / "locks" / f"cell-{key}", wait_s=0):
            if read_rows(folder).get(f"cell-{key}", {}).get("digest") == digest:
                return None
            row = play()
            write_cell(folder, key, row)
            return row
    except Locked:
        return None


def load_or_make_policy(folder: Path, name: str, make: Callable[[], tuple[Policy, Mapping[str, Any]]]) -> Policy:
    """Loads the policy `FOLDER/runs/NAME`. The first process that asks for it makes it, whole or not at all.

    Args:
        make: returns the policy and a note about it, which `read_policy_note` reads.

    Raises:
        Locked: another process has been making it for half an hour.
    """
    path = _policy_path(folder, name)
    with hold_lock(folder / "locks" / name, wait_s=_POLICY_WAIT_S):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                unfinished = Path(scratch) / "policy"
                policy, note = make()
                policy.save(unfinished)
                (unfinished / _NOTE).write_text(plain_json(note) + "\n", encoding="utf-8")
                unfinished.replace(path)
    return load_policy(path)


def read_policy_note(folder: Path, name: str) -> dict[str, Any]:
    """Reads the note that was written when a policy was made."""
    return dict(json.loads((_policy_path(folder, name) / _NOTE).read_text(encoding="utf-8")))


def _policy_path(folder: Path, name: str) -> Path:
    return folder / "runs" / name


def prepare_process() -> None:
    """Computes with one thread and silences warnings and log messages."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def run_in_processes(work: Callable[[T], str], items: Sequence[T], *, jobs: int) -> None:
    """Calls `work` on every item in `jobs` processes of one thread each and prints the lines that it returns."""
    exit_on_problems([] if jobs >= 1 else [Problem("--jobs", f"{jobs} processes", "give 1 or more")])
    if jobs == 1:
        for item in items:
            _print_line(work(item))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=prepare_process) as pool:
        for future in as_completed([pool.submit(work, item) for item in items]):
            _print_line(future.result())


def _print_line(line: str) -> None:
    if line:
        print(line, flush=True)


def exit_on_problems(problems: Sequence[Problem]) -> None:
    """Ends the program with an error message if the command line has problems."""
    if problems:
        raise SystemExit(f"error: {ConfigError(problems)}")


def compute_interval(
    scores: Sequence[Sequence[float]],
    control: Sequence[Sequence[float]] | None = None,
    *,
    kinds: Sequence[Hashable],
    name: str,
) -> list[float]:
    """Bootstraps the mean score, or the mean difference from a control, over seeds and kinds of tasks.

    Args:
        scores: [num_seeds, num_tasks].
        control: [num_seeds, num_tasks]. Subtracted from `scores`; None: `scores` are shares, and the interval stays
            within 0 and 1.
        kinds: [num_tasks]. The kind of each task.
        name: seeds the bootstrap.

    Returns:
        [mean, low, high]; low and high equal the mean if there is one seed.
    """
    baseline = [[0.0] * len(kinds)] * len(scores) if control is None else control
    result = crossed_interval(scores, baseline, kinds=kinds, rng=sample_rng(name))
    ends = (result.mean, result.low, result.high) if result.low == result.low else (result.mean,) * 3
    return [round(end if control is not None else min(max(end, 0.0), 1.0), 4) for end in ends]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.study", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pack", nargs="+", type=Path, default=[], metavar="FOLDER", help="move loose cells inside")
    parser.add_argument("--unpack", nargs="+", type=Path, default=[], metavar="FOLDER", help="write them as files")
    options = parser.parse_args(arguments)
    folders = [*options.pack, *options.unpack]
    exit_on_problems(
        [Problem(str(folder), "is not a folder", "name a study's folder") for folder in folders if not folder.is_dir()]
    )
    for folder in options.unpack:
        unpack(folder)
    for folder in options.pack:
        with study_run(folder):
            pass


if __name__ == "__main__":
    main()
