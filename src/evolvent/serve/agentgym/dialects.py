"""The table of AgentGym's dialects: one row a world, read by the server's mounts and by the client alike.

Four shapes of bodies. Where a session is created, `object` answers `{"id"}`, `array` and `text` a bare integer, `web`
`{"env_idx"}`; where one is reset, an object, an array `[text, null]`, a bare text, an object. One address can therefore
not serve two dialects: a server mounts each world under an address of its own.

Source: WooooDyy/AgentGym, `agentenv/envs` (the clients) and `agentenv-*` (the servers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from evolvent.errors import ConfigError, unknown
from evolvent.serve.agentgym.grammars import Carrier, Fenced, Letters, Marked, Tagged, ToolLine, Ways, Words
from evolvent.trajectory import Json

__all__ = ["DIALECTS", "Dialect", "Shape", "default_mounts", "dialect_named", "dialect_of_world"]

Shape = Literal["object", "array", "text", "web"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One world of AgentGym on the wire.

    Args:
        name: how mounts and clients name it.
        title: what its server calls itself.
        shape: which family of bodies it speaks.
        index: the key of a task's number in the body of a reset.
        horizon: how many rounds AgentGym's evaluation allows.
        grammar: how model text becomes an action, and what travels.
        instructions: what an agent is told before its first observation.
        text, value, done: keys of the answer to a step: what is seen, the number whose last value is the episode's
            reward, and whether it is over.
        full: that number for full marks.
        any_is_success: any reward above 0 is success, not full marks alone.
        extra: what else a reset sends.
    """

    name: str
    title: str
    shape: Shape
    index: str
    horizon: int
    grammar: Carrier
    instructions: str
    text: str = "observation"
    value: str = "reward"
    done: str = "done"
    full: float = 1.0
    any_is_success: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def session(self) -> str:
        """The key of a session's number."""
        return "id" if self.shape == "object" else "env_idx"

    def created(self, number: int) -> Json:
        """The body that answers a creation (TextCraft's says more)."""
        if self.shape in ("array", "text"):
            return number
        return {self.session: number}


_REACT = "Write 'Thought:', what you think, then 'Action:' and one action."
_CALLS = (
    "Use the tools to reach the goal. Write 'Thought: ...' and then, on the last line, "
    "'Action: NAME with Action Input: {\"argument\": value}'. "
)
_DATED = "get_user_current_date(), get_user_current_location(), "
_ENDS = "check_valid_actions(), finish(answer)."
_WEATHER = (
    f"{_CALLS}Tools: {_DATED}get_latitude_longitude(name); get_historical_temp, get_historical_rain, "
    "get_historical_snow, get_historical_air_quality_index, get_temp_forecast, get_rain_forecast and get_snow_forecast"
    "(latitude, longitude, start_date, end_date); get_current_temp, get_current_rain, get_current_snow and "
    "get_current_air_quality_index(latitude, longitude, current_date); get_elevation(latitude, longitude), "
    "get_distance(latitude1, longitude1, latitude2, longitude2), get_air_quality_level(air_quality_index), " + _ENDS
)
_MOVIE = (
    f"{_CALLS}Tools: get_search_movie(movie_name); get_movie_details, get_movie_production_companies, "
    "get_movie_production_countries, get_movie_cast, get_movie_crew, get_movie_keywords, get_movie_alternative_titles "
    "and get_movie_translation(movie_id); get_search_person(person_name); get_person_details, get_person_cast, "
    "get_person_crew and get_person_external_ids(person_id); " + _ENDS
)
_ACADEMIA = (
    f"{_CALLS}Tools: loadPaperNet(), loadAuthorNet(), neighbourCheck(graph, node), paperNodeCheck(node), "
    "authorNodeCheck(node), paperEdgeCheck(node1, node2), authorEdgeCheck(node1, node2), " + _ENDS
)
_TODO = (
    f"{_CALLS}Tools: {_DATED}get_projects(), update_project(project_id, is_favorite), get_tasks(project_id), "
    "get_task_description(task_id), get_task_duration(task_id), complete_task(task_id), delete_task(task_id), "
    "update_task(task_id, due_date), " + _ENDS
)
_SHEET = (
    f"{_CALLS}Positions are A1, rows and columns count from 1. Open the sheet first. Tools: open_sheet(name), "
    "del_sheet(name), freeze_data(dimension, num), get_A1_annotation(row, col), insert_cols(values_list, col_idx), "
    "insert_rows(values_list, row_idx), delete_batch_data(dimension, index_list), update_cell(position, value), "
    "get_value_by_formula(start_position, end_position, position_list, operator), update_cell_by_formula(those and "
    "result_position), update_range(start_position, end_position, values_list), sort_sheet_by_col(col_num, order), "
    "merge_cells(start_position, end_position), get_range_values(start_position, end_position), update_note(position, "
    "content), get_cell_value(position), get_note(position), get_all_values(), filter_cells(query, in_row, in_column), "
    "finish()."
)

_ROWS = (
    Dialect(
        "textcraft",
        "TextCraft",
        "object",
        "data_idx",
        20,
        Words("only"),
        "Craft the goal by the recipes shown. Actions: get 1 item; craft 1 item using 1 item, 1 item; inventory. Only "
        f"items without a recipe can be got; always give the number. {_REACT}",
    ),
    Dialect(
        "babyai",
        "BabyAI",
        "object",
        "data_idx",
        20,
        Marked("only"),
        "Reach the goal in a house of rooms. Actions: turn left, turn right, move forward, go to OBJECT 1, pick up "
        "OBJECT 1, go through DOOR 1, toggle and go through DOOR 1, toggle, drop. A locked door needs a key of its "
        f"colour. {_REACT}",
        value="score",
        any_is_success=True,
    ),
    Dialect(
        "sciworld",
        "ScienceWorld",
        "object",
        "data_idx",
        30,
        Marked("first"),
        "Do the science task. Actions: open, close, activate, deactivate, disconnect, read, eat, flush, mix, pick up, "
        "put down, focus on, go to, look at, look in with one object; use A on B, move A to B, pour A into B, dunk A "
        f"into B, connect A to B; look around, wait, wait1, task, inventory. {_REACT}",
        value="score",
        full=100.0,
    ),
    Dialect(
        "alfworld",
        "AlfWorld",
        "object",
        "game",
        30,
        Marked("last"),
        "Do the task in the household. Every action must be one of the available ones, such as: go to R, take O from "
        "R, put O in/on R, open R, close R, toggle O, clean O with R, heat O with R, cool O with R, use O, examine O, "
        f"inventory, look. 'Nothing happens' means that it was not possible. {_REACT}",
        extra={"world_type": "Text"},
    ),
    Dialect(
        "maze",
        "LMRL-Gym.maze",
        "object",
        "game",
        15,
        Ways("first"),
        "Walk to the goal in as few moves as you can. You are told where the goal is, where you are, and which walls "
        "are next to you; down adds 1 to the first number, right adds 1 to the second. Actions: move up, move down, "
        f"move left, move right. {_REACT}",
    ),
    Dialect(
        "wordle",
        "LMRL-Gym.wordle",
        "object",
        "seed",
        8,
        Letters("first"),
        "Guess the hidden word of five letters in six tries; write its letters apart, for example 's h i r e'. Each "
        "letter is marked: g right and in its place, y in the word but elsewhere, b not in the word. A guess that is "
        f"not in the list is an invalid word and costs a try. {_REACT}",
    ),
    Dialect(
        "webshop",
        "WebShop",
        "array",
        "session_id",
        10,
        Marked("last"),
        "Buy what the instruction asks for. Actions: search[keywords] where there is a search bar, click[value] with a "
        f"value that can be clicked. {_REACT}",
        text="state",
    ),
    Dialect(
        "sqlgym",
        "SQLGym",
        "array",
        "item_id",
        1,
        Fenced("sql"),
        "Answer the question about the SQLite database with one SQL statement. Write 'Thought: ...', then "
        "'Action: ```sql', the statement, and '```'.",
        text="state",
    ),
    Dialect("weather", "Weather", "text", "id", 10, ToolLine(), _WEATHER, any_is_success=True),
    Dialect("movie", "Movie", "text", "id", 12, ToolLine(), _MOVIE),
    Dialect("academia", "Academia", "text", "id", 12, ToolLine(), _ACADEMIA),
    Dialect("todo", "Todo", "text", "id", 15, ToolLine(), _TODO),
    Dialect("sheet", "Sheet", "text", "id", 15, ToolLine(), _SHEET),
    Dialect(
        "searchqa",
        "SearchQA",
        "text",
        "id",
        10,
        Tagged(),
        "Answer the question. Think in <think>...</think>, then write either <search>words</search>, which answers "
        "with documents, or <answer>the answer</answer>.",
    ),
    Dialect(
        "webarena",
        "WebArena",
        "web",
        "idx",
        25,
        Fenced(),
        "Reach the objective on the web page. Actions, each between triple backticks: click [id], type [id] [text] "
        "[1], hover [id], press [keys], scroll [down], new_tab, tab_focus [number], close_tab, goto [url], go_back, "
        "go_forward, stop [answer].",
        done="terminated",
        extra={"seed": 0},
    ),
)

DIALECTS: Mapping[str, Dialect] = {row.name: row for row in _ROWS}

# World -> dialect. Of several worlds of one dialect the first named here has the mount of the dialect's own name.
_WORLDS: Mapping[str, str] = {
    "textcraft": "textcraft",
    "workshop": "textcraft",
    "crafting": "textcraft",
    "babyai": "babyai",
    "gridworld": "babyai",
    "double_t": "maze",
    "maze": "maze",
    "wordle": "wordle",
    "wordle_lmrl": "wordle",
    "alfworld": "alfworld",
    "household": "alfworld",
    "household-large": "alfworld",
    "household-03": "alfworld",
    "alfworld-engine": "alfworld",
    "minigrid": "babyai",
    "sql": "sqlgym",
    "sqlgym": "sqlgym",
    "bird": "sqlgym",
    "scienceworld": "sciworld",
    "sciworld": "sciworld",
    "weather": "weather",
    "movie": "movie",
    "academia": "academia",
    "todo": "todo",
    "sheet": "sheet",
    "searchqa": "searchqa",
    "searchqa_files": "searchqa",
    "webshop": "webshop",
    "webarena": "webarena",
}


def dialect_named(name: str) -> Dialect:
    """The dialect of this name; ConfigError with the nearest one where there is none."""
    if name not in DIALECTS:
        raise ConfigError([unknown("dialect", name, DIALECTS)])
    return DIALECTS[name]


def dialect_of_world(world: str) -> str | None:
    """The name of the dialect that fits a world by default; None where none does."""
    return _WORLDS.get(world)


def default_mounts(worlds: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Mount -> (world, dialect) for the worlds that have a dialect: each under its own name, the first of each dialect
    also under the dialect's."""
    served = [world for world in _WORLDS if world in set(worlds)]
    mounts = {world: (world, _WORLDS[world]) for world in served}
    for world in served:
        mounts.setdefault(_WORLDS[world], (world, _WORLDS[world]))
    return mounts
