"""What a world is: an environment together with its tasks, its action grammar, its score and, if it has one, an expert.

`World` and `Env` are protocols: anything with these members is one. `TextWorld` is the short way to write one: list the
specs of your tasks and write the episode as a generator that yields observations and receives actions.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from evolvent.errors import ConfigError, SessionGone, VersionMismatch, unknown
from evolvent.trajectory import Score, Task, Value, sample_seed
from evolvent.worlds.grammar import Grammar, Parsed, Plain

__all__ = [
    "SPLITS",
    "TIERS",
    "Env",
    "Explaining",
    "Forkable",
    "Info",
    "Play",
    "Renamable",
    "Reply",
    "TextWorld",
    "World",
    "check_task",
    "own_moment",
    "score_of",
    "score_won",
    "split_of",
]

Info = Mapping[str, Any]
Reply = tuple[Value, float, bool, bool, Info]
Split = Literal["train", "dev", "test"]
SPLITS: tuple[str, ...] = ("train", "dev", "test")
TIERS: tuple[str, ...] = ("seen", "evo", "combo", "longer")
Play = Generator["str | tuple[str, float]", str, "float | None"]


class _OfTask(Protocol):
    """A snapshot that says of which task it is."""

    @property
    def task(self) -> str: ...


M = TypeVar("M", bound=_OfTask)


class Env(Protocol):
    """One running episode, with Gymnasium's signature. One Env is used by one episode at a time."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Begin the episode; returns (observation, info). `info["admissible"]` lists the legal actions where finite."""
        ...

    def step(self, action: Value) -> Reply:
        """Returns (observation, reward, terminated, truncated, info); raises SessionGone after the end.

        An action that is none (malformed, impossible) is answered by an observation that says so, with the world's
        penalty as reward and `info["invalid"]` True. It never raises.
        """
        ...

    def close(self) -> None:
        """Give back whatever the episode holds; calling it twice is harmless."""
        ...


@runtime_checkable
class Forkable(Protocol):
    """An Env that can be copied at any moment: what tree search and reverse curricula need."""

    def snapshot(self) -> object:
        """An opaque value; it stays valid whatever the Env does afterwards."""
        ...

    def restore(self, value: object) -> None:
        """Back to the moment of the snapshot, also in another Env of the same task."""
        ...


@runtime_checkable
class Renamable(Protocol):
    """A world that can tell a task again under other names: the same episode up to renaming, and as hard."""

    def renamed(self, task: Task, rng: Random) -> Task:
        """The task with its names drawn anew; kind, tier and split stay."""
        ...


@runtime_checkable
class Explaining(Protocol):
    """A world whose expert says why it does what it does, from what it has seen."""

    def explained(self, task: Task) -> Sequence[Parsed] | None:
        """Actions that solve the task, each with its thought; None: there is no expert for it."""
        ...


class World(Protocol):
    """An environment with its tasks.

    Attributes:
        name, version: identity; both are part of every task id.
        instructions: what an agent is told before its first observation.
        grammar: how model text becomes an action.
        horizon: how many steps an episode may take.
        reward_range: smallest and largest reward of one step.
        tiers: the tiers that its tasks come in, nearest to the demonstrations first.
        blocking: True if a step may be slow or hang: it then runs off the main thread with a deadline.

    A world in which few answers are possible may say what guessing wins: `chance`. Its audit allows for that.
    """

    name: str
    version: str
    instructions: str
    grammar: Grammar
    horizon: int
    reward_range: tuple[float, float]
    tiers: tuple[str, ...]
    blocking: bool

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split and tier, always the same; empty where training is not allowed."""
        ...

    def make(self, task: Task) -> Env:
        """An Env for one task."""
        ...

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """The score of an episode from its rewards and its last info."""
        ...

    def expert(self, task: Task) -> Sequence[str] | None:
        """Actions that solve the task, or None where the world has no expert."""
        ...

    def vocabulary(self) -> Sequence[str] | None:
        """Every word that its observations and actions can hold, or None where that is open."""
        ...


def split_of(spec: Mapping[str, Any], *, salt: str = "") -> str:
    """The split of a task by the hash of its canonical spec: 80 % train, 10 % dev, 10 % test."""
    place = sample_seed("split", salt, sorted(spec.items())) % 100
    return "train" if place < 80 else "dev" if place < 90 else "test"


def score_of(
    rewards: Sequence[float | None], reward_range: tuple[float, float], *, success: float | None = None
) -> Score:
    """The usual score: raw = sum of rewards, unit = raw clipped into 0..1 of the range, success = full marks.

    Any reward of None makes the whole episode unscored.
    """
    known = [reward for reward in rewards if reward is not None]
    if len(known) != len(rewards):
        return Score(None, None, None)
    raw, high = float(sum(known)), reward_range[1]
    unit = min(1.0, max(0.0, raw / high)) if high > 0 else None
    return Score(raw, unit, raw >= (high if success is None else success) - 1e-9)


def score_won(rewards: Sequence[float | None]) -> Score:
    """The score where winning is worth 1 and penalties may come before it: success = that 1 was earned.

    raw = the sum of the rewards, unit = 1 or 0. Any reward of None makes the whole episode unscored.
    """
    known = [reward for reward in rewards if reward is not None]
    if len(known) != len(rewards):
        return Score(None, None, None)
    success = max(known, default=0.0) >= 1.0
    return Score(float(sum(known)), float(success), success)


def check_task(world: World, task: Task) -> None:
    """Raise ConfigError for a task of another world, VersionMismatch for one of another version of it."""
    if task.world != world.name:
        raise ConfigError(f"not a task of the world {world.name!r}", value=task.world)
    if task.version != world.version:
        raise VersionMismatch(
            f"a task of another version of {world.name!r}", value=task.version, expected=world.version
        )


def own_moment(value: object, kind: type[M], task: Task) -> M:
    """The value as a snapshot of this task; ConfigError for anything else.

    Args:
        kind: the class of the world's snapshots; its `task` is a task's id.
    """
    if not isinstance(value, kind) or value.task != task.id:
        raise ConfigError("no snapshot of this task", value=value, expected=f"one of task {task.id}")
    return value


class _PlayEnv:
    """An Env around a generator. It forks by replaying the actions so far, which is exact for a deterministic play."""

    def __init__(self, world: TextWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._actions: list[str] = []
        self._play: Play | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._actions = []
        self._play = self._world.play(copy.deepcopy(dict(self._task.spec)))
        observation = next(self._play)
        return (observation if isinstance(observation, str) else observation[0]), {}

    def step(self, action: Value) -> Reply:
        if self._play is None:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        self._actions.append(str(action))
        try:
            answer = self._play.send(str(action))
        except StopIteration as end:
            self._play = None
            return "", float(end.value or 0.0), True, False, {}
        observation, reward = (answer, 0.0) if isinstance(answer, str) else answer
        return observation, reward, False, False, {}

    def snapshot(self) -> object:
        return tuple(self._actions)

    def restore(self, value: object) -> None:
        if not isinstance(value, tuple):
            raise ConfigError("not a snapshot of this world", value=value, expected="what snapshot() returned")
        self.reset()
        for action in value:
            self.step(action)

    def close(self) -> None:
        if self._play is not None:
            self._play.close()
        self._play = None


class TextWorld(ABC):
    """The short way to write a world: give `name`, `specs` and `play`.

    `play(spec)` is a generator: it yields an observation (or an observation and a reward), receives the action, and
    returns the last reward. The episode succeeds if the rewards add up to `reward_range[1]`.
    """

    name: str
    version: str = "1"
    instructions: str = ""
    grammar: Grammar = Plain()
    horizon: int = 10
    reward_range: tuple[float, float] = (0.0, 1.0)
    tiers: tuple[str, ...] = ("seen",)
    blocking: bool = True

    @abstractmethod
    def specs(self) -> Iterable[Mapping[str, Any]]:
        """The specs of all tasks (JSON values). They are dealt to train, dev and test by their hash."""

    @abstractmethod
    def play(self, spec: Mapping[str, Any]) -> Play:
        """The episode: yields observations, receives actions, returns the last reward."""

    @cached_property
    def _panel(self) -> dict[str, list[Task]]:
        panel: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for spec in self.specs():
            split = split_of(spec, salt=self.name)
            panel[split].append(Task(self.name, self.version, dict(spec), self.name, self.tiers[0], split))
        return panel

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        problems = [unknown("split", split, SPLITS)] if split not in SPLITS else []
        if tier not in self.tiers:
            problems.append(unknown("tier", tier, self.tiers))
        if problems:
            raise ConfigError(problems)
        return self._panel[split] if tier == self.tiers[0] else ()

    def make(self, task: Task) -> Env:
        return _PlayEnv(self, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        return score_of(rewards, self.reward_range)

    def expert(self, task: Task) -> Sequence[str] | None:
        return None

    def vocabulary(self) -> Sequence[str] | None:
        return None
