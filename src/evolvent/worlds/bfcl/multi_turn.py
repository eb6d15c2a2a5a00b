"""BFCL's multi-turn items: read, run, judged.

An item is a conversation of several user turns over some of the eight state classes. Its gold answer is a list of
calls per turn. A model's calls are judged by what they do: after every turn with gold calls, the state of every object
must be that of the gold run, and what the gold calls answered must be among all that the model was answered so far.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.messages import Call
from evolvent.worlds.bfcl.apis import APIS, Api, Operation, Padding
from evolvent.worlds.bfcl.items import TurnsItem

__all__ = [
    "BAD_TURNS",
    "MOST_STEPS",
    "MultiTurn",
    "Scene",
    "Turns",
    "TurnsVerdict",
    "corrupted",
    "gold_call",
    "judge_turns",
    "padding_of",
    "read_multi_turn",
    "run_calls",
]

MOST_STEPS = 20
"""How often a model may call and be answered within one turn."""
Turns = Sequence[Sequence[Sequence[Call]]]
"""What a model did: for every user turn its steps, for every step the calls of one reply."""

BAD_TURNS: Mapping[str, str] = {
    "multi_turn_long_context_11": "its answer posts thirty names of files that no directory has",
    "multi_turn_long_context_41": "its answer sends the text of a file with a space that the file does not have",
    "multi_turn_long_context_43": "its answer sends the text of a file with a space that the file does not have",
}
"""Items of version 4 whose gold answer holds what nothing in the item shows, so that no honest run is accepted.

Beside them, `multi_turn_long_context_38` and `_46` need 34 calls in one turn: whoever makes one call a reply cannot
finish within `MOST_STEPS`.
"""

_LONG = 1000  # characters that only the padding of long context can have
_LONG_CONTEXT = "multi_turn_long_context"


@dataclass(frozen=True)
class MultiTurn:
    """A multi-turn item that can be run.

    Args:
        item: as it was read.
        gold: the calls of every turn; none where nothing can be done.
        padding: what makes it long, None where it is not.
    """

    item: TurnsItem
    gold: tuple[tuple[Call, ...], ...]
    padding: Padding | None = None


@dataclass(frozen=True, slots=True)
class TurnsVerdict:
    """Whether a run does what the gold run does.

    Args:
        valid: the leaderboard's verdict.
        kind: why not: "steps" (too many in a turn), "turns" (another number of them), "no_call" (a turn with gold calls
            and none of the model's), "state", "results".
        path: the turn, counted from 0, and the object where there is one.
        detail: one sentence.
        silent: whether every turn without gold calls was left without a call. The leaderboard's checker has this test
            and never runs it, so it is no part of `valid`.
    """

    valid: bool
    kind: str = ""
    path: str = ""
    detail: str = ""
    silent: bool = True


class Scene:
    """The objects of one run of an item, as they are at this moment.

    Raises:
        SampleInvalid: a state class that does not exist, or a beginning that makes no sense.
    """

    def __init__(self, item: MultiTurn) -> None:
        names, config = item.item.involved_classes, item.item.initial_config
        unknown = [name for name in names if name not in APIS]
        if unknown:
            raise SampleInvalid(f"{item.item.id}: unknown state classes", value=unknown, expected=[*APIS])
        try:
            self.objects: dict[str, Api] = {name: APIS[name](config.get(name, {}), item.padding) for name in names}
        except (TypeError, ValueError, AttributeError) as error:
            raise SampleInvalid(f"{item.item.id}: a beginning that makes no sense", value=str(error)) from error
        self._owners = {call: one for one in self.objects.values() for call in one.operations}

    def answer(self, call: Call) -> str:
        """What a call answers; a call that fails is answered by a sentence and changes nothing but what it had done."""
        owner = self._owners.get(call.name)
        try:
            if owner is None:
                raise InvalidAction(f"there is no function {call.name}")
            return owner.answer(call)
        except InvalidAction as error:
            return f"Error during execution: {error.what}"

    @property
    def state(self) -> dict[str, dict[str, Any]]:
        """Class -> everything of its object that is compared, as plain JSON."""
        return {name: one.state for name, one in self.objects.items()}


def run_calls(scene: Scene, calls: Iterable[Call]) -> tuple[str, ...]:
    """Do calls one after another, and return what each of them answers."""
    return tuple(scene.answer(call) for call in calls)


def judge_turns(item: MultiTurn, turns: Turns) -> TurnsVerdict:
    """The verdict on a whole run (BFCL v4; the order is the checker's).

    Args:
        turns: for every user turn the steps of the model, each the calls of one reply.

    Returns:
        The first thing that is wrong, or a valid verdict. Turns without gold calls are done, not judged.
    """
    silent = all(gold or not any(steps) for gold, steps in zip(item.gold, turns, strict=False))
    endless = next((at for at, steps in enumerate(turns) if sum(map(bool, steps)) > MOST_STEPS), None)
    if endless is not None:
        detail = f"more than {MOST_STEPS} replies with calls in one turn"
        return TurnsVerdict(False, "steps", f"turn {endless}", detail, silent)
    if len(turns) != len(item.gold):
        detail = f"{len(turns)} turns were played, the item has {len(item.gold)}"
        return TurnsVerdict(False, "turns", "", detail, silent)
    played, wanted = Scene(item), Scene(item)
    answered: Counter[str] = Counter()
    for at, (steps, gold) in enumerate(zip(turns, item.gold, strict=True)):
        answered.update(run_calls(played, (call for step in steps for call in step)))
        results = Counter(run_calls(wanted, gold))
        if not gold:
            continue
        if not any(steps):
            return TurnsVerdict(False, "no_call", f"turn {at}", "nothing was called", silent)
        for name, state in wanted.state.items():
            differing = [part for part, value in state.items() if played.state[name][part] != value]
            if differing:
                detail = f"the state differs from the gold run's in {', '.join(differing)}"
                return TurnsVerdict(False, "state", f"turn {at}: {name}", detail, silent)
        missing = list((results - answered).elements())
        if missing:
            detail = f"{len(missing)} results of the gold run were never seen, the first: {missing[0][:200]}"
            return TurnsVerdict(False, "results", f"turn {at}", detail, silent)
    return TurnsVerdict(True, silent=silent)


def corrupted(item: MultiTurn) -> tuple[tuple[tuple[Call, ...], ...], ...]:
    """The gold run with the last turn that has gold calls left unanswered: no checker may accept it."""
    last = max((at for at, gold in enumerate(item.gold) if gold), default=-1)
    return tuple((gold,) if gold and at != last else () for at, gold in enumerate(item.gold))


@cache
def _operations(classes: tuple[str, ...]) -> Mapping[str, Operation]:
    return {name: one for kind in classes if kind in APIS for name, one in APIS[kind].operations.items()}


def gold_call(text: str, classes: Iterable[str] = tuple(APIS)) -> Call:
    """A call of a gold answer: `name(literal, parameter=literal)`. The text is read, never run.

    Arguments without a name belong to the parameters in the order of the documents.

    Raises:
        SampleInvalid: anything else than one call of literals, or a function that the classes do not have.
    """
    operations = _operations(tuple(classes))
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in operations:
            raise ValueError(text)
        known = operations[node.func.id]
        named = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg is not None}
        first = dict(zip(known.parameters, map(ast.literal_eval, node.args), strict=False))
        if len(first) + len(named) != len(node.args) + len(node.keywords) or set(first) & set(named):
            raise ValueError(text)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise SampleInvalid("a gold call that is none", value=text, expected="a function of literals") from error
    return Call(known.name, {**first, **named})


def padding_of(items: Iterable[TurnsItem]) -> Padding:
    """The padding of long context, as far as gold answers quote it.

    Items of one number are the same conversation in `multi_turn_base` and in `multi_turn_long_context`. Where a text of
    the base answer is the beginning of one of the long answer, the rest is what follows every file; the files that only
    the long answer removes are those that were added. What no answer quotes is made by `Padding`.
    """
    known = {item.id: item for item in items}
    texts: Counter[str] = Counter()
    names: dict[str, None] = {}
    for name, item in known.items():
        base = known.get(name.replace(_LONG_CONTEXT, "multi_turn_base"))
        if item.category != _LONG_CONTEXT or base is None:
            continue
        short, long = _quoted(base), _quoted(item)
        rests = [text[len(start) :] for start, _ in short if start for text, _ in long if text.startswith(start)]
        texts.update(rest.strip() for rest in rests if len(rest) > _LONG)
        names |= {text: None for text, call in long if call == "rm" and (text, call) not in short}
    made = Padding()
    return Padding(texts.most_common(1)[0][0] if texts else made.text, tuple(names) or made.files)


def _quoted(item: TurnsItem) -> list[tuple[str, str]]:
    """(text, function) of every argument of the gold answer that is a text; what cannot be read is passed over."""
    found: list[tuple[str, str]] = []
    for text in (text for turn in item.ground_truth for text in turn):
        with suppress(SampleInvalid):
            call = gold_call(text)
            found += [(value, call.name) for value in call.arguments.values() if isinstance(value, str)]
    return found


def read_multi_turn(item: TurnsItem, padding: Padding | None = None) -> MultiTurn:
    """An item with its gold calls read and its beginning tried.

    Args:
        padding: what `padding_of` found; used in items of long context only.

    Raises:
        SampleInvalid: gold calls that are none, state classes that do not exist, or a beginning that makes no sense.
    """
    gold = tuple(tuple(gold_call(text, item.involved_classes) for text in turn) for turn in item.ground_truth)
    made = MultiTurn(item, gold, (padding or Padding()) if item.category == _LONG_CONTEXT else None)
    Scene(made)
    return made
