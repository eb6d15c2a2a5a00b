"""Game files of ALFWorld, `game.tw-pddl` with `traj_data.json` beside it: reading and writing.

A game file holds the problem (the layout and the goal), the planning domain and the grammar that alfworld's own
engine runs. Those two are alfworld's texts; they are not part of this library. `write_game` takes them from an
installed alfworld, from its downloaded data, or from any game file: see `read_official_texts`.

Planning problems of the Alfred domain: conversion of a `pddl_problem` to and from a layout and a goal.

Only the problem is read. The domain (the rules) is the same in every game file; this package plays its own
engine, see `rules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from evolvent.errors import ConfigError, CorruptRecord, MissingExtra
from evolvent.files import write_atomic
from evolvent.worlds.household.game import FAMILIES, FLAGS, Game, Goal, Layout
from evolvent.worlds.household.plans import plan
from evolvent.worlds.household.things import SPELLING

__all__ = [
    "GAME_FILE",
    "OfficialTexts",
    "find_games",
    "parse_problem",
    "read_folder",
    "read_game",
    "read_official_texts",
    "render_problem",
    "write_game",
]


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
        raise ConfigError("the text is not a planning problem", value=text[:80], expected="(define (problem ...) ...)")
    parts = {part[0]: part[1:] for part in tree[1:] if isinstance(part, list) and part and isinstance(part[0], str)}
    missing = [name for name in (":objects", ":init", ":goal") if name not in parts]
    if missing:
        raise ConfigError("the problem lacks parts", value=sorted(parts), expected=", ".join(missing))
    layout = _build_layout(_parse_declarations(parts[":objects"]), parts[":init"])
    if not layout.receptacles or not layout.start:
        raise ConfigError("the problem has no receptacles or no agent location", value=text[:80])
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
            raise ConfigError("brackets do not match", value=f"line {line}", expected="a single (define ...)")
    if len(stack) != 1 or not stack[0] or not isinstance(stack[0][0], list):
        raise ConfigError("brackets are not closed", value=text[-80:], expected="a single (define ...)")
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
                raise ConfigError("a fact names an undeclared object", value=_render_tree(fact))
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
    raise ConfigError("the goal does not belong to one of the six families", value=_render_tree(list(conditions)))


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


GAME_FILE = "game.tw-pddl"
_TRAJECTORY_FILE = "traj_data.json"  # beside it
_MAX_FILE_BYTES = 16 << 20  # bytes of a game file; ALFWorld's have some 70,000
_TASK = re.compile(r"Your task is to: ([^\"\\\n]+?)\.?\s*(?=[\"\\\n])")
_UNKNOWN_TASK = "UNKNOWN GOAL"
_SKIPPED_WORDS = ("movable", "Sliced")  # in a path: kinds of tasks that ALFWorld's engine skips too


@dataclass(frozen=True, slots=True)
class OfficialTexts:
    """The two texts of alfworld that its engine needs in every game file: the planning domain and the grammar."""

    domain: str
    grammar: str


def read_official_texts(source: str | Path | None = None) -> OfficialTexts:
    """Reads the domain and the grammar that `write_game` needs.

    Args:
        source: a game file, whose texts are taken; a folder that holds `alfred.pddl` and `alfred.twl2` (alfworld's
            `data`, or `logic` of its downloaded data); None for the installed alfworld, which is not imported.

    Raises:
        MissingExtra: no source was given and alfworld is not installed.
        ConfigError: the source does not hold these texts.
    """
    if source is None:
        spec = find_spec("alfworld")
        if spec is None or spec.origin is None:
            raise MissingExtra("alfworld", "writing games that alfworld can play")
        source = Path(spec.origin).parent / "data"
    path = Path(source)
    try:
        if path.is_file():
            record = json.loads(path.read_bytes())
            return OfficialTexts(
                str(record["pddl_domain"]), _TASK.sub(_task_sentence(_UNKNOWN_TASK), str(record["grammar"]))
            )
        folder = path / "logic" if (path / "logic").is_dir() else path
        domain, grammar = (folder / name for name in ("alfred.pddl", "alfred.twl2"))
        return OfficialTexts(domain.read_text(encoding="utf-8"), grammar.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            "texts of alfworld not found",
            value=f"{path} ({type(error).__name__})",
            expected="a game file, or a folder with alfred.pddl and alfred.twl2",
        ) from error


def _task_sentence(task: str) -> str:
    return f"Your task is to: {task}."


def read_game(path: str | Path) -> Game:
    """Reads the game in a game file, or in the folder that holds one.

    The task has the wording of the file's grammar; the rules and all other sentences are ours (see `rules`,
    `text`), whatever the file's domain and grammar say.

    Raises:
        CorruptRecord: the file cannot be read, is not a game, has a goal outside the six families, or cannot be
            solved. The error names the file.
    """
    file = Path(path)
    file = file / GAME_FILE if file.is_dir() else file
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(f"the file is larger than {_MAX_FILE_BYTES} bytes", value=file.stat().st_size)
        record = json.loads(file.read_bytes())
        game = _parse_game(record)
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        offset = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptRecord(
            f"{file} is not a game: {error}", offset=offset, hint="remove it, or download it again"
        ) from error
    if record.get("solvable", True) is not True or not plan(game):
        raise CorruptRecord(
            f"{file} cannot be solved", offset=0, value=game.task, hint="remove it, or download it again"
        )
    return game


def _parse_game(record: Any) -> Game:
    if not isinstance(record, Mapping) or not isinstance(record.get("pddl_problem"), str):
        raise ConfigError("pddl_problem is missing", value=type(record).__name__)
    layout, goal = parse_problem(record["pddl_problem"])
    match = _TASK.search(str(record.get("grammar", "")))
    task = match[1] if match and match[1] != _UNKNOWN_TASK else goal.describe()
    return Game(layout, goal, task)


def find_games(folder: str | Path) -> tuple[str, ...]:
    """Finds all game files that ALFWorld would play; returns their paths, relative to the folder and sorted.

    As in ALFWorld, tasks with movable receptacles or slices are left out by the names in their paths.

    Raises:
        ConfigError: the folder does not exist.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(
            "folder of games not found", value=str(folder), hint=f"pass a folder that holds {GAME_FILE} files"
        )
    names = (file.relative_to(root).as_posix() for file in root.rglob(GAME_FILE))
    return tuple(sorted(name for name in names if not any(word in name for word in _SKIPPED_WORDS)))


def read_folder(
    folder: str | Path, names: Iterable[str] | None = None
) -> tuple[dict[str, Game], tuple[CorruptRecord, ...]]:
    """Reads all games of a folder by their relative paths, and returns an error for each invalid file.

    Args:
        names: the relative paths to read (None: all of `find_games`).
    """
    games: dict[str, Game] = {}
    broken: list[CorruptRecord] = []
    for name in find_games(folder) if names is None else names:
        try:
            games[name] = read_game(Path(folder) / name)
        except CorruptRecord as error:
            broken.append(error)
    return games, tuple(broken)


def write_game(folder: str | Path, layout: Layout, goal: Goal, *, task: str, texts: OfficialTexts) -> Path:
    """Writes `game.tw-pddl` and `traj_data.json` into a folder; returns the path of the game file.

    Args:
        folder: created if it does not exist. ALFWorld finds games at any depth below its data folder.
        task: the sentence of the task, without its full stop.
        texts: alfworld's domain and grammar, see `read_official_texts`.

    Raises:
        ConfigError: the grammar has no place for the task.
        NoSpace, StoreUnavailable: the folder cannot be written to.
    """
    grammar = texts.grammar.replace(_UNKNOWN_TASK, task)
    if _task_sentence(task) not in grammar:
        raise ConfigError("the grammar has no task", value=texts.grammar[:80], expected=_task_sentence(_UNKNOWN_TASK))
    file = Path(folder) / GAME_FILE
    problem = render_problem(layout, goal, name="household", spelling=SPELLING)
    record = {"pddl_domain": texts.domain, "grammar": grammar, "pddl_problem": problem, "solvable": True}
    write_atomic(file, json.dumps(record))
    write_atomic(file.with_name(_TRAJECTORY_FILE), json.dumps(_build_trajectory(goal, task)))
    return file


def _build_trajectory(goal: Goal, task: str) -> dict[str, Any]:
    """Builds the parts of a trajectory that ALFWorld's loader and its hand-coded expert read."""
    object_type, target = SPELLING.get(goal.object, goal.object), SPELLING.get(goal.target, goal.target)
    is_look = goal.family == "look"
    return {
        "task_type": FAMILIES[goal.family].task_type,
        "pddl_params": {
            "object_target": object_type,
            "parent_target": "" if is_look else target,
            "toggle_target": target if is_look else "",
            "mrecep_target": "",
            "object_sliced": False,
        },
        "turk_annotations": {"anns": [{"task_desc": f"{task.capitalize()}.", "high_descs": []}]},
    }
