"""Process data of others, each layout to `SpanLabels`: Math-Shepherd, PRM800K, MATH-APS, OpenR; and our own.

    math-shepherd   {input, label, task}: both texts are question and steps; after each step a tag in `input`, + or - in
                    `label` (arXiv 2312.08935)
    prm800k         {question: {problem}, label: {steps: [{completions: [{text, rating}], human_completion,
                    chosen_completion}]}} (arXiv 2305.20050)
    math-aps        {question, reasoning_steps: [{solution_prefix, mc_value}]} (OpenR, arXiv 2410.09671)
    math-aps-tree   {question, reasoning_steps: {text, mc_value, children: [...]}}
    openr           {question, process, label: [...]}: a tag after each step of `process`
    evolvent        {question, spans, labels, source, meta}

A file is JSON lines or one JSON array. What a row says wrongly refuses that row, or where it holds several chains all
of them, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from evolvent.errors import ConfigError, SampleInvalid, unknown
from evolvent.files import atomic_writer, plain_json
from evolvent.reward.labels import SpanLabels
from evolvent.reward.rows import Refusals, json_rows

__all__ = ["KINDS", "STEP_TAG", "Kind", "read_labels", "write_labels"]

Kind = Literal["math-shepherd", "prm800k", "math-aps", "math-aps-tree", "openr", "evolvent"]
KINDS: tuple[Kind, ...] = ("math-shepherd", "prm800k", "math-aps", "math-aps-tree", "openr", "evolvent")
STEP_TAG = "\u043a\u0438"
"""What stands after each step in Math-Shepherd's files: two Cyrillic letters, U+043A U+0438."""

_FIRST = "Step 1: "
_APS_ABOVE = 0.5  # MATH-APS: a step is good if more than half of the completions from it are right
_SHORTEST = 3  # characters; shorter steps of MATH-APS are debris of splitting
_SIGNS = {"+": 1.0, "-": 0.0}


class _Wrong(SampleInvalid):
    """A field that is not as its layout says."""

    def __init__(self, field: str, what: str, value: object = None) -> None:
        self.field = field
        super().__init__(what, value=value)


def read_labels(
    path: Path,
    kind: Kind | None = None,
    *,
    refused: Refusals | None = None,
    neutral: Literal["good", "bad", "none"] = "good",
    tag: str = STEP_TAG,
    most_bytes: int = 1 << 24,
) -> Iterator[SpanLabels]:
    """The labelled solutions of a file, one after the other, in constant memory.

    Args:
        kind: the layout; None: each row tells by its fields.
        refused: counts the rows that break their layout, with file, line and field; None: they are left out silently.
        neutral: what PRM800K's rating 0 counts as; "none": not labelled.
        tag: what stands after each step, in Math-Shepherd's and OpenR's layout.
        most_bytes: longer rows are refused.
    Raises:
        ConfigError: an unknown layout. StoreUnavailable: the file cannot be read.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError([unknown("layout", kind, KINDS)])
    if neutral not in ("good", "bad", "none"):
        raise ConfigError([unknown("neutral", neutral, ("good", "bad", "none"))])
    refused = Refusals() if refused is None else refused
    readers = _readers(refused, path, neutral=neutral, tag=tag)
    return _read(path, kind, readers, refused, most_bytes)


_Reader = Callable[[Mapping[str, Any], int], list[SpanLabels]]


def _readers(refused: Refusals, path: Path, *, neutral: str, tag: str) -> dict[str, _Reader]:
    def dropped(line: int) -> Callable[[str, str], None]:
        return lambda field, why: refused.note(path, line, field=field, why=why)

    return {
        "math-shepherd": lambda row, line: [_math_shepherd(row, tag)],
        "prm800k": lambda row, line: _prm800k(row, {"good": 1.0, "bad": 0.0, "none": None}[neutral]),
        "math-aps": lambda row, line: _math_aps(row, dropped(line)),
        "math-aps-tree": lambda row, line: _math_aps_tree(row, dropped(line)),
        "openr": lambda row, line: [_openr(row, tag)],
        "evolvent": lambda row, line: [_evolvent(row)],
    }


def _read(
    path: Path, kind: str | None, readers: Mapping[str, _Reader], refused: Refusals, most: int
) -> Iterator[SpanLabels]:
    for line, row in json_rows(path, refused, most_bytes=most):
        try:
            if not isinstance(row, dict):
                raise _Wrong("", "the row is no object", type(row).__name__)
            found = readers[kind or _kind_of(row)](row, line)
        except SampleInvalid as error:
            refused.note(path, line, field=getattr(error, "field", ""), why=str(error))
            continue
        yield from found


def _kind_of(row: Mapping[str, Any]) -> str:
    """The layout that a row's fields tell."""
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
    raise _Wrong("", "the row has the fields of no known layout", sorted(map(str, row))[:8])


def _text(row: Mapping[str, Any], name: str, where: str = "") -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise _Wrong(where + name, "not a text", type(value).__name__)
    return value


def _list(row: Mapping[str, Any], name: str, where: str = "") -> list[Any]:
    value = row.get(name)
    if not isinstance(value, list) or not value:
        raise _Wrong(where + name, "not a list with entries", type(value).__name__)
    return value


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Wrong(where, "not an object", type(value).__name__)
    return value


def _unit(value: object, where: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:  # type: ignore[operator]
        raise _Wrong(where, "not a number from 0 to 1", value)
    return float(value)  # type: ignore[arg-type]


# ------------------------------------------------------------------ the layouts


def _math_shepherd(row: Mapping[str, Any], tag: str) -> SpanLabels:
    """Signs are read where the tags stand, so that a plus or a minus inside a step is none."""
    said, judged = _text(row, "input"), _text(row, "label")
    if said.count(_FIRST) != 1:
        raise _Wrong("input", f"{_FIRST!r} does not occur exactly once", said.count(_FIRST))
    begin = said.index(_FIRST)
    *steps, rest = said[begin:].split(tag)
    if rest.strip() or not steps:
        raise _Wrong("input", "the last step has no tag after it", rest[:80])
    if judged[:begin] != said[:begin]:
        raise _Wrong("label", "the question is not that of 'input'", judged[:80])
    at, labels = begin, list[float | None]()
    for step in steps:
        if judged[at : at + len(step)] != step:
            raise _Wrong("label", f"step {len(labels) + 1} is not that of 'input'", judged[at : at + 80])
        at += len(step) + 1
        labels.append(_sign(judged[at - 1 : at]))
    if judged[at:].strip():
        raise _Wrong("label", "text after the last sign", judged[at : at + 80])
    meta = {"task": row["task"]} if isinstance(row.get("task"), str) else {}
    spans = tuple(step.strip() for step in steps)
    return SpanLabels(said[:begin].strip(), spans, tuple(labels), "math-shepherd", meta)


def _sign(value: object) -> float:
    if not isinstance(value, str) or value not in _SIGNS:
        raise _Wrong("label", "a sign that is neither '+' nor '-'", value)
    return _SIGNS[value]


def _prm800k(row: Mapping[str, Any], neutral: float | None) -> list[SpanLabels]:
    """The chosen way up to each step, followed by each of the step's completions: no chain that nobody has seen.

    Where several completions stand at one step, those that were not chosen end their chain there. Flagged completions,
    and those without a rating, are not labelled.
    """
    question = _object(row.get("question"), "question")
    problem = _text(question, "problem", "question.")
    steps = _list(_object(row.get("label"), "label"), "steps", "label.")
    chains: list[list[tuple[str, float | None]]] = []
    way: list[tuple[str, float | None]] | None = []
    for number, entry in enumerate(steps):
        where = f"label.steps[{number}]"
        if way is None:
            raise _Wrong(where, "a step after one at which nothing was chosen")
        step = _object(entry, where)
        offered = [
            _rated(one, f"{where}.completions[{at}]", neutral) for at, one in enumerate(_completions(step, where))
        ]
        chosen, human = step.get("chosen_completion"), step.get("human_completion")
        taken: tuple[str, float | None] | None = None
        if chosen is not None:
            if not isinstance(chosen, int) or isinstance(chosen, bool) or not 0 <= chosen < len(offered):
                raise _Wrong(f"{where}.chosen_completion", "no completion of this step", chosen)
            taken = offered[chosen]
        elif human is not None:
            taken = _rated(human, f"{where}.human_completion", neutral)
        chains += [[*way, one] for at, one in enumerate(offered) if at != chosen]
        way = None if taken is None else [*way, taken]
        if way is not None and number == len(steps) - 1:
            chains.append(way)
    if not chains:
        raise _Wrong("label.steps", "no completion in any step")
    return [SpanLabels(problem, *_columns(chain), "prm800k") for chain in chains]


def _completions(step: Mapping[str, Any], where: str) -> list[Any]:
    """What was offered at a step: null, or an empty list, where a human wrote it."""
    return _list(step, "completions", f"{where}.") if step.get("completions") else []


def _columns(chain: Iterable[tuple[str, float | None]]) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    pairs = tuple(chain)
    return tuple(text for text, _ in pairs), tuple(label for _, label in pairs)


def _rated(value: object, where: str, neutral: float | None) -> tuple[str, float | None]:
    one = _object(value, where)
    text, rating = _text(one, "text", f"{where}."), one.get("rating")
    if rating is not None and (isinstance(rating, bool) or rating not in (-1, 0, 1)):
        raise _Wrong(f"{where}.rating", "a rating outside -1, 0, 1", rating)
    if rating is None or one.get("flagged"):
        return text, None
    return text, {-1: 0.0, 0: neutral, 1: 1.0}[int(rating)]


_Dropped = Callable[[str, str], None]


def _usable(text: str, where: str, dropped: _Dropped) -> bool:
    """Whether a step of MATH-APS is one; the others are counted."""
    if len(text.strip()) < _SHORTEST or not text.isascii():
        dropped(where, "a step that is very short or not ASCII")
        return False
    return True


def _math_aps(row: Mapping[str, Any], dropped: _Dropped) -> list[SpanLabels]:
    """Each prefix is a row of its own, whose last span alone is labelled: prefixes need not be of one solution."""
    question, found = _text(row, "question"), []
    for number, entry in enumerate(_list(row, "reasoning_steps")):
        where = f"reasoning_steps[{number}]"
        step = _object(entry, where)
        prefix = _text(step, "solution_prefix", f"{where}.")
        value = _unit(step.get("mc_value"), f"{where}.mc_value")
        text = prefix.removeprefix(question).strip()
        if _usable(text, f"{where}.solution_prefix", dropped):
            parts = text.split("\n\n" if "\n\n" in text else "\n")
            spans = tuple(part.strip() for part in parts if part.strip())
            labels = (*(None,) * (len(spans) - 1), value)
            found.append(SpanLabels(question, spans, labels, "math-aps", {"hard_above": _APS_ABOVE}))
    return found


_Chain = tuple[tuple[str, float | None], ...]


def _math_aps_tree(row: Mapping[str, Any], dropped: _Dropped) -> list[SpanLabels]:
    """One row for every path from the root to a leaf; what hangs below a dropped step is dropped with it."""
    question, root = _text(row, "question"), row.get("reasoning_steps")
    found: list[SpanLabels] = []

    def grown(value: object, where: str, chain: _Chain) -> tuple[object, str, _Chain] | None:
        """A node at the end of its chain; None where its step is not usable."""
        node = _object(value, where)
        text = _text(node, "text", f"{where}.").strip()
        if not chain and text == question.strip():
            return value, where, ()
        mark = _unit(node.get("mc_value"), f"{where}.mc_value")
        return (value, where, (*chain, (text, mark))) if _usable(text, f"{where}.text", dropped) else None

    def all_grown(values: list[object], where: str, chain: _Chain) -> list[tuple[object, str, _Chain]]:
        made = [grown(value, f"{where}[{at}]", chain) for at, value in enumerate(values)]
        return [one for one in reversed(made) if one is not None]

    waiting = all_grown(root if isinstance(root, list) else [root], "reasoning_steps", ())
    while waiting:  # a stack: trees may be deeper than Python's own
        value, where, chain = waiting.pop()
        children = _object(value, where).get("children") or []
        if not isinstance(children, list):
            raise _Wrong(f"{where}.children", "not a list", type(children).__name__)
        below = all_grown(children, f"{where}.children", chain)
        waiting += below
        if not below and chain:
            found.append(SpanLabels(question, *_columns(chain), "math-aps-tree", {"hard_above": _APS_ABOVE}))
    return found


def _openr(row: Mapping[str, Any], tag: str) -> SpanLabels:
    question, process, labels = _text(row, "question"), _text(row, "process"), _list(row, "label")
    *steps, rest = process.split(tag)
    if rest.strip():
        raise _Wrong("process", "the last step has no tag after it", rest[:80])
    if len(steps) != len(labels):
        raise _Wrong("label", "not one label for each step", f"{len(labels)} labels, {len(steps)} steps")
    known = tuple(_sign(label) if isinstance(label, str) else _unit(label, "label") for label in labels)
    return SpanLabels(question, tuple(step.strip() for step in steps), known, "openr")


def _evolvent(row: Mapping[str, Any]) -> SpanLabels:
    spans, labels = _list(row, "spans"), _list(row, "labels")
    if not all(isinstance(span, str) for span in spans):
        raise _Wrong("spans", "not texts", spans[:3])
    known = tuple(None if label is None else _unit(label, "labels") for label in labels)
    meta = _object(row.get("meta", {}), "meta")
    return SpanLabels(_text(row, "question"), tuple(spans), known, str(row.get("source", "")), meta)


# ------------------------------------------------------------------ writing


def write_labels(
    path: Path, rows: Iterable[SpanLabels], *, form: Literal["evolvent", "openr"] = "evolvent", tag: str = STEP_TAG
) -> tuple[int, int]:
    """Write labelled solutions as JSON lines; returns how many were written and how many left out.

    OpenR's form has a sign for every step: rows with an unlabelled span, or with the tag in a text, cannot be told in
    it and are left out; shares become signs by `SpanLabels.hard`.

    Raises:
        ConfigError: an unknown form. NoSpace, StoreUnavailable: an old file is as it was then.
    """
    if form not in ("evolvent", "openr"):
        raise ConfigError([unknown("form", form, ("evolvent", "openr"))])
    written = left_out = 0
    with atomic_writer(path) as file:
        for row in rows:
            told = _as_openr(row, tag) if form == "openr" else _as_own(row)
            if told is None:
                left_out += 1
                continue
            file.write(plain_json(told).encode("utf-8", "backslashreplace") + b"\n")
            written += 1
    return written, left_out


def _as_own(row: SpanLabels) -> dict[str, Any]:
    return {
        "question": row.question,
        "spans": list(row.spans),
        "labels": list(row.labels),
        "source": row.source,
        "meta": dict(row.meta),
    }


def _as_openr(row: SpanLabels, tag: str) -> dict[str, Any] | None:
    if None in row.labels or any(tag in text for text in (row.question, *row.spans)):
        return None
    signs = ["+" if label else "-" for label in row.hard().labels]
    return {"question": row.question, "process": "".join(f"{span} {tag}\n" for span in row.spans), "label": signs}
