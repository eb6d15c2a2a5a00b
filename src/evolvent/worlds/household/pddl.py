"""Planning problems of the Alfred domain: conversion of a `pddl_problem` to and from a layout and a goal.

Only the problem is read. The domain (the rules) is the same in every game file; this package plays its own
engine, see `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from evolvent.errors import ConfigError
from evolvent.worlds.household.game import FLAGS, Goal, Layout

__all__ = ["parse_problem", "render_problem"]

_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")
_MAX_DEPTH = 40
_Tree: TypeAlias = "str | list[_Tree]"
_FLAGS_OF_FACTS = {
    "ishot": "hot",
    "iscool": "cool",
    "isclean": "clean",
    "istoggled": "toggled",
    "issliced": "sliced",
}
_PROPERTIES = (
    "pickupable",
    "cleanable",
    "heatable",
    "coolable",
    "toggleable",
    "sliceable",
    "isreceptacleobject",
)
# The goals of the six families. Variables are numbered as they are bound; O and R stand for the types.
_GOALS: Mapping[str, str] = {
    "put": """(and (exists (?r - receptacle) (exists (?o - object)
        (and (inReceptacle ?o ?r) (objectType ?o O) (receptacleType ?r R)))))""",
    "clean": """(and (exists (?r - receptacle) (exists (?o - object) (and (cleanable ?o) (objectType ?o O)
        (receptacleType ?r R) (isClean ?o) (inReceptacle ?o ?r)))))""",
    "heat": """(and (exists (?r - receptacle) (exists (?o - object) (and (heatable ?o) (objectType ?o O)
        (receptacleType ?r R) (isHot ?o) (inReceptacle ?o ?r)))))""",
    "cool": """(and (exists (?r - receptacle) (exists (?o - object) (and (coolable ?o) (objectType ?o O)
        (receptacleType ?r R) (isCool ?o) (inReceptacle ?o ?r)))))""",
    "two": """(and (exists (?r - receptacle) (exists (?o1 - object)
        (and (objectType ?o1 O) (receptacleType ?r R) (inReceptacle ?o1 ?r)
        (exists (?o2 - object) (and (not (= ?o1 ?o2)) (objectType ?o2 O) (receptacleType ?r R)
        (inReceptacle ?o2 ?r)))))))""",
    "look": """(and (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot R)
        (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
        (exists (?o - object ?a - agent) (and (objectType ?o O) (holds ?a ?o))))""",
}
_DOMAIN_TYPES = (("rtype", {"sinkbasin", "microwave", "fridge"}), ("otype", {"knife", "butterknife"}))


def parse_problem(text: str) -> tuple[Layout, Goal]:
    """Parses the layout and the goal of a problem.

    Objects without a fact are left out, as alfworld does: its problems also declare every type as an object.

    Raises:
        ConfigError: the text is not a problem of this domain, a fact mentions an undeclared name, or the goal is
            outside the six families.
    """
    tree = _parse_tree(text)
    if tree[:1] != ["define"]:
        raise ConfigError("not a planning problem", value=text[:80], expected="(define (problem ...) ...)")
    parts = {part[0]: part[1:] for part in tree[1:] if isinstance(part, list) and part and isinstance(part[0], str)}
    missing = [name for name in (":objects", ":init", ":goal") if name not in parts]
    if missing:
        raise ConfigError("a problem with parts missing", value=sorted(parts), expected=", ".join(missing))
    layout = _build_layout(_parse_declarations(parts[":objects"]), parts[":init"])
    if not layout.receptacles or not layout.start:
        raise ConfigError("a problem without receptacles or without the agent's place", value=text[:80])
    return layout, _match_goal(parts[":goal"])


def _parse_tree(text: str) -> list[_Tree]:
    """Parses nested lists of lower-case words."""
    stack: list[list[_Tree]] = [[]]
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "(":
            stack.append([])
        elif token == ")" and len(stack) > 1:
            subtree = stack.pop()
            stack[-1].append(subtree)
        elif token[0] != ";":
            stack[-1].append(token.lower())
        if len(stack) > _MAX_DEPTH or stack[0][:1] == [")"] or (token == ")" and len(stack[0]) > 1):
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError("brackets that do not match", value=f"line {line}", expected="one (define ...)")
    if len(stack) != 1 or not stack[0] or not isinstance(stack[0][0], list):
        raise ConfigError("brackets that do not close", value=text[-80:], expected="one (define ...)")
    return stack[0][0]


def _parse_declarations(tokens: Sequence[_Tree]) -> dict[str, str]:
    """Parses `a b - object c - location` to a mapping from names to "receptacle", "object", "location" and so on."""
    kinds: dict[str, str] = {}
    pending_names: list[str] = []
    remaining_words = iter([word for word in tokens if isinstance(word, str)])
    for word in remaining_words:
        if word == "-":
            kinds.update(dict.fromkeys(pending_names, next(remaining_words, "")))
            pending_names = []
        else:
            pending_names.append(word)
    return kinds


def _build_layout(kinds: Mapping[str, str], facts: Sequence[_Tree]) -> Layout:
    layout = Layout()
    for fact in facts:
        if not isinstance(fact, list) or not 2 <= len(fact) <= 3 or not all(isinstance(word, str) for word in fact):
            continue  # (= (distance ...) ...) and the like
        name, *arguments = map(str, fact)
        for argument in arguments:
            if argument not in kinds:
                raise ConfigError("a fact about something that is not declared", value=_render_tree(fact))
            if kinds[argument] in ("receptacle", "object"):
                (layout.receptacles if kinds[argument] == "receptacle" else layout.objects).setdefault(argument, "")
        if len(arguments) == 2:
            _add_relation(layout, name, *arguments)
        else:
            _add_property(layout, name, arguments[0])
    return layout


def _add_relation(layout: Layout, name: str, first: str, second: str) -> None:
    if name == "receptacletype":
        layout.receptacles[first] = second.removesuffix("type")
    elif name == "objecttype":
        layout.objects[first] = second.removesuffix("type")
    elif name == "receptacleatlocation":
        layout.place_of_receptacle[first] = second
    elif name == "objectatlocation":
        layout.object_places.append((first, second))
    elif name == "inreceptacle":
        layout.object_receptacles.append((first, second))
    elif name == "inreceptacleobject":
        layout.object_containers.append((first, second))
    elif name == "cancontain":
        layout.allowed_contents.add((first.removesuffix("type"), second.removesuffix("type")))
    elif name == "atlocation":
        layout.start = second


def _add_property(layout: Layout, name: str, object_id: str) -> None:
    if name == "openable":
        layout.openable.add(object_id)
    elif name == "opened":
        layout.opened.add(object_id)
    elif name in _PROPERTIES or name in _FLAGS_OF_FACTS:
        layout.properties.setdefault(_FLAGS_OF_FACTS.get(name, name), set()).add(object_id)


def _match_goal(conditions: Sequence[_Tree]) -> Goal:
    """Returns the goal with these conditions, whatever its variables are called and its conditions are ordered."""
    for family, text in _GOALS.items():
        for names in _match_tree(_parse_tree(text), conditions[0], {}) if len(conditions) == 1 else ():
            if len(set(names.values())) == len(names):
                return Goal(family, names["o"].removesuffix("type"), names["r"].removesuffix("type"))
    raise ConfigError("a goal that is none of the six families", value=_render_tree(list(conditions)))


def _match_tree(form: _Tree, tree: _Tree, names: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yields every way to match `tree` with `form`: the meanings of its variables and of the types O and R, added to
    `names`.
    """
    if isinstance(form, str) and isinstance(tree, str):
        if form in ("o", "r") or form[0] == "?":
            if names.get(form, tree) == tree:
                yield {**names, form: tree}
        elif form == tree:
            yield names
    elif isinstance(form, list) and isinstance(tree, list) and len(form) == len(tree):
        if not form:
            yield names
        else:
            # Conditions of `and` come in any order, all else in its own.
            choices = range(len(tree)) if form[0] == "and" and tree[0] == "and" else range(1)
            form_index = len(form) - 1 if len(choices) > 1 else 0
            for i in choices:
                for extended_names in _match_tree(form[form_index], tree[i], names):
                    remaining_form = [*form[:form_index], *form[form_index + 1 :]]
                    yield from _match_tree(remaining_form, [*tree[:i], *tree[i + 1 :]], extended_names)


def _render_tree(tree: _Tree) -> str:
    return "(" + " ".join(map(_render_tree, tree)) + ")" if isinstance(tree, list) else tree


def render_problem(layout: Layout, goal: Goal, *, name: str, spelling: Mapping[str, str]) -> str:
    """Renders the problem of a layout and a goal, as game files hold it.

    Args:
        name: the name of the problem, one word.
        spelling: type in lower case -> its spelling in game files ("countertop" -> "CounterTop").
    """

    def type_name(word: str) -> str:
        return f"{spelling.get(word, word)}Type"

    goal_text = (
        _GOALS[goal.family].replace(" O)", f" {type_name(goal.object)})").replace(" R)", f" {type_name(goal.target)})")
    )
    lines = [
        f"(define (problem {name})",
        "(:domain alfred)",
        "(:objects",
        "agent1 - agent",
        *_render_declarations(layout, goal, type_name),
        ")",
        "(:init",
        *_render_facts(layout, type_name),
        ")",
        "(:goal",
        " ".join(goal_text.split()),
        ")",
        ")",
    ]
    return "\n".join(lines) + "\n"


def _render_declarations(layout: Layout, goal: Goal, type_name: Callable[[str], str]) -> Iterator[str]:
    place_ids = {
        layout.start,
        *layout.place_of_receptacle.values(),
        *(place_id for _, place_id in layout.object_places),
    }
    receptacles, objects = set(layout.receptacles.values()), set(layout.objects.values())
    (objects if goal.family == "look" else receptacles).add(goal.target)
    objects.add(goal.object)
    receptacles |= {id_ for id_, _ in layout.allowed_contents}
    objects |= {id_ for _, id_ in layout.allowed_contents}
    for (name, domain_types), types in zip(_DOMAIN_TYPES, (receptacles, objects), strict=True):
        yield from (f"{type_name(word)} - {name}" for word in sorted(types | domain_types))
    for name, ids in (("object", layout.objects), ("receptacle", layout.receptacles), ("location", place_ids)):
        yield from (f"{id_} - {name}" for id_ in sorted(ids))


def _render_facts(layout: Layout, type_name: Callable[[str], str]) -> Iterator[str]:
    yield f"(atLocation agent1 {layout.start})"
    yield from (
        f"(receptacleType {first} {type_name(declared_type)})"
        for first, declared_type in sorted(layout.receptacles.items())
    )
    yield from (
        f"(objectType {first} {type_name(declared_type)})" for first, declared_type in sorted(layout.objects.items())
    )
    yield from (
        f"(canContain {type_name(first)} {type_name(second)})" for first, second in sorted(layout.allowed_contents)
    )
    yield from (f"(openable {first})" for first in sorted(layout.openable))
    yield from (f"(opened {first})" for first in sorted(layout.opened))
    property_names = {flag: f"is{flag.capitalize()}" for flag in FLAGS} | {"isreceptacleobject": "isReceptacleObject"}
    for name, ids in sorted(layout.properties.items()):
        yield from (f"({property_names.get(name, name)} {first})" for first in sorted(ids))
    for relation, pairs in (
        ("receptacleAtLocation", layout.place_of_receptacle.items()),
        ("objectAtLocation", layout.object_places),
        ("inReceptacle", layout.object_receptacles),
        ("inReceptacleObject", layout.object_containers),
    ):
        yield from (f"({relation} {first} {second})" for first, second in sorted(pairs))
