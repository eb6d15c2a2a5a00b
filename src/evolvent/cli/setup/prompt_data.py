"""A user's prompts, rewards and tools on the command line: `--data FILE --reward NAME --tools FILE`.

The three options become the name of a world, `prompts:FILE?reward=NAME&tools=FILE`, which every command takes, records
and resumes as it does others. A reward is a built-in name or a function of a Python file that the user names; no code
is ever loaded from a data set.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, unquote

from rich.console import Console

from evolvent.errors import (
    ConfigError,
    EvolventError,
    Problem,
    boundary,
    find_location,
    shorten_path,
    unknown_name_problem,
)
from evolvent.sandbox.bubblewrap import isolation
from evolvent.view.escape import show_hidden
from evolvent.worlds.prompts import MAX_TOKENS

if TYPE_CHECKING:
    from evolvent.worlds.base import World
    from evolvent.worlds.prompts.rewards import Reward
    from evolvent.worlds.prompts.tools import ToolFunction
    from evolvent.worlds.prompts.world import PromptWorld

__all__ = [
    "DATA_OPTIONS",
    "check_isolation",
    "data_preset",
    "load_module",
    "load_reward",
    "make_prompt_world",
    "print_world_notes",
    "takes_data",
    "world_of_options",
]

DATA_OPTIONS: Mapping[str, str] = {
    "--data FILE": "your prompts instead of worlds: JSON lines, JSON, CSV or Parquet with a column prompt, messages, "
    "question or problem",
    "--reward NAME": "what scores a reply: exact, number, maths, code, json_schema, regex:PATTERN, judge:MODEL@URL, or "
    "FILE.py:FUNCTION; several with commas or again; 0.5*NAME weighs one",
    "--tools FILE.py": "typed functions that the model may call; FILE.py:NAME for one of them",
}
_OPTION_NAMES = tuple(option.split()[0] for option in DATA_OPTIONS)
_PREFIX = "prompts"
_KEYS = ("reward", "tools", "prompt_column", "instructions", "max_turns", "success_at")


def takes_data(settings: Collection[str]) -> bool:
    """Returns whether a command with these settings takes `--data`: it acts in worlds and has no data of its own."""
    return "worlds" in settings and not {"data", "reward", "tools"} & set(settings)


def world_of_options(argv: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """Replaces `--data`, `--reward` and `--tools` in a command line by the world that they make.

    Returns:
        the command line, and the problems of the three options.

    >>> world_of_options(["--data", "rows.csv", "--reward", "exact", "--seed", "1"])[0]
    ['--seed', '1', '--worlds', '["prompts:rows.csv?reward=exact"]']
    """
    values: dict[str, list[str]] = {}
    others: list[str] = []
    problems: list[Problem] = []
    remaining = list(argv)
    while remaining:
        word = remaining.pop(0)
        name, equals_sign, text = word.partition("=")
        if name == "--rewards":
            name = "--reward"
        if name not in _OPTION_NAMES:
            others.append(word)
        elif equals_sign or (remaining and not remaining[0].startswith("--")):
            values.setdefault(name, []).append(text if equals_sign else remaining.pop(0))
        else:
            problems.append(Problem(name, "missing value", next(o for o in DATA_OPTIONS if o.startswith(name))))
    if problems or not values:
        return others, problems
    data, rewards = values.get("--data", []), [name for text in values.get("--reward", []) for name in _split(text)]
    if len(data) != 1:
        message = "is missing" if not data else f"is given {len(data)} times"
        problems.append(Problem("--data", message, "name one file of prompts"))
    if not rewards and data:
        problems.append(
            Problem("--reward", "is missing", "for example --reward exact, or --reward my_rewards.py:score")
        )
    if any(word.partition("=")[0] == "--worlds" for word in others):
        problems.append(Problem("--data", "is given beside --worlds", "leave out one of them"))
    if problems:
        return others, problems
    pairs = [("reward", name) for name in rewards]
    pairs += [("tools", name) for text in values.get("--tools", []) for name in _split(text)]
    query = "&".join(f"{key}={quote(value, safe='/:@.*,')}" for key, value in pairs)
    return [*others, "--worlds", json.dumps([f"{_PREFIX}:{quote(data[0], safe='/:@., ')}?{query}"])], []


def _split(text: str) -> list[str]:
    """Splits names at commas; patterns and addresses may hold commas, so they are taken whole."""
    whole = text.partition("*")[2] or text
    if whole.startswith(("regex:", "judge:", "json_schema:")):
        return [text]
    return [part.strip() for part in text.split(",") if part.strip()]


def data_preset(settings: Collection[str]) -> dict[str, object]:
    """Returns the defaults of a command for a user's prompts, as a preset: a file and the command line go before it."""
    preset: dict[str, object] = {"max_tokens": MAX_TOKENS} if "max_tokens" in settings else {}
    if "search.value" in settings:
        preset["search"] = {"max_tokens": MAX_TOKENS, "value": "rollouts"}
    return preset


def make_prompt_world(option: str) -> PromptWorld:
    """Makes the world of `FILE?reward=NAME&tools=FILE`.

    Raises:
        ConfigError: no reward, an unknown key, a file that cannot be read, or a Python file that cannot be loaded.
    """
    from evolvent.worlds.prompts.world import PromptWorld

    path, _, query = option.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    problems = [unknown_name_problem("key", key, _KEYS, location=_PREFIX) for key, _ in pairs if key not in _KEYS]
    names = [name for key, name in pairs if key == "reward"]
    if not path or not names:
        message = f"got {option!r}, expected a file and a reward"
        problems.append(Problem(_PREFIX, message, "for example prompts:questions.jsonl?reward=exact"))
    if problems:
        raise ConfigError(problems)
    settings = dict(pairs)
    rewards = [load_reward(name) for name in names]
    tools = [tool for key, name in pairs if key == "tools" for tool in _load_tools(name)]
    return PromptWorld(
        unquote(path),
        rewards,
        tools=tools,
        instructions=settings.get("instructions", ""),
        prompt_column=settings.get("prompt_column"),
        max_turns=_parse_number(settings, "max_turns", 8),
        success_at=float(settings["success_at"]) if "success_at" in settings else None,
    )


def check_isolation(worlds: Mapping[str, World], *, backend: str = "here") -> None:
    """Checks that this host can run what models write, where a world or a reward does, before anything is played.

    Args:
        worlds: the worlds, by name.
        backend: where episodes are played: only this machine ("here", "here?players=N") is checked here.
    Raises:
        IsolationUnavailable: says what is missing.
    """
    if backend.partition("?")[0] == "here" and any(
        getattr(world, "needs_isolation", False) for world in worlds.values()
    ):
        isolation()


def print_world_notes(console: Console, worlds: Mapping[str, World]) -> None:
    """Prints how the tasks of a user's data or environment are split, and what scores them."""
    for world in worlds.values():
        describe = getattr(world, "describe", None)
        if callable(describe):
            console.print(show_hidden(describe()), soft_wrap=True, highlight=False)


def _parse_number(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name, str(default))
    if not text.isdecimal():
        raise ConfigError([Problem(f"{_PREFIX}.{name}", f"got {text!r}, expected a number")])
    return int(text)


def load_reward(text: str) -> Reward:
    """Loads the reward of a name: a built-in one, or `FILE.py:FUNCTION`.

    Raises:
        ConfigError: an unknown name, or a file without that function.
    """
    from evolvent.reward.builtin import REWARD_NAMES, find_reward, parse_weight
    from evolvent.worlds.prompts.rewards import Reward

    weight, name = parse_weight(text)
    path, _, function_name = name.partition(":")
    if not path.endswith(".py"):
        if path not in REWARD_NAMES:
            problem = unknown_name_problem("reward", path, REWARD_NAMES, location="--reward")
            raise ConfigError([Problem(problem.where, problem.what, f"{problem.hint}; or FILE.py:FUNCTION")])
        return find_reward(text)
    if not function_name:
        functions = _list_functions(path)
        if len(functions) != 1:
            names = ", ".join(functions) or "none"
            raise ConfigError([Problem("--reward", f"{path} has the functions {names}", f"write {path}:FUNCTION")])
        function_name = next(iter(functions))
    return Reward(_find_function(path, function_name), weight=weight, name=function_name)


def _load_tools(name: str) -> list[ToolFunction]:
    path, _, function_name = name.partition(":")
    if not path.endswith(".py"):
        raise ConfigError([Problem("--tools", f"got {name!r}, expected FILE.py or FILE.py:FUNCTION")])
    if function_name:
        return [_find_function(path, function_name)]
    functions = _list_functions(path)
    if not functions:
        raise ConfigError([Problem("--tools", f"{path} has no functions", "define a typed function in it")])
    return list(functions.values())


def _find_function(path: str, name: str) -> ToolFunction:
    """Returns what a name of a Python file stands for: a function, also an imported one, or an object that is called.

    Raises:
        ConfigError: an unknown name, or one of a class or a value.
    """
    value = getattr(load_module(Path(path)), name, None)
    if not callable(value) or isinstance(value, type):
        raise ConfigError([unknown_name_problem("function", name, _list_functions(path), location=path)])
    function: ToolFunction = value
    return function


def _list_functions(path: str) -> dict[str, ToolFunction]:
    """Returns the public functions of a Python file, and its public objects that can be called, in their order.

    Imported functions are left out; those that a decorator such as `functools.cache` turned into objects are not.
    """
    module = load_module(Path(path))
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and not isinstance(value, type)
        and module.__name__ in (getattr(value, "__module__", None), type(value).__module__)
    }


def load_module(path: Path) -> ModuleType:
    """Loads a Python file that the user names on the command line; it may import its neighbors.

    Raises:
        ConfigError: the file is missing, or raises an error; the message names the line.
    """
    if not path.is_file():
        raise ConfigError([Problem(str(path), "file not found", "check the path")])
    resolved = path.resolve()
    name = f"{path.stem}_{sha256(str(resolved).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved)
    if spec is None or spec.loader is None:
        raise ConfigError([Problem(str(path), "is not a Python file")])
    module = importlib.util.module_from_spec(spec)
    if str(resolved.parent) not in sys.path:
        sys.path.append(str(resolved.parent))
    sys.modules[name] = module
    try:
        with boundary(ConfigError, f"{path} cannot be loaded"):
            spec.loader.exec_module(module)
    except EvolventError as error:
        del sys.modules[name]
        cause = error.__cause__
        if isinstance(cause, SyntaxError):
            place = f"{shorten_path(cause.filename or str(path))}:{cause.lineno}"
            raise ConfigError([Problem(place, f"is not valid Python: {cause.msg}")]) from cause
        if cause is None:
            raise
        place = find_location(cause) or str(path)
        raise ConfigError([Problem(place, f"{type(cause).__name__}: {cause}", f"{path} cannot be loaded")]) from cause
    return module
