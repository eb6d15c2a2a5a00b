"""Answers to BFCL's items: right ones as text, and ones that are wrong by construction.

A wrong answer is a right one with one thing changed so that no rule can accept it: what is put in (a name, a key, a
value) was looked up to be accepted nowhere in the item, and what is taken out may not be left out anywhere in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.random import Generator

from evolvent.grade.calls import GoldCall, encode_calls
from evolvent.messages import Call
from evolvent.trajectory import sample_rng
from evolvent.worlds.bfcl.items import CallItem

STRANGE = "zq7x"
"""Part of every text that is put in; no item has it."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong answer: what was changed, and the calls, with plain values."""

    kind: str
    calls: tuple[Call, ...]


def answer_text(item: CallItem, calls: Sequence[Call]) -> str:
    """Calls as a prompted model writes them: Python, or Java or JavaScript with source text for each value."""
    if item.language == "python":
        return encode_calls(calls, form="python")
    written = []
    for call in calls:
        arguments = sourced(item, call, quoted=True).arguments
        written.append(f"{call.name}({', '.join(f'{name}={text}' for name, text in arguments.items())})")
    return f"[{', '.join(written)}]"


def sourced(item: CallItem, call: Call, *, quoted: bool) -> Call:
    """A call whose values are source text of the item's language; texts with quotes around them or without."""
    if item.language == "python":
        return call
    properties = properties_of(item, call.name.removesuffix(f"_{STRANGE}"))
    texts = {}
    for name, value in call.arguments.items():
        schema = properties.get(name, {})
        kind, inner = str(schema.get("type", "any")), str((schema.get("items") or {}).get("type", ""))
        texts[name] = _source(value, kind, inner, item.language)
        if isinstance(value, str) and (not quoted or kind not in ("String", "any")):
            texts[name] = value  # a variable, or as the released reader hands it on
    return Call(call.name, texts)


def properties_of(item: CallItem, name: str) -> Mapping[str, Any]:
    """The parameters of a function of the item; empty for another name."""
    return next((tool.parameters.get("properties", {}) for tool in item.tools if tool.name == name), {})


def _source(value: Any, kind: str, inner: str, language: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        endings = {"long": "L", "float": ".0f"} if language == "java" else {"Bigint": "n"}
        return f"{value}{endings.get(kind, '')}"
    if isinstance(value, float):
        return f"{value}f" if kind == "float" and language == "java" else repr(value)
    if isinstance(value, list):
        parts = ", ".join(_source(one, inner or "any", "", language) for one in value)
        java = f"new Object[]{{{parts}}}" if kind == "Array" else f"new ArrayList<>(Arrays.asList({parts}))"
        return f"[{parts}]" if language == "javascript" else java if value or kind == "Array" else "new ArrayList<>()"
    if isinstance(value, dict):
        pairs = [(json.dumps(key), _source(one, "any", "", language)) for key, one in value.items()]
        if language == "javascript":
            return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
        return f"new HashMap<String, Object>() {{{{ {' '.join(f'put({key}, {one});' for key, one in pairs)} }}}}"
    return "null"


def wrong_answers(item: CallItem, seed: int = 0) -> Iterator[Wrong]:
    """Wrong answers of every kind that the item allows, each at one place, drawn from (seed, id, kind)."""
    right = item.sample.calls
    for kind, change in CHANGES.items():
        rng = sample_rng("bfcl wrong", seed, item.id, kind)
        for at in rng.permutation(len(right)):
            found = change(item, right, int(at), rng)
            if found is not None:
                yield Wrong(kind, found)
                break


Changed = tuple[Call, ...] | None
Change = Callable[[CallItem, tuple[Call, ...], int, Generator], Changed]


def _with(calls: tuple[Call, ...], at: int, name: str, arguments: Mapping[str, Any]) -> tuple[Call, ...]:
    return (*calls[:at], Call(name, dict(arguments)), *calls[at + 1 :])


def _drop_call(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    return calls[:at] + calls[at + 1 :]


def _call_twice(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    return (*calls, calls[at])


def _call_instead(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    """Another call in place of this one: wrong, because one name is then called too often."""
    others = [one for one in calls if one.name != calls[at].name]
    return (*calls[:at], others[0], *calls[at + 1 :]) if others else None


def _rename_function(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    return _with(calls, at, f"{calls[at].name}_{STRANGE}", calls[at].arguments)


def _other_function(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    """The name of another tool of the item that is not expected."""
    others = [tool.name for tool in item.tools if tool.name not in {one.name for one in item.gold}]
    return _with(calls, at, others[int(rng.integers(len(others)))], calls[at].arguments) if others else None


def _rename_parameter(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    names = list(calls[at].arguments)
    if not names:
        return None
    changed = names[int(rng.integers(len(names)))]
    renamed = {f"{k}_{STRANGE}" if k == changed else k: v for k, v in calls[at].arguments.items()}
    return _with(calls, at, calls[at].name, renamed)


def _extra_parameter(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    return _with(calls, at, calls[at].name, {**calls[at].arguments, f"{STRANGE}_more": 1})


def _drop_parameter(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
    tool = next(tool for tool in item.tools if tool.name == calls[at].name)
    same = [one for one in item.gold if one.name == calls[at].name]
    needed = [
        name
        for name in calls[at].arguments
        if name in tool.parameters.get("required", ()) or all("" not in _choices(one, name) for one in same)
    ]
    if not needed:
        return None
    dropped = needed[int(rng.integers(len(needed)))]
    return _with(calls, at, calls[at].name, {k: v for k, v in calls[at].arguments.items() if k != dropped})


def _choices(gold: GoldCall, name: str) -> tuple[Any, ...]:
    return gold.arguments.get(name, ("",))


def _taken(item: CallItem, function: str, parameter: str) -> list[Any]:
    """Every value that any expected call of the function accepts for the parameter."""
    return [one for gold in item.gold if gold.name == function for one in gold.arguments.get(parameter, ())]


def _argument_change(change: Callable[[Any, list[Any]], Any]) -> Change:
    """A change of one value, by a function of (value, all values accepted anywhere) that may give None: not here."""

    def changed(item: CallItem, calls: tuple[Call, ...], at: int, rng: Generator) -> Changed:
        call = calls[at]
        for place in rng.permutation(len(call.arguments)):
            name = list(call.arguments)[int(place)]
            new = change(call.arguments[name], _taken(item, call.name, name))
            if new is not None:
                return _with(calls, at, call.name, {**call.arguments, name: new})
        return None

    return changed


def _strange_number(taken: list[Any]) -> int:
    """A whole number greater than all numbers that are accepted, also inside of lists and dicts."""
    numbers, rest = [0.0], list(taken)
    while rest:
        one = rest.pop()
        rest += one if isinstance(one, list) else list(one.values()) if isinstance(one, dict) else []
        numbers += [float(one)] if type(one) in (int, float) else []
    return int(max(numbers)) + 7919


def _other_value(value: Any, taken: list[Any]) -> Any:
    if isinstance(value, str):
        return f"{value} {STRANGE}"
    if isinstance(value, bool):
        return not value if all(one is not (not value) for one in taken) else None
    if isinstance(value, (int, float)):
        return type(value)(_strange_number(taken))
    if isinstance(value, list):
        if value and isinstance(value[0], dict):
            return [{**value[0], STRANGE: 1}, *value[1:]]
        number = bool(value) and type(value[0]) in (int, float)
        return [*value, type(value[0])(_strange_number(taken)) if number else STRANGE]
    return {**value, STRANGE: 1} if isinstance(value, dict) else None


def _next_number(value: Any, taken: list[Any]) -> Any:
    if type(value) not in (int, float) or any(type(one) in (int, float) and one == value + 1 for one in taken):
        return None
    return value + 1


def _other_type(value: Any, taken: list[Any]) -> Any:
    """A value of a class of which nothing is accepted."""
    kinds = {type(one) for one in taken if one != ""}
    if isinstance(value, str) and kinds <= {str}:
        return [value]
    if type(value) in (bool, int, float) and str not in kinds:
        return f"{value} {STRANGE}"
    if isinstance(value, (list, dict)) and str not in kinds:
        return STRANGE
    return None


def _whole_as_decimal(value: Any, taken: list[Any]) -> Any:
    return float(value) + 0.5 if type(value) is int else None


def _shorter_list(value: Any, taken: list[Any]) -> Any:
    """A list without its last element, where no list of that length is accepted."""
    if not isinstance(value, list) or not value or any(len(o) == len(value) - 1 for o in taken if isinstance(o, list)):
        return None
    return None if any(not isinstance(one, list) for one in taken) else value[:-1]


def _turned_list(value: Any, taken: list[Any]) -> Any:
    """A list of plain values in reverse, where it differs and only one list is accepted in the whole item."""
    plain = isinstance(value, list) and all(type(one) in (int, float, str) for one in value)
    lists = [one for one in taken if one != ""]
    return value[::-1] if plain and len(lists) == 1 and _folded(value) != _folded(value[::-1]) else None


def _folded(value: list[Any]) -> list[str]:
    return ["".join(filter(str.isalnum, str(one))).lower() for one in value]


def _changed_key(value: Any, taken: list[Any]) -> Any:
    if not isinstance(value, dict) or not value:
        return None
    first = next(iter(value))
    return {f"{key}_{STRANGE}" if key == first else key: one for key, one in value.items()}


def _changed_entry(value: Any, taken: list[Any]) -> Any:
    if not isinstance(value, dict) or not value:
        return None
    first = next(iter(value))
    return {**value, first: STRANGE}


def _empty_list(value: Any, taken: list[Any]) -> Any:
    """No elements, where lists are accepted and an empty one is not; that it may be left out is no empty list."""
    lists = [one for one in taken if one != ""]
    return [] if isinstance(value, list) and all(isinstance(one, list) and one for one in lists) else None


def _true_for_one(value: Any, taken: list[Any]) -> Any:
    """A truth value for the first 0 or 1 in a dict or a list, where no truth value is accepted inside of any."""
    if not isinstance(value, (dict, list)) or "true" in json.dumps(taken) or "false" in json.dumps(taken):
        return None
    entries = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    place = next((key for key, one in entries if type(one) in (int, float) and one in (0, 1)), None)
    if place is None:
        return None
    changed = [(key, bool(one) if key == place else one) for key, one in entries]
    return dict(changed) if isinstance(value, dict) else [one for _, one in changed]


CHANGES: Mapping[str, Change] = {
    "drop_call": _drop_call,
    "call_twice": _call_twice,
    "call_instead": _call_instead,
    "rename_function": _rename_function,
    "other_function": _other_function,
    "rename_parameter": _rename_parameter,
    "extra_parameter": _extra_parameter,
    "drop_parameter": _drop_parameter,
    "other_value": _argument_change(_other_value),
    "next_number": _argument_change(_next_number),
    "other_type": _argument_change(_other_type),
    "whole_as_decimal": _argument_change(_whole_as_decimal),
    "shorter_list": _argument_change(_shorter_list),
    "turned_list": _argument_change(_turned_list),
    "empty_list": _argument_change(_empty_list),
    "true_for_one": _argument_change(_true_for_one),
    "changed_key": _argument_change(_changed_key),
    "changed_entry": _argument_change(_changed_entry),
}
"""The kinds of change."""
