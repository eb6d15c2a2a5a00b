"""Task panels: rules that deal candidates to splits and tiers, and the digest that pins a panel.

A world draws candidates (spec, kind, tier and canonical key) and hands them over; everything else is here.
The split of a candidate is a hash of its canonical key alone, so two specs that differ only in names never land in two
splits, and nothing depends on the order of files or on PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Json, Task, canonical_json, sample_seed
from evolvent.worlds.base import SPLITS, World, split_of

__all__ = [
    "UNTRAINED",
    "Candidate",
    "DealtOnce",
    "Panels",
    "Sizes",
    "check_names",
    "choose_split",
    "deal",
    "digest",
    "list_tasks",
]

UNTRAINED: tuple[str, ...] = ("combo", "longer")  # tiers that nobody may train on
STALL = 20_000  # candidates in a row that no panel could use: the world's kinds cannot fill its panels
_MAX_UNFIT = 2_000  # draws in a row that do not fit the world's settings
_PANELS_KEPT = 32  # worlds of other arguments whose panels a process keeps: a few megabytes each

_Dealt = dict[str, Mapping[tuple[str, str], tuple[Task, ...]]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A task that may enter a panel.

    Args:
        spec: everything the world needs to build the episode (JSON values only).
        kind: the compositional kind; tiers are assigned by kind.
        tier: the tier of that kind.
        key: the spec's canonical form: equal for specs that differ only in names.
    """

    spec: Mapping[str, Json]
    kind: str
    tier: str
    key: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Number of tasks of a panel, per tier; `per_kind` bounds the tasks of one kind in each dev and test panel."""

    train: int = 1200
    dev: int = 100
    test: int = 200
    per_kind: int = 10

    def __post_init__(self) -> None:
        problems = [
            Problem(name, f"got a panel size of {value}", "give a number of at least " + str(minimum))
            for name, value, minimum in (
                ("train", self.train, 0),
                ("dev", self.dev, 0),
                ("test", self.test, 0),
                ("per_kind", self.per_kind, 1),
            )
            if value < minimum
        ]
        if problems:
            raise ConfigError(problems)

    def of(self, split: str) -> int:
        """Returns the size of a split's panel."""
        return {"train": self.train, "dev": self.dev, "test": self.test}[split]


def choose_split(name: str, candidate: Candidate) -> str:
    """Returns a candidate's split by the hash of its key: 80/10/10, or a third dev and the rest test where
    untrained.
    """
    if candidate.tier in UNTRAINED:
        return "dev" if sample_seed("split", name, candidate.key) % 3 == 0 else "test"
    return split_of({"key": candidate.key}, salt=name)


def deal(
    name: str, version: str, candidates: Iterable[Candidate | None], *, sizes: Sizes, tiers: Sequence[str]
) -> Mapping[tuple[str, str], tuple[Task, ...]]:
    """Places candidates in panels until every panel is full or the candidates end.

    A candidate is skipped if its key was dealt before, if its panel is full, or if its kind already has `per_kind`
    tasks in a dev or test panel. Tasks keep the order of the candidates.

    Args:
        name, version: name and version of the world, part of every task id.
        candidates: may be endless; candidates of other tiers than `tiers` are ignored. None stands for a draw that does
            not fit the world's settings, such as a task that takes the expert longer than the horizon.
        sizes: the panel sizes.
        tiers: the tiers to fill.

    Returns:
        (split, tier) -> tasks, with an entry for every split and tier.

    Raises:
        ConfigError: no panel could take 20,000 candidates in a row; the message names the unfilled panels. Or 2,000
            draws in a row did not fit the settings.
    """
    panels: dict[tuple[str, str], list[Task]] = {(split, tier): [] for tier in tiers for split in SPLITS}
    capacity = {
        panel_key: 0 if panel_key[0] == "train" and panel_key[1] in UNTRAINED else sizes.of(panel_key[0])
        for panel_key in panels
    }
    kinds: Counter[tuple[str, str, str]] = Counter()
    keys: set[str] = set()
    num_rejected, num_unfit, num_missing = 0, 0, sum(capacity.values())
    stream = iter(candidates) if num_missing else iter(())
    for candidate in stream:
        if candidate is None:
            num_unfit += 1
            if num_unfit >= _MAX_UNFIT:
                message = f"{num_unfit:,} drawn tasks of {name!r} in a row do not fit its settings"
                raise ConfigError(message, hint="give the world a longer horizon or more room")
            continue
        num_unfit = 0
        panel_key = (choose_split(name, candidate), candidate.tier)
        kind_key = (*panel_key, candidate.kind)
        is_kind_full = panel_key[0] != "train" and kinds[kind_key] >= sizes.per_kind
        if candidate.key in keys or is_kind_full or len(panels.get(panel_key, ())) >= capacity.get(panel_key, 0):
            num_rejected += 1
            if num_rejected >= STALL:
                unfilled = {
                    "/".join(panel_key): f"{len(panels[panel_key])} of {capacity[panel_key]}"
                    for panel_key in panels
                    if len(panels[panel_key]) < capacity[panel_key]
                }
                raise ConfigError(
                    f"the panels of {name!r} cannot be filled", value=unfilled, hint="use more kinds or smaller panels"
                )
            continue
        num_rejected = 0
        keys.add(candidate.key)
        kinds[kind_key] += 1
        panels[panel_key].append(
            Task(name, version, dict(candidate.spec), candidate.kind, candidate.tier, panel_key[0])
        )
        num_missing -= 1
        if not num_missing:
            break
    return {panel_key: tuple(tasks) for panel_key, tasks in panels.items()}


def digest(tasks: Sequence[Task]) -> str:
    """Hashes a panel with SHA-256 (64 hex digits): every task's id, kind, tier and split, in order."""
    rows = [[task.id, task.kind, task.tier, task.split] for task in tasks]
    return hashlib.sha256(canonical_json(rows).encode()).hexdigest()


def list_tasks(world: World) -> tuple[Task, ...]:
    """Returns all tasks of a world in one order: the train panels tier by tier, then dev, then test.

    The place of a task here is its index where others count tasks: `item_id` in files, `data_idx` on a server.
    """
    return tuple(task for split in SPLITS for tier in world.tiers for task in world.tasks(split, tier))


def check_names(split: str, tier: str, tiers: Sequence[str]) -> None:
    """Raises ConfigError with the nearest names unless the split and the tier exist."""
    problems = [unknown_name_problem("split", split, SPLITS)] if split not in SPLITS else []
    if tier not in tiers:
        problems.append(unknown_name_problem("tier", tier, tiers))
    if problems:
        raise ConfigError(problems)


class DealtOnce:
    """Base of a world whose candidates depend on its class and its arguments alone: no file, no clock, no network.

    Dealing takes seconds in some worlds, so a process deals the panels of worlds with equal arguments once. That needs
    arguments that can be compared: numbers, strings, None, `Sizes` and tuples of them.

    Attributes:
        recipe: class and arguments, which tell worlds apart; None with other arguments, whose panels are not shared.
    """

    recipe: tuple[type, str] | None

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        world = super().__new__(cls)
        is_plain = _is_plain((*args, *kwargs.values()))
        world.recipe = (cls, repr((args, sorted(kwargs.items())))) if is_plain else None
        return world


class Panels:
    """The panels of a world, dealt tier by tier at first use and then cached.

    Args:
        name, version: the world's.
        tiers: the tiers it has.
        sizes: the panel sizes.
        draw: tier -> the candidates of that tier, always the same ones in the same order; None: see `deal`.
        recipe: what the candidates depend on (see `DealtOnce`); panels of equal recipes are dealt once.
    """

    def __init__(
        self,
        name: str,
        version: str,
        tiers: Sequence[str],
        *,
        sizes: Sizes,
        draw: Callable[[str], Iterable[Candidate | None]],
        recipe: tuple[type, str] | None = None,
    ) -> None:
        self._name, self._version, self._tiers = name, version, tuple(tiers)
        self._sizes, self._draw = sizes, draw
        self._dealt: _Dealt = {} if recipe is None else _dealt_panels(name, version, sizes, recipe)

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the panel of a split and tier; raises ConfigError for an unknown name."""
        check_names(split, tier, self._tiers)
        if tier not in self._dealt:
            self._dealt[tier] = deal(self._name, self._version, self._draw(tier), sizes=self._sizes, tiers=(tier,))
        return self._dealt[tier][split, tier]


def _is_plain(value: object) -> bool:
    """Returns whether a value cannot change and is told from others by its repr."""
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str, Sizes)


@lru_cache(maxsize=_PANELS_KEPT)
def _dealt_panels(name: str, version: str, sizes: Sizes, recipe: tuple[type, str]) -> _Dealt:
    """Returns the panels of all worlds with this recipe: tier -> panels, to be filled."""
    return {}
