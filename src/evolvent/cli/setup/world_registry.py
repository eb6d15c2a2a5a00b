"""The embedded worlds by their command-line names, with their options. A world is imported only on request.

Worlds of servers by name: `http://HOST/v1/worlds/NAME`, `agentgym:DIALECT@URL#0-99`, `openenv:URL#100`.

The part after `#` selects the tasks: indices of an AgentGym server or the files that name them, or the number of
seeds of an OpenEnv server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Literal

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.worlds.base import World

__all__ = [
    "EMBEDDED",
    "TOKEN_VARIABLE",
    "open_agentgym_world",
    "open_http_world",
    "open_https_world",
    "open_openenv_world",
]


TOKEN_VARIABLE = "EVOLVENT_TOKEN"  # the environment variable that holds the token of a server
_MAX_TASKS = 100_000  # tasks of one server


def _read_token() -> str | None:
    return os.environ.get(TOKEN_VARIABLE) or None


def open_http_world(address: str) -> World:
    """Opens a world of an evolvent server by its address without `http:`."""
    from evolvent.serve.remote.world import RemoteWorld

    return RemoteWorld(f"http:{address}", token=_read_token())


def open_https_world(address: str) -> World:
    """Opens a world of an evolvent server by its address without `https:`."""
    from evolvent.serve.remote.world import RemoteWorld

    return RemoteWorld(f"https:{address}", token=_read_token())


def open_agentgym_world(option: str) -> World:
    """Opens a world of AgentGym's: `DIALECT@URL#FIRST-LAST`, or `DIALECT@SOURCE#PATH` with the tasks of its files."""
    from evolvent.serve.agentgym.client import AgentGymWorld
    from evolvent.serve.agentgym.released import is_address, open_numbered_world, open_released_world

    match = re.fullmatch(r"(?P<dialect>[^@#]+)(?:@(?P<source>[^#]+))?#(?P<tasks>.+)", option)
    if match is None:
        hint = "for example agentgym:textcraft@http://127.0.0.1:36001#0-99 or agentgym:maze#AgentEval"
        expected = "expected DIALECT@URL#FIRST-LAST or DIALECT@SOURCE#PATH"
        raise ConfigError([Problem("agentgym", f"got {option!r}, {expected}", hint)])
    dialect, source, token = match["dialect"], match["source"] or "", _read_token()
    if numbers := re.fullmatch(r"(\d{1,9})-(\d{1,9})", match["tasks"]):
        first, last = int(numbers[1]), int(numbers[2])
        if last < first or last - first >= _MAX_TASKS:
            hint = f"give an ascending range of at most {_MAX_TASKS:,} tasks"
            raise ConfigError([Problem("agentgym", f"got the tasks {first}-{last}", hint)])
        if is_address(source):
            return AgentGymWorld(source, dialect, range(first, last + 1), token=token)
        return open_numbered_world(dialect, source, range(first, last + 1))
    return open_released_world(dialect, source, Path(match["tasks"]), token=token)


def open_openenv_world(option: str) -> World:
    """Opens the environment of an OpenEnv server, `URL#SEEDS`, reset with the seeds 0, 1, ..."""
    from evolvent.serve.openenv.client import OpenEnvWorld

    url, hash_sign, seeds = option.partition("#")
    if not url or (hash_sign and not re.fullmatch(r"[1-9]\d{0,4}", seeds)):
        raise ConfigError(
            [
                Problem(
                    "openenv",
                    f"got {option!r}, expected URL or URL#SEEDS",
                    "for example openenv:http://127.0.0.1:8000#100",
                )
            ]
        )
    return OpenEnvWorld(url, tasks=[{"seed": seed} for seed in range(int(seeds or 100))], token=_read_token())


def _make_crafting(option: str) -> World:
    from evolvent.worlds.crafting import Crafting

    if not option:
        return Crafting()
    if not option.isdecimal():
        raise ConfigError(
            [Problem("crafting", f"got the level {option!r}, expected a number", "for example crafting:1")]
        )
    return Crafting(level=int(option))


def _make_workshop(option: str) -> World:
    from evolvent.worlds.crafting import Crafting

    return Crafting("own")


def _make_textcraft(option: str) -> World:
    from evolvent.worlds.crafting import Crafting

    if not option:
        raise ConfigError([Problem("textcraft", "needs a folder of recipes", "for example textcraft:path/to/recipes")])
    return Crafting.from_folder(option)


def _make_lookup(option: str) -> World:
    from evolvent.worlds.lookup import Lookup

    return Lookup()


def _make_countdown(option: str) -> World:
    from evolvent.worlds.countdown import Countdown

    if not option:
        return Countdown()
    if option == "24":
        return Countdown(numbers=4, target=24, low=1, high=13)
    if not option.isdecimal():
        message = f"got {option!r}, expected the number of numbers, or 24 for the game of 24"
        raise ConfigError([Problem("countdown", message, "for example countdown:4")])
    return Countdown(numbers=int(option))


def _make_gridworld(option: str) -> World:
    from evolvent.worlds.grid.world import GridWorld

    return GridWorld()


def _make_babyai(option: str) -> World:
    from evolvent.worlds.grid.world import GridWorld

    return GridWorld("babyai", text="babyai") if option == "agentgym" else GridWorld(option or "babyai")


def _make_maze(option: str) -> World:
    from evolvent.worlds.maze import LAYOUTS, Maze

    if option not in ("", *LAYOUTS):
        raise ConfigError([unknown_name_problem("maze", option, LAYOUTS)])
    return Maze("double_t") if option == "double_t" else Maze()


def _make_wordle(option: str) -> World:
    from evolvent.worlds.wordle import Wordle

    if option in ("", "official"):
        return Wordle()
    return Wordle(rules="lmrl") if option == "lmrl" else Wordle(word_list=Path(option))


def _make_household(option: str) -> World:
    if option == "nouns":
        from evolvent.worlds.household.nouns import HouseholdNouns

        return HouseholdNouns()
    from evolvent.worlds.household.world import HouseholdWorld

    if option in ("", "large"):
        return HouseholdWorld(size="alfworld" if option else "small")
    return HouseholdWorld("0.3") if option == "alfworld03" else HouseholdWorld(games=Path(option))


def _make_searchqa(option: str) -> World:
    from evolvent.worlds.searchqa.world import SearchQA

    return SearchQA.from_folder(option) if option else SearchQA()


def _make_science(option: str) -> World:
    from evolvent.worlds.science.world import Science

    return Science(option)


def _make_shop(option: str) -> World:
    from evolvent.worlds.shop.world import Shop

    if option and not option.isdecimal():
        raise ConfigError([Problem("shop", f"got {option!r}, expected the seed of the products", "for example shop:1")])
    return Shop(seed=int(option or 0))


def _make_site(option: str) -> World:
    from evolvent.worlds.site.world import Site

    if option and not option.isdecimal():
        raise ConfigError([Problem("site", f"got {option!r}, expected the seed of the rows", "for example site:1")])
    return Site(seed=int(option or 0))


def _make_sql(option: str) -> World:
    from evolvent.worlds.sql.world import SqlWorld

    return SqlWorld.from_bird(Path(option)) if option else SqlWorld()


def _extra_world(module: str, kind: str, *, plain: bool = True) -> Callable[[str], World]:
    """Returns the factory of a world around a real package, by its module and class; the option is its first
    argument.
    """

    def make(option: str) -> World:
        if not option and not plain:
            raise ConfigError([Problem(module, "needs a name or a folder", "see evolvent worlds list")])
        world_class = getattr(import_module(f"evolvent.worlds.extras.{module}"), kind)
        loaded: World = world_class(option) if option else world_class()
        return loaded

    return make


def _tool_world(name: str) -> Callable[[str], World]:
    def make(option: str) -> World:
        from evolvent.worlds.tools.calls import STYLES

        module = import_module(f"evolvent.worlds.tools.{name}")
        if option not in ("", *STYLES):
            raise ConfigError([unknown_name_problem(name, option, STYLES)])
        loaded: World = getattr(module, name.capitalize())(style=option or STYLES[0])
        return loaded

    return make


def _make_arithmetic(option: str) -> World:
    from evolvent.worlds.reasoning.arithmetic import Arithmetic

    return Arithmetic(depth=_parse_depth("arithmetic", option)) if option else Arithmetic()


def _make_deduction(option: str) -> World:
    from evolvent.worlds.deduction.world import Deduction

    return Deduction(depth=_parse_depth("deduction", option)) if option else Deduction()


def _parse_depth(world: str, option: str) -> int:
    if not option.isdecimal():
        raise ConfigError([Problem(world, f"got {option!r}, expected a depth", f"for example {world}:6")])
    return int(option)


def _make_problems(option: str) -> World:
    from evolvent.worlds.reasoning.library import Library
    from evolvent.worlds.reasoning.problems import Problems

    is_program = option == "program" or option.startswith("program:")
    path = option.removeprefix("program").removeprefix(":") if is_program else option
    form: Literal["cot", "program"] = "program" if is_program else "cot"
    return Library(path, form=form) if path else Problems(form=form)


def _make_rules(option: str) -> World:
    from evolvent.worlds.reasoning.library import Library
    from evolvent.worlds.reasoning.rules import Rules

    if option not in ("", "main", "conflict"):
        return Library(option, "rules")
    return Rules(form="conflict" if option == "conflict" else "main")


def _make_entailment(option: str) -> World:
    from evolvent.worlds.reasoning.entailment import Entailment
    from evolvent.worlds.reasoning.library import Library

    return Library(option, "entailment") if option else Entailment()


def _make_reading(option: str) -> World:
    from evolvent.worlds.reasoning.library import Library
    from evolvent.worlds.reasoning.reading import Reading

    return Library(option, "reading") if option else Reading()


def _make_kitchen(option: str) -> World:
    from evolvent.worlds.kitchen.world import Kitchen

    if option not in ("", "macro", "small", "small-macro"):
        raise ConfigError([unknown_name_problem("kitchen", option, ("macro", "small", "small-macro"))])
    form: Literal["commands", "macro"] = "macro" if option.endswith("macro") else "commands"
    return Kitchen(form, level="small" if option.startswith("small") else "full")


def _make_datasci(option: str) -> World:
    from evolvent.worlds.datasci.code import DataSciCode
    from evolvent.worlds.datasci.world import DataSci

    form, _, path = option.partition(":")
    if form not in ("", "code"):
        problem = unknown_name_problem("datasci", form, ("code",))
        raise ConfigError([replace(problem, hint="datasci:code:FOLDER runs programs on your CSV files")])
    if path:
        from evolvent.worlds.datasci.files import read_csv_sets

        return DataSciCode(files=read_csv_sets(Path(path)))
    return DataSciCode() if form else DataSci()


def _make_microwave(option: str) -> World:
    from evolvent.worlds.microwave import Microwave

    return Microwave()


def _make_virtualhome(option: str) -> World:
    from evolvent.worlds.virtualhome import STAGES, VirtualHome

    if option not in ("", *STAGES):
        raise ConfigError([unknown_name_problem("virtualhome", option, STAGES)])
    return VirtualHome("entertainment" if option == "entertainment" else "food")


def _make_maths(option: str) -> World:
    from evolvent.worlds.reasoning.maths import Maths

    by_level = option.startswith("levels:")
    path = option.removeprefix("levels:")
    if not path:
        raise ConfigError([Problem("maths", "needs a file or folder of problems", "for example maths:test500.jsonl")])
    return Maths(path, tiering="levels" if by_level else "all")


def _make_graded(option: str) -> World:
    from evolvent.cli.setup.extensions import load_grader
    from evolvent.worlds.reasoning.graded import Graded

    name, _, path = option.partition(":")
    if not path:
        message = f"got {option!r}, expected an installed grader and a file"
        raise ConfigError([Problem("graded", message, "for example graded:NAME:questions.jsonl")])
    return Graded(path, load_grader(name), grader_name=name)


def _make_code(option: str) -> World:
    from evolvent.worlds.code.world import Code

    if not option:
        raise ConfigError([Problem("code", "needs a file or folder of problems", "for example code:HumanEval.jsonl")])
    return Code(option)


def _make_functions(option: str) -> World:
    from evolvent.worlds.functions.episode import FORMS, CallForm
    from evolvent.worlds.functions.world import Functions

    if option not in ("", *FORMS):
        raise ConfigError([unknown_name_problem("functions", option, FORMS)])
    call_form: CallForm = option if option else "words"  # type: ignore[assignment]
    return Functions(call_form)


def _make_bfcl(option: str) -> World:
    from evolvent.worlds.bfcl.world import Bfcl

    if not option:
        raise ConfigError([Problem("bfcl", "needs the folder of BFCL's files", "for example bfcl:path/to/data")])
    return Bfcl(option)


def _make_backoffice(option: str) -> World:
    from evolvent.worlds.backoffice.world import Backoffice

    return Backoffice()


def _make_webreplay(option: str) -> World:
    from evolvent.worlds.web_replay.world import WebReplayWorld

    if not option:
        return WebReplayWorld()
    if option == "text:":
        raise ConfigError([Problem("webreplay", "needs the folder of Mind2Web's files", "webreplay:text:FOLDER")])
    if option.startswith("text:"):
        return WebReplayWorld(option.removeprefix("text:"), rank_by="text")
    rank_files = [Path(option) / name for name in ("ranks.json", "ranks.parquet")]
    return WebReplayWorld(option, next((path for path in rank_files if path.is_file()), None))


def _make_plume(option: str) -> World:
    from evolvent.worlds.plume.presets import PRESETS
    from evolvent.worlds.plume.world import PlumeWorld

    names = [name.removeprefix("plume/") for name in PRESETS]
    if option not in ("", *names):
        raise ConfigError([unknown_name_problem("plume", option, names)])
    return PlumeWorld(f"plume/{option or '25'}")


def _make_preference(option: str) -> World:
    from evolvent.worlds.preference.world import Preference

    if option and not option.isdecimal():
        raise ConfigError([Problem("preference", f"got {option!r}, expected a length", "for example preference:32")])
    return Preference(length=int(option)) if option else Preference()


def _make_gymnasium(option: str) -> World:
    from evolvent.worlds.gym.world import open_gymnasium_world

    return open_gymnasium_world(option)


def _make_verifiers(option: str) -> World:
    from evolvent.worlds.extras.verifiers import open_verifiers_world

    return open_verifiers_world(option)


def _make_prompts(option: str) -> World:
    from evolvent.cli.setup.prompt_data import make_prompt_world

    world: World = make_prompt_world(option)
    return world


EMBEDDED: Mapping[str, tuple[Callable[[str], World], str, str]] = {
    "arithmetic": (_make_arithmetic, "depth", "the result of a chain of operations; arithmetic:2 to arithmetic:16"),
    "deduction": (_make_deduction, "depth", "true or false, by facts and rules; deduction:4 to deduction:15"),
    "entailment": (
        _make_entailment,
        "folder",
        "does it follow from statements about all, no and some; entailment:FOLDER",
    ),
    "problems": (_make_problems, "form or folder", "word problems; problems:program, problems:FOLDER; or both"),
    "prompts": (_make_prompts, "file and rewards", "your prompts and rewards; better as --data FILE --reward NAME"),
    "reading": (_make_reading, "folder", "a passage and a question with four options; reading:FOLDER"),
    "rules": (_make_rules, "form or folder", "rules with exceptions; rules:conflict, rules:FOLDER"),
    "kitchen": (_make_kitchen, "form", "orders in a text kitchen; kitchen:macro, kitchen:small, kitchen:small-macro"),
    "maths": (_make_maths, "file or folder", "MATH and MATH-500 from your files; maths:FILE, maths:levels:FILE"),
    "graded": (_make_graded, "grader and file", "your questions, judged by a package's grader; graded:NAME:FILE"),
    "functions": (
        _make_functions,
        "form",
        "call the right tools, or none; functions:python, functions:json, functions:xml",
    ),
    "bfcl": (_make_bfcl, "folder", "the Berkeley Function Calling Leaderboard v4 from your files; bfcl:FOLDER"),
    "code": (_make_code, "file or folder", "functions judged in boxes: HumanEval, MBPP or your files; code:FILE"),
    "plume": (_make_plume, "preset", "find the source of a plume by its smell; plume:25, plume:75, plume:agdc"),
    "preference": (
        _make_preference,
        "length",
        "continue a text by 64 words, by a hidden reward; preference:32 to :256",
    ),
    "microwave": (_make_microwave, "", "three states, three phrases: credit that can be told by hand"),
    "virtualhome": (
        _make_virtualhome,
        "task",
        "TWOSOME's two tasks of VirtualHome in its texts; virtualhome:entertainment",
    ),
    "datasci": (
        _make_datasci,
        "form and files",
        "pipelines scored by ROC-AUC; datasci:code runs Python code in boxes, datasci:code:FOLDER on your CSV files",
    ),
    "crafting": (_make_crafting, "level", "read recipes, get, craft; a fresh book a task; crafting:0 to crafting:3"),
    "agentgym": (
        open_agentgym_world,
        "server or files",
        "AgentGym's tasks, of a server or files; agentgym:DIALECT@URL#0-99, agentgym:maze#FOLDER",
    ),
    "backoffice": (_make_backoffice, "", "work at forms and tables of an office; only what is saved counts"),
    "babyai": (
        _make_babyai,
        "level",
        "BabyAI's levels; babyai:BabyAI-GoToObj-v0; babyai:agentgym in the original's words",
    ),
    "countdown": (_make_countdown, "numbers", "reach a number by arithmetic; countdown:3 to countdown:6; countdown:24"),
    "alfworld": (
        _extra_world("alfworld", "AlfWorld", plain=False),
        "folder",
        "ALFWorld's own engine over a FOLDER of games",
    ),
    "academia": (_tool_world("academia"), "form", "tools over two graphs of papers and authors"),
    "gymnasium": (
        _make_gymnasium,
        "id and settings",
        "an environment of Gymnasium told as text; gymnasium:CartPole-v1, gymnasium:Pendulum-v1?g=9.8",
    ),
    "gridworld": (_make_gridworld, "", "rooms, doors and keys in the manner of BabyAI, by kinds of missions"),
    "household": (
        _make_household,
        "text or folder",
        "ALFWorld's tasks in our rooms; household:large, :alfworld03, :nouns (swapped), or a FOLDER of games",
    ),
    "http": (open_http_world, "server", "a world of an evolvent server; http://HOST:PORT/v1/worlds/NAME"),
    "https": (open_https_world, "server", "the same over https"),
    "lookup": (_make_lookup, "", "answer a question by asking a hidden database, a fresh one a task"),
    "maze": (_make_maze, "map", "find the way by the walls nearby, a fresh maze a task; maze:double_t"),
    "minigrid": (_extra_world("babyai", "MiniGridBabyAI"), "level", "BabyAI by minigrid itself"),
    "movie": (_tool_world("movie"), "form", "tools over films, people and their credits"),
    "openenv": (open_openenv_world, "server", "an environment of an OpenEnv server; openenv:URL#100"),
    "reasoning": (
        _extra_world("reasoning_gym", "ReasoningGym", plain=False),
        "data set",
        "one question of reasoning-gym",
    ),
    "searchqa": (_make_searchqa, "folder", "answer by searching documents, invented ones or searchqa:FOLDER"),
    "science": (_make_science, "form", "experiments in ScienceWorld's actions, without Java; science:easy"),
    "sciworld": (_extra_world("sciworld", "SciWorld"), "tasks", "ScienceWorld, which needs Java; sciworld:all"),
    "sheet": (_tool_world("sheet"), "form", "tools that edit a table"),
    "shop": (_make_shop, "seed", "buy what is asked for in a shop like WebShop's; shop:SEED has other products"),
    "site": (_make_site, "seed", "tasks in a shop, a forum and a tracker like WebArena's; site:SEED has other rows"),
    "sql": (_make_sql, "folder", "one query answers a question, a fresh database a task; sql:FOLDER in BIRD's layout"),
    "textarena": (_extra_world("textarena", "TextArena"), "game", "one-player games of textarena"),
    "textworld": (_extra_world("textworld", "TextGames", plain=False), "folder", "TextWorld's games in a FOLDER"),
    "textcraft": (_make_textcraft, "folder", "TextCraft over its own recipe files; textcraft:FOLDER"),
    "todo": (_tool_world("todo"), "form", "tools over projects and tasks, which they also change"),
    "verifiers": (
        _make_verifiers,
        "taskset and settings",
        "a taskset of an installed package for verifiers; verifiers:NAME?max_turns=8",
    ),
    "weather": (_tool_world("weather"), "form", "tools over places, dates and the weather there"),
    "webreplay": (
        _make_webreplay,
        "folder",
        "recorded pages, generated ones or Mind2Web's; webreplay:FOLDER, webreplay:text:FOLDER",
    ),
    "wordle": (_make_wordle, "rules or list", "guess a word in six tries; wordle:lmrl, wordle:WORDS.txt"),
    "workshop": (_make_workshop, "", "crafting over one book of several hundred items"),
}
