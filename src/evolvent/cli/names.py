"""The one place where names become objects: worlds and policies. Everywhere else objects are handed around."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.cli import servers
from evolvent.errors import (
    ConfigError,
    Incomplete,
    MissingExtra,
    Problem,
    VocabularyMismatch,
    WorldError,
    boundary,
    unknown,
)
from evolvent.store.ledger import read_rows
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["EVERY", "GROUP", "POLICIES", "model_folder", "needs_train", "policy", "world", "world_origins", "worlds"]

GROUP = "evolvent.worlds"
EVERY = (  # what the name `all` stands for
    "crafting", "lookup", "gridworld", "wordle", "maze", "countdown", "household", "sql", "searchqa", "weather",
    "movie", "academia", "todo", "sheet",
)  # fmt: skip
POLICIES = ("xs", "s", "m")
_MEMBERS = ("name", "version", "instructions", "grammar", "horizon", "reward_range", "tiers", "tasks", "make", "score")


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


_EMBEDDED: Mapping[str, tuple[Callable[[str], World], str, str]] = {
    "crafting": (_crafting, "level", "read recipes, get, craft; a fresh book a task; crafting:0 to crafting:3"),
    "agentgym": (servers.agentgym, "server", "a world of an AgentGym server; agentgym:DIALECT@URL#0-99"),
    "babyai": (_babyai, "level", "BabyAI's levels; babyai:BabyAI-GoToObj-v0; babyai:agentgym in the original's words"),
    "countdown": (_countdown, "numbers", "reach a number by arithmetic; countdown:3 to countdown:6; countdown:24"),
    "alfworld": (_extra("alfworld", "AlfWorld", plain=False), "folder", "ALFWorld's own engine over a FOLDER of games"),
    "academia": (_tools("academia"), "form", "tools over two graphs of papers and authors"),
    "gridworld": (_gridworld, "", "rooms, doors and keys in the manner of BabyAI, by kinds of missions"),
    "household": (
        _household,
        "text or folder",
        "ALFWorld's tasks in our rooms; household:large, household:alfworld03, household:FOLDER of games",
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
    "wordle": (_wordle, "rules or list", "guess a word in six tries; wordle:lmrl, wordle:WORDS.txt"),
    "workshop": (_workshop, "", "crafting over one book of several hundred items"),
}


def _installed() -> dict[str, EntryPoint]:
    """Worlds of other packages, known by name; nothing of them is imported. Embedded names win."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _EMBEDDED}


def world_origins() -> dict[str, str]:
    """Every world's name, and what it is or where it comes from; loads none of them."""
    found = {name: about for name, (_, _, about) in sorted(_EMBEDDED.items())}
    for name, point in _installed().items():
        found[name] = f"package {point.dist.name}" if point.dist else point.value
    return found


def world(name: str) -> World:
    """The world of this name: embedded (`crafting`, `crafting:1`, `textcraft:FOLDER`, ...) or of an installed package.

    Raises:
        ConfigError: no such world, or an option that it does not take.
        WorldError: a package's world that cannot be loaded, named.
    """
    base, colon, option = name.partition(":")
    installed = {} if base in _EMBEDDED else _installed()
    if base not in _EMBEDDED and base not in installed:
        raise ConfigError([unknown("world", name, world_origins())])
    if colon and (base in installed or not _EMBEDDED[base][1]):
        raise ConfigError([Problem(name, f"the world {base!r} takes no option, got {option!r}", f"use {base!r}")])
    if base in _EMBEDDED:
        return _EMBEDDED[base][0](option)
    point = installed[base]
    with boundary(WorldError, f"the installed world {base!r} cannot be loaded", entry=point.value):
        made = point.load()
        made = made() if callable(made) else made
    return _checked(base, made)


def _checked(name: str, made: World) -> World:
    missing = [member for member in _MEMBERS if not hasattr(made, member)]
    if missing:
        raise WorldError(f"the installed world {name!r} is no World", value=f"without {', '.join(missing)}")
    return made


def worlds(names: Sequence[str]) -> dict[str, World]:
    """Several worlds by their own names, every wrong name reported at once; `all` stands for every embedded one."""
    names = [name for given in names for name in (EVERY if given == "all" else (given,))]
    problems = [Problem("worlds", f"got {list(names)}, expected at least one world", "for example --worlds lookup")]
    problems = [] if names else problems
    made: dict[str, World] = {}
    for name in names:
        try:
            found = world(name)
        except ConfigError as error:
            told = error.problems if error.value is None else [Problem(name, str(error))]
            problems += told
            continue
        if found.name in made:
            problems.append(Problem("worlds", f"{name!r} is named twice", "name each world once"))
        made[found.name] = found
    if problems:
        raise ConfigError(problems)
    return made


def needs_train(feature: str) -> None:
    """Say which extra is missing, before anything else is done; with it, keep its progress bars off the terminal.

    Raises:
        MissingExtra: torch or transformers cannot be imported.
    """
    try:
        import safetensors  # noqa: F401
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise MissingExtra("train", feature) from error
    transformers.utils.logging.disable_progress_bar()


def policy(name: str, worlds: Sequence[World], *, seed: int = 0) -> Policy:
    """A policy by name: a size of the embedded default (untrained), a model folder, or a run (its last policy).

    Raises:
        ConfigError: neither a size nor a folder.
        Incomplete: a run without a policy, or a folder without a model.
        CorruptRecord: a run whose ledger cannot be read.
        VocabularyMismatch: a policy of whole words that does not know those of the worlds.
    """
    if name in POLICIES:
        from evolvent.scale.local import policy_for

        return policy_for(worlds, size=name, seed=seed)
    from evolvent.models.policy import load_policy

    loaded = load_policy(model_folder(name))
    _check_words(name, loaded, worlds)
    return loaded


def model_folder(name: str) -> Path:
    """The model folder that a name means: itself, or the last policy of a run.

    Raises:
        ConfigError: no such folder. Incomplete, CorruptRecord: see `policy`.
    """
    folder = Path(name)
    if not folder.is_dir():
        known = f"sizes: {', '.join(POLICIES)}; or a model folder; or the folder of a run"
        raise ConfigError([Problem("policy", f"unknown policy {name!r}", known)])
    run = any((folder / file).exists() for file in ("stages.jsonl", "run.json"))
    return _last_policy(folder) if run else folder


def _check_words(name: str, policy: Policy, worlds: Sequence[World]) -> None:
    """A policy that reads whole words must know those of its worlds: it would read the others as unknown."""
    if policy.dialect.name != "words":
        return
    known = policy.tokenizer.get_vocab()
    for world in worlds:
        strange = sorted(set(world.vocabulary() or ()) - set(known), key=lambda word: (not word.isalpha(), word))
        if strange:
            raise VocabularyMismatch(
                f"the policy {name!r} does not know {len(strange)} words of the world {world.name!r}",
                value=", ".join(strange[:5]),
                hint="choose the worlds it was trained for, or train one for these",
            )


def _last_policy(run: Path) -> Path:
    """The folder of a run's result; until it has one, of the policy fitted last, in its main arm where it has several.

    A run that is to end with the best of its rounds may not end with the last.
    """
    if any((run / "model" / file).is_file() for file in ("config.json", "adapter_config.json")):
        return run / "model"
    rows = read_rows(run / "stages.jsonl")
    fits = [row for row in rows if row.get("verb") == "fit"]
    main = [row for row in fits if row.get("arm") != "control"]
    for row in reversed(main or fits):
        found = run / "stages" / str(row.get("name")) / "policy"
        if found.is_dir():
            return found
    raise Incomplete(f"the run {run} holds no policy", value=f"{len(rows)} stages", hint="train one first")
