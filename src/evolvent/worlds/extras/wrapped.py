"""What the worlds around other packages share: the missing extra, the Env around a session, and the panels.

A package plays one episode as a `Session`: begin, act, close. `WrappedEnv` makes an Env of it. It forks by replay: a
snapshot is the list of actions so far, which is exact where the package is deterministic, and costs an episode's start
and the actions again. Whatever a package raises leaves as `EnvLost`; what an agent writes is answered.
"""

from __future__ import annotations

import importlib
import logging
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from types import ModuleType
from typing import Any, Protocol

from evolvent.errors import ConfigError, EnvLost, MissingExtra, Problem, SessionGone, boundary
from evolvent.trajectory import Score, Task, Value, canonical_json
from evolvent.worlds.base import Info, Reply, check_task, own_moment
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.panel import Candidate, Panels, Sizes

log = logging.getLogger(__name__)

__all__ = [
    "Extra",
    "Session",
    "Wrapped",
    "WrappedEnv",
    "common_problems",
    "indexed",
    "one_line",
    "quieted",
    "read_number",
    "widened",
]


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional package.

    Args:
        name: of the extra: `pip install 'evolvent[NAME]'`.
        distribution: the package as an installer knows it.
        feature: what it is for, as an error says it.
    """

    name: str
    distribution: str
    feature: str

    def version(self) -> str:
        """The installed version; nothing is imported. MissingExtra where there is none."""
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError as error:
            raise MissingExtra(self.name, self.feature) from error

    def module(self, name: str) -> ModuleType:
        """One of its modules, imported; MissingExtra where it, or what it needs, cannot be imported."""
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise MissingExtra(self.name, self.feature) from error


class Session(Protocol):
    """One episode as a package plays it. Its calls come one after another, perhaps from different threads."""

    def begin(self) -> tuple[str, Info]:
        """Begin the episode, anew if there was one: (observation, info)."""
        ...

    def act(self, action: str) -> Reply:
        """One action; one that is none has `invalid` in its info and no penalty yet."""
        ...

    def close(self) -> None:
        """Give back what the episode holds; calling it twice is harmless."""
        ...


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot: the actions so far."""

    task: str
    running: bool
    actions: tuple[str, ...]


class WrappedEnv:
    """An Env around a session.

    Args:
        what: what plays it, as errors say it.
        penalty: added to the reward of an action that is none.
    """

    def __init__(self, task: Task, session: Session, *, what: str, penalty: float = 0.0) -> None:
        self._task, self._session, self._what, self._penalty = task, session, what, penalty
        self._actions: list[str] = []
        self._running = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Begin the episode, which depends on the task alone.

        Raises:
            EnvLost: the package failed. MissingExtra: it is not installed.
        """
        self._running = False
        self._actions = []
        with boundary(EnvLost, f"{self._what} could not begin", task=self._task.id):
            observation, info = self._session.begin()
        self._running = True
        return observation, info

    def step(self, action: Value) -> Reply:
        """One action; raises SessionGone after the end, EnvLost where the package failed."""
        if not self._running:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        text = str(action)
        self._running = False  # and stays so if the package fails
        with boundary(EnvLost, f"{self._what} failed", task=self._task.id, step=len(self._actions)):
            observation, reward, terminated, truncated, info = self._session.act(text)
        self._actions.append(text)
        self._running = not (terminated or truncated)
        return observation, reward + (self._penalty if info.get("invalid") else 0.0), terminated, truncated, info

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._running, tuple(self._actions))

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task, by playing its actions again; ConfigError for others."""
        moment = own_moment(value, _Moment, self._task)
        if not moment.running and not moment.actions:
            self.close()
            return
        self.reset()
        for action in moment.actions:
            self.step(action)
        self._running = moment.running

    def close(self) -> None:
        self._running = False
        self._session.close()


class Wrapped(ABC):
    """A world around a package: give `_open` and `_draw`, and the attributes of a World.

    Args:
        extra: the package, which must be installed. Its version is the world's: another may play otherwise.
        sizes: how many tasks the panels hold; as far as there are so many.
        penalty: the reward of an action that is none, 0 or less.

    Raises:
        MissingExtra: the package is not installed.
    """

    name: str
    instructions: str
    horizon: int
    reward_range: tuple[float, float]
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    blocking = True

    def __init__(self, extra: Extra, *, sizes: Sizes | None = None, penalty: float = 0.0) -> None:
        self.version = extra.version()
        self.extra, self.penalty = extra, penalty
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """The candidates of a tier, always the same ones in the same order; not needed where `tasks` is overridden."""
        return iter(())

    @abstractmethod
    def _open(self, task: Task) -> Session:
        """A session for a task of this world and version, whose spec is checked here: ConfigError."""

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier, dealt by the hash of their specs; ConfigError for unknown names."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> WrappedEnv:
        """An Env for one task; nothing is started before its reset.

        Raises:
            ConfigError: a task of another world, or a spec that is none.
            VersionMismatch: a task of another version of the package.
        """
        check_task(self, task)
        return WrappedEnv(task, self._open(task), what=self.extra.distribution, penalty=self.penalty)

    @abstractmethod
    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """The score of an episode from its rewards and its last info."""

    def expert(self, task: Task) -> Sequence[str] | None:
        """None where the package has no expert."""
        return None

    def vocabulary(self) -> Sequence[str] | None:
        """None: it is open."""
        return None


def common_problems(*, horizon: int | None = None, penalty: float = 0.0) -> list[Problem]:
    """What is wrong with the options that all these worlds have."""
    problems = []
    if horizon is not None and (type(horizon) is not int or horizon < 1):
        problems.append(Problem("horizon", f"a horizon of {horizon!r} steps", "give a whole number of at least 1"))
    if not -math.inf < penalty <= 0:
        problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
    return problems


def indexed(spec: Mapping[str, Any], kind: str, tier: str = "seen") -> Candidate:
    """A candidate whose spec is its own canonical form: a name and a number."""
    return Candidate(spec, kind, tier, canonical_json(dict(spec)))


def quieted(prefix: str) -> None:
    """Let what loaded modules print go to the log: some packages print their progress where programs expect results.

    Args:
        prefix: of the modules' dotted names. Nothing but their own `print` is replaced, so that threads stay apart.
    """
    for name, module in list(sys.modules.items()):
        if name == prefix or name.startswith(f"{prefix}."):
            vars(module)["print"] = _logged


def _logged(*words: object, **_: object) -> None:
    log.debug("%s", " ".join(map(str, words)))


def widened(sizes: Sizes | None, kinds: int) -> Sizes:
    """Sizes that so many kinds can fill: a dev or test panel of few kinds has more tasks of each."""
    sizes = sizes or Sizes()
    each = math.ceil(max(1, sizes.dev, sizes.test) / max(1, kinds))
    # A kind's tasks are dealt by their hash, so that a panel never has quite as many of each.
    return replace(sizes, per_kind=max(sizes.per_kind, each if kinds == 1 else 2 * each))


def read_number(spec: Mapping[str, Any], name: str, *, names: Sequence[str]) -> int:
    """A whole number of at least 0 in a spec that has these names and no others; else ConfigError with all mistakes."""
    problems = [Problem(str(key), "unknown", f"known: {', '.join(names)}") for key in spec if key not in names]
    problems += [Problem(key, "missing", "give it") for key in names if key not in spec]
    value = spec.get(name)
    if name in spec and (type(value) is not int or value < 0):
        problems.append(Problem(name, f"{value!r} is no number", "give a whole number of at least 0"))
    if problems:
        raise ConfigError(problems)
    return int(spec[name])


def one_line(text: str, *, most: int) -> str | None:
    """A command as a game's parser may be given it: one line of printable ASCII; None where the text is none.

    Interpreters of such games are written in C and keep commands in buffers of fixed length.
    """
    line = " ".join(text.split())
    return line if line and len(line) <= most and line.isascii() and line.isprintable() else None
