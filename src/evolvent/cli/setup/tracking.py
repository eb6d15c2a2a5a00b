"""`evolvent runs track RUN --to trackio`: sends the metrics of a run to a tracker, during the run or later, each
once.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from evolvent.cli.terminal.parsing import Parser
from evolvent.config import redact
from evolvent.errors import ConfigError, MissingExtra, Problem, StoreUnavailable, boundary, unknown_name_problem
from evolvent.files import disk_errors, write_atomic
from evolvent.store.lock import is_free
from evolvent.trajectory import JsonObject
from evolvent.view.escape import show_hidden
from evolvent.view.values import as_count, as_number

__all__ = ["TRACKERS", "Tracker", "extract_metrics", "run_track"]


class Tracker(Protocol):
    """A receiver of the metrics of a run."""

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        """Logs numbers by name; `step` counts the run's lines from 1 and only grows."""
        ...

    def close(self) -> None:
        """Sends buffered metrics and ends the run."""
        ...


class _HostedTracker:
    """A tracker with the interface that trackio and wandb share: `init`, `log`, `finish`."""

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


class _TensorBoardTracker:
    """TensorBoard's event files, written by its own package (without torch)."""

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


def _run_id(run: Path) -> str:
    """Returns an id that tells runs of one name apart: 16 hex digits, drawn once and kept in the run's folder."""
    file = run / "tracking" / "id"
    with disk_errors(file):
        try:
            with file.open("x", encoding="utf-8") as new:
                new.write(secrets.token_hex(8))
        except FileExistsError:
            pass
        return file.read_text(encoding="utf-8")


def _open_trackio(run: Path, project: str, config: Mapping[str, Any]) -> Tracker:
    try:
        import trackio  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtra("track", "exporting a run to trackio") from error
    name = f"{run.name}-{_run_id(run)[:8]}"  # by which it knows a run again
    return _HostedTracker(trackio, project=project, name=name, config=dict(config), resume="allow", embed=False)


def _open_wandb(run: Path, project: str, config: Mapping[str, Any]) -> Tracker:
    try:
        import wandb  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingExtra("track", "exporting a run to wandb") from error
    run_options = {"name": run.name, "id": _run_id(run), "dir": run / "tracking"}
    return _HostedTracker(wandb, project=project, config=dict(config), resume="allow", **run_options)


def _open_tensorboard(run: Path, project: str, config: Mapping[str, Any]) -> Tracker:
    try:
        import tensorboard  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        raise MissingExtra("track", "exporting a run to TensorBoard") from error
    return _TensorBoardTracker(run / "tracking" / "tensorboard")


TRACKERS: Mapping[str, Callable[[Path, str, JsonObject], Tracker]] = {
    "trackio": _open_trackio,
    "wandb": _open_wandb,
    "tensorboard": _open_tensorboard,
}
"""By name: `TRACKERS[name](run, project, config)`. MissingExtra where its package is not installed."""


_POLL_INTERVAL_S = 2.0
_CONTEXT_FIELDS = ("stage", "arm", "round", "kind", "time_s", "cpu_s")


def run_track(argv: Sequence[str], console: Console) -> int:
    """Sends the metrics that a tracker has not received yet; returns the exit code."""
    parser = Parser("evolvent runs track", "Hand the numbers of a run to a tracker: each line once, also after a stop.")
    parser.add("run", type=Path, help="the folder of a run")
    parser.add(
        "--to",
        dest="tracker_name",
        metavar="TRACKER",
        default="trackio",
        help=f"{', '.join(TRACKERS)} (default trackio)",
    )
    parser.add("--project", default="evolvent", help="the tracker's project (default evolvent)")
    parser.add("--follow", action="store_true", help="go on until the run has ended")
    args = parser.parse_argv(argv)
    folder: Path = args.run
    problems = (
        [unknown_name_problem("tracker", args.tracker_name, TRACKERS, location="--to")]
        if args.tracker_name not in TRACKERS
        else []
    )
    if not (folder / "run.json").is_file():
        problems.append(Problem("run", f"{folder} is not a run", "see: evolvent runs list"))
    if problems:
        raise ConfigError(problems)
    with disk_errors(folder):
        (folder / "tracking").mkdir(exist_ok=True)
    settings = redact(_read_json(folder / "run.json"))
    tracker = TRACKERS[args.tracker_name](folder.resolve(), args.project, settings)  # resolved: "." has no name
    try:
        num_lines = _send_lines(folder, args.tracker_name, tracker, follow=args.follow)
    finally:
        tracker.close()
    console.print(f"gave {args.tracker_name} {num_lines} lines of {show_hidden(str(folder))}", soft_wrap=True)
    return 0


def extract_metrics(row: Mapping[str, object]) -> dict[str, float]:
    """Extracts the numbers of a line of `metrics.jsonl` as `arm/kind/name`; other values are left out."""
    prefix = f"{row.get('arm', 'run')}/{row.get('kind', 'run')}"
    values_by_name = {f"{prefix}/{name}": value for name, value in row.items() if name not in _CONTEXT_FIELDS}
    values_by_name |= {name: row[name] for name in ("time_s", "cpu_s", "round") if name in row}
    return {
        name: number
        for name, value in values_by_name.items()
        if not isinstance(value, bool) and (number := as_number(value)) is not None
    }


def _send_lines(run: Path, name: str, tracker: Tracker, *, follow: bool) -> int:
    """Sends every line after the last sent one; that position is stored in `tracking/NAME.json`."""
    position_path = run / "tracking" / f"{name}.json"
    position = _read_json(position_path)
    offset, num_lines, num_sent = as_count(position.get("bytes")) or 0, as_count(position.get("lines")) or 0, 0
    while True:
        is_last_pass = not follow or not _is_running(run)  # asked first: nothing is missed
        previous_offset = offset
        try:
            for row, next_offset in _read_lines(run / "metrics.jsonl", offset):
                if row:
                    tracker.log(extract_metrics(row), step=num_lines + 1)
                offset, num_lines, num_sent = next_offset, num_lines + 1, num_sent + 1
        finally:  # also where the tracker failed or somebody stopped it: what it has taken is not given again
            if offset > previous_offset:
                write_atomic(position_path, json.dumps({"bytes": offset, "lines": num_lines}))
        if is_last_pass:
            return num_sent
        time.sleep(_POLL_INTERVAL_S)


def _is_running(run: Path) -> bool:
    """Returns whether more lines may come: a killed run stays recorded as "running", but its lock is free."""
    locks = [path for path in (run / "trajectories" / "writer.lock", run / ".train.lock") if path.is_file()]
    is_recorded_running = _read_json(run / "run.json").get("state") == "running"
    return is_recorded_running and not (locks and all(map(is_free, locks)))


def _read_lines(path: Path, offset: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields (a line's values, offset of the next line) for all complete lines from an offset; invalid JSON gives
    {}.
    """
    if not path.is_file():
        return
    with disk_errors(path), path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return  # half written: read again the next time
            offset += len(line)
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = {}
            yield (row if isinstance(row, dict) else {}), offset


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
