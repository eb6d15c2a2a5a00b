"""The spec of a grid task: a map and a mission, and how it becomes a scene, is turned, recoloured and compared.

    {"map": ["########", "##>.rb##", "########"], "mission": "go to the red ball", "tries": 3}

`tries` and `moves` bound the actions and the moves of an episode, `strict` says in how many of the mission's first
stages mistakes fail, `hold` is what the agent carries at the beginning, `inside` what boxes hold: [[column, row, "rk"],
...]. All of these may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, sample_seed
from evolvent.worlds.grid.map import COLOURS, LETTERS, read_map
from evolvent.worlds.grid.mission import read_mission
from evolvent.worlds.grid.scene import Scene

__all__ = ["Grid", "build_scene", "canonical_key", "cells_of", "recoloured", "turned"]

Grid = Sequence[Sequence[str]]
_KNOWN = ("map", "mission", "tries", "moves", "strict", "hold", "inside")
_TURN = {">.": "v.", "v.": "<.", "<.": "^.", "^.": ">."}


def build_scene(spec: Mapping[str, Any], *, plain: bool = True) -> Scene:
    """The scene of a spec; without `moves`, BabyAI's limit: the cells of the map times the walks of the mission.

    `tries` counts short actions: where `plain` is False, which lacks one of them, it does not hold.

    Raises:
        ConfigError: for a spec that is none, with what is wrong.
    """
    rows, inside = spec.get("map"), spec.get("inside", [])
    problems = [Problem(str(name), "unknown", f"known: {', '.join(_KNOWN)}") for name in spec if name not in _KNOWN]
    problems += [
        Problem(name, f"{spec[name]!r} is no such number", "give a whole number of at least 1")
        for name in ("tries", "moves", "strict")
        if name in spec and (type(spec[name]) is not int or spec[name] < 1)
    ]
    if not isinstance(rows, list):
        problems.append(Problem("map", f"{rows!r} is no map", "give a list of rows"))
    if not isinstance(spec.get("mission"), str):
        problems.append(Problem("mission", f"{spec.get('mission')!r} is no mission", "give a sentence"))
    if not isinstance(inside, list) or not all(_is_filling(each) for each in inside):
        problems.append(Problem("inside", f"{inside!r} fills no boxes", "give a list of [column, row, 'rk']"))
    if problems:
        raise ConfigError(problems)
    board = read_map(spec["map"], inside={(x, y): text for x, y, text in inside}, hold=spec.get("hold"))
    mission = read_mission(spec["mission"], board, strict=spec.get("strict", 0))
    columns, height = board.size
    tries = spec.get("tries", 0) if plain else 0
    return Scene(board, mission, spec.get("moves", mission.walks * columns * height), tries, plain)


def _is_filling(each: object) -> bool:
    return isinstance(each, list) and [type(part) for part in each] == [int, int, str]


def cells_of(rows: Sequence[str]) -> list[list[str]]:
    """The cells of a map's rows."""
    return [[row[x : x + 2] for x in range(0, len(row), 2)] for row in rows]


def turned(grid: Grid) -> list[list[str]]:
    """The cells of a map after a quarter turn clockwise."""
    return [[_TURN.get(text, text) for text in row] for row in zip(*grid[::-1], strict=True)]


def recoloured(spec: Mapping[str, Any], rng: Random) -> dict[str, Json]:
    """The spec of the same task in other colours and turned: a plan stays a plan, with the colours changed."""
    drawn = list(COLOURS)
    while drawn == list(COLOURS):
        rng.shuffle(drawn)
    names = dict(zip(COLOURS, drawn, strict=True))
    letters = {LETTERS[colour]: LETTERS[name] for colour, name in names.items()}
    grid: Grid = [
        [letters.get(text[0], text[0]) + text[1] if _has_colour(text) else text for text in row]
        for row in cells_of(spec["map"])
    ]
    for _ in range(rng.randrange(4)):
        grid = turned(grid)
    words = [names.get(word, word) for word in spec["mission"].split(" ")]
    return {**spec, "map": ["".join(row) for row in grid], "mission": " ".join(words)}


def _has_colour(text: str) -> bool:
    return text[1] in "kbxocl" and text[0] in "rgbpye"


def canonical_key(spec: Mapping[str, Any]) -> str:
    """Equal for tasks that differ in colours, by a turn or by a mirror only.

    The map is turned until the agent looks east, then told as it is and upside down; the lesser text counts.
    """
    rows, mission = spec["map"], str(spec["mission"])
    grid: Grid = cells_of(rows)
    while not any(">." in row for row in grid):
        grid = turned(grid)
    form = min(_numbered(mission, grid), _numbered(_other_side(mission), grid[::-1]))
    more = [spec.get(name) for name in ("hold", "inside")]
    return f"{sample_seed('grid key', form, more):016x}"


def _other_side(mission: str) -> str:
    return " ".join({"left": "right", "right": "left"}.get(word, word) for word in mission.split(" "))


def _numbered(mission: str, grid: Grid) -> str:
    """The task with its colours numbered as they come, those of the mission first."""
    number = dict.fromkeys(LETTERS[colour] for colour in COLOURS)
    names = iter("012345")
    words = [_name(number, LETTERS[word], names) if word in COLOURS else word for word in mission.split(" ")]
    cells = [
        _name(number, text[0], names) + text[1] if text[0] in number and text[1] != "." else text
        for row in grid
        for text in (*row, "/")
    ]
    return " ".join(words) + "".join(cells)


def _name(number: dict[str, str | None], letter: str, names: Iterator[str]) -> str:
    found = number[letter]
    if found is None:
        found = number[letter] = next(names)
    return found
