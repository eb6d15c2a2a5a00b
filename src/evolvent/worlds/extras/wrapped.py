"""Base classes of the worlds around other packages: the optional package, the Env around a session, and the
panels.

A package plays one episode as a `Session`: begin, act, close. `WrappedEnv` makes an Env of it. It forks by
replay: a snapshot is the list of actions so far, which is exact where the package is deterministic, and costs
an episode's start and the actions again. An exception of the package becomes `EnvLost`; an agent's invalid text
gets an answer.
"""

from __future__ import annotations

import importlib
import logging
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from types import ModuleType
from typing import Protocol

from evolvent.errors import ConfigError, EnvLost, MissingExtra, Problem, boundary
from evolvent.trajectory import JsonObject, Score, Task, Value, canonical_json
from evolvent.worlds.base import Grammar, Info, Plain, Reply, Snapshot, StateEnv, check_snapshot, check_task
from evolvent.worlds.panel import Candidate, Panels, Sizes

log = logging.getLogger(__name__)

__all__ = [
    "Extra",
    "Session",
    "WrappedEnv",
    "WrappedWorld",
    "clean_command",
    "common_problems",
    "make_candidate",
    "read_number",
    "redirect_prints",
    "widen_sizes",
]


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional package.

    Args:
        name: name of the extra: `pip install 'evolvent[NAME]'`.
        distribution: the package's name in the package index.
        feature: the feature that needs the package, for error messages.
    """

    name: str
    distribution: str
    feature: str

    def version(self) -> str:
        """Returns the installed version without importing anything; raises MissingExtra if the package is not
        installed.
        """
        try:
            return metadata.version(self.distribution)
        except metadata.PackageNotFoundError as error:
            raise MissingExtra(self.name, self.feature) from error

    def load_module(self, name: str) -> ModuleType:
        """Imports one of the package's modules; raises MissingExtra if the module or a dependency cannot be
        imported.
        """
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise MissingExtra(self.name, self.feature) from error


class Session(Protocol):
    """One episode as a package plays it. Its calls come one after another, perhaps from different threads."""

    def begin(self) -> tuple[str, Info]:
        """Starts the episode, or restarts it, and returns (observation, info)."""
        ...

    def act(self, action: str) -> Reply:
        """Plays one action. The reply to an invalid action has `invalid` in its info and no penalty yet."""
        ...

    def close(self) -> None:
        """Releases the resources of the episode; a second call is harmless."""
        ...


class WrappedEnv(StateEnv[tuple[str, ...]]):
    """An Env around a session. The state is the actions so far, which `restore` replays.

    Args:
        player_name: the package that plays the episode, for error messages.
        penalty: added to the reward of an invalid action.
    """

    def __init__(self, task: Task, session: Session, *, player_name: str, penalty: float = 0.0) -> None:
        super().__init__(task, ())
        self._session, self._what, self._penalty = session, player_name, penalty

    def _observe_start(self) -> tuple[Value, Info]:
        """Starts the session, which depends on the task alone.

        Raises:
            EnvLost: the package failed. MissingExtra: it is not installed.
        """
        with boundary(EnvLost, f"{self._what} could not begin", task=self._task.id):
            return self._session.begin()

    def _transition(self, state: tuple[str, ...], action: Value) -> tuple[tuple[str, ...], Reply]:
        """Plays one action; raises EnvLost if the package failed."""
        text = str(action)
        self._running = False  # It stays False if the package fails.
        with boundary(EnvLost, f"{self._what} failed", task=self._task.id, step=len(state)):
            observation, reward, terminated, truncated, info = self._session.act(text)
        self._running = True
        reward += self._penalty if info.get("invalid") else 0.0
        return (*state, text), (observation, reward, terminated, truncated, info)

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task by replaying its actions; raises ConfigError for any other value."""
        snapshot: Snapshot[tuple[str, ...]] = check_snapshot(value, Snapshot, self._task)
        if not snapshot.running and not snapshot.state:
            self.close()
            return
        self.reset()
        for action in snapshot.state:
            self.step(action)
        self._running = snapshot.running

    def close(self) -> None:
        super().close()
        self._session.close()


class WrappedWorld(ABC):
    """A world around a package: define `_open`, `_draw` and the attributes of a World.

    Args:
        extra: the package, which must be installed. Its version is the world's version, as another may play
            differently.
        sizes: the panel sizes, where the world has enough tasks.
        penalty: the reward of an invalid action, 0 or less.

    Raises:
        MissingExtra: the package is not installed.
    """

    name: str
    instructions: str
    horizon: int
    reward_range: tuple[float, float]
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = True

    def __init__(self, extra: Extra, *, sizes: Sizes | None = None, penalty: float = 0.0) -> None:
        self.version = extra.version()
        self.extra, self.penalty = extra, penalty
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or Sizes(), draw=self._draw)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        """Yields the candidates of a tier, always the same and in the same order; unused where `tasks` is
        overridden.
        """
        return iter(())

    @abstractmethod
    def _open_session(self, task: Task) -> Session:
        """Opens a session for a task of this world and version; raises ConfigError for an invalid spec."""

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier, dealt by the hash of the specs; raises ConfigError for unknown
        names.
        """
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> WrappedEnv:
        """Creates an Env for one task; nothing is started before its reset.

        Raises:
            ConfigError: the task belongs to another world, or its spec is invalid.
            VersionMismatch: the task belongs to another version of the package.
        """
        check_task(self, task)
        return WrappedEnv(task, self._open_session(task), player_name=self.extra.distribution, penalty=self.penalty)

    @abstractmethod
    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode from its rewards and its last info."""

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns None: the package has no expert."""
        return None

    def vocabulary(self) -> Sequence[str] | None:
        """Returns None: the vocabulary is open."""
        return None


def common_problems(*, horizon: int | None = None, penalty: float = 0.0) -> list[Problem]:
    """Lists the problems of the options that all these worlds have."""
    problems = []
    if horizon is not None and (type(horizon) is not int or horizon < 1):
        problems.append(Problem("horizon", f"got {horizon!r} steps, expected a whole number of at least 1"))
    if not -math.inf < penalty <= 0:
        problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
    return problems


def make_candidate(spec: JsonObject, kind: str, tier: str = "seen") -> Candidate:
    """Makes a candidate whose spec, a name and a number, is its own canonical form."""
    return Candidate(spec, kind, tier, canonical_json(dict(spec)))


def redirect_prints(prefix: str) -> None:
    """Sends the prints of loaded modules to the log: some packages print progress where programs expect results.

    Args:
        prefix: prefix of the modules' dotted names. Only their own `print` is replaced, so that threads stay apart.
    """
    for name, module in list(sys.modules.items()):
        if name == prefix or name.startswith(f"{prefix}."):
            vars(module)["print"] = _log_print


def _log_print(*values: object, **_: object) -> None:
    log.debug("%s", " ".join(map(str, values)))


def widen_sizes(sizes: Sizes | None, kinds: int) -> Sizes:
    """Returns sizes that the given number of kinds can fill: with few kinds, dev and test panels have more tasks of
    each.
    """
    sizes = sizes or Sizes()
    tasks_per_kind = math.ceil(max(1, sizes.dev, sizes.test) / max(1, kinds))
    # A kind's tasks are dealt by their hash, so that a panel never has quite as many of each.
    return replace(sizes, per_kind=max(sizes.per_kind, tasks_per_kind if kinds == 1 else 2 * tasks_per_kind))


def read_number(spec: JsonObject, name: str, *, names: Sequence[str]) -> int:
    """Reads a whole number of at least 0 from a spec with exactly these names; raises ConfigError with all problems."""
    problems = [Problem(str(key), "unknown", f"known: {', '.join(names)}") for key in spec if key not in names]
    problems += [Problem(key, "is missing") for key in names if key not in spec]
    value = spec.get(name)
    if name in spec and (type(value) is not int or value < 0):
        problems.append(Problem(name, f"got {value!r}, expected a whole number of at least 0"))
    if problems:
        raise ConfigError(problems)
    return int(spec[name])


def clean_command(text: str, *, max_length: int) -> str | None:
    """Returns a command as one line of printable ASCII that a game's parser can take, or None if the text is not
    one.

    Interpreters of such games are written in C and keep commands in buffers of fixed length.
    """
    line = " ".join(text.split())
    return line if line and len(line) <= max_length and line.isascii() and line.isprintable() else None
