"""The table of AgentGym's dialects: one row a world, read by the server's mounts and by the client alike.

There are four shapes of bodies. On creation, `object` answers `{"id"}`, `array` and `text` a bare integer, `web`
`{"env_idx"}`; on reset, an object, an array `[text, null]`, a bare text, an object. One address can therefore not serve
two dialects: a server mounts each world under its own address.

Source: WooooDyy/AgentGym, `agentenv/envs` (the clients) and `agentenv-*` (the servers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from evolvent.errors import ConfigError, unknown_name_problem
from evolvent.serve.agentgym.grammars import (
    ActionLineGrammar,
    CraftingGrammar,
    FencedBlockGrammar,
    MazeGrammar,
    TagGrammar,
    ToolLineGrammar,
    WireGrammar,
    WordleGrammar,
)
from evolvent.trajectory import Json

__all__ = ["DIALECTS", "EnvDialect", "Shape", "default_dialect", "default_mounts", "get_dialect"]

Shape = Literal["object", "array", "text", "web"]


@dataclass(frozen=True, slots=True)
class EnvDialect:
    """The HTTP dialect of one AgentGym environment.

    Args:
        name: name for mounts and clients.
        title: the server's name for itself.
        shape: family of its bodies.
        index: key of a task's number in the body of a reset.
        horizon: maximum number of rounds in AgentGym's evaluation.
        grammar: converts model text to an action, and an action to the text that is sent.
        instructions: text before an agent's first observation.
        text: key of the observation in the answer to a step.
        value: key of the number whose last value is the episode's reward.
        done: key that marks the end of the episode.
        full: value of full marks.
        any_is_success: any reward above 0 is success, not full marks alone.
        extra: additional fields of a reset.
    """

    name: str
    title: str
    shape: Shape
    index: str
    horizon: int
    grammar: WireGrammar
    instructions: str
    text: str = "observation"
    value: str = "reward"
    done: str = "done"
    full: float = 1.0
    any_is_success: bool = False
    extra: Mapping[str, Json] = field(default_factory=dict)

    @property
    def session_key(self) -> str:
        """Returns the key of a session's number."""
        return "id" if self.shape == "object" else "env_idx"

    def creation_body(self, number: int) -> Json:
        """Returns the body that answers a creation (TextCraft's has more fields)."""
        if self.shape in ("array", "text"):
            return number
        return {self.session_key: number}


_REACT = "Write 'Thought:', what you think, then 'Action:' and one action."
_CALL_FORMAT = (
    "Use the tools to reach the goal. Write 'Thought: ...' and then, on the last line, "
    "'Action: NAME with Action Input: {\"argument\": value}'. "
)
_DATE_TOOLS = "get_user_current_date(), get_user_current_location(), "
_END_TOOLS = "check_valid_actions(), finish(answer)."
_WEATHER = (
    f"{_CALL_FORMAT}Tools: {_DATE_TOOLS}get_latitude_longitude(name); get_historical_temp, get_historical_rain, "
    "get_historical_snow, get_historical_air_quality_index, get_temp_forecast, get_rain_forecast and get_snow_forecast"
    "(latitude, longitude, start_date, end_date); get_current_temp, get_current_rain, get_current_snow and "
    "get_current_air_quality_index(latitude, longitude, current_date); get_elevation(latitude, longitude), "
    "get_distance(latitude1, longitude1, latitude2, longitude2), get_air_quality_level(air_quality_index), "
    + _END_TOOLS
)
_MOVIE = (
    f"{_CALL_FORMAT}Tools: get_search_movie(movie_name); get_movie_details, get_movie_production_companies, "
    "get_movie_production_countries, get_movie_cast, get_movie_crew, get_movie_keywords, get_movie_alternative_titles "
    "and get_movie_translation(movie_id); get_search_person(person_name); get_person_details, get_person_cast, "
    "get_person_crew and get_person_external_ids(person_id); " + _END_TOOLS
)
_ACADEMIA = (
    f"{_CALL_FORMAT}Tools: loadPaperNet(), loadAuthorNet(), neighbourCheck(graph, node), paperNodeCheck(node), "
    "authorNodeCheck(node), paperEdgeCheck(node1, node2), authorEdgeCheck(node1, node2), " + _END_TOOLS
)
_TODO = (
    f"{_CALL_FORMAT}Tools: {_DATE_TOOLS}get_projects(), update_project(project_id, is_favorite), "
    f"get_tasks(project_id), "
    "get_task_description(task_id), get_task_duration(task_id), complete_task(task_id), delete_task(task_id), "
    "update_task(task_id, due_date), " + _END_TOOLS
)
_SHEET = (
    f"{_CALL_FORMAT}Positions are A1, rows and columns count from 1. Open the sheet first. Tools: open_sheet(name), "
    "del_sheet(name), freeze_data(dimension, num), get_A1_annotation(row, col), insert_cols(values_list, col_idx), "
    "insert_rows(values_list, row_idx), delete_batch_data(dimension, index_list), update_cell(position, value), "
    "get_value_by_formula(start_position, end_position, position_list, operator), update_cell_by_formula(those and "
    "result_position), update_range(start_position, end_position, values_list), sort_sheet_by_col(col_num, order), "
    "merge_cells(start_position, end_position), get_range_values(start_position, end_position), update_note(position, "
    "content), get_cell_value(position), get_note(position), get_all_values(), filter_cells(query, in_row, in_column), "
    "finish()."
)

_SPECS = (
    EnvDialect(
        "textcraft",
        "TextCraft",
        "object",
        "data_idx",
        20,
        CraftingGrammar("only"),
        "Craft the goal by the recipes shown. Actions: get 1 item; craft 1 item using 1 item, 1 item; inventory. Only "
        f"items without a recipe can be got; always give the number. {_REACT}",
    ),
    EnvDialect(
        "babyai",
        "BabyAI",
        "object",
        "data_idx",
        20,
        ActionLineGrammar("only"),
        "Reach the goal in a house of rooms. Actions: turn left, turn right, move forward, go to OBJECT 1, pick up "
        "OBJECT 1, go through DOOR 1, toggle and go through DOOR 1, toggle, drop. A locked door needs a key of its "
        f"colour. {_REACT}",
        value="score",
        any_is_success=True,
    ),
    EnvDialect(
        "sciworld",
        "ScienceWorld",
        "object",
        "data_idx",
        30,
        ActionLineGrammar("first"),
        "Do the science task. Actions: open, close, activate, deactivate, disconnect, read, eat, flush, mix, pick up, "
        "put down, focus on, go to, look at, look in with one object; use A on B, move A to B, pour A into B, dunk A "
        f"into B, connect A to B; look around, wait, wait1, task, inventory. {_REACT}",
        value="score",
        full=100.0,
    ),
    EnvDialect(
        "alfworld",
        "AlfWorld",
        "object",
        "game",
        30,
        ActionLineGrammar("last"),
        "Do the task in the household. Every action must be one of the available ones, such as: go to R, take O from "
        "R, put O in/on R, open R, close R, toggle O, clean O with R, heat O with R, cool O with R, use O, examine O, "
        f"inventory, look. 'Nothing happens' means that it was not possible. {_REACT}",
        extra={"world_type": "Text"},
    ),
    EnvDialect(
        "maze",
        "LMRL-Gym.maze",
        "object",
        "game",
        15,
        MazeGrammar("first"),
        "Walk to the goal in as few moves as you can. You are told where the goal is, where you are, and which walls "
        "are next to you; down adds 1 to the first number, right adds 1 to the second. Actions: move up, move down, "
        f"move left, move right. {_REACT}",
    ),
    EnvDialect(
        "wordle",
        "LMRL-Gym.wordle",
        "object",
        "seed",
        8,
        WordleGrammar("first"),
        "Guess the hidden word of five letters in six tries; write its letters apart, for example 's h i r e'. Each "
        "letter is marked: g right and in its place, y in the word but elsewhere, b not in the word. A guess that is "
        f"not in the list is an invalid word and costs a try. {_REACT}",
    ),
    EnvDialect(
        "webshop",
        "WebShop",
        "array",
        "session_id",
        10,
        ActionLineGrammar("last"),
        "Buy what the instruction asks for. Actions: search[keywords] where there is a search bar, click[value] with a "
        f"value that can be clicked. {_REACT}",
        text="state",
    ),
    EnvDialect(
        "sqlgym",
        "SQLGym",
        "array",
        "item_id",
        1,
        FencedBlockGrammar("sql"),
        "Answer the question about the SQLite database with one SQL statement. Write 'Thought: ...', then "
        "'Action: ```sql', the statement, and '```'.",
        text="state",
    ),
    EnvDialect("weather", "Weather", "text", "id", 10, ToolLineGrammar(), _WEATHER, any_is_success=True),
    EnvDialect("movie", "Movie", "text", "id", 12, ToolLineGrammar(), _MOVIE),
    EnvDialect("academia", "Academia", "text", "id", 12, ToolLineGrammar(), _ACADEMIA),
    EnvDialect("todo", "Todo", "text", "id", 15, ToolLineGrammar(), _TODO),
    EnvDialect("sheet", "Sheet", "text", "id", 15, ToolLineGrammar(), _SHEET),
    EnvDialect(
        "searchqa",
        "SearchQA",
        "text",
        "id",
        10,
        TagGrammar(),
        "Answer the question. Think in <think>...</think>, then write either <search>words</search>, which answers "
        "with documents, or <answer>the answer</answer>.",
    ),
    EnvDialect(
        "webarena",
        "WebArena",
        "web",
        "idx",
        25,
        FencedBlockGrammar(),
        "Reach the objective on the web page. Actions, each between triple backticks: click [id], type [id] [text] "
        "[1], hover [id], press [keys], scroll [down], new_tab, tab_focus [number], close_tab, goto [url], go_back, "
        "go_forward, stop [answer].",
        done="terminated",
        extra={"seed": 0},
    ),
)

DIALECTS: Mapping[str, EnvDialect] = {row.name: row for row in _SPECS}

# World -> dialect. Of several worlds of one dialect the first named here has the mount of the dialect's own name.
_DIALECT_BY_WORLD: Mapping[str, str] = {
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
    "science": "sciworld",
    "weather": "weather",
    "movie": "movie",
    "academia": "academia",
    "todo": "todo",
    "sheet": "sheet",
    "searchqa": "searchqa",
    "searchqa_files": "searchqa",
    "webshop": "webshop",
    "shop": "webshop",
    "webarena": "webarena",
    "site": "webarena",
}


def get_dialect(name: str) -> EnvDialect:
    """Returns the dialect of this name; raises ConfigError with the nearest name if there is none."""
    if name not in DIALECTS:
        raise ConfigError([unknown_name_problem("dialect", name, DIALECTS)])
    return DIALECTS[name]


def default_dialect(world: str) -> str | None:
    """Returns the name of a world's default dialect; None if there is none."""
    return _DIALECT_BY_WORLD.get(world)


def default_mounts(worlds: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns mount -> (world, dialect): each world with a dialect under its own name, the first also under the
    dialect's.
    """
    served = [world for world in _DIALECT_BY_WORLD if world in set(worlds)]
    mounts = {world: (world, _DIALECT_BY_WORLD[world]) for world in served}
    for world in served:
        mounts.setdefault(_DIALECT_BY_WORLD[world], (world, _DIALECT_BY_WORLD[world]))
    return mounts
