"""The data of a training: recorded episodes or rows of other data, distinguished, summarized and read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evolvent.cli.runs import find_store
from evolvent.cli.setup.record import read_recorded_worlds
from evolvent.cli.setup.registry import describe_worlds
from evolvent.data.tables import find_saved_files
from evolvent.engine.replies import RECORDED_WORLD
from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.learn.rows import Row
from evolvent.learn.sources import file_digest, open_dataset, read_dataset_rows, read_file_rows
from evolvent.learn.windows import Intake
from evolvent.store.exchange import IMPORTED_VERSIONS, read_jsonl
from evolvent.store.store import Store
from evolvent.trajectory import Trajectory
from evolvent.worlds.base import World

__all__ = [
    "EpisodeSummary",
    "data_digest",
    "find_run_worlds",
    "holds_episodes",
    "read_data_rows",
    "read_episodes",
    "summarize_episodes",
    "unknown_world_problems",
]

_STORE_FOLDER = "trajectories"
_FILE_HINT = "pass a file of JSON lines, JSON, Parquet or CSV, a .txt file or a folder"
_MAX_UNKNOWN_WORLDS = 5  # unknown worlds that are named


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """Facts about an episode that are read without its steps; without a group of its own, its group is its task.

    Attributes:
        is_imported: whether it is a conversation that was imported, which needs no world.
    """

    world: str
    group: str
    score: float | None
    failed: bool
    is_imported: bool = False


def holds_episodes(data: Path) -> bool:
    """Returns whether data are episodes: a run's, or a file that `evolvent runs export` wrote as jsonl; else they are
    rows.

    Raises:
        ConfigError: the path does not exist, or is empty.
        StoreUnavailable: it cannot be read.
    """
    if data.is_dir():
        if any(
            (folder / name).exists() for folder in (data, data / "trajectories") for name in ("log", "manifest.jsonl")
        ):
            return True
        if (data / "run.json").exists():
            raise _data_error(f"run {data} does not hold episodes", "pass a run that collected episodes")
        if not any(data.iterdir()):
            raise _data_error(f"{data} is an empty folder", "pass a run, a file or a data set folder")
        return False
    if not data.is_file():
        raise _data_error(f"{data} does not exist", "pass a run or a file")
    if data.suffix == ".txt":
        if not data.stat().st_size:
            raise _data_error(f"{data} is empty", "pass another file")
        return False
    intake = Intake()
    content = "JSON lines" if ".jsonl" in data.name else "rows"
    try:
        first_row = next(read_file_rows(data, intake=intake), ("", None))[1]
    except ConfigError as error:
        raise _data_error(f"{data} does not hold {content}: {error}", _FILE_HINT) from error
    if first_row is None:
        reason = f": {intake.problems[0]}" if intake.problems else ""
        raise _data_error(f"{data} does not hold {content}{reason}", _FILE_HINT)
    return isinstance(first_row, Mapping) and "task" in first_row and "steps" in first_row


def _data_error(message: str, hint: str) -> ConfigError:
    return ConfigError([Problem("data", message, hint)])


# ---------------------------------------------------------------------- episodes


def read_episodes(data: Path) -> Iterator[Trajectory]:
    """Yields the recorded episodes in order, without those that failed."""
    trajectories = Store.open(find_store(data)).trajectories() if data.is_dir() else read_jsonl(data)
    return (trajectory for trajectory in trajectories if trajectory.error is None)


def summarize_episodes(data: Path) -> list[EpisodeSummary]:
    """Returns a summary of every episode, including failed ones; of a store only a few columns are read."""
    if not data.is_dir():
        return [
            EpisodeSummary(
                trajectory.task.world,
                trajectory.group or trajectory.task.id,
                trajectory.score.unit,
                trajectory.error is not None,
                trajectory.task.version in IMPORTED_VERSIONS,
            )
            for trajectory in read_jsonl(data)
        ]
    summaries: list[EpisodeSummary] = []
    columns = ("world", "group", "task", "unit", "error", "version")
    for batch in Store.open(find_store(data)).scan(columns=columns):
        summaries += [
            EpisodeSummary(str(world), str(group or task), unit, error is not None, version in IMPORTED_VERSIONS)
            for world, group, task, unit, error, version in zip(
                *(batch[name].to_pylist() for name in columns), strict=True
            )
        ]
    return summaries


def unknown_world_problems(
    summaries: Iterable[EpisodeSummary], known_worlds: Mapping[str, World], data: Path
) -> list[Problem]:
    """Returns a problem for each world of episodes that is not known; imported conversations need none."""
    worlds = {s.world for s in summaries if not s.failed and not s.is_imported}
    names = sorted(worlds - set(known_worlds) - {RECORDED_WORLD})  # recorded sessions hold all that was read
    remainder = (
        [Problem(str(data), f"{len(names) - _MAX_UNKNOWN_WORLDS} more unknown worlds")]
        if len(names) > _MAX_UNKNOWN_WORLDS
        else []
    )
    return [
        unknown_name_problem("world", name, known_worlds, location=str(data)) for name in names[:_MAX_UNKNOWN_WORLDS]
    ] + remainder


def find_run_worlds(data: Path, summaries: Iterable[EpisodeSummary]) -> tuple[str, ...]:
    """Finds the worlds of episodes: those that the settings of their run record, or embedded ones of the same names.

    Returns:
        names of worlds, as `--worlds` takes them; none where neither is known.
    """
    for folder in (data, data.parent) if data.is_dir() else ():
        recorded_worlds = read_recorded_worlds(folder)
        if recorded_worlds:
            return recorded_worlds
    played_names = {summary.world for summary in summaries if not summary.failed and not summary.is_imported}
    return tuple(sorted(played_names & set(describe_worlds())))


# ---------------------------------------------------------------------- rows


def read_data_rows(data: Path, intake: Intake) -> Iterator[Row]:
    """Yields the rows of a file, a text file (one document), or a folder of a Hugging Face data set."""
    if data.suffix == ".txt":
        return iter([(data.name, {"text": _read_text(data)})])
    if not data.is_dir():
        return read_file_rows(data, intake=intake)
    saved_folder = data / "train" if (data / "dataset_dict.json").is_file() else data
    if find_saved_files(saved_folder):
        return read_file_rows(saved_folder, intake=intake)
    return read_dataset_rows(open_dataset(data), name=data.name)


def _read_text(data: Path) -> str:
    try:
        return data.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _data_error(f"{data} is not UTF-8 text: invalid byte {error.start}", "convert it to UTF-8") from error


def data_digest(data: Path) -> str:
    """Returns a digest of the training data: of a run its episodes alone."""
    store_path = data / _STORE_FOLDER
    return file_digest(store_path if store_path.is_dir() else data)
