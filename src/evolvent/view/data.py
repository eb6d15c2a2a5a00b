"""Data of a report, read from the files of a run directory, which may be half-written, damaged or hostile.

Nothing in those files is trusted: a value of the wrong type is dropped, a broken line is counted and passed over, and
a missing file is an empty part of the report. Reading never fails because of what a file holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from evolvent.errors import ConfigError, StoreUnavailable
from evolvent.trajectory import JsonObject
from evolvent.view.credit import CreditRow, parse_credit
from evolvent.view.searches import SearchRow, SearchTreeFile, parse_search_row, parse_tree_file
from evolvent.view.values import as_count, as_list, as_mapping, as_number, as_numbers, as_rate, as_text

__all__ = [
    "Episode",
    "EpisodeStep",
    "EvaluationRow",
    "MeasuredValue",
    "Metric",
    "ReportData",
    "Result",
    "RunInfo",
    "StageRow",
    "Token",
    "read_json_file",
    "read_run",
]

T = TypeVar("T")

_LIMIT_BYTES = 256 * 2**20
_MAX_TREE_FILES = 400  # files of trees that are read
_NOT_VALUES = frozenset({"time_s", "cpu_s", "stage", "arm", "kind", "step", "round"})


@dataclass(frozen=True, slots=True)
class RunInfo:
    """`run.json`: what was started, when and with which settings. `config` and `versions` are nested JSON values."""

    method: str = ""
    name: str = ""
    seed: str = ""
    created: str = ""
    state: str = ""
    command: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    versions: JsonObject = field(default_factory=dict)
    config: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of `metrics.jsonl`: when (seconds since the start, CPU seconds), what for, and its numbers."""

    time_s: float
    cpu_s: float | None
    stage: str
    arm: str
    kind: str
    step: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StageRow:
    """One finished stage of the ledger `stages.jsonl`; `counts` are tokens (generated, computed, trained, ...)."""

    index: int
    name: str
    verb: str
    arm: str
    round: int | None
    seconds: float
    cpu_s: float | None
    counts: Mapping[str, float]
    result: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """One evaluated panel of `results.jsonl`. A mean is None (withheld) where episodes had errors.

    `outcomes` holds (task id, kind, success), with success None where the episode could not be scored. `mean_return` is
    the mean of the rewards, where these say more than success.
    """

    stage: str
    arm: str
    round: int
    world: str
    tier: str
    split: str
    n: int
    mean: float | None
    low: float | None
    high: float | None
    errors: int
    generated: int | None
    computed: int | None
    outcomes: tuple[tuple[str, str, float | None], ...]
    mean_return: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """A number of an evaluation; `value` is None where withheld, `low` and `high` where there is no interval."""

    metric: str
    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """A line of `evaluations.jsonl`: the numbers of an evaluator for the snapshot of an update, or its error.

    `settings` is a digest: numbers are one series only where it is the same.
    """

    step: float
    stage: str
    settings: str
    seconds: float
    measures: tuple[MeasuredValue, ...]
    error: str


@dataclass(frozen=True, slots=True)
class Token:
    """One token as text; `logprob` (natural logarithm) only where the model sampled it."""

    text: str
    sampled: bool
    logprob: float | None


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """One environment step; `logprob` is the mean over the sampled tokens of its action."""

    observation: str
    action: str
    reward: float | None
    invalid: bool
    logprob: float | None


@dataclass(frozen=True, slots=True)
class Episode:
    """One example of `examples.json`."""

    task: str
    world: str
    tier: str
    kind: str
    arm: str
    round: int
    success: bool | None
    ended_by: str
    instructions: str
    steps: tuple[EpisodeStep, ...]
    final_observation: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything a report shows. `notes` says what could not be read, one sentence each."""

    info: RunInfo = RunInfo()
    metrics: tuple[Metric, ...] = ()
    stages: tuple[StageRow, ...] = ()
    results: tuple[Result, ...] = ()
    examples: tuple[Episode, ...] = ()
    floors: Mapping[tuple[str, str], Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    evaluations: tuple[EvaluationRow, ...] = ()
    credit: tuple[CreditRow, ...] = ()
    searches: tuple[SearchRow, ...] = ()
    trees: tuple[SearchTreeFile, ...] = ()


def read_run(run: Path) -> ReportData:
    """Reads a run directory in any state.

    Raises:
        ConfigError: there is no such directory. StoreUnavailable: a file of it cannot be opened.
    """
    if not run.is_dir():
        raise ConfigError("run not found", value=str(run), expected="the directory of a run")
    notes: list[str] = []
    results = {
        (result.arm, result.round, result.world, result.tier, result.split): result
        for result in _read_rows(run / "results.jsonl", _parse_result, notes)
    }
    stages = {(row.index, row.name): row for row in _read_rows(run / "stages.jsonl", _parse_stage, notes)}
    examples = _read_document(run / "examples.json", notes)
    return ReportData(
        info=_parse_info(as_mapping(_read_document(run / "run.json", notes))),
        metrics=tuple(_read_rows(run / "metrics.jsonl", _parse_metric, notes)),
        stages=tuple(sorted(stages.values(), key=lambda row: row.index)),
        results=tuple(results.values()),
        examples=tuple(_parse_episode(row) for row in as_list(examples) if isinstance(row, dict)),
        floors=_parse_floors(as_mapping(_read_document(run / "floors.json", notes))),
        evaluations=tuple(_read_rows(run / "evaluations.jsonl", _parse_evaluation, notes)),
        credit=parse_credit(_read_document(run / "credit.json", notes)),
        searches=tuple(_read_rows(run / "searches.jsonl", parse_search_row, notes)),
        trees=_read_trees(run / "trees", notes),
        notes=tuple(notes),
    )


# ---------------------------------------------------------------- files


def _read_bytes(path: Path, notes: list[str]) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # `read` sets the memory aside that it is asked for
            data = file.read(min(size, _LIMIT_BYTES) + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StoreUnavailable(f"cannot read {path.name} of the run: {error.strerror}", value=str(path)) from error
    if len(data) > _LIMIT_BYTES:
        notes.append(f"{path.name} is longer than {_LIMIT_BYTES // 2**20} MiB: only its beginning is shown")
    return data[:_LIMIT_BYTES]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_json(data: bytes) -> Any:
    """Parses JSON; returns None for invalid text (torn, too deep, NaN)."""
    try:
        return json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _read_document(path: Path, notes: list[str]) -> Any:
    data = _read_bytes(path, notes)
    value = _parse_json(data) if data else None
    if data and value is None:
        notes.append(f"{path.name} is not readable as JSON")
    return value


def read_json_file(path: Path) -> object:
    """Reads the JSON value of a file of a run; None where the file is missing or invalid.

    Raises:
        StoreUnavailable: it cannot be opened.
    """
    return _read_document(path, [])


def _read_rows(path: Path, parse_row: Callable[[Mapping[str, Any]], T | None], notes: list[str]) -> Iterator[T]:
    """Yields each line that is a JSON object, parsed by `parse_row`; the last line may be torn while the run goes
    on.
    """
    num_broken, lines = 0, _read_bytes(path, notes).split(b"\n")
    for number, line in enumerate(lines):
        value = _parse_json(line) if line.strip() else {}
        row = parse_row(value) if isinstance(value, dict) and value else None
        if row is not None:
            yield row
        elif line.strip() and number < len(lines) - 1:
            num_broken += 1
    if num_broken:
        notes.append(f"{path.name} has {num_broken} unreadable line{'s' if num_broken > 1 else ''}, passed over")


def _read_trees(folder: Path, notes: list[str]) -> tuple[SearchTreeFile, ...]:
    """Reads the search trees of a folder, by name; empty without the folder."""
    paths = sorted(folder.glob("*.json"))[:_MAX_TREE_FILES] if folder.is_dir() else []
    trees = (parse_tree_file(path.name, _read_document(path, notes)) for path in paths)
    return tuple(tree for tree in trees if tree is not None)


# ---------------------------------------------------------------- rows


def _parse_info(row: Mapping[str, Any]) -> RunInfo:
    return RunInfo(
        method=as_text(row.get("method")),
        name=as_text(row.get("name")),
        seed=as_text(row.get("seed")),
        created=as_text(row.get("created")),
        state=as_text(row.get("state")),
        command=tuple(map(as_text, as_list(row.get("command")))),
        arms=tuple(map(as_text, as_list(row.get("arms")))),
        versions=as_mapping(row.get("versions")),
        config=as_mapping(row.get("config")),
    )


def _parse_metric(row: Mapping[str, Any]) -> Metric | None:
    time_s = as_number(row.get("time_s"))
    if time_s is None:
        return None
    values = {name: number for name, number in as_numbers(row).items() if name not in _NOT_VALUES}
    return Metric(
        time_s,
        as_number(row.get("cpu_s")),
        as_text(row.get("stage")),
        as_text(row.get("arm")),
        as_text(row.get("kind")),
        as_number(row.get("step")) or 0.0,
        values,
    )


def _parse_stage(row: Mapping[str, Any]) -> StageRow | None:
    index, seconds = as_count(row.get("index")), as_number(row.get("seconds"))
    if index is None or seconds is None or seconds < 0:
        return None
    return StageRow(
        index,
        as_text(row.get("name")),
        as_text(row.get("verb")),
        as_text(row.get("arm")),
        as_count(row.get("round")),
        seconds,
        as_number(row.get("cpu_s")),
        as_numbers(row.get("counts")),
        as_numbers(row.get("result")),
    )


def _parse_result(row: Mapping[str, Any]) -> Result | None:
    round_number, n = as_count(row.get("round")), as_count(row.get("n"))
    if round_number is None or n is None:
        return None
    outcomes = tuple(
        (as_text(entry[0]), as_text(entry[1]), as_rate(entry[2]))
        for entry in as_list(row.get("outcomes"))
        if isinstance(entry, list) and len(entry) == 3
    )
    return Result(
        as_text(row.get("stage")),
        as_text(row.get("arm")),
        round_number,
        as_text(row.get("world")),
        as_text(row.get("tier")),
        as_text(row.get("split")),
        n,
        as_rate(row.get("mean")),
        as_rate(row.get("low")),
        as_rate(row.get("high")),
        as_count(row.get("errors")) or 0,
        as_count(row.get("generated")),
        as_count(row.get("computed")),
        outcomes,
        as_number(row.get("mean_return")),
    )


def _parse_evaluation(row: Mapping[str, Any]) -> EvaluationRow | None:
    step = as_number(row.get("step"))
    if step is None:
        return None
    measures = tuple(
        MeasuredValue(
            as_text(entry.get("metric")),
            as_number(entry.get("value")),
            as_number(entry.get("low")),
            as_number(entry.get("high")),
            as_count(entry.get("n")) or 0,
        )
        for entry in as_list(row.get("measures"))
        if isinstance(entry, dict)
    )
    error = as_mapping(row.get("error"))
    error_text = ": ".join(filter(None, (as_text(error.get("kind")), as_text(error.get("message")))))
    seconds = max(0.0, as_number(row.get("seconds")) or 0.0)
    return EvaluationRow(step, as_text(row.get("stage")), as_text(row.get("settings")), seconds, measures, error_text)


def _parse_episode(row: Mapping[str, Any]) -> Episode:
    success = row.get("success")
    steps = tuple(
        EpisodeStep(
            as_text(step.get("observation")),
            as_text(step.get("action")),
            as_number(step.get("reward")),
            step.get("invalid") is True,
            as_number(step.get("logprob")),
        )
        for step in as_list(row.get("steps"))
        if isinstance(step, dict)
    )
    tokens = tuple(
        Token(as_text(token.get("text")), token.get("sampled") is True, as_number(token.get("logprob")))
        for token in as_list(row.get("tokens"))
        if isinstance(token, dict)
    )
    return Episode(
        task=as_text(row.get("task")),
        world=as_text(row.get("world")),
        tier=as_text(row.get("tier")),
        kind=as_text(row.get("kind")),
        arm=as_text(row.get("arm")),
        round=as_count(row.get("round")) or 0,
        success=None if success is None else bool(success),
        ended_by=as_text(row.get("ended_by")),
        instructions=as_text(row.get("instructions")),
        steps=steps,
        final_observation=as_text(row.get("final_observation")),
        tokens=tokens,
    )


def _parse_floors(row: Mapping[str, Any]) -> dict[tuple[str, str], dict[str, float]]:
    return {
        (world, tier): as_numbers(values) for world, tiers in row.items() for tier, values in as_mapping(tiers).items()
    }
