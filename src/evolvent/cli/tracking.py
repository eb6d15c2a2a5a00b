"""`evolvent runs track RUN --to trackio`: hand the numbers of a run to a tracker, while it runs or later, each once."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from evolvent.cli.parsing import Parser
from evolvent.config import redact
from evolvent.errors import ConfigError, MissingExtra, Problem, StoreUnavailable, boundary, unknown
from evolvent.files import disk_errors, write_atomic
from evolvent.store.lock import is_free
from evolvent.view.escape import plain
from evolvent.view.values import as_count, as_number

__all__ = ["TRACKERS", "Tracker", "numbers", "run_track"]


class Tracker(Protocol):
    """What takes the numbers of a run."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Take numbers by name; `step` counts the run's lines from 1 and only grows."""
        ...

    def close(self) -> None:
        """Hand over what is still held."""
        ...


class _Hosted:
    """trackio and wandb, whose interfaces are alike: `init`, `log`, `finish`."""

    def __init__(self, module: Any, **options: Any) -> None:
        self._module = module
        with boundary(StoreUnavailable, f"{module.__name__} cannot begin a run"):
            self._run = module.init(**options)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        with boundary(StoreUnavailable, f"{self._module.__name__} did not take line {step}"):
            self._run.log(dict(values), step=step)

    def close(self) -> None:
        with boundary(StoreUnavailable, f"{self._module.__name__} cannot end the run"):
            self._run.finish()


class _Events:
    """TensorBoard's event files, written by its own package (no torch)."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-not-found, unused-ignore]
        from tensorboard.summary.writer.event_file_writer import (  # type: ignore[import-not-found, unused-ignore]
            EventFileWriter,
        )

        self._summary = Summary
        with boundary(StoreUnavailable, "no event file can be written", folder=folder):
            self._writer = EventFileWriter(str(folder))

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        import time

        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-not-found, unused-ignore]

        rows = [self._summary.Value(tag=name, simple_value=number) for name, number in values.items()]
        event = Event(wall_time=time.time(), step=step, summary=self._summary(value=rows))
        with boundary(StoreUnavailable, f"TensorBoard's file did not take line {step}"):
            self._writer.add_event(event)

    def close(self) -> None:
        self._writer.close()


def _identity(run: Path) -> str:
    """What tells a run from others of its name: 16 hex digits, drawn once and kept in its folder."""
    file = run / "tracking" / "id"
    with disk_errors(file):
        try:
            with file.open("x", encoding="utf-8") as new:
                new.write(secrets.token_hex(8))
        except FileExistsError:
            pass
        return file.read_text(encoding="utf-8")


def _trackio(run: Path, project: str, config: Mapping[str, Any]) -> Tracker:
    try:
        import trackio  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtra("track", "handing a run to trackio") from error
    name = f"{run.name}-{_identity(run)[:8]}"  # by which it knows a run again
    return _Hosted(trackio, project=project, name=name, config=dict(config), resume="allow", embed=False)


def _wandb(run: Path, project: str, config: Mapping[str, Any]) -> Tracker:
    try:
        import wandb  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtra("track", "handing a run to wandb") from error
    own = {"name": run.name, "id": _identity(run), "dir": run / "tracking"}
    return _Hosted(wandb, project=project, config=dict(config), resume="allow", **own)


def _tensorboard(run: Path, project: str, config: Mapping[str, Any]) -> Tracker:
    try:
        import tensorboard  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise MissingExtra("track", "writing event files for TensorBoard") from error
    return _Events(run / "tracking" / "tensorboard")


TRACKERS: Mapping[str, Callable[[Path, str, Mapping[str, Any]], Tracker]] = {
    "trackio": _trackio,
    "wandb": _wandb,
    "tensorboard": _tensorboard,
}
"""By name: `TRACKERS[name](run, project, config)`. MissingExtra where its package is not installed."""


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
