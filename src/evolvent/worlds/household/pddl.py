"""Planning problems of the Alfred domain: the text of a `pddl_problem` to and from a layout and a goal.

Only the problem is read. The domain (the rules) is the same in every game file; what this package plays is its own
engine, see `rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from evolvent.errors import ConfigError
from evolvent.worlds.household.game import FLAGS, Goal, Layout

__all__ = ["problem_text", "read_problem"]

_TOKEN = re.compile(r";[^\n]*|[()]|[^\s();]+")
_DEEPEST = 40
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
_NAMED_BY_DOMAIN = (("rtype", {"sinkbasin", "microwave", "fridge"}), ("otype", {"knife", "butterknife"}))


def read_problem(text: str) -> tuple[Layout, Goal]:
    """The layout and the goal of a problem.

    Things that no fact speaks of are left out, as alfworld does: its problems declare every type as a thing, too.

    Raises:
        ConfigError: the text is no problem of this domain, a fact speaks of something that is not declared, or the goal
            is none of the six families.
    """
    found = _tree(text)
    if found[:1] != ["define"]:
        raise ConfigError("not a planning problem", value=text[:80], expected="(define (problem ...) ...)")
    parts = {part[0]: part[1:] for part in found[1:] if isinstance(part, list) and part and isinstance(part[0], str)}
    missing = [name for name in (":objects", ":init", ":goal") if name not in parts]
    if missing:
        raise ConfigError("a problem with parts missing", value=sorted(parts), expected=", ".join(missing))
    layout = _layout(_declared_kinds(parts[":objects"]), parts[":init"])
    if not layout.receptacles or not layout.start:
        raise ConfigError("a problem without receptacles or without the agent's place", value=text[:80])
    return layout, _goal(parts[":goal"])


def _tree(text: str) -> list[_Tree]:
    """Nested lists of lower-case words."""
    stack: list[list[_Tree]] = [[]]
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == "(":
            stack.append([])
        elif token == ")" and len(stack) > 1:
            done = stack.pop()
            stack[-1].append(done)
        elif token[0] != ";":
            stack[-1].append(token.lower())
        if len(stack) > _DEEPEST or stack[0][:1] == [")"] or (token == ")" and len(stack[0]) > 1):
            line = text.count("\n", 0, match.start()) + 1
            raise ConfigError("brackets that do not match", value=f"line {line}", expected="one (define ...)")
    if len(stack) != 1 or not stack[0] or not isinstance(stack[0][0], list):
        raise ConfigError("brackets that do not close", value=text[-80:], expected="one (define ...)")
    return stack[0][0]


def _declared_kinds(words: Sequence[_Tree]) -> dict[str, str]:
    """Name -> "receptacle", "object", "location" and so on, from `a b - object c - location`."""
    kinds: dict[str, str] = {}
    waiting: list[str] = []
    rest = iter([word for word in words if isinstance(word, str)])
    for word in rest:
        if word == "-":
            kinds.update(dict.fromkeys(waiting, next(rest, "")))
            waiting = []
        else:
            waiting.append(word)
    return kinds


def _layout(kinds: Mapping[str, str], facts: Sequence[_Tree]) -> Layout:
    layout = Layout()
    for fact in facts:
        if not isinstance(fact, list) or not 2 <= len(fact) <= 3 or not all(isinstance(word, str) for word in fact):
            continue  # (= (distance ...) ...) and the like
        name, *about = map(str, fact)
        for one in about:
            if one not in kinds:
                raise ConfigError("a fact about something that is not declared", value=_words(fact))
            if kinds[one] in ("receptacle", "object"):
                (layout.receptacles if kinds[one] == "receptacle" else layout.objects).setdefault(one, "")
        if len(about) == 2:
            _relate(layout, name, *about)
        else:
            _describe(layout, name, about[0])
    return layout


def _relate(layout: Layout, name: str, one: str, other: str) -> None:
    if name == "receptacletype":
        layout.receptacles[one] = other.removesuffix("type")
    elif name == "objecttype":
        layout.objects[one] = other.removesuffix("type")
    elif name == "receptacleatlocation":
        layout.stands[one] = other
    elif name == "objectatlocation":
        layout.lies.append((one, other))
    elif name == "inreceptacle":
        layout.inside.append((one, other))
    elif name == "inreceptacleobject":
        layout.within.append((one, other))
    elif name == "cancontain":
        layout.holds.add((one.removesuffix("type"), other.removesuffix("type")))
    elif name == "atlocation":
        layout.start = other


def _describe(layout: Layout, name: str, one: str) -> None:
    if name == "openable":
        layout.openable.add(one)
    elif name == "opened":
        layout.opened.add(one)
    elif name in _PROPERTIES or name in _FLAGS_OF_FACTS:
        layout.properties.setdefault(_FLAGS_OF_FACTS.get(name, name), set()).add(one)


def _goal(found: Sequence[_Tree]) -> Goal:
    """The family whose goal this is, whatever its variables are called and its conditions are ordered."""
    for family, text in _GOALS.items():
        for names in _matches(_tree(text), found[0], {}) if len(found) == 1 else ():
            if len(set(names.values())) == len(names):
                return Goal(family, names["o"].removesuffix("type"), names["r"].removesuffix("type"))
    raise ConfigError("a goal that is none of the six families", value=_words(list(found)))


def _matches(form: _Tree, found: _Tree, names: dict[str, str]) -> Iterator[dict[str, str]]:
    """Every way to read `found` as `form`: what its variables and the types O and R stand for, added to `names`."""
    if isinstance(form, str) and isinstance(found, str):
        if form in ("o", "r") or form[0] == "?":
            if names.get(form, found) == found:
                yield {**names, form: found}
        elif form == found:
            yield names
    elif isinstance(form, list) and isinstance(found, list) and len(form) == len(found):
        if not form:
            yield names
        else:
            # Conditions of `and` come in any order, all else in its own.
            choices = range(len(found)) if form[0] == "and" and found[0] == "and" else range(1)
            last = len(form) - 1 if len(choices) > 1 else 0
            for i in choices:
                for more in _matches(form[last], found[i], names):
                    rest = [*form[:last], *form[last + 1 :]]
                    yield from _matches(rest, [*found[:i], *found[i + 1 :]], more)


def _words(tree: _Tree) -> str:
    return "(" + " ".join(map(_words, tree)) + ")" if isinstance(tree, list) else tree


def problem_text(layout: Layout, goal: Goal, *, name: str, spelling: Mapping[str, str]) -> str:
    """The problem of a layout and a goal, as game files hold it.

    Args:
        name: the name of the problem, one word.
        spelling: a type in lower case -> as it is to be written ("countertop" -> "CounterTop").
    """

    def kind(word: str) -> str:
        return f"{spelling.get(word, word)}Type"

    form = _GOALS[goal.family].replace(" O)", f" {kind(goal.object)})").replace(" R)", f" {kind(goal.target)})")
    lines = [
        f"(define (problem {name})",
        "(:domain alfred)",
        "(:objects",
        "agent1 - agent",
        *_declared(layout, goal, kind),
        ")",
        "(:init",
        *_facts(layout, kind),
        ")",
        "(:goal",
        " ".join(form.split()),
        ")",
        ")",
    ]
    return "\n".join(lines) + "\n"


def _declared(layout: Layout, goal: Goal, kind: Callable[[str], str]) -> Iterator[str]:
    places = {layout.start, *layout.stands.values(), *(place for _, place in layout.lies)}
    receptacles, objects = set(layout.receptacles.values()), set(layout.objects.values())
    (objects if goal.family == "look" else receptacles).add(goal.target)
    objects.add(goal.object)
    receptacles |= {one for one, _ in layout.holds}
    objects |= {one for _, one in layout.holds}
    for (name, always), types in zip(_NAMED_BY_DOMAIN, (receptacles, objects), strict=True):
        yield from (f"{kind(word)} - {name}" for word in sorted(types | always))
    for name, ids in (("object", layout.objects), ("receptacle", layout.receptacles), ("location", places)):
        yield from (f"{one} - {name}" for one in sorted(ids))


def _facts(layout: Layout, kind: Callable[[str], str]) -> Iterator[str]:
    yield f"(atLocation agent1 {layout.start})"
    yield from (f"(receptacleType {one} {kind(of)})" for one, of in sorted(layout.receptacles.items()))
    yield from (f"(objectType {one} {kind(of)})" for one, of in sorted(layout.objects.items()))
    yield from (f"(canContain {kind(one)} {kind(other)})" for one, other in sorted(layout.holds))
    yield from (f"(openable {one})" for one in sorted(layout.openable))
    yield from (f"(opened {one})" for one in sorted(layout.opened))
    spelled = {flag: f"is{flag.capitalize()}" for flag in FLAGS} | {"isreceptacleobject": "isReceptacleObject"}
    for name, ids in sorted(layout.properties.items()):
        yield from (f"({spelled.get(name, name)} {one})" for one in sorted(ids))
    for relation, pairs in (
        ("receptacleAtLocation", layout.stands.items()),
        ("objectAtLocation", layout.lies),
        ("inReceptacle", layout.inside),
        ("inReceptacleObject", layout.within),
    ):
        yield from (f"({relation} {one} {other})" for one, other in sorted(pairs))
