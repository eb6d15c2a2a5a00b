"""`evolvent runs track RUN --to trackio`: hand the numbers of a run to a tracker, while it runs or later, each once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from evolvent.cli.parsing import Parser
from evolvent.cli.trackers import TRACKERS, Tracker
from evolvent.config import redact
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.files import disk_errors, write_atomic
from evolvent.store.lock import is_free
from evolvent.view.escape import plain
from evolvent.view.values import as_count, as_number

__all__ = ["numbers", "run_track"]

_PAUSE_S = 2.0
_WHERE = ("stage", "arm", "round", "kind", "time_s", "cpu_s")


def run_track(words: Sequence[str], console: Console) -> int:
    """Hand over what a tracker has not been given yet; returns the exit code."""
    parser = Parser("evolvent runs track", "Hand the numbers of a run to a tracker: each line once, also after a stop.")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add("--to", default="trackio", help=f"{', '.join(TRACKERS)} (default trackio)")
    parser.add("--project", default="evolvent", help="the tracker's project (default evolvent)")
    parser.add("--follow", action="store_true", help="go on until the run has ended")
    found = parser.read(words)
    folder: Path = found.run
    problems = [unknown("tracker", found.to, TRACKERS, where="--to")] if found.to not in TRACKERS else []
    if not (folder / "run.json").is_file():
        problems.append(Problem("run", f"{folder} is no run", "see: evolvent runs list"))
    if problems:
        raise ConfigError(problems)
    with disk_errors(folder):
        (folder / "tracking").mkdir(exist_ok=True)
    told = redact(_document(folder / "run.json"))
    tracker = TRACKERS[found.to](folder.resolve(), found.project, told)  # resolved: "." has no name
    try:
        given = _hand_over(folder, found.to, tracker, follow=found.follow)
    finally:
        tracker.close()
    console.print(f"gave {found.to} {given} lines of {plain(str(folder))}", soft_wrap=True)
    return 0


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of `metrics.jsonl`, named `arm/kind/name`; what is no finite number is left out."""
    place = f"{row.get('arm', 'run')}/{row.get('kind', 'run')}"
    found = {f"{place}/{name}": value for name, value in row.items() if name not in _WHERE}
    found |= {name: row[name] for name in ("time_s", "cpu_s", "round") if name in row}
    return {
        name: number
        for name, value in found.items()
        if not isinstance(value, bool) and (number := as_number(value)) is not None
    }


def _hand_over(run: Path, name: str, tracker: Tracker, *, follow: bool) -> int:
    """Every line from where the last one ended; how far that is stands in `tracking/NAME.json`."""
    mark = run / "tracking" / f"{name}.json"
    known = _document(mark)
    place, line, given = as_count(known.get("bytes")) or 0, as_count(known.get("lines")) or 0, 0
    while True:
        over = not follow or not _goes_on(run)  # asked first: nothing is missed
        before = place
        try:
            for row, after in _lines(run / "metrics.jsonl", place):
                if row:
                    tracker.log(numbers(row), step=line + 1)
                place, line, given = after, line + 1, given + 1
        finally:  # also where the tracker failed or somebody stopped it: what it has taken is not given again
            if place > before:
                write_atomic(mark, json.dumps({"bytes": place, "lines": line}))
        if over:
            return given
        time.sleep(_PAUSE_S)


def _goes_on(run: Path) -> bool:
    """Whether lines may still come: a run that was killed says "running" for ever, but its lock is free."""
    locks = [path for path in (run / "trajectories" / "writer.lock", run / ".train.lock") if path.is_file()]
    says = _document(run / "run.json").get("state") == "running"
    return says and not (locks and all(map(is_free, locks)))


def _lines(path: Path, place: int) -> Iterator[tuple[dict[str, Any], int]]:
    """(a line's values, where the next begins) of all whole lines from a place on; a line that is no JSON gives {}."""
    if not path.is_file():
        return
    with disk_errors(path), path.open("rb") as file:
        file.seek(place)
        for line in file:
            if not line.endswith(b"\n"):
                return  # half written: read again the next time
            place += len(line)
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = {}
            yield (row if isinstance(row, dict) else {}), place


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
