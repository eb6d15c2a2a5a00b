"""The spec of a grid task, a map and a mission: building its scene, rotating, recoloring and comparing it.

    {"map": ["########", "##>.rb##", "########"], "mission": "go to the red ball", "tries": 3}

`tries` and `moves` bound the actions and the moves of an episode, `strict` is the number of the mission's first
stages in which mistakes fail, `hold` is the object that the agent carries at the start, `inside` lists the
content of boxes: [[column, row, "rk"], ...]. All of these may be left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Json, JsonObject, sample_seed
from evolvent.worlds.grid.map import COLOURS, LETTERS, read_map
from evolvent.worlds.grid.mission import read_mission
from evolvent.worlds.grid.scene import Scene

__all__ = ["Grid", "build_scene", "canonical_key", "recolor_spec", "rotate_grid", "split_cells"]

Grid = Sequence[Sequence[str]]
_FIELDS = ("map", "mission", "tries", "moves", "strict", "hold", "inside")
_ROTATED_AGENT = {">.": "v.", "v.": "<.", "<.": "^.", "^.": ">."}


def build_scene(spec: JsonObject, *, short_text: bool = True) -> Scene:
    """Builds the scene of a spec; without `moves`, BabyAI's limit holds: the cells of the map times the walks of the
    mission.

    `tries` counts short actions: where `short_text` is False, which lacks one of them, it does not hold.

    Raises:
        ConfigError: the spec is invalid; lists all problems.
    """
    rows, inside = spec.get("map"), spec.get("inside", [])
    problems = [Problem(str(name), "unknown", f"known: {', '.join(_FIELDS)}") for name in spec if name not in _FIELDS]
    problems += [
        Problem(name, f"got {spec[name]!r}, expected a whole number of at least 1")
        for name in ("tries", "moves", "strict")
        if name in spec and (type(spec[name]) is not int or spec[name] < 1)
    ]
    if not isinstance(rows, list):
        problems.append(Problem("map", f"got {rows!r}, expected a list of rows"))
    if not isinstance(spec.get("mission"), str):
        problems.append(Problem("mission", f"got {spec.get('mission')!r}, expected a sentence"))
    if not isinstance(inside, list) or not all(_is_filling(filling) for filling in inside):
        problems.append(Problem("inside", f"got {inside!r}, expected a list of [column, row, 'rk']"))
    if problems:
        raise ConfigError(problems)
    board = read_map(spec["map"], inside={(x, y): text for x, y, text in inside}, hold=spec.get("hold"))
    mission = read_mission(spec["mission"], board, num_strict_stages=spec.get("strict", 0))
    columns, height = board.size
    max_actions = spec.get("tries", 0) if short_text else 0
    return Scene(board, mission, spec.get("moves", mission.num_walks * columns * height), max_actions, short_text)


def _is_filling(filling: object) -> bool:
    return isinstance(filling, list) and [type(part) for part in filling] == [int, int, str]


def split_cells(rows: Sequence[str]) -> list[list[str]]:
    """Splits the rows of a map into cells."""
    return [[row[x : x + 2] for x in range(0, len(row), 2)] for row in rows]


def rotate_grid(grid: Grid) -> list[list[str]]:
    """Turns the cells of a map clockwise by 90 degrees."""
    return [[_ROTATED_AGENT.get(text, text) for text in row] for row in zip(*grid[::-1], strict=True)]


def recolor_spec(spec: JsonObject, rng: Random) -> dict[str, Json]:
    """Draws new colors and a rotation for a task; a plan remains valid with the colors changed."""
    shuffled_colours = list(COLOURS)
    while shuffled_colours == list(COLOURS):
        rng.shuffle(shuffled_colours)
    names = dict(zip(COLOURS, shuffled_colours, strict=True))
    letters = {LETTERS[colour]: LETTERS[name] for colour, name in names.items()}
    grid: Grid = [
        [letters.get(text[0], text[0]) + text[1] if _has_colour(text) else text for text in row]
        for row in split_cells(spec["map"])
    ]
    for _ in range(rng.randrange(4)):
        grid = rotate_grid(grid)
    mission_words = [names.get(word, word) for word in spec["mission"].split(" ")]
    return {**spec, "map": ["".join(row) for row in grid], "mission": " ".join(mission_words)}


def _has_colour(text: str) -> bool:
    return text[1] in "kbxocl" and text[0] in "rgbpye"


def canonical_key(spec: JsonObject) -> str:
    """Hashes a task; the key is equal for tasks that differ only in colors, rotation or reflection.

    The map is turned until the agent looks east, then written as it is and upside down; the lesser text counts.
    """
    rows, mission = spec["map"], str(spec["mission"])
    grid: Grid = split_cells(rows)
    while not any(">." in row for row in grid):
        grid = rotate_grid(grid)
    canonical_form = min(_number_colours(mission, grid), _number_colours(_swap_sides(mission), grid[::-1]))
    extras = [spec.get(name) for name in ("hold", "inside")]
    return f"{sample_seed('grid key', canonical_form, extras):016x}"


def _swap_sides(mission: str) -> str:
    return " ".join({"left": "right", "right": "left"}.get(word, word) for word in mission.split(" "))


def _number_colours(mission: str, grid: Grid) -> str:
    """Writes the task with its colors numbered in order of appearance, those of the mission first."""
    letter_names = dict.fromkeys(LETTERS[colour] for colour in COLOURS)
    names = iter("012345")
    mission_words = [
        _name_of_letter(letter_names, LETTERS[word], names) if word in COLOURS else word for word in mission.split(" ")
    ]
    cells = [
        _name_of_letter(letter_names, text[0], names) + text[1] if text[0] in letter_names and text[1] != "." else text
        for row in grid
        for text in (*row, "/")
    ]
    return " ".join(mission_words) + "".join(cells)


def _name_of_letter(letter_names: dict[str, str | None], letter: str, names: Iterator[str]) -> str:
    name = letter_names[letter]
    if name is None:
        name = letter_names[letter] = next(names)
    return name
