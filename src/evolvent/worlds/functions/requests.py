"""Requests: the user's messages, the offered tools and the expected calls, in seven shapes.

| shape | offered | right |
|---|---|---|
| simple | the tool | one call |
| multiple | the tool among others | one call |
| parallel | the tool, perhaps among others | several calls of it |
| parallel_multiple | several tools that are needed, and others | a call of each |
| irrelevant | others | no call |
| missing | the tool among others, but the request lacks what it requires | no call |
| multi_turn | several tools | a call a turn; later requests are about what an earlier call gave |

The other tools are similar where possible: of the same domain, often for the same thing. A request names one
verb and one thing, and no two tools share both, so it fits only the tool that it was drawn for. Calls are run
on the rows of a state while they are drawn: a request whose calls would fail is never made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from numpy.random import Generator

from evolvent.errors import ConfigError, InvalidAction, unknown_name_problem
from evolvent.messages import Call, Tool
from evolvent.trajectory import Json
from evolvent.worlds.functions.catalogue import Entry, run_call
from evolvent.worlds.functions.slots import Slot, pick
from evolvent.worlds.functions.states import State

__all__ = ["CONNECTORS", "FRAMES", "SHAPES", "Draft", "Round", "draw_draft"]

SHAPES = ("simple", "multiple", "parallel", "parallel_multiple", "irrelevant", "missing", "multi_turn")
FRAMES: Mapping[str, tuple[str, ...]] = {
    "train": ("{}", "please {}", "i want you to {}", "can you {}", "{} now", "now {}", "{} please"),
    "dev": ("can you please {}", "now please {}"),
    "test": ("i want you to {} now", "can you {} please"),
}
"""What stands around a request. No frame is in two splits."""
_SAME_TOOL_CONNECTORS = (", and the same {}", " and also {}")  # the second call of the same tool
_NEXT_TOOL_CONNECTORS = (", and then {}", " and also {}", ", next {}")  # a call of another tool
CONNECTORS = (*_SAME_TOOL_CONNECTORS, *_NEXT_TOOL_CONNECTORS)
"""What stands between the parts of a request."""
_OPTIONAL_PROBABILITY = 0.5  # how often an optional parameter is given
_MAX_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class Round:
    """One turn: the user's message, the expected calls (none: the user should get no call), and their results."""

    user: str
    calls: tuple[Call, ...]
    results: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation before it becomes a task.

    Args:
        shape: one of `SHAPES`.
        kind: shape, domain and verbs; the unit that panels are balanced by.
        tools: the offered tools, in random order.
        rounds: the turns.
    """

    shape: str
    kind: str
    tools: tuple[Tool, ...]
    rounds: tuple[Round, ...]


def draw_draft(shape: str, pool: Sequence[Entry], rng: Generator, *, split: str, is_long: bool = False) -> Draft:
    """Draws a conversation of a shape.

    Args:
        pool: the tools that may be offered; needed tools are drawn from it.
        split: the split whose request frames are used.
        is_long: offer five or six tools instead of one to four, and need three of them where several are needed.
    Raises:
        ConfigError: the shape is unknown, or the pool cannot form it.
    """
    if shape not in SHAPES:
        raise ConfigError([unknown_name_problem("shape", shape, SHAPES)])
    needed, rounds = _draw_rounds(shape, pool, rng, split=split, is_long=is_long)
    needed_tools = [] if shape == "irrelevant" else needed
    size = 5 + int(rng.integers(2)) if is_long else _draw_num_tools(shape, rng)
    distractors = _draw_distractors(pool, needed, rng, count=max(0, size - len(needed_tools)))
    tools = [entry.tool for entry in (*needed_tools, *distractors)]
    verbs = "+".join(entry.verb for entry in needed)
    order = [tools[int(index)] for index in rng.permutation(len(tools))]
    return Draft(shape, f"{shape}:{needed[0].domain}:{verbs}", tuple(order), rounds)


def _draw_num_tools(shape: str, rng: Generator) -> int:
    """Draws the number of offered tools."""
    if shape == "simple":
        return 1
    minimum = 1 if shape in ("irrelevant", "missing", "parallel") else 2
    return minimum + int(rng.integers(3))


def _draw_distractors(pool: Sequence[Entry], needed: Sequence[Entry], rng: Generator, *, count: int) -> list[Entry]:
    """Draws tools that are not needed, about half of them from the domain of a needed tool where it has more."""
    domains = {entry.domain for entry in needed}
    needed_names = {entry.tool.name for entry in needed}
    permuted = (pool[index] for index in rng.permutation(len(pool)).tolist())
    order = [entry for entry in permuted if entry.tool.name not in needed_names]
    if not count:
        return []
    same_domain = (entry for entry in order if entry.domain in domains)
    distractors = list(islice(same_domain, int(rng.integers(1, count + 1))))
    names = {entry.tool.name for entry in distractors}
    others = (entry for entry in order if entry.tool.name not in names)
    return [*distractors, *islice(others, count - len(distractors))]


# ---------------------------------------------------------------------- turns


def _draw_rounds(
    shape: str, pool: Sequence[Entry], rng: Generator, *, split: str, is_long: bool
) -> tuple[list[Entry], tuple[Round, ...]]:
    """Draws rounds until their calls succeed: a call may take away what another call needs."""
    draw_shape = _draw_conversation if shape == "multi_turn" else _draw_single_round
    for _ in range(_MAX_ATTEMPTS):
        try:
            return draw_shape(shape, pool, rng, state=State(int(rng.integers(2**62))), split=split, is_long=is_long)
        except InvalidAction:
            continue
    raise ConfigError("no call of these tools succeeds", value=shape, expected="a larger pool")


def _draw_single_round(
    shape: str, pool: Sequence[Entry], rng: Generator, *, state: State, split: str, is_long: bool
) -> tuple[list[Entry], tuple[Round, ...]]:
    num_needed = 3 if is_long else 2
    if shape == "parallel_multiple":
        first_entry = pick(rng, pool)
        needed = [first_entry, *_draw_distractors(pool, [first_entry], rng, count=num_needed - 1)]
        clauses = [_draw_clause(entry, state, rng) for entry in needed]
        request = clauses[0][0] + "".join(pick(rng, _NEXT_TOOL_CONNECTORS).format(text) for text, _ in clauses[1:])
        return needed, (_build_round(request, [call for _, call in clauses], rng, state=state, split=split),)
    if shape == "parallel":
        needed = [pick(rng, pool)]
        request, calls = _draw_repeated_calls(needed[0], state, rng, count=2 + int(rng.integers(num_needed - 1)))
        return needed, (_build_round(request, calls, rng, state=state, split=split),)
    if shape == "missing":
        needed = [pick(rng, pool)]
        missing_slot = pick(rng, [slot for slot in needed[0].slots if not slot.optional])
        request, _ = _draw_clause(needed[0], state, rng, missing_slot=missing_slot)
        return needed, (_build_round(request, [], rng, state=state, split=split),)
    needed = [pick(rng, pool)]
    request, call = _draw_clause(needed[0], state, rng)
    return needed, (_build_round(request, [] if shape == "irrelevant" else [call], rng, state=state, split=split),)


def _draw_conversation(
    shape: str, pool: Sequence[Entry], rng: Generator, *, state: State, split: str, is_long: bool
) -> tuple[list[Entry], tuple[Round, ...]]:
    """Draws a conversation: a thing is found or made, then used, sometimes followed by an unrelated request."""
    follow_ups: dict[str, list[Entry]] = {}
    for entry in pool:
        if entry.follow_up_heads:
            follow_ups.setdefault(entry.noun, []).append(entry)
    starts = [entry for entry in pool if entry.starts_conversation and entry.noun in follow_ups]
    if not starts:
        raise ConfigError(
            "no tool produces a result that another tool can use",
            value=len(pool),
            expected="for example find and cancel",
        )
    first_entry = pick(rng, starts)
    needed = [first_entry, pick(rng, follow_ups[first_entry.noun])]
    if rng.integers(2):
        needed.append(pick(rng, [entry for entry in pool if entry not in needed]))
    rounds: list[Round] = []
    number: Json = None
    for index, entry in enumerate(needed):
        request, call = _draw_clause(entry, state, rng, number=number if index == 1 else None)
        state, result = run_call(call, state)
        number = result["number"] if isinstance(result, Mapping) and index == 0 else number
        rounds.append(Round(pick(rng, FRAMES[split]).format(request), (call,), (result,)))
    return needed, tuple(rounds)


def _build_round(request: str, calls: Sequence[Call], rng: Generator, *, state: State, split: str) -> Round:
    _run_all(calls[::-1], state)  # calls of one answer have no order
    return Round(pick(rng, FRAMES[split]).format(request), tuple(calls), _run_all(calls, state))


def _run_all(calls: Sequence[Call], state: State) -> tuple[Json, ...]:
    results = []
    for call in calls:
        state, result = run_call(call, state)
        results.append(result)
    return tuple(results)


# ---------------------------------------------------------------------- clauses


def _draw_clause(
    entry: Entry, state: State, rng: Generator, *, missing_slot: Slot | None = None, number: Json = None
) -> tuple[str, Call]:
    """Draws one part of a request and the call that fulfills it.

    Args:
        missing_slot: a slot whose value the request omits.
        number: number of the row that the conversation is about; the request then says `that` instead of the
            number.
    """
    values = _draw_values(entry, state, rng)
    omitted = {missing_slot.name} if missing_slot else set()
    if number is not None:
        values, omitted = {**values, "number": number}, {"number"}
    head = pick(rng, entry.heads if number is None else entry.follow_up_heads)
    stated_values = {name: value for name, value in values.items() if name not in omitted}
    return " ".join([head, *_draw_phrases(entry, stated_values, rng)]), Call(entry.tool.name, values)


def _draw_repeated_calls(entry: Entry, state: State, rng: Generator, *, count: int) -> tuple[str, list[Call]]:
    """Draws several calls of one tool with different arguments."""
    argument_sets: list[dict[str, Json]] = []
    for _ in range(_MAX_ATTEMPTS):
        values = _draw_values(entry, state, rng)
        if not any(_are_alike(values, earlier_values) for earlier_values in argument_sets):
            argument_sets.append(values)
        if len(argument_sets) == count:
            break
    phrases = [" ".join(_draw_phrases(entry, values, rng)) for values in argument_sets]
    text = f"{pick(rng, entry.heads)} {phrases[0]}" + "".join(
        pick(rng, _SAME_TOOL_CONNECTORS).format(part) for part in phrases[1:]
    )
    return text, [Call(entry.tool.name, values) for values in argument_sets]


def _are_alike(values: Mapping[str, Json], other_values: Mapping[str, Json]) -> bool:
    """Checks whether calls are equal or about the same row, where the second call could fail."""
    return values == other_values or ("number" in values and values["number"] == other_values["number"])


def _draw_phrases(entry: Entry, values: Mapping[str, Json], rng: Generator) -> list[str]:
    stated_slots = [slot for slot in entry.slots if slot.name in values]
    return [
        stated_slots[int(index)].render_phrase(values[stated_slots[int(index)].name], rng)
        for index in rng.permutation(len(stated_slots))
    ]


def _draw_values(entry: Entry, state: State, rng: Generator) -> dict[str, Json]:
    """Draws arguments that succeed in the state: numbers of its rows, and for searches attributes of a row."""
    rows = state.rows(entry.noun)
    row = pick(rng, rows) if rows and entry.verb in ("find", "count") else {}
    values: dict[str, Json] = {}
    for slot in entry.slots:
        value = row[slot.name] if slot.name in row else slot.draw(rng)
        if slot.name == "number":
            value = pick(rng, rows)["number"]
        elif slot.name == "numbers":
            value = [rows[int(index)]["number"] for index in rng.permutation(len(rows))[: 2 + int(rng.integers(2))]]
        is_needed = not slot.optional or (slot.name in row and value != slot.default)
        if rng.random() < _OPTIONAL_PROBABILITY or is_needed:
            values[slot.name] = value
    return values
