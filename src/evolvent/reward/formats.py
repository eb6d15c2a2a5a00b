"""Readers of public process data, each layout to `SpanLabels`: Math-Shepherd, PRM800K, MATH-APS, OpenR; and
our own.

    math-shepherd   {input, label, task}: both texts are question and steps; after each step a tag in `input`, + or - in
                    `label` (arXiv 2312.08935)
    prm800k         {question: {problem}, label: {steps: [{completions: [{text, rating}], human_completion,
                    chosen_completion}]}} (arXiv 2305.20050)
    math-aps        {question, reasoning_steps: [{solution_prefix, mc_value}]} (OpenR, arXiv 2410.09671)
    math-aps-tree   {question, reasoning_steps: {text, mc_value, children: [...]}}
    openr           {question, process, label: [...]}: a tag after each step of `process`
    evolvent        {question, spans, labels, source, meta}

A file is JSON lines or one JSON array. An invalid row is refused, with all its chains where it holds several,
and the other rows are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from evolvent.data.jsonl import Refusals, read_json_rows
from evolvent.errors import ConfigError, SampleInvalid, unknown_name_problem
from evolvent.files import atomic_writer, plain_json
from evolvent.reward.labels import STEP_TAG, SpanLabels

__all__ = ["KINDS", "Kind", "read_labels", "write_labels"]


Kind = Literal["math-shepherd", "prm800k", "math-aps", "math-aps-tree", "openr", "evolvent"]
KINDS: tuple[Kind, ...] = ("math-shepherd", "prm800k", "math-aps", "math-aps-tree", "openr", "evolvent")

_FIRST = "Step 1: "
_APS_ABOVE = 0.5  # MATH-APS: a step is good if more than half of the completions from it are right
_MIN_STEP_CHARS = 3  # characters; shorter steps of MATH-APS are debris of splitting
_SIGNS = {"+": 1.0, "-": 0.0}


class _InvalidField(SampleInvalid):
    """Raised for a field that does not follow its layout."""

    def __init__(self, field: str, problem: str, value: object = None) -> None:
        self.field = field
        super().__init__(problem, value=value)


def read_labels(
    path: Path,
    kind: Kind | None = None,
    *,
    refused: Refusals | None = None,
    neutral: Literal["good", "bad", "none"] = "good",
    tag: str = STEP_TAG,
    max_bytes: int = 1 << 24,
) -> Iterator[SpanLabels]:
    """Yields the labeled solutions of a file one after the other, in constant memory.

    Args:
        path: The file.
        kind: Layout; None: detected for each row by its fields.
        refused: Counts the rows that break their layout, with file, line and field; None: they are dropped
            silently.
        neutral: Meaning of PRM800K's rating 0; "none": not labeled.
        tag: Text after each step, in Math-Shepherd's and OpenR's layout.
        max_bytes: Maximum bytes of a row.
    Raises:
        ConfigError: an unknown layout. StoreUnavailable: the file cannot be read.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError([unknown_name_problem("layout", kind, KINDS)])
    if neutral not in ("good", "bad", "none"):
        raise ConfigError([unknown_name_problem("neutral", neutral, ("good", "bad", "none"))])
    refused = Refusals() if refused is None else refused
    readers = _make_readers(refused, path, neutral=neutral, tag=tag)
    return _read_rows(path, kind, readers, refused, max_bytes)


_Reader = Callable[[Mapping[str, Any], int], list[SpanLabels]]


def _make_readers(refused: Refusals, path: Path, *, neutral: str, tag: str) -> dict[str, _Reader]:
    def report_dropped(line: int) -> Callable[[str, str], None]:
        return lambda field, why: refused.record(path, line, field=field, reason=why)

    return {
        "math-shepherd": lambda row, line: [_parse_math_shepherd(row, tag)],
        "prm800k": lambda row, line: _parse_prm800k(row, {"good": 1.0, "bad": 0.0, "none": None}[neutral]),
        "math-aps": lambda row, line: _parse_math_aps(row, report_dropped(line)),
        "math-aps-tree": lambda row, line: _parse_math_aps_tree(row, report_dropped(line)),
        "openr": lambda row, line: [_parse_openr(row, tag)],
        "evolvent": lambda row, line: [_parse_evolvent(row)],
    }


def _read_rows(
    path: Path, kind: str | None, readers: Mapping[str, _Reader], refused: Refusals, max_bytes: int
) -> Iterator[SpanLabels]:
    for line, row in read_json_rows(path, refused, max_bytes=max_bytes):
        try:
            if not isinstance(row, dict):
                raise _InvalidField("", "the row is not an object", type(row).__name__)
            solutions = readers[kind or _detect_layout(row)](row, line)
        except SampleInvalid as error:
            refused.record(path, line, field=getattr(error, "field", ""), reason=str(error))
            continue
        yield from solutions


def _detect_layout(row: Mapping[str, Any]) -> str:
    """Detects the layout of a row by its fields."""
    steps = row.get("reasoning_steps")
    first = steps[0] if isinstance(steps, list) and steps else None
    if "spans" in row and "labels" in row:
        return "evolvent"
    if "process" in row and "label" in row:
        return "openr"
    if "input" in row and "label" in row:
        return "math-shepherd"
    if isinstance(row.get("question"), dict) and isinstance(row.get("label"), dict):
        return "prm800k"
    if isinstance(first, dict) and "solution_prefix" in first:
        return "math-aps"
    if isinstance(steps, dict) or isinstance(first, dict):
        return "math-aps-tree"
    raise _InvalidField("", "the fields of the row do not match a known layout", sorted(map(str, row))[:8])


def _get_text(row: Mapping[str, Any], name: str, path: str = "") -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise _InvalidField(path + name, "not a text", type(value).__name__)
    return value


def _get_list(row: Mapping[str, Any], name: str, path: str = "") -> list[Any]:
    value = row.get(name)
    if not isinstance(value, list) or not value:
        raise _InvalidField(path + name, "not a list with entries", type(value).__name__)
    return value


def _check_object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _InvalidField(path, "not an object", type(value).__name__)
    return value


def _check_unit(value: object, path: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= 1:  # type: ignore[operator]
        raise _InvalidField(path, "not a number from 0 to 1", value)
    return float(value)  # type: ignore[arg-type]


# ------------------------------------------------------------------ the layouts


def _parse_math_shepherd(row: Mapping[str, Any], tag: str) -> SpanLabels:
    """Parses a row of Math-Shepherd. Signs are read only at the tags, so that a plus or minus inside a step is
    ignored.
    """
    input_text, label_text = _get_text(row, "input"), _get_text(row, "label")
    if input_text.count(_FIRST) != 1:
        raise _InvalidField("input", f"{_FIRST!r} does not occur exactly once", input_text.count(_FIRST))
    begin = input_text.index(_FIRST)
    *steps, remainder = input_text[begin:].split(tag)
    if remainder.strip() or not steps:
        raise _InvalidField("input", "the last step is not followed by a tag", remainder[:80])
    if label_text[:begin] != input_text[:begin]:
        raise _InvalidField("label", "the question differs from 'input'", label_text[:80])
    position, labels = begin, list[float | None]()
    for step in steps:
        if label_text[position : position + len(step)] != step:
            raise _InvalidField(
                "label", f"step {len(labels) + 1} differs from 'input'", label_text[position : position + 80]
            )
        position += len(step) + 1
        labels.append(_parse_sign(label_text[position - 1 : position]))
    if label_text[position:].strip():
        raise _InvalidField("label", "text follows the last sign", label_text[position : position + 80])
    meta = {"task": row["task"]} if isinstance(row.get("task"), str) else {}
    spans = tuple(step.strip() for step in steps)
    return SpanLabels(input_text[:begin].strip(), spans, tuple(labels), "math-shepherd", meta)


def _parse_sign(value: object) -> float:
    if not isinstance(value, str) or value not in _SIGNS:
        raise _InvalidField("label", "the sign is neither '+' nor '-'", value)
    return _SIGNS[value]


def _parse_prm800k(row: Mapping[str, Any], neutral: float | None) -> list[SpanLabels]:
    """Parses a row of PRM800K: the selected chain up to each step, followed by each of the step's completions.

    Of several completions at one step, those that were not chosen end their chain there. Flagged completions, and
    those without a rating, are not labeled.
    """
    question = _check_object(row.get("question"), "question")
    problem = _get_text(question, "problem", "question.")
    steps = _get_list(_check_object(row.get("label"), "label"), "steps", "label.")
    chains: list[list[tuple[str, float | None]]] = []
    selected_chain: list[tuple[str, float | None]] | None = []
    for number, entry in enumerate(steps):
        path = f"label.steps[{number}]"
        if selected_chain is None:
            raise _InvalidField(path, "the step follows a step without a choice")
        step = _check_object(entry, path)
        rated_completions = [
            _parse_rating(completion, f"{path}.completions[{index}]", neutral)
            for index, completion in enumerate(_get_completions(step, path))
        ]
        chosen_index, human_completion = step.get("chosen_completion"), step.get("human_completion")
        selected: tuple[str, float | None] | None = None
        if chosen_index is not None:
            if (
                not isinstance(chosen_index, int)
                or isinstance(chosen_index, bool)
                or not 0 <= chosen_index < len(rated_completions)
            ):
                raise _InvalidField(f"{path}.chosen_completion", "index is out of range", chosen_index)
            selected = rated_completions[chosen_index]
        elif human_completion is not None:
            selected = _parse_rating(human_completion, f"{path}.human_completion", neutral)
        chains += [
            [*selected_chain, completion] for index, completion in enumerate(rated_completions) if index != chosen_index
        ]
        selected_chain = None if selected is None else [*selected_chain, selected]
        if selected_chain is not None and number == len(steps) - 1:
            chains.append(selected_chain)
    if not chains:
        raise _InvalidField("label.steps", "no step has a completion")
    return [SpanLabels(problem, *_columns(chain), "prm800k") for chain in chains]


def _get_completions(step: Mapping[str, Any], path: str) -> list[Any]:
    """Returns the completions offered at a step; null or an empty list where a human wrote it."""
    return _get_list(step, "completions", f"{path}.") if step.get("completions") else []


def _columns(chain: Iterable[tuple[str, float | None]]) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    pairs = tuple(chain)
    return tuple(text for text, _ in pairs), tuple(label for _, label in pairs)


def _parse_rating(value: object, path: str, neutral: float | None) -> tuple[str, float | None]:
    completion = _check_object(value, path)
    text, rating = _get_text(completion, "text", f"{path}."), completion.get("rating")
    if rating is not None and (isinstance(rating, bool) or rating not in (-1, 0, 1)):
        raise _InvalidField(f"{path}.rating", "the rating is not -1, 0 or 1", rating)
    if rating is None or completion.get("flagged"):
        return text, None
    return text, {-1: 0.0, 0: neutral, 1: 1.0}[int(rating)]


_ReportDropped = Callable[[str, str], None]


def _is_usable(text: str, path: str, report_dropped: _ReportDropped) -> bool:
    """Returns whether a step of MATH-APS is usable; others are reported."""
    if len(text.strip()) < _MIN_STEP_CHARS or not text.isascii():
        report_dropped(path, "a step that is very short or not ASCII")
        return False
    return True


def _parse_math_aps(row: Mapping[str, Any], report_dropped: _ReportDropped) -> list[SpanLabels]:
    """Parses a row of MATH-APS. Each prefix becomes a row whose last span alone is labeled."""
    question, solutions = _get_text(row, "question"), []
    for number, entry in enumerate(_get_list(row, "reasoning_steps")):
        path = f"reasoning_steps[{number}]"
        step = _check_object(entry, path)
        prefix = _get_text(step, "solution_prefix", f"{path}.")
        value = _check_unit(step.get("mc_value"), f"{path}.mc_value")
        text = prefix.removeprefix(question).strip()
        if _is_usable(text, f"{path}.solution_prefix", report_dropped):
            parts = text.split("\n\n" if "\n\n" in text else "\n")
            spans = tuple(part.strip() for part in parts if part.strip())
            labels = (*(None,) * (len(spans) - 1), value)
            solutions.append(SpanLabels(question, spans, labels, "math-aps", {"hard_above": _APS_ABOVE}))
    return solutions


_Chain = tuple[tuple[str, float | None], ...]


def _parse_math_aps_tree(row: Mapping[str, Any], report_dropped: _ReportDropped) -> list[SpanLabels]:
    """Parses a tree of MATH-APS to one row for every path from the root to a leaf; children of a dropped step are
    dropped.
    """
    question, root = _get_text(row, "question"), row.get("reasoning_steps")
    solutions: list[SpanLabels] = []

    def extend_chain(value: object, path: str, chain: _Chain) -> tuple[object, str, _Chain] | None:
        """Returns a node at the end of its chain; None where its step is not usable."""
        node = _check_object(value, path)
        text = _get_text(node, "text", f"{path}.").strip()
        if not chain and text == question.strip():
            return value, path, ()
        mc_value = _check_unit(node.get("mc_value"), f"{path}.mc_value")
        return (value, path, (*chain, (text, mc_value))) if _is_usable(text, f"{path}.text", report_dropped) else None

    def extend_chains(values: list[object], path: str, chain: _Chain) -> list[tuple[object, str, _Chain]]:
        extended = [extend_chain(value, f"{path}[{index}]", chain) for index, value in enumerate(values)]
        return [entry for entry in reversed(extended) if entry is not None]

    pending = extend_chains(root if isinstance(root, list) else [root], "reasoning_steps", ())
    while pending:  # a stack: trees may be deeper than Python's own
        value, node_path, chain = pending.pop()
        children = _check_object(value, node_path).get("children") or []
        if not isinstance(children, list):
            raise _InvalidField(f"{node_path}.children", "not a list", type(children).__name__)
        usable_children = extend_chains(children, f"{node_path}.children", chain)
        pending += usable_children
        if not usable_children and chain:
            solutions.append(SpanLabels(question, *_columns(chain), "math-aps-tree", {"hard_above": _APS_ABOVE}))
    return solutions


def _parse_openr(row: Mapping[str, Any], tag: str) -> SpanLabels:
    question, process, labels = _get_text(row, "question"), _get_text(row, "process"), _get_list(row, "label")
    *steps, remainder = process.split(tag)
    if remainder.strip():
        raise _InvalidField("process", "the last step is not followed by a tag", remainder[:80])
    if len(steps) != len(labels):
        raise _InvalidField(
            "label", "number of labels does not match the steps", f"{len(labels)} labels, {len(steps)} steps"
        )
    numeric_labels = tuple(
        _parse_sign(label) if isinstance(label, str) else _check_unit(label, "label") for label in labels
    )
    return SpanLabels(question, tuple(step.strip() for step in steps), numeric_labels, "openr")


def _parse_evolvent(row: Mapping[str, Any]) -> SpanLabels:
    spans, labels = _get_list(row, "spans"), _get_list(row, "labels")
    if not all(isinstance(span, str) for span in spans):
        raise _InvalidField("spans", "not a list of texts", spans[:3])
    checked_labels = tuple(None if label is None else _check_unit(label, "labels") for label in labels)
    meta = _check_object(row.get("meta", {}), "meta")
    return SpanLabels(_get_text(row, "question"), tuple(spans), checked_labels, str(row.get("source", "")), meta)


# ------------------------------------------------------------------ writing


def write_labels(
    path: Path, rows: Iterable[SpanLabels], *, form: Literal["evolvent", "openr"] = "evolvent", tag: str = STEP_TAG
) -> tuple[int, int]:
    """Writes labeled solutions as JSON lines; returns the numbers of written and left-out rows.

    OpenR's form has a sign for every step: rows with an unlabelled span, or with the tag in a text, cannot be told in
    it and are left out; shares become signs by `SpanLabels.to_hard`.

    Raises:
        ConfigError: an unknown form. NoSpace, StoreUnavailable: an old file is as it was then.
    """
    if form not in ("evolvent", "openr"):
        raise ConfigError([unknown_name_problem("form", form, ("evolvent", "openr"))])
    num_written = num_left_out = 0
    with atomic_writer(path) as file:
        for row in rows:
            output_row = _to_openr(row, tag) if form == "openr" else _to_evolvent(row)
            if output_row is None:
                num_left_out += 1
                continue
            file.write(plain_json(output_row).encode("utf-8", "backslashreplace") + b"\n")
            num_written += 1
    return num_written, num_left_out


def _to_evolvent(row: SpanLabels) -> dict[str, Any]:
    return {
        "question": row.question,
        "spans": list(row.spans),
        "labels": list(row.labels),
        "source": row.source,
        "meta": dict(row.meta),
    }


def _to_openr(row: SpanLabels, tag: str) -> dict[str, Any] | None:
    if None in row.labels or any(tag in text for text in (row.question, *row.spans)):
        return None
    signs = ["+" if label else "-" for label in row.to_hard().labels]
    return {"question": row.question, "process": "".join(f"{span} {tag}\n" for span in row.spans), "label": signs}
