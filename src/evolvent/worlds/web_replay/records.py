"""Recorded tasks: Mind2Web's official JSON, and the ranks of its candidates, which come in a file of their own.

A step that cannot be scored (no ranks, a page that cannot be read or lacks what is right) stays in its task with the
reason, so that it is counted beside the averages. Ranks are read from JSON or Parquet. They are published as a pickle,
which could run any code when it is opened: convert it where you trust it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evolvent.errors import ConfigError, SampleInvalid, UnsafeFile
from evolvent.grade.web_actions import OPERATIONS
from evolvent.trajectory import canonical_json

__all__ = ["Ranks", "WebStep", "WebTask", "read_ranks", "read_task", "rows_of"]

_LARGEST = 2**34  # bytes of a file
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".bin")


@dataclass(frozen=True, slots=True)
class WebStep:
    """One recorded action and the page before it.

    Args:
        uid: of the action.
        html: the page, cleaned as the data has it.
        operation, value: "CLICK", "TYPE" or "SELECT", and what was typed or selected.
        positives: ids of the elements that are right, in the order of the file.
        candidates: ids of all elements that are ranked, the right ones among them, in the order of the page's numbers.
        ranks: candidate -> its place, 0 is the first; None: the file gives none.
        unscorable: why the step cannot be scored; "" where it can.
        thought: why the action is taken, where the record says it (generated pages do).
    """

    uid: str
    html: str
    operation: str
    value: str
    positives: tuple[str, ...]
    candidates: tuple[str, ...]
    ranks: Mapping[str, int] | None = None
    unscorable: str = ""
    thought: str = ""


@dataclass(frozen=True, slots=True)
class WebTask:
    """A recorded task: where, what, and its steps.

    Args:
        id: `annotation_id`.
        website, domain, subdomain: where it was recorded.
        told: the task in words (`confirmed_task`).
        said: the actions in words (`action_reprs`).
        digest: SHA-256 of all of it.
    """

    id: str
    website: str
    domain: str
    subdomain: str
    told: str
    said: tuple[str, ...]
    steps: tuple[WebStep, ...]
    digest: str


def read_task(row: object) -> WebTask:
    """A task of the official JSON.

    Raises:
        SampleInvalid: no object, no id, no task in words, or no actions. What is wrong with one action is told by its
            step.
    """
    if not isinstance(row, dict):
        raise SampleInvalid("a row that is no object", value=type(row).__name__, expected="a recorded task")
    actions = row.get("actions")
    wrong = [name for name in ("annotation_id", "confirmed_task") if not _text(row, name)]
    if wrong or not isinstance(actions, list) or not actions:
        raise SampleInvalid(
            "a row that is no recorded task",
            value=sorted(map(str, row))[:12],
            expected="annotation_id, confirmed_task and a list of actions",
        )
    said = row.get("action_reprs")
    return WebTask(
        _text(row, "annotation_id"),
        _text(row, "website"),
        _text(row, "domain"),
        _text(row, "subdomain"),
        " ".join(_text(row, "confirmed_task").split()),
        tuple(map(str, said)) if isinstance(said, list) else (),
        tuple(map(_step, actions)),
        _digest(row),
    )


def _digest(row: object) -> str:
    try:
        return hashlib.sha256(canonical_json(row).encode()).hexdigest()
    except (ValueError, RecursionError) as error:  # NaN, or nested without end
        raise SampleInvalid("a row that cannot be written as JSON again", value=str(error)) from error


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _step(action: object) -> WebStep:
    """An action; whatever is wrong with it makes it unscorable."""
    row = action if isinstance(action, dict) else {}
    done = row.get("operation")
    operation = done if isinstance(done, dict) else {}
    op, page = _text(operation, "op"), _text(row, "cleaned_html")
    right, ranked = _candidates(row.get("pos_candidates")), _candidates(row.get("neg_candidates"))
    reasons = (
        ("an action that is no object", not isinstance(action, dict)),
        ("an operation that is not known", op not in OPERATIONS),
        ("no page", not page.strip()),
    )
    ranks = {one: rank for one, rank in {**ranked, **right}.items() if rank is not None}
    every = sorted({**ranked, **right}, key=lambda one: (len(one), one))
    return WebStep(
        _text(row, "action_uid"),
        page,
        op,
        _text(operation, "value"),
        tuple(right),
        tuple(every),
        ranks or None,
        next((why for why, holds in reasons if holds), ""),
        _text(row, "thought"),
    )


def _candidates(rows: object) -> dict[str, int | None]:
    """Id -> rank, where the file itself gives ranks; in the order of the file."""
    found: dict[str, int | None] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(row.get("backend_node_id"), str | int):
            rank = row.get("rank")
            found.setdefault(str(row["backend_node_id"]), rank if type(rank) is int and rank >= 0 else None)
    return found


@dataclass(frozen=True, slots=True)
class Ranks:
    """The first candidates of each step.

    Args:
        of: `<annotation_id>_<action_uid>` -> element -> its place among all candidates.
        path: where they were read from, for messages.
        digest: SHA-256 of the file.
    """

    of: Mapping[str, Mapping[str, int]]
    path: str = ""
    digest: str = ""


def read_ranks(path: str | Path, *, first: int) -> Ranks:
    """The ranks in a file: JSON (`{step: {element: rank}}`, also below `"ranks"`) or Parquet (three columns).

    Args:
        path: the columns of a Parquet file are `sample_id`, `backend_node_id` and `rank`.
        first: keep the ranks below this number only; the steps are kept all.
    Raises:
        UnsafeFile: a pickle. ConfigError: a file that cannot be read, or holds something else.
    """
    file = Path(path)
    if file.suffix.lower() in _PICKLES:
        raise UnsafeFile(
            "ranks are not read from a pickle, which can run code",
            value=file.name,
            expected="JSON or Parquet",
            hint="convert it where you trust it",
        )
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        rows = _parquet_ranks(file) if file.suffix.lower() == ".parquet" else _json_ranks(file)
        of: dict[str, dict[str, int]] = {}
        for step, element, rank in rows:
            ranks = of.setdefault(step, {})
            if rank < first:
                ranks[element] = rank
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{file.name} cannot be read as ranks ({error})", value=str(file)) from error
    return Ranks(of, str(file), digest)


def _json_ranks(file: Path) -> Iterator[tuple[str, str, int]]:
    whole = json.loads(file.read_text(encoding="utf-8-sig"))
    steps = whole.get("ranks", whole) if isinstance(whole, dict) else None
    if not isinstance(steps, dict):
        raise ValueError("no object of steps")
    for step, ranks in steps.items():
        if not isinstance(ranks, dict) or not all(type(rank) is int and rank >= 0 for rank in ranks.values()):
            raise ValueError(f"the step {step} has something else than whole numbers from 0 on")
        yield from ((step, str(element), rank) for element, rank in ranks.items())
        if not ranks:
            raise ValueError(f"the step {step} has no ranks")


def _parquet_ranks(file: Path) -> Iterator[tuple[str, str, int]]:
    from pyarrow import parquet

    table = parquet.read_table(file, columns=["sample_id", "backend_node_id", "rank"])
    columns: Sequence[Sequence[Any]] = [column.to_pylist() for column in table.columns]
    for step, element, rank in zip(*columns, strict=True):
        if not isinstance(step, str) or type(rank) is not int or rank < 0:
            raise ValueError(f"a row of {step!r} and the rank {rank!r}")
        yield step, str(element), rank


def rows_of(file: Path) -> list[object]:
    """The rows of one file of the data.

    Raises:
        ConfigError: it cannot be read, or holds no array.
    """
    try:
        if file.stat().st_size > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST} bytes")
        whole = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file.name} cannot be read ({error})", value=str(file)) from error
    if not isinstance(whole, list):
        raise ConfigError(f"{file.name} holds no array of tasks", value=type(whole).__name__, expected="a JSON array")
    return whole
