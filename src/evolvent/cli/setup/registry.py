"""The one place where names become worlds and policies. Everywhere else objects are passed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.cli.setup.prompt_data import load_module
from evolvent.cli.setup.world_registry import EMBEDDED
from evolvent.errors import (
    ConfigError,
    Incomplete,
    MissingExtra,
    Problem,
    VocabularyMismatch,
    WorldError,
    boundary,
    unknown_name_problem,
    user_boundary,
)
from evolvent.models.placement import Placement
from evolvent.plugins import describe_origin, installed_plugins
from evolvent.store.log import read_rows
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.models.dialects import HistoryMode
    from evolvent.models.policy import Policy
    from evolvent.worlds.teams.parallel import ForeignEnv

__all__ = [
    "ALL_WORLDS",
    "POLICIES",
    "check_named_inputs",
    "check_policy_name",
    "describe_worlds",
    "find_control_policy",
    "is_world_file",
    "load_world",
    "load_world_file",
    "load_worlds",
    "require_train_extra",
    "resolve_model_folder",
    "resolve_policy",
    "unknown_world_problem",
]

_log = logging.getLogger(__name__)
_SHAPE_FILE = "team.json"  # of a policy over numbers
ALL_WORLDS = (  # what the name `all` stands for
    "crafting",
    "lookup",
    "gridworld",
    "wordle",
    "maze",
    "countdown",
    "household",
    "sql",
    "searchqa",
    "weather",
    "movie",
    "academia",
    "todo",
    "sheet",
)
POLICIES = ("xs", "s", "m")
_NOISY_LOGGERS = (
    "torchao",
    "torch.utils._pytree",
)  # transformers imports torchao, which tells of other devices' kernels
_WORLD_MEMBERS = (
    "name",
    "version",
    "instructions",
    "grammar",
    "horizon",
    "reward_range",
    "tiers",
    "tasks",
    "make",
    "score",
)


def _installed_worlds() -> dict[str, EntryPoint]:
    """Returns the worlds of other packages by name, without importing them. Embedded names take precedence."""
    return installed_plugins("worlds", EMBEDDED)


def describe_worlds() -> dict[str, str]:
    """Returns a description or the origin of every world by name; loads none of them."""
    descriptions = {name: about for name, (_, _, about) in sorted(EMBEDDED.items())}
    for name, point in _installed_worlds().items():
        descriptions[name] = describe_origin(point)
    return descriptions


def load_world(name: str) -> World:
    """Loads the world of a name: embedded (`crafting`, `crafting:1`, `textcraft:FOLDER`, ...), of an installed
    package, or of a Python file (`game.py:MyGame`).

    Raises:
        ConfigError: an unknown world, or an option that it does not take.
        WorldError: a package's world that cannot be loaded; the message names it.

    >>> load_world("countdown:24").name
    'countdown'
    """
    if is_world_file(name):
        return load_world_file(name)
    base, colon, option = name.partition(":")
    entry_points = {} if base in EMBEDDED else _installed_worlds()
    if base not in EMBEDDED and base not in entry_points:
        raise ConfigError([unknown_world_problem(name, describe_worlds())])
    if colon and (base in entry_points or not EMBEDDED[base][1]):
        raise ConfigError([Problem(name, f"world {base!r} does not take an option, got {option!r}", f"use {base!r}")])
    if base in EMBEDDED:
        embedded = EMBEDDED[base][0](option)
        if problems := getattr(embedded, "problems", ()):
            _log.warning("%s: skipped %d rows; the first: %s", name, len(problems), problems[0])
        return embedded
    point = entry_points[base]
    with boundary(WorldError, f"the installed world {base!r} cannot be loaded", entry=point.value):
        loaded = point.load()
        loaded = loaded() if callable(loaded) else loaded
    return _check_world(base, loaded)


def is_world_file(name: str) -> bool:
    """Returns whether a name means a Python file of the user: `game.py` or `game.py:MyGame`.

    >>> is_world_file("game.py:MyGame"), is_world_file("crafting:1"), is_world_file("prompts:rows.jsonl?reward=mine.py")
    (True, False, False)
    """
    return name.partition(":")[0].endswith(".py")


def unknown_world_problem(name: str, names: Iterable[str]) -> Problem:
    """Returns the problem of an unknown world; it names the form of a file where there is one of that name."""
    problem = unknown_name_problem("world", name, names)
    if name.startswith("pettingzoo:"):
        return replace(problem, hint=f"teams learn by: evolvent train mat {name}")
    file = f"{name.partition(':')[0]}.py"
    return replace(problem, hint=f"for the world of a file write {file}:CLASS") if Path(file).is_file() else problem


def load_world_file(name: str) -> World:
    """Loads the world of `FILE.py:NAME`: a class, a function that returns a world, or a world.

    It may also be an environment of Gymnasium: its class, or a function that creates one. `FILE.py` alone means the one
    world that the file defines.

    Raises:
        ConfigError: a file that cannot be loaded, an unknown name, or something that is not a world; one sentence.
    """
    path, _, member = name.partition(".py:") if ".py:" in name else (name.removesuffix(".py"), "", "")
    path = f"{path}.py"
    module = load_module(Path(path))
    own = {
        key: value
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", type(value).__module__) == module.__name__
    }
    if not member:
        worlds = [
            key for key, value in own.items() if isinstance(value, type) and (hasattr(value, "tasks") or _is_env(value))
        ]
        if len(worlds) != 1:
            found = ", ".join(worlds or own) or "none"
            raise ConfigError([Problem(path, f"which world of the file is meant? It defines: {found}", f"{path}:NAME")])
        member = worlds[0]
    if not hasattr(module, member):
        raise ConfigError([unknown_name_problem("world", member, own, location=path)])
    value = getattr(module, member)
    if isinstance(value, type) and (missing := sorted(getattr(value, "__abstractmethods__", ()))):
        raise ConfigError([Problem(path, f"{member} is not a whole world", f"define {', '.join(missing)}")])
    with user_boundary(WorldError, f"{path}: {member} cannot be made"):
        loaded = _make_gymnasium_world(value) if _is_env(value) else value() if callable(value) else value
    if _is_env(type(loaded)):  # a function made an environment
        loaded = _make_gymnasium_world(value)
    missing = [part for part in _WORLD_MEMBERS if not hasattr(loaded, part)]
    if missing:
        hint = "subclass evolvent.TextWorld" if "tasks" in missing else f"define {', '.join(missing)}"
        raise ConfigError([Problem(path, f"{member} is not a world: it lacks {', '.join(missing[:4])}", hint)])
    world: World = loaded
    return world


def _is_env(value: object) -> bool:
    """Returns whether a value is a class of environments of Gymnasium, which is not imported for it."""
    gymnasium = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(value, type) and issubclass(value, gymnasium.Env)


def _make_gymnasium_world(make_env: Callable[..., ForeignEnv]) -> World:
    from evolvent.worlds.gym.world import GymnasiumWorld

    return GymnasiumWorld(make_env)


def _check_world(name: str, loaded: World) -> World:
    missing = [member for member in _WORLD_MEMBERS if not hasattr(loaded, member)]
    if missing:
        raise WorldError(
            f"the installed world {name!r} does not implement World", value=f"missing {', '.join(missing)}"
        )
    return loaded


def load_worlds(names: Sequence[str]) -> dict[str, World]:
    """Loads worlds by name and reports all wrong names at once; `all` stands for the main embedded worlds."""
    names = [name for requested in names for name in (ALL_WORLDS if requested == "all" else (requested,))]
    problems = [Problem("worlds", f"got {list(names)}, expected at least one world", "for example --worlds lookup")]
    problems = [] if names else problems
    worlds_by_name: dict[str, World] = {}
    for name in names:
        try:
            loaded = load_world(name)
        except ConfigError as error:
            name_problems = error.problems if error.value is None else [Problem(name, str(error))]
            problems += name_problems
            continue
        if loaded.name in worlds_by_name:
            problems.append(Problem("worlds", f"{name!r} occurs twice", "list each world once"))
        worlds_by_name[loaded.name] = loaded
    if problems:
        raise ConfigError(problems)
    return worlds_by_name


def require_train_extra(feature: str) -> None:
    """Raises an error about the missing extra before any work begins, and hides notes that its packages log.

    Nothing is imported: settings are checked before that, so that a mistake is told within a second.

    Raises:
        MissingExtra: torch, transformers or safetensors is not installed.
    """
    try:
        missing = [name for name in ("safetensors", "torch", "transformers") if find_spec(name) is None]
    except (ImportError, ValueError) as error:
        raise MissingExtra("train", feature) from error
    if missing:
        raise MissingExtra("train", feature)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


def resolve_policy(
    name: str,
    worlds: Sequence[World],
    *,
    seed: int = 0,
    placement: Placement | None = None,
    history: HistoryMode | None = None,
) -> Policy:
    """Loads a policy by name: a size of the embedded default (untrained), a model folder or GGUF file, the name of a
    model on this machine, or a run (its last policy).

    Args:
        name: the name.
        worlds: the worlds that the policy is to act in.
        seed: of the weights of an untrained policy.
        placement: where the model runs; None: on the CPU, as it is stored.
        history: how a conversation holds its past replies, see `models.dialects.Chat`; None: as the policy was saved.
    Raises:
        ConfigError: neither a size nor a folder; a device, memory or context that is not there; a history for a
            policy without a chat template.
        Incomplete: a run without a policy, or a folder without a model.
        CorruptRecord: a run whose ledger cannot be read.
        VocabularyMismatch: a whole-word policy whose vocabulary lacks words of the worlds.
    """
    placement = placement or Placement()
    if name in POLICIES:
        from evolvent.scale.initial import make_policy

        context = placement.context if isinstance(placement.context, int) else None
        if history is not None:
            raise _history_error(name)
        untrained_policy = make_policy(worlds, size=name, context=context, seed=seed)
        return untrained_policy.to(placement.device, placement.dtype)
    from evolvent.models.policy import load_policy

    loaded = load_policy(
        resolve_model_folder(name),
        history=history,
        context=placement.context,
        device=placement.device,
        dtype=placement.dtype,
    )
    if history is not None and loaded.dialect.name != "chat":
        raise _history_error(name)
    _check_vocabulary(name, loaded, worlds)
    return loaded


def _history_error(name: str) -> ConfigError:
    message = f"policy {name!r} has no chat template that could render past replies"
    return ConfigError([Problem("agent.history", message, "leave out --agent.history")])


def resolve_model_folder(name: str) -> Path:
    """Returns the model folder or GGUF file of a name: the path itself, a fetched model, a model of the Hugging Face
    cache, or the last policy of a run.

    Raises:
        ConfigError: the model does not exist, is not on this machine, or is a policy over numbers.
        Incomplete, CorruptRecord: see `resolve_policy`.
    """
    from evolvent.models.catalog import CATALOG, locate_model
    from evolvent.models.gguf import find_gguf

    folder = locate_model(name)
    if folder.is_file():
        from evolvent.models.policy import refuse_pickle

        refuse_pickle(folder)
        if find_gguf(folder) is not None:
            return folder
    if not folder.is_dir():
        names = f"sizes: {', '.join(POLICIES)}; models to fetch: {', '.join(CATALOG)}"
        hint = f"{names}; or a model folder; or a GGUF file; or the folder of a run"
        raise ConfigError([Problem("policy", f"unknown policy {name!r}", hint)])
    if find_control_policy(name) is not None:
        hint = f"measure it with evolvent eval {name}, or train it on with evolvent train ppo --policy {name}"
        raise ConfigError([Problem("policy", f"{name} is a policy over numbers: it reads and writes no text", hint)])
    is_run = any((folder / file).exists() for file in ("stages.jsonl", "run.json"))
    return _last_policy(folder) if is_run else folder


def check_policy_name(name: str) -> None:
    """Checks that a policy exists. No weights are read and torch is not imported, so that a mistake is told at once.

    Raises:
        ConfigError and others: see `resolve_model_folder`.
    """
    if name not in POLICIES:
        resolve_model_folder(name)


def check_named_inputs(policy: str, data: Path | None = None) -> None:
    """Checks that the policy and the data of a training exist, as `check_policy_name` does.

    Raises:
        ConfigError: those that do not. Others: see `resolve_model_folder`.
    """
    problems = list[Problem]()
    if data is not None and not data.exists():
        problems.append(Problem("data", f"{data} does not exist", "pass a run or a file"))
    try:
        check_policy_name(policy)
    except ConfigError as error:
        problems += [replace(problem, where="policy") for problem in error.problems]
    if problems:
        raise ConfigError(problems)


def find_control_policy(name: str) -> Path | None:
    """Returns the folder of a trained policy over numbers: that of a run, or the folder itself; None: it is none."""
    folder = Path(name)
    return next((path for path in (folder, folder / "model") if (path / _SHAPE_FILE).is_file()), None)


def _check_vocabulary(name: str, policy: Policy, worlds: Sequence[World]) -> None:
    """Checks that a whole-word policy knows the words of its worlds; it would read other words as unknown."""
    if policy.dialect.name != "words":
        return
    vocabulary = policy.tokenizer.get_vocab()
    for world in worlds:
        missing_words = sorted(
            set(world.vocabulary() or ()) - set(vocabulary), key=lambda word: (not word.isalpha(), word)
        )
        if missing_words:
            raise VocabularyMismatch(
                f"policy {name!r} lacks {len(missing_words)} words of world {world.name!r}",
                value=", ".join(missing_words[:5]),
                hint="choose the worlds that the policy was trained for, or train a policy for these worlds",
            )


def _last_policy(run: Path) -> Path:
    """Returns the folder of a run's result; without a result, of the last fitted policy, preferably of its main arm.

    A run that ends with the best of its rounds may not end with its last round.
    """
    if any((run / "model" / file).is_file() for file in ("config.json", "adapter_config.json")):
        return run / "model"
    rows = read_rows(run / "stages.jsonl")
    fits = [row for row in rows if row.get("verb") == "fit"]
    main_fits = [row for row in fits if row.get("arm") != "control"]
    for row in reversed(main_fits or fits):
        policy_folder = run / "stages" / str(row.get("name")) / "policy"
        if policy_folder.is_dir():
            return policy_folder
    raise Incomplete(f"run {run} does not hold a policy", value=f"{len(rows)} stages", hint="train a policy first")
