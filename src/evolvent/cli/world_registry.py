"""The embedded worlds by the names of the command line, with their options. None is imported before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Literal

from evolvent.cli import servers
from evolvent.errors import ConfigError, Problem, unknown
from evolvent.worlds.base import World

__all__ = ["EMBEDDED"]


def _crafting(option: str) -> World:
    from evolvent.worlds.crafting import Crafting

    if not option:
        return Crafting()
    if not option.isdecimal():
        raise ConfigError(
            [Problem("crafting", f"got the level {option!r}, expected a number", "for example crafting:1")]
        )
    return Crafting(level=int(option))


def _workshop(option: str) -> World:
    from evolvent.worlds.crafting import Crafting

    return Crafting("own")


def _textcraft(option: str) -> World:
    from evolvent.worlds.crafting import Crafting

    if not option:
        raise ConfigError([Problem("textcraft", "needs a folder of recipes", "for example textcraft:path/to/recipes")])
    return Crafting.from_folder(option)


def _lookup(option: str) -> World:
    from evolvent.worlds.lookup import Lookup

    return Lookup()


def _countdown(option: str) -> World:
    from evolvent.worlds.countdown import Countdown

    if not option:
        return Countdown()
    if option == "24":
        return Countdown(numbers=4, target=24, low=1, high=13)
    if not option.isdecimal():
        wrong = f"got {option!r}, expected how many numbers, or 24 for the game of 24"
        raise ConfigError([Problem("countdown", wrong, "for example countdown:4")])
    return Countdown(numbers=int(option))


def _gridworld(option: str) -> World:
    from evolvent.worlds.grid.world import GridWorld

    return GridWorld()


def _babyai(option: str) -> World:
    from evolvent.worlds.grid.world import GridWorld

    return GridWorld("babyai", text="babyai") if option == "agentgym" else GridWorld(option or "babyai")


def _maze(option: str) -> World:
    from evolvent.worlds.maze import LAYOUTS, Maze

    if option not in ("", *LAYOUTS):
        raise ConfigError([unknown("maze", option, LAYOUTS)])
    return Maze("double_t") if option == "double_t" else Maze()


def _wordle(option: str) -> World:
    from evolvent.worlds.wordle import Wordle

    if option in ("", "official"):
        return Wordle()
    return Wordle(rules="lmrl") if option == "lmrl" else Wordle(words=Path(option))


def _household(option: str) -> World:
    if option == "nouns":
        from evolvent.worlds.household.nouns import HouseholdNouns

        return HouseholdNouns()
    from evolvent.worlds.household.world import HouseholdWorld

    if option in ("", "large"):
        return HouseholdWorld(size="alfworld" if option else "small")
    return HouseholdWorld("0.3") if option == "alfworld03" else HouseholdWorld(games=Path(option))


def _searchqa(option: str) -> World:
    from evolvent.worlds.searchqa.world import SearchQA

    return SearchQA.from_folder(option) if option else SearchQA()


def _sql(option: str) -> World:
    from evolvent.worlds.sql.world import SqlWorld

    return SqlWorld.from_bird(Path(option)) if option else SqlWorld()


def _extra(module: str, kind: str, *, plain: bool = True) -> Callable[[str], World]:
    """A world around a real package, by its module and class; the option is its first argument."""

    def make(option: str) -> World:
        if not option and not plain:
            raise ConfigError([Problem(module, "needs a name or a folder", "see evolvent worlds list")])
        made = getattr(import_module(f"evolvent.worlds.extras.{module}"), kind)
        found: World = made(option) if option else made()
        return found

    return make


def _tools(name: str) -> Callable[[str], World]:
    def make(option: str) -> World:
        from evolvent.worlds.tools.calls import STYLES

        module = import_module(f"evolvent.worlds.tools.{name}")
        if option not in ("", *STYLES):
            raise ConfigError([unknown(name, option, STYLES)])
        made: World = getattr(module, name.capitalize())(style=option or STYLES[0])
        return made

    return make


def _arithmetic(option: str) -> World:
    from evolvent.worlds.reasoning.arithmetic import Arithmetic

    return Arithmetic(depth=_number("arithmetic", option)) if option else Arithmetic()


def _deduction(option: str) -> World:
    from evolvent.worlds.deduction.world import Deduction

    return Deduction(depth=_number("deduction", option)) if option else Deduction()


def _number(world: str, option: str) -> int:
    if not option.isdecimal():
        raise ConfigError([Problem(world, f"got {option!r}, expected a depth", f"for example {world}:6")])
    return int(option)


def _problems(option: str) -> World:
    from evolvent.worlds.reasoning.library import Library
    from evolvent.worlds.reasoning.problems import Problems

    program = option == "program" or option.startswith("program:")
    path = option.removeprefix("program").removeprefix(":") if program else option
    form: Literal["cot", "program"] = "program" if program else "cot"
    return Library(path, form=form) if path else Problems(form=form)


def _rules(option: str) -> World:
    from evolvent.worlds.reasoning.library import Library
    from evolvent.worlds.reasoning.rules import Rules

    if option not in ("", "main", "conflict"):
        return Library(option, "rules")
    return Rules(form="conflict" if option == "conflict" else "main")


def _entailment(option: str) -> World:
    from evolvent.worlds.reasoning.entailment import Entailment
    from evolvent.worlds.reasoning.library import Library

    return Library(option, "entailment") if option else Entailment()


def _reading(option: str) -> World:
    from evolvent.worlds.reasoning.library import Library
    from evolvent.worlds.reasoning.reading import Reading

    return Library(option, "reading") if option else Reading()


def _kitchen(option: str) -> World:
    from evolvent.worlds.kitchen.world import Kitchen

    if option not in ("", "macro", "small", "small-macro"):
        raise ConfigError([unknown("kitchen", option, ("macro", "small", "small-macro"))])
    form: Literal["commands", "macro"] = "macro" if option.endswith("macro") else "commands"
    return Kitchen(form, level="small" if option.startswith("small") else "full")


def _datasci(option: str) -> World:
    from evolvent.worlds.datasci.code import DataSciCode
    from evolvent.worlds.datasci.world import DataSci

    if option not in ("", "code"):
        raise ConfigError([unknown("datasci", option, ("code",))])
    return DataSciCode() if option else DataSci()


def _microwave(option: str) -> World:
    from evolvent.worlds.microwave import Microwave

    return Microwave()


def _maths(option: str) -> World:
    from evolvent.worlds.reasoning.maths import Maths

    levels = option.startswith("levels:")
    path = option.removeprefix("levels:")
    if not path:
        raise ConfigError([Problem("maths", "needs a file or folder of problems", "for example maths:test500.jsonl")])
    return Maths(path, tiering="levels" if levels else "all")


def _graded(option: str) -> World:
    from evolvent.cli.extensions import grader
    from evolvent.worlds.reasoning.graded import Graded

    name, _, path = option.partition(":")
    if not path:
        wrong = f"got {option!r}, expected an installed grader and a file"
        raise ConfigError([Problem("graded", wrong, "for example graded:NAME:questions.jsonl")])
    return Graded(path, grader(name), called=name)


def _code(option: str) -> World:
    from evolvent.worlds.code.world import Code

    if not option:
        raise ConfigError([Problem("code", "needs a file or folder of problems", "for example code:HumanEval.jsonl")])
    return Code(option)


def _functions(option: str) -> World:
    from evolvent.worlds.functions.episode import FORMS, CallForm
    from evolvent.worlds.functions.world import Functions

    if option not in ("", *FORMS):
        raise ConfigError([unknown("functions", option, FORMS)])
    chosen: CallForm = option if option else "words"  # type: ignore[assignment]
    return Functions(chosen)


def _bfcl(option: str) -> World:
    from evolvent.worlds.bfcl.world import Bfcl

    if not option:
        raise ConfigError([Problem("bfcl", "needs the folder of BFCL's files", "for example bfcl:path/to/data")])
    return Bfcl(option)


def _backoffice(option: str) -> World:
    from evolvent.worlds.backoffice.world import Backoffice

    return Backoffice()


def _webreplay(option: str) -> World:
    from evolvent.worlds.web_replay.world import WebReplayWorld

    if not option:
        return WebReplayWorld()
    beside = [Path(option) / name for name in ("ranks.json", "ranks.parquet")]
    return WebReplayWorld(option, next((path for path in beside if path.is_file()), None))


def _plume(option: str) -> World:
    from evolvent.worlds.plume.presets import PRESETS
    from evolvent.worlds.plume.world import PlumeWorld

    names = [name.removeprefix("plume/") for name in PRESETS]
    if option not in ("", *names):
        raise ConfigError([unknown("plume", option, names)])
    return PlumeWorld(f"plume/{option or '25'}")


def _preference(option: str) -> World:
    from evolvent.worlds.preference.world import Preference

    if option and not option.isdecimal():
        raise ConfigError([Problem("preference", f"got {option!r}, expected a length", "for example preference:32")])
    return Preference(length=int(option)) if option else Preference()


EMBEDDED: Mapping[str, tuple[Callable[[str], World], str, str]] = {
    "arithmetic": (_arithmetic, "depth", "the result of a chain of operations; arithmetic:2 to arithmetic:16"),
    "deduction": (_deduction, "depth", "true or false, by facts and rules; deduction:4 to deduction:15"),
    "entailment": (_entailment, "folder", "does it follow from statements about all, no and some; entailment:FOLDER"),
    "problems": (_problems, "form or folder", "word problems; problems:program, problems:FOLDER; or both"),
    "reading": (_reading, "folder", "a passage and a question with four options; reading:FOLDER"),
    "rules": (_rules, "form or folder", "rules with exceptions; rules:conflict, rules:FOLDER"),
    "kitchen": (_kitchen, "form", "orders in a text kitchen; kitchen:macro, kitchen:small, kitchen:small-macro"),
    "maths": (_maths, "file or folder", "MATH and MATH-500 from your files; maths:FILE, maths:levels:FILE"),
    "graded": (_graded, "grader and file", "your questions, judged by a package's grader; graded:NAME:FILE"),
    "functions": (_functions, "form", "call the right tools, or none; functions:python, functions:json, functions:xml"),
    "bfcl": (_bfcl, "folder", "the Berkeley Function Calling Leaderboard v4 from your files; bfcl:FOLDER"),
    "code": (_code, "file or folder", "functions judged in boxes: HumanEval, MBPP or your files; code:FILE"),
    "plume": (_plume, "preset", "find the source of a plume by its smell; plume:25, plume:75, plume:agdc"),
    "preference": (_preference, "length", "continue a text by 64 words, by a hidden reward; preference:32 to :256"),
    "microwave": (_microwave, "", "three states, three phrases: credit that can be told by hand"),
    "datasci": (_datasci, "form", "pipelines scored by ROC-AUC; datasci:code runs free Python code in boxes"),
    "crafting": (_crafting, "level", "read recipes, get, craft; a fresh book a task; crafting:0 to crafting:3"),
    "agentgym": (servers.agentgym, "server", "a world of an AgentGym server; agentgym:DIALECT@URL#0-99"),
    "backoffice": (_backoffice, "", "work at forms and tables of an office; only what is saved counts"),
    "babyai": (_babyai, "level", "BabyAI's levels; babyai:BabyAI-GoToObj-v0; babyai:agentgym in the original's words"),
    "countdown": (_countdown, "numbers", "reach a number by arithmetic; countdown:3 to countdown:6; countdown:24"),
    "alfworld": (_extra("alfworld", "AlfWorld", plain=False), "folder", "ALFWorld's own engine over a FOLDER of games"),
    "academia": (_tools("academia"), "form", "tools over two graphs of papers and authors"),
    "gridworld": (_gridworld, "", "rooms, doors and keys in the manner of BabyAI, by kinds of missions"),
    "household": (
        _household,
        "text or folder",
        "ALFWorld's tasks in our rooms; household:large, :alfworld03, :nouns (swapped), or a FOLDER of games",
    ),
    "http": (servers.native, "server", "a world of an evolvent server; http://HOST:PORT/v1/worlds/NAME"),
    "https": (servers.secure, "server", "the same over https"),
    "lookup": (_lookup, "", "answer a question by asking a hidden database, a fresh one a task"),
    "maze": (_maze, "map", "find the way by the walls nearby, a fresh maze a task; maze:double_t"),
    "minigrid": (_extra("babyai", "MiniGridBabyAI"), "level", "BabyAI by minigrid itself"),
    "movie": (_tools("movie"), "form", "tools over films, people and their credits"),
    "openenv": (servers.openenv, "server", "an environment of an OpenEnv server; openenv:URL#100"),
    "reasoning": (_extra("reasoning_gym", "ReasoningGym", plain=False), "data set", "one question of reasoning-gym"),
    "searchqa": (_searchqa, "folder", "answer by searching documents, invented ones or searchqa:FOLDER"),
    "sciworld": (_extra("sciworld", "SciWorld"), "tasks", "ScienceWorld, which needs Java; sciworld:all"),
    "sheet": (_tools("sheet"), "form", "tools that edit a table"),
    "sql": (_sql, "folder", "one query answers a question, a fresh database a task; sql:FOLDER in BIRD's layout"),
    "textarena": (_extra("textarena", "TextArena"), "game", "one-player games of textarena"),
    "textworld": (_extra("textworld", "TextGames", plain=False), "folder", "TextWorld's games in a FOLDER"),
    "textcraft": (_textcraft, "folder", "TextCraft over its own recipe files; textcraft:FOLDER"),
    "todo": (_tools("todo"), "form", "tools over projects and tasks, which they also change"),
    "weather": (_tools("weather"), "form", "tools over places, dates and the weather there"),
    "webreplay": (_webreplay, "folder", "recorded pages, generated ones or Mind2Web's; webreplay:FOLDER"),
    "wordle": (_wordle, "rules or list", "guess a word in six tries; wordle:lmrl, wordle:WORDS.txt"),
    "workshop": (_workshop, "", "crafting over one book of several hundred items"),
}
