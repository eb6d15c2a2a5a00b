"""BFCL's multi-turn items: reading, running and judging.

An item is a conversation of several user turns over some of the eight state classes. Its gold answer is a list of
calls per turn. A model's calls are judged by their effect: after every turn with gold calls, the state of every object
must equal that of the gold run, and the results of the gold calls must be among all results that the model has
received so far.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from evolvent.errors import InvalidAction, SampleInvalid
from evolvent.messages import Call
from evolvent.trajectory import JsonObject
from evolvent.worlds.bfcl.apis import APIS, Api, Operation, Padding
from evolvent.worlds.bfcl.items import TurnsItem

__all__ = [
    "BAD_TURNS",
    "MOST_STEPS",
    "MultiTurn",
    "Scene",
    "Turns",
    "TurnsVerdict",
    "drop_last_gold_turn",
    "find_padding",
    "judge_turns",
    "parse_gold_call",
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
        item: the item as it was read.
        gold: the calls of every turn; none where nothing can be done.
        padding: the padding of long context; None in other items.
    """

    item: TurnsItem
    gold: tuple[tuple[Call, ...], ...]
    padding: Padding | None = None


@dataclass(frozen=True, slots=True)
class TurnsVerdict:
    """The verdict on a run: whether it has the same effect as the gold run.

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
    """The current objects of one run of an item.

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
            raise SampleInvalid(f"{item.item.id}: invalid initial state", value=str(error)) from error
        self._owners = {call: api for api in self.objects.values() for call in api.operations}

    def answer(self, call: Call) -> str:
        """Executes a call and returns its result; a failing call returns a sentence and undoes nothing."""
        owner = self._owners.get(call.name)
        try:
            if owner is None:
                raise InvalidAction(f"there is no function {call.name}")
            return owner.answer(call)
        except InvalidAction as error:
            return f"Error during execution: {error.what}"

    @property
    def state(self) -> dict[str, JsonObject]:
        """Returns, per class, all compared values of its object, as plain JSON."""
        return {name: api.state for name, api in self.objects.items()}


def run_calls(scene: Scene, calls: Iterable[Call]) -> tuple[str, ...]:
    """Executes calls one after another and returns their results."""
    return tuple(scene.answer(call) for call in calls)


def judge_turns(item: MultiTurn, turns: Turns) -> TurnsVerdict:
    """Compares a whole run with the gold run (BFCL v4; the order of the checks is the checker's).

    Args:
        turns: for every user turn the steps of the model, each the calls of one reply.

    Returns:
        The first error, or a valid verdict. Turns without gold calls are executed, not judged.
    """
    silent = all(gold or not any(steps) for gold, steps in zip(item.gold, turns, strict=False))
    endless_turn = next((turn for turn, steps in enumerate(turns) if sum(map(bool, steps)) > MOST_STEPS), None)
    if endless_turn is not None:
        detail = f"more than {MOST_STEPS} replies with calls in one turn"
        return TurnsVerdict(False, "steps", f"turn {endless_turn}", detail, silent)
    if len(turns) != len(item.gold):
        detail = f"{len(turns)} turns were played, the item has {len(item.gold)}"
        return TurnsVerdict(False, "turns", "", detail, silent)
    model_scene, gold_scene = Scene(item), Scene(item)
    model_results: Counter[str] = Counter()
    for turn, (steps, gold) in enumerate(zip(turns, item.gold, strict=True)):
        model_results.update(run_calls(model_scene, (call for step in steps for call in step)))
        gold_results = Counter(run_calls(gold_scene, gold))
        if not gold:
            continue
        if not any(steps):
            return TurnsVerdict(False, "no_call", f"turn {turn}", "nothing was called", silent)
        for name, state in gold_scene.state.items():
            differing = [part for part, value in state.items() if model_scene.state[name][part] != value]
            if differing:
                detail = f"the state differs from the gold run's in {', '.join(differing)}"
                return TurnsVerdict(False, "state", f"turn {turn}: {name}", detail, silent)
        missing = list((gold_results - model_results).elements())
        if missing:
            detail = f"{len(missing)} results of the gold run were never seen, the first: {missing[0][:200]}"
            return TurnsVerdict(False, "results", f"turn {turn}", detail, silent)
    return TurnsVerdict(True, silent=silent)


def drop_last_gold_turn(item: MultiTurn) -> tuple[tuple[tuple[Call, ...], ...], ...]:
    """Returns the gold run with its last turn with gold calls left unanswered; no checker may accept it."""
    last_turn = max((turn for turn, gold in enumerate(item.gold) if gold), default=-1)
    return tuple((gold,) if gold and turn != last_turn else () for turn, gold in enumerate(item.gold))


@cache
def _operations_of(classes: tuple[str, ...]) -> Mapping[str, Operation]:
    return {
        name: operation
        for class_name in classes
        if class_name in APIS
        for name, operation in APIS[class_name].operations.items()
    }


def parse_gold_call(text: str, classes: Iterable[str] = tuple(APIS)) -> Call:
    """Parses a call of a gold answer: `name(literal, parameter=literal)`. The text is parsed, never run.

    Arguments without a name belong to the parameters in the order of the documents.

    Raises:
        SampleInvalid: anything else than one call of literals, or a function that the classes do not have.
    """
    operations = _operations_of(tuple(classes))
    try:
        node = ast.parse(text, mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in operations:
            raise ValueError(text)
        operation = operations[node.func.id]
        named_arguments = {
            argument.arg: ast.literal_eval(argument.value) for argument in node.keywords if argument.arg is not None
        }
        positional_arguments = dict(zip(operation.parameters, map(ast.literal_eval, node.args), strict=False))
        if len(positional_arguments) + len(named_arguments) != len(node.args) + len(node.keywords) or set(
            positional_arguments
        ) & set(named_arguments):
            raise ValueError(text)
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError) as error:
        raise SampleInvalid(
            "invalid gold call", value=text, expected="a function call with literal arguments"
        ) from error
    return Call(operation.name, {**positional_arguments, **named_arguments})


def find_padding(items: Iterable[TurnsItem]) -> Padding:
    """Extracts the padding of long context, as far as gold answers quote it.

    Items of one number are the same conversation in `multi_turn_base` and in `multi_turn_long_context`. Where a
    text of the base answer is the beginning of a text of the long answer, the suffix is the padding of every file;
    the files that only the long answer removes are those that were added. Padding that no answer quotes is
    generated by `Padding`.
    """
    items_by_id = {item.id: item for item in items}
    texts: Counter[str] = Counter()
    names: dict[str, None] = {}
    for name, item in items_by_id.items():
        base = items_by_id.get(name.replace(_LONG_CONTEXT, "multi_turn_base"))
        if item.category != _LONG_CONTEXT or base is None:
            continue
        base_texts, long_texts = _quoted_texts(base), _quoted_texts(item)
        suffixes = [
            text[len(start) :] for start, _ in base_texts if start for text, _ in long_texts if text.startswith(start)
        ]
        texts.update(suffix.strip() for suffix in suffixes if len(suffix) > _LONG)
        names |= {text: None for text, call in long_texts if call == "rm" and (text, call) not in base_texts}
    default_padding = Padding()
    return Padding(texts.most_common(1)[0][0] if texts else default_padding.text, tuple(names) or default_padding.files)


def _quoted_texts(item: TurnsItem) -> list[tuple[str, str]]:
    """Lists (text, function) of every text argument of the gold answer; unreadable calls are skipped."""
    quotes: list[tuple[str, str]] = []
    for text in (text for turn in item.ground_truth for text in turn):
        with suppress(SampleInvalid):
            call = parse_gold_call(text)
            quotes += [(value, call.name) for value in call.arguments.values() if isinstance(value, str)]
    return quotes


def read_multi_turn(item: TurnsItem, padding: Padding | None = None) -> MultiTurn:
    """Reads the gold calls of an item and tries its initial state.

    Args:
        padding: result of `find_padding`; used in items of long context only.

    Raises:
        SampleInvalid: malformed gold calls, unknown state classes, or an invalid initial state.
    """
    gold = tuple(tuple(parse_gold_call(text, item.involved_classes) for text in turn) for turn in item.ground_truth)
    conversation = MultiTurn(item, gold, (padding or Padding()) if item.category == _LONG_CONTEXT else None)
    Scene(conversation)
    return conversation
