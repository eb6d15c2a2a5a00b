"""The one place where names become objects: worlds and policies. Everywhere else objects are handed around."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING

from evolvent.cli.world_registry import EMBEDDED
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
from evolvent.plugins import describe_origin, installed_plugins
from evolvent.store.ledger import read_rows
from evolvent.worlds.base import World

if TYPE_CHECKING:
    from evolvent.models.policy import Policy

__all__ = ["EVERY", "POLICIES", "model_folder", "needs_train", "policy", "world", "world_origins", "worlds"]

_log = logging.getLogger(__name__)
EVERY = (  # what the name `all` stands for
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
_TALKATIVE = ("torchao", "torch.utils._pytree")  # transformers imports torchao, which tells of other devices' kernels
_MEMBERS = ("name", "version", "instructions", "grammar", "horizon", "reward_range", "tiers", "tasks", "make", "score")


def _installed() -> dict[str, EntryPoint]:
    """Worlds of other packages, known by name; nothing of them is imported. Embedded names win."""
    return installed_plugins("worlds", EMBEDDED)


def world_origins() -> dict[str, str]:
    """Every world's name, and what it is or where it comes from; loads none of them."""
    found = {name: about for name, (_, _, about) in sorted(EMBEDDED.items())}
    for name, point in _installed().items():
        found[name] = describe_origin(point)
    return found


def world(name: str) -> World:
    """The world of this name: embedded (`crafting`, `crafting:1`, `textcraft:FOLDER`, ...) or of an installed package.

    Raises:
        ConfigError: no such world, or an option that it does not take.
        WorldError: a package's world that cannot be loaded, named.
    """
    base, colon, option = name.partition(":")
    others = {} if base in EMBEDDED else _installed()
    if base not in EMBEDDED and base not in others:
        raise ConfigError([unknown("world", name, world_origins())])
    if colon and (base in others or not EMBEDDED[base][1]):
        raise ConfigError([Problem(name, f"the world {base!r} takes no option, got {option!r}", f"use {base!r}")])
    if base in EMBEDDED:
        own = EMBEDDED[base][0](option)
        if left := getattr(own, "problems", ()):
            _log.warning("%s: rows left out: %d; the first: %s", name, len(left), left[0])
        return own
    point = others[base]
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
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def policy(name: str, worlds: Sequence[World], *, seed: int = 0) -> Policy:
    """A policy by name: a size of the embedded default (untrained), a model folder, or a run (its last policy).

    Raises:
        ConfigError: neither a size nor a folder.
        Incomplete: a run without a policy, or a folder without a model.
        CorruptRecord: a run whose ledger cannot be read.
        VocabularyMismatch: a policy of whole words that does not know those of the worlds.
    """
    if name in POLICIES:
        from evolvent.scale.initial import policy_for

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
    if folder.is_file():
        from evolvent.models.policy import refuse_pickle

        refuse_pickle(folder)
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
