"""Requests: what a user says, which tools are offered, and the calls that are right, in seven shapes.

| shape | offered | right |
|---|---|---|
| simple | the tool | one call |
| multiple | the tool among others | one call |
| parallel | the tool, perhaps among others | several calls of it |
| parallel_multiple | several tools that are needed, and others | a call of each |
| irrelevant | others | no call |
| missing | the tool among others, but the request lacks what it requires | no call |
| multi_turn | several tools | a call a turn; later requests are about what an earlier call gave |

Others are near where they can be: of the same domain, often of the same thing. A request names one verb and one thing,
and no two tools share both, so it fits no other tool than the one it was drawn for. Calls are run on the rows of a
state as they are drawn: a request whose calls would fail is never made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numpy.random import Generator

from evolvent.errors import ConfigError, InvalidAction, unknown
from evolvent.messages import Call, Tool
from evolvent.trajectory import Json
from evolvent.worlds.functions.catalogue import Entry, run
from evolvent.worlds.functions.slots import Slot, pick
from evolvent.worlds.functions.states import State

__all__ = ["FRAMES", "JOINTS", "SHAPES", "Draft", "Round", "draw"]

SHAPES = ("simple", "multiple", "parallel", "parallel_multiple", "irrelevant", "missing", "multi_turn")
FRAMES: Mapping[str, tuple[str, ...]] = {
    "train": ("{}", "please {}", "i want you to {}", "can you {}", "{} now", "now {}", "{} please"),
    "dev": ("can you please {}", "now please {}"),
    "test": ("i want you to {} now", "can you {} please"),
}
"""What stands around a request. No frame is in two splits."""
_SAME = (", and the same {}", " and also {}")  # the second call of the same tool
_NEXT = (", and then {}", " and also {}", ", next {}")  # a call of another tool
JOINTS = (*_SAME, *_NEXT)
"""What stands between the parts of a request."""
_OFTEN = 0.5  # how often an optional parameter is given
_TRIES = 50


@dataclass(frozen=True, slots=True)
class Round:
    """One turn: what the user says, the right calls (none: nothing is to be called), and their results."""

    user: str
    calls: tuple[Call, ...]
    results: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """A conversation before it is a task.

    Args:
        shape: one of `SHAPES`.
        kind: shape, domain and verbs; the unit that panels are balanced by.
        tools: what is offered, in an order that says nothing.
        rounds: the turns.
    """

    shape: str
    kind: str
    tools: tuple[Tool, ...]
    rounds: tuple[Round, ...]


def draw(shape: str, pool: Sequence[Entry], rng: Generator, *, split: str, many: bool = False) -> Draft:
    """A conversation of a shape.

    Args:
        pool: the tools that may be offered; needed ones are drawn from it.
        split: whose frames are used.
        many: offer five or six tools instead of one to four, and need three of them where several are needed.
    Raises:
        ConfigError: an unknown shape, or a pool in which nothing has that shape.
    """
    if shape not in SHAPES:
        raise ConfigError([unknown("shape", shape, SHAPES)])
    needed, rounds = _turns(shape, pool, rng, split=split, many=many)
    offered = [] if shape == "irrelevant" else needed
    size = 5 + int(rng.integers(2)) if many else _size(shape, rng)
    others = _others(pool, needed, rng, count=max(0, size - len(offered)))
    tools = [entry.tool for entry in (*offered, *others)]
    verbs = "+".join(entry.verb for entry in needed)
    order = [tools[int(place)] for place in rng.permutation(len(tools))]
    return Draft(shape, f"{shape}:{needed[0].domain}:{verbs}", tuple(order), rounds)


def _size(shape: str, rng: Generator) -> int:
    """How many tools are offered."""
    if shape == "simple":
        return 1
    least = 1 if shape in ("irrelevant", "missing", "parallel") else 2
    return least + int(rng.integers(3))


def _others(pool: Sequence[Entry], needed: Sequence[Entry], rng: Generator, *, count: int) -> list[Entry]:
    """Tools that are not needed: about half of them of a needed tool's domain, where there are any."""
    domains = {entry.domain for entry in needed}
    order = [entry for entry in (pool[int(place)] for place in rng.permutation(len(pool))) if entry not in needed]
    near = [entry for entry in order if entry.domain in domains]
    chosen = near[: int(rng.integers(1, count + 1))] if count else []
    return [*chosen, *(entry for entry in order if entry not in chosen)][:count]


# ---------------------------------------------------------------------- turns


def _turns(
    shape: str, pool: Sequence[Entry], rng: Generator, *, split: str, many: bool
) -> tuple[list[Entry], tuple[Round, ...]]:
    """Turns that can be run; drawn anew where one call takes away what another one needs."""
    turns = _conversation if shape == "multi_turn" else _single
    for _ in range(_TRIES):
        try:
            return turns(shape, pool, rng, state=State(int(rng.integers(2**62))), split=split, many=many)
        except InvalidAction:
            continue
    raise ConfigError("no calls of these tools succeed", value=shape, expected="a larger pool")


def _single(
    shape: str, pool: Sequence[Entry], rng: Generator, *, state: State, split: str, many: bool
) -> tuple[list[Entry], tuple[Round, ...]]:
    several = 3 if many else 2
    if shape == "parallel_multiple":
        first = pick(rng, pool)
        needed = [first, *_others(pool, [first], rng, count=several - 1)]
        drawn = [_clause(entry, state, rng) for entry in needed]
        said = drawn[0][0] + "".join(pick(rng, _NEXT).format(text) for text, _ in drawn[1:])
        return needed, (_round(said, [call for _, call in drawn], rng, state=state, split=split),)
    if shape == "parallel":
        needed = [pick(rng, pool)]
        said, calls = _repeated(needed[0], state, rng, count=2 + int(rng.integers(several - 1)))
        return needed, (_round(said, calls, rng, state=state, split=split),)
    if shape == "missing":
        needed = [pick(rng, pool)]
        left = pick(rng, [slot for slot in needed[0].slots if not slot.optional])
        said, _ = _clause(needed[0], state, rng, left=left)
        return needed, (_round(said, [], rng, state=state, split=split),)
    needed = [pick(rng, pool)]
    said, call = _clause(needed[0], state, rng)
    return needed, (_round(said, [] if shape == "irrelevant" else [call], rng, state=state, split=split),)


def _conversation(
    shape: str, pool: Sequence[Entry], rng: Generator, *, state: State, split: str, many: bool
) -> tuple[list[Entry], tuple[Round, ...]]:
    """A thing is found or made, then something is done with it; sometimes a request for something else follows."""
    after: dict[str, list[Entry]] = {}
    for entry in pool:
        if entry.again:
            after.setdefault(entry.noun, []).append(entry)
    starts = [entry for entry in pool if entry.starts and entry.noun in after]
    if not starts:
        raise ConfigError("no tool whose result another one can use", value=len(pool), expected="find and cancel, say")
    first = pick(rng, starts)
    needed = [first, pick(rng, after[first.noun])]
    if rng.integers(2):
        needed.append(pick(rng, [entry for entry in pool if entry not in needed]))
    rounds: list[Round] = []
    number: Json = None
    for place, entry in enumerate(needed):
        said, call = _clause(entry, state, rng, number=number if place == 1 else None)
        state, result = run(call, state)
        number = result["number"] if isinstance(result, Mapping) and place == 0 else number
        rounds.append(Round(pick(rng, FRAMES[split]).format(said), (call,), (result,)))
    return needed, tuple(rounds)


def _round(said: str, calls: Sequence[Call], rng: Generator, *, state: State, split: str) -> Round:
    _run_all(calls[::-1], state)  # calls of one answer have no order
    return Round(pick(rng, FRAMES[split]).format(said), tuple(calls), _run_all(calls, state))


def _run_all(calls: Sequence[Call], state: State) -> tuple[Json, ...]:
    results = []
    for call in calls:
        state, result = run(call, state)
        results.append(result)
    return tuple(results)


# ---------------------------------------------------------------------- clauses


def _clause(
    entry: Entry, state: State, rng: Generator, *, left: Slot | None = None, number: Json = None
) -> tuple[str, Call]:
    """One thing that is asked for, and the call that does it.

    Args:
        left: a slot that the request does not tell.
        number: of the row that the conversation is about; the request then says `that` instead of the number.
    """
    values = _values(entry, state, rng)
    silent = {left.name} if left else set()
    if number is not None:
        values, silent = {**values, "number": number}, {"number"}
    head = pick(rng, entry.heads if number is None else entry.again)
    told = {name: value for name, value in values.items() if name not in silent}
    return " ".join([head, *_phrases(entry, told, rng)]), Call(entry.tool.name, values)


def _repeated(entry: Entry, state: State, rng: Generator, *, count: int) -> tuple[str, list[Call]]:
    """Several calls of one tool with different arguments."""
    drawn: list[dict[str, Json]] = []
    for _ in range(_TRIES):
        values = _values(entry, state, rng)
        if not any(_alike(values, other) for other in drawn):
            drawn.append(values)
        if len(drawn) == count:
            break
    said = [" ".join(_phrases(entry, values, rng)) for values in drawn]
    text = f"{pick(rng, entry.heads)} {said[0]}" + "".join(pick(rng, _SAME).format(part) for part in said[1:])
    return text, [Call(entry.tool.name, values) for values in drawn]


def _alike(values: Mapping[str, Json], other: Mapping[str, Json]) -> bool:
    """Equal, or about the same row: what is done to a row twice could fail the second time."""
    return values == other or ("number" in values and values["number"] == other["number"])


def _phrases(entry: Entry, values: Mapping[str, Json], rng: Generator) -> list[str]:
    told = [slot for slot in entry.slots if slot.name in values]
    return [told[int(place)].say(values[told[int(place)].name], rng) for place in rng.permutation(len(told))]


def _values(entry: Entry, state: State, rng: Generator) -> dict[str, Json]:
    """Arguments that succeed in the state: numbers of its rows, and attributes of one of them where one is sought."""
    rows = state.rows(entry.noun)
    row = pick(rng, rows) if rows and entry.verb in ("find", "count") else {}
    values: dict[str, Json] = {}
    for slot in entry.slots:
        value = row[slot.name] if slot.name in row else slot.draw(rng)
        if slot.name == "number":
            value = pick(rng, rows)["number"]
        elif slot.name == "numbers":
            value = [rows[int(place)]["number"] for place in rng.permutation(len(rows))[: 2 + int(rng.integers(2))]]
        needed = not slot.optional or (slot.name in row and value != slot.default)
        if rng.random() < _OFTEN or needed:
            values[slot.name] = value
    return values
