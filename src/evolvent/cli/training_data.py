"""What a training learns from: recorded episodes or rows of other data, told apart, surveyed and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evolvent.cli.runs import store_folder
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.learn.rows import Row
from evolvent.learn.sources import dataset_rows, file_digest, json_lines, open_dataset
from evolvent.learn.windows import Intake
from evolvent.store.exchange import read_jsonl
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory
from evolvent.worlds.base import World

__all__ = ["Seen", "data_digest", "episodes", "holds_episodes", "rows", "strangers", "survey"]

_STORE = "trajectories"
_MOST = 5  # unknown worlds that are named


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of an episode without reading all of it: its group is its task's where it names none."""

    world: str
    group: str
    score: float | None
    failed: bool


def holds_episodes(data: Path) -> bool:
    """Whether data are episodes: a run's, or a file that `evolvent runs export` wrote as jsonl; else they are rows.

    Raises:
        ConfigError: there is nothing in that place, or nothing in it. StoreUnavailable: it cannot be read.
    """
    if data.is_dir():
        if any(
            (place / name).exists() for place in (data, data / "trajectories") for name in ("log", "manifest.jsonl")
        ):
            return True
        if (data / "run.json").exists():
            raise _wrong(f"{data} is a run that holds no episodes", "name the run that collected some")
        if not any(data.iterdir()):
            raise _wrong(f"{data} is an empty folder", "name a run, a file, or a folder of a data set")
        return False
    if not data.is_file():
        raise _wrong(f"{data} is neither a run nor a store, nor any other file or folder", "name a run or a file")
    if data.suffix == ".txt":
        if not data.stat().st_size:
            raise _wrong(f"{data} is empty", "name another file")
        return False
    refused = Intake()
    first = next(json_lines(data, intake=refused), ("", None))[1]
    if first is None:
        told = f": {refused.problems[0]}" if refused.problems else ""
        raise _wrong(f"{data} holds no line of JSON{told}", "name a file of JSON lines, a .txt file, or a folder")
    return isinstance(first, Mapping) and "task" in first and "steps" in first


def _wrong(what: str, hint: str) -> ConfigError:
    return ConfigError([Problem("data", what, hint)])


# ---------------------------------------------------------------------- episodes


def episodes(data: Path) -> Iterator[Trajectory]:
    """The recorded episodes in their order, without those that failed."""
    every = Store.open(store_folder(data)).trajectories() if data.is_dir() else read_jsonl(data)
    return (trajectory for trajectory in every if trajectory.error is None)


def survey(data: Path) -> list[Seen]:
    """Every episode, those that failed among them; of a store a few columns are read."""
    if not data.is_dir():
        return [Seen(t.task.world, t.group or t.task.id, t.score.unit, t.error is not None) for t in read_jsonl(data)]
    found: list[Seen] = []
    columns = ("world", "group", "task", "unit", "error")
    for batch in Store.open(store_folder(data)).scan(columns=columns):
        found += [
            Seen(str(world), str(group or task), unit, error is not None)
            for world, group, task, unit, error in zip(*(batch[name].to_pylist() for name in columns), strict=True)
        ]
    return found


def strangers(seen: Iterable[Seen], known: Mapping[str, World], data: Path) -> list[Problem]:
    """The worlds of episodes that are not among the known ones."""
    names = sorted({one.world for one in seen if not one.failed} - set(known))
    more = [Problem(str(data), f"{len(names) - _MOST} more unknown worlds")] if len(names) > _MOST else []
    return [unknown("world", name, known, where=str(data)) for name in names[:_MOST]] + more


# ---------------------------------------------------------------------- rows


def rows(data: Path, intake: Intake) -> Iterator[Row]:
    """The rows of a file of JSON lines, a text file (one document), or a folder of a Hugging Face data set."""
    if data.is_dir():
        return dataset_rows(open_dataset(data), name=data.name)
    if data.suffix == ".txt":
        return iter([(data.name, {"text": _text(data)})])
    return json_lines(data, intake=intake)


def _text(data: Path) -> str:
    try:
        return data.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _wrong(f"{data} is no UTF-8 text: byte {error.start}", "convert it") from error


def data_digest(data: Path) -> str:
    """A digest of what is learned from: of a run its episodes alone."""
    inner = data / _STORE
    return file_digest(inner if inner.is_dir() else data)
