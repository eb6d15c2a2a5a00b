"""Adapters to trackers of experiments: trackio, wandb, TensorBoard. None is imported before it is asked for.

A run writes its numbers as JSON lines and knows no tracker; `evolvent runs track` reads them and hands them on. A
tracker that is slow, breaks or is not there therefore cannot touch a training.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from evolvent.errors import MissingExtra, StoreUnavailable, boundary
from evolvent.files import disk_errors

__all__ = ["TRACKERS", "Tracker"]


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
