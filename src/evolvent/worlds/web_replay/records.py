"""Recorded tasks: Mind2Web's official JSON, and the ranks of its candidates, which come in a separate file.

A step that cannot be scored (no ranks, a page that cannot be read or lacks the right element) stays in its task
with the reason, so that it is counted beside the averages. Ranks are read from JSON or Parquet. They are
published as a pickle, which could run any code when it is opened: convert it on a machine where you trust it.
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

__all__ = ["Ranks", "WebStep", "WebTask", "parse_task", "read_ranks", "read_rows"]

_MAX_FILE_BYTES = 2**34  # bytes of a file
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib", ".pt", ".bin")


@dataclass(frozen=True, slots=True)
class WebStep:
    """One recorded action and the page before it.

    Args:
        uid: of the action.
        html: the page, as cleaned in the data.
        operation, value: "CLICK", "TYPE" or "SELECT", and the typed or selected text.
        positives: ids of the right elements, in the order of the file.
        candidates: ids of all ranked elements, the right ones among them, in the order of the page's numbers.
        ranks: candidate -> its rank, 0 is the first; None: the file has none.
        unscorable: the reason why the step cannot be scored; "" if it can.
        thought: the reason for the action, if the record has one (generated pages do).
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
    """A recorded task: its site, its instruction, and its steps.

    Args:
        id: `annotation_id`.
        website, domain, subdomain: the site of the record.
        instruction: the task in words (`confirmed_task`).
        action_texts: the actions in words (`action_reprs`).
        digest: SHA-256 of all of it.
    """

    id: str
    website: str
    domain: str
    subdomain: str
    instruction: str
    action_texts: tuple[str, ...]
    steps: tuple[WebStep, ...]
    digest: str


def parse_task(row: object) -> WebTask:
    """Parses a task of the official JSON.

    Raises:
        SampleInvalid: not an object, no id, no instruction, or no actions. A problem of one action is stored in its
            step.
    """
    if not isinstance(row, dict):
        raise SampleInvalid("the row is not an object", value=type(row).__name__, expected="a recorded task")
    actions = row.get("actions")
    missing = [name for name in ("annotation_id", "confirmed_task") if not _text(row, name)]
    if missing or not isinstance(actions, list) or not actions:
        raise SampleInvalid(
            "the row is not a recorded task",
            value=sorted(map(str, row))[:12],
            expected="annotation_id, confirmed_task and a list of actions",
        )
    action_texts = row.get("action_reprs")
    return WebTask(
        _text(row, "annotation_id"),
        _text(row, "website"),
        _text(row, "domain"),
        _text(row, "subdomain"),
        " ".join(_text(row, "confirmed_task").split()),
        tuple(map(str, action_texts)) if isinstance(action_texts, list) else (),
        tuple(map(_parse_step, actions)),
        _digest(row),
    )


def _digest(row: object) -> str:
    try:
        return hashlib.sha256(canonical_json(row).encode()).hexdigest()
    except (ValueError, RecursionError) as error:  # NaN, or nested without end
        raise SampleInvalid("the row cannot be written as JSON", value=str(error)) from error


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return value if isinstance(value, str) else ""


def _parse_step(action: object) -> WebStep:
    """Parses an action; a problem with it makes the step unscorable."""
    row = action if isinstance(action, dict) else {}
    raw_operation = row.get("operation")
    operation = raw_operation if isinstance(raw_operation, dict) else {}
    op, page = _text(operation, "op"), _text(row, "cleaned_html")
    positives, negatives = _parse_candidates(row.get("pos_candidates")), _parse_candidates(row.get("neg_candidates"))
    reasons = (
        ("an action that is no object", not isinstance(action, dict)),
        ("an operation that is not known", op not in OPERATIONS),
        ("no page", not page.strip()),
    )
    ranks = {element_id: rank for element_id, rank in {**negatives, **positives}.items() if rank is not None}
    candidates = sorted({**negatives, **positives}, key=lambda element_id: (len(element_id), element_id))
    return WebStep(
        _text(row, "action_uid"),
        page,
        op,
        _text(operation, "value"),
        tuple(positives),
        tuple(candidates),
        ranks or None,
        next((reason for reason, applies in reasons if applies), ""),
        _text(row, "thought"),
    )


def _parse_candidates(rows: object) -> dict[str, int | None]:
    """Returns id -> rank, if the file itself has ranks, in the order of the file."""
    rank_of: dict[str, int | None] = {}
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and isinstance(row.get("backend_node_id"), str | int):
            rank = row.get("rank")
            rank_of.setdefault(str(row["backend_node_id"]), rank if type(rank) is int and rank >= 0 else None)
    return rank_of


@dataclass(frozen=True, slots=True)
class Ranks:
    """The first candidates of each step.

    Args:
        by_step: `<annotation_id>_<action_uid>` -> element -> its rank among all candidates.
        path: the file of the ranks, for messages.
        digest: SHA-256 of the file.
    """

    by_step: Mapping[str, Mapping[str, int]]
    path: str = ""
    digest: str = ""


def read_ranks(path: str | Path, *, max_rank: int) -> Ranks:
    """Reads the ranks in a file: JSON (`{step: {element: rank}}`, also below `"ranks"`) or Parquet (three columns).

    Args:
        path: the columns of a Parquet file are `sample_id`, `backend_node_id` and `rank`.
        max_rank: only ranks below this number are retained; all steps are.
    Raises:
        UnsafeFile: a pickle. ConfigError: a file that cannot be read, or with other content.
    """
    file = Path(path)
    if file.suffix.lower() in _PICKLE_SUFFIXES:
        raise UnsafeFile(
            "ranks are not read from a pickle, which can run code",
            value=file.name,
            expected="JSON or Parquet",
            hint="convert it on a machine where you trust it",
        )
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        rows = _read_parquet_ranks(file) if file.suffix.lower() == ".parquet" else _read_json_ranks(file)
        ranks_by_step: dict[str, dict[str, int]] = {}
        for step, element, rank in rows:
            ranks = ranks_by_step.setdefault(step, {})
            if rank < max_rank:
                ranks[element] = rank
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigError(f"{file.name} cannot be read as ranks ({error})", value=str(file)) from error
    return Ranks(ranks_by_step, str(file), digest)


def _read_json_ranks(file: Path) -> Iterator[tuple[str, str, int]]:
    document = json.loads(file.read_text(encoding="utf-8-sig"))
    steps = document.get("ranks", document) if isinstance(document, dict) else None
    if not isinstance(steps, dict):
        raise ValueError("not an object of steps")
    for step, ranks in steps.items():
        if not isinstance(ranks, dict) or not all(type(rank) is int and rank >= 0 for rank in ranks.values()):
            raise ValueError(f"step {step} has values other than whole numbers of 0 or more")
        yield from ((step, str(element), rank) for element, rank in ranks.items())
        if not ranks:
            raise ValueError(f"the step {step} has no ranks")


def _read_parquet_ranks(file: Path) -> Iterator[tuple[str, str, int]]:
    from evolvent.store.parquet_limits import open_parquet

    with open_parquet(file).file as opened:
        table = opened.read(columns=["sample_id", "backend_node_id", "rank"])
    columns: Sequence[Sequence[Any]] = [column.to_pylist() for column in table.columns]
    for step, element, rank in zip(*columns, strict=True):
        if not isinstance(step, str) or type(rank) is not int or rank < 0:
            raise ValueError(f"a row of {step!r} and the rank {rank!r}")
        yield step, str(element), rank


def read_rows(file: Path) -> list[object]:
    """Reads the rows of one file of the data.

    Raises:
        ConfigError: the file cannot be read, or is not an array.
    """
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {_MAX_FILE_BYTES} bytes")
        document = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file.name} cannot be read ({error})", value=str(file)) from error
    if not isinstance(document, list):
        raise ConfigError(
            f"{file.name} does not hold an array of tasks", value=type(document).__name__, expected="a JSON array"
        )
    return document
