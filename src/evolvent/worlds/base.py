"""Protocols of worlds and environments: tasks, action grammar, score and, where one exists, an expert.

`World` and `Env` are protocols: anything with these members is one. `TextWorld` is the short way to write one: list the
specs of your tasks and write the episode as a generator that yields observations and receives actions.

The life cycle of environments whose whole changing state is one value.

A subclass says how an episode starts and what an action does to the state; `StateEnv` adds `reset`, `step`, `snapshot`,
`restore` and `close`. A world whose state lives elsewhere (rows of an array batch) writes its own Env. So do crafting
and maze: their steps take less than half a microsecond, and the calls made here would slow them by a fifth to a third.

An Env wrapper that closes the Env exactly once, after calls that still run in it have returned.

Action grammars: convert model text to an action and back. Model text is only split and compared, never evaluated.
"""

from __future__ import annotations

import copy
import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from evolvent.errors import (
    ConfigError,
    EnvLost,
    EvolventError,
    InvalidAction,
    SessionGone,
    VersionMismatch,
    boundary,
    unknown_name_problem,
)
from evolvent.grade.markdown import split_at_label, strip_markdown, unwrap
from evolvent.grade.thoughts import split_thoughts
from evolvent.trajectory import JsonObject, Score, Task, Value, sample_seed

__all__ = [
    "SPLITS",
    "TIERS",
    "DeferredClose",
    "Env",
    "Forkable",
    "Grammar",
    "Info",
    "Limits",
    "Parsed",
    "Plain",
    "Play",
    "ReAct",
    "Reply",
    "Snapshot",
    "StateEnv",
    "SupportsRationales",
    "SupportsRenaming",
    "TextWorld",
    "World",
    "check_snapshot",
    "check_task",
    "score_episode",
    "score_if_won",
    "split_of",
    "unwrap_number",
]


@dataclass(frozen=True, slots=True)
class Parsed:
    """An action and the thought that came before it, where there was one."""

    action: str
    thought: str | None = None


class Grammar(Protocol):
    """A world's action grammar."""

    def parse(self, text: str) -> Parsed:
        """Parses the action in a model's text; raises InvalidAction where the text holds none."""
        ...

    def render(self, parsed: Parsed) -> str:
        """Renders the text that a model should write for an action and its thought: parse(render(p)) == p."""
        ...


_FENCE_LINE = re.compile(r"(?:`{3,}|~{3,})[\w+-]*")
_MARKED = re.compile(r"[<\[◁]|^[*`]")  # what thoughts and emphasis begin with


@dataclass(frozen=True, slots=True)
class Plain:
    """The whole text is the action.

    A thought in its marks is not part of it, nor are marks of emphasis and back quotes around one line.
    """

    def parse(self, text: str) -> Parsed:
        action, thought = text.strip(), ""
        if _MARKED.search(action):
            action, thought = split_thoughts(text)
            action = action if "\n" in action else unwrap(action, ("**", "`"))
        if not action:
            raise InvalidAction("an empty action", value=text, expected="the text of one action")
        return Parsed(action, thought or None)

    def render(self, parsed: Parsed) -> str:
        return parsed.action


@dataclass(frozen=True, slots=True)
class ReAct:
    """`Thought:\\n...\\n\\nAction:\\n...` (AgentGym): split at the last `Action:`; one line of action.

    Labels and the action may be emphasized, and the action may be in quotes, back quotes or a fence. A label inside of
    a thought in its marks (`<think>`) does not count.
    """

    def parse(self, text: str) -> Parsed:
        visible, inner_thought = split_thoughts(text, leading=False)
        parts = split_at_label(visible, "Action")
        action = "" if parts is None else _first_line(parts[1])
        if parts is None or not action:
            raise InvalidAction("no action in the text", value=text, expected="'Thought: ...' then 'Action: ...'")
        thought_parts = split_at_label(parts[0], "Thought", last=False)
        thought = strip_markdown((parts[0] if thought_parts is None else thought_parts[1]).rstrip("#> \n"))
        return Parsed(action, "\n\n".join(filter(None, (inner_thought, thought))) or None)

    def render(self, parsed: Parsed) -> str:
        thought = f"Thought:\n{parsed.thought}\n\n" if parsed.thought else ""
        return f"{thought}Action:\n{parsed.action}"


def _first_line(text: str) -> str:
    """Returns the first line of an action without marks around it; a fence is not a line."""
    lines = (line.strip() for line in text.split("\n"))
    lines = (line[:-2].rstrip() if line.endswith("**") and line.count("**") == 1 else line for line in lines)
    return next((unwrap(line) for line in lines if line.strip("`~*_ ") and not _FENCE_LINE.fullmatch(line)), "")


Info = JsonObject
Reply = tuple[Value, float, bool, bool, Info]
Split = Literal["train", "dev", "test"]
SPLITS: tuple[str, ...] = ("train", "dev", "test")
TIERS: tuple[str, ...] = ("seen", "evo", "combo", "longer")
Turn: TypeAlias = "str | tuple[str, float] | tuple[str, float, Info]"
"""What an episode of a `TextWorld` yields: an observation; with a reward; with a reward and notes."""
Play = Generator[Turn, str, "float | Turn | None"]
_NOTES = ("admissible", "metrics", "image", "invalid", "answer")  # that a turn may hold


class _HasTask(Protocol):
    """A snapshot that names its task."""

    @property
    def task(self) -> str: ...


M = TypeVar("M", bound=_HasTask)
T = TypeVar("T")


class Env(Protocol):
    """One running episode, with Gymnasium's signature. One Env is used by one episode at a time."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts the episode and returns (observation, info). `info["admissible"]` lists the legal actions where
        they are finite.
        """
        ...

    def step(self, action: Value) -> Reply:
        """Returns (observation, reward, terminated, truncated, info); raises SessionGone after the end.

        An invalid action (malformed, impossible) never raises: the observation explains the mistake, the reward is the
        world's penalty and `info["invalid"]` is True.
        """
        ...

    def close(self) -> None:
        """Releases whatever the episode holds; a second call is harmless."""
        ...


@runtime_checkable
class Forkable(Protocol):
    """An Env that can be copied at any moment, as tree search and reverse curricula need."""

    def snapshot(self) -> object:
        """Returns an opaque snapshot, which stays valid whatever the Env does afterwards."""
        ...

    def restore(self, value: object) -> None:
        """Restores the moment of a snapshot, also in another Env of the same task."""
        ...


@runtime_checkable
class SupportsRenaming(Protocol):
    """A world that can restate a task under other names: the same episode up to renaming, and as hard."""

    def rename(self, task: Task, rng: Random) -> Task:
        """Returns the task with its names drawn anew; kind, tier and split stay."""
        ...


@runtime_checkable
class SupportsRationales(Protocol):
    """A world whose expert gives a reason for every action, from what it has observed."""

    def explain(self, task: Task) -> Sequence[Parsed] | None:
        """Returns actions that solve the task, each with its thought, or None where the task has no expert."""
        ...


class World(Protocol):
    """An environment with its tasks.

    Attributes:
        name, version: identity; both are part of every task id.
        instructions: text that an agent reads before its first observation.
        grammar: converts model text to an action.
        horizon: maximum number of steps of an episode.
        reward_range: smallest and largest reward of one step.
        tiers: the tiers of its tasks, nearest to the demonstrations first.
        run_in_thread: True if a step may be slow or hang; it then runs off the main thread with a deadline.

    A world with few possible answers may state the success rate of guessing as `chance`; its audit allows for that. One
    that runs code which models write says so by `needs_isolation`; commands then check the sandbox before they play.
    """

    name: str
    version: str
    instructions: str
    grammar: Grammar
    horizon: int
    reward_range: tuple[float, float]
    tiers: tuple[str, ...]
    run_in_thread: bool

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split and tier, always the same; empty where training is not allowed."""
        ...

    def make(self, task: Task) -> Env:
        """Creates an Env for one task."""
        ...

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode from its rewards and its last info."""
        ...

    def expert(self, task: Task) -> Sequence[str] | None:
        """Returns actions that solve the task, or None where the world has no expert."""
        ...

    def vocabulary(self) -> Sequence[str] | None:
        """Returns every word that observations and actions can hold, or None where the vocabulary is open."""
        ...


def split_of(spec: Mapping[str, object], *, salt: str = "") -> str:
    """Returns the split of a task by the hash of its canonical spec: 80 % train, 10 % dev, 10 % test."""
    percentile = sample_seed("split", salt, sorted(spec.items())) % 100
    return "train" if percentile < 80 else "dev" if percentile < 90 else "test"


def score_episode(
    rewards: Sequence[float | None], reward_range: tuple[float, float], *, success: float | None = None
) -> Score:
    """Scores an episode: raw = sum of rewards, unit = raw clipped to 0..1 of the range, success = full marks.

    Any reward of None makes the whole episode unscored.
    """
    known_rewards = [reward for reward in rewards if reward is not None]
    if len(known_rewards) != len(rewards):
        return Score(None, None, None)
    raw, high = float(sum(known_rewards)), reward_range[1]
    unit = min(1.0, max(0.0, raw / high)) if high > 0 else None
    return Score(raw, unit, raw >= (high if success is None else success) - 1e-9)


def score_if_won(rewards: Sequence[float | None]) -> Score:
    """Scores an episode in which winning pays 1 and penalties may come before: success = a reward of 1 was earned.

    raw = the sum of the rewards, unit = 1 or 0. Any reward of None makes the whole episode unscored.
    """
    known_rewards = [reward for reward in rewards if reward is not None]
    if len(known_rewards) != len(rewards):
        return Score(None, None, None)
    success = max(known_rewards, default=0.0) >= 1.0
    return Score(float(sum(known_rewards)), float(success), success)


def check_task(world: World, task: Task) -> None:
    """Raises ConfigError for a task of another world, VersionMismatch for a task of another version."""
    if task.world != world.name:
        raise ConfigError(f"the task does not belong to world {world.name!r}", value=task.world)
    if task.version != world.version:
        raise VersionMismatch(
            f"the task belongs to another version of {world.name!r}", value=task.version, expected=world.version
        )


def check_snapshot(snapshot: object, snapshot_type: type[M], task: Task) -> M:
    """Returns a snapshot if it belongs to the task; raises ConfigError otherwise.

    Args:
        snapshot: the value to check.
        snapshot_type: the class of the world's snapshots; its `task` is a task's id.
    """
    if not isinstance(snapshot, snapshot_type) or snapshot.task != task.id:
        raise ConfigError(
            "the snapshot does not belong to this task", value=snapshot, expected=f"a snapshot of task {task.id}"
        )
    return snapshot


class _PlayEnv:
    """An Env around a generator. It forks by replaying the actions so far, which is exact for a deterministic play."""

    def __init__(self, world: TextWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._actions: list[str] = []
        self._play: Play | None = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        self._actions = []
        self._play = None
        play: object = self._world.play(copy.deepcopy(dict(self._task.spec)))
        if not isinstance(play, Iterator):
            raise EnvLost(
                f"play of world {self._world.name!r} is not a generator",
                value=repr(play),
                expected="a function that yields observations",
            )
        try:
            turn = next(play)
        except StopIteration as stop:
            message = f"play of world {self._world.name!r} ended before its first observation"
            raise EnvLost(message, value=repr(stop.value), expected="a yield before the return") from None
        self._play = cast(Play, play)
        observation, _, info = _read_turn(turn, self._world.name)
        return observation, info

    def step(self, action: Value) -> Reply:
        if self._play is None:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        self._actions.append(str(action))
        try:
            reply = self._play.send(str(action))
        except StopIteration as stop:
            self._play = None
            is_turn = isinstance(stop.value, str | tuple)
            observation, reward, info = _read_turn(stop.value if is_turn else ("", stop.value or 0.0), self._world.name)
            return observation, reward, True, False, info
        observation, reward, info = _read_turn(reply, self._world.name)
        return observation, reward, False, False, info

    def snapshot(self) -> object:
        return tuple(self._actions)

    def restore(self, value: object) -> None:
        if not isinstance(value, tuple):
            raise ConfigError(
                "the snapshot does not belong to this world", value=value, expected="a value that snapshot() returned"
            )
        self.reset()
        for action in value:
            self.step(action)

    def close(self) -> None:
        if self._play is not None:
            self._play.close()
        self._play = None


def unwrap_number(value: T) -> T:
    """Returns a number of numpy or torch, and an array or a tensor of one number, as a number of Python.

    Sums of such numbers are rounded, and a tensor cannot be stored.
    """
    item = getattr(value, "item", None)
    return value if item is None else cast("T", item())


def _read_turn(turn: object, world: str) -> tuple[str, float, Info]:
    """Returns the observation, reward and notes of what a `play` yielded or returned.

    Raises:
        EnvLost: it is neither a text nor a tuple of a text, a number and notes.
    """
    parts = turn if isinstance(turn, tuple) else (turn,)
    observation, reward, info = (*parts, *("", 0.0, {})[len(parts) :])[:3]
    reward = unwrap_number(reward)
    is_valid = isinstance(observation, str) and isinstance(reward, int | float) and isinstance(info, Mapping)
    if not is_valid or len(parts) > 3:
        expected = "an observation; (observation, reward); or (observation, reward, notes)"
        raise EnvLost(f"play of world {world!r} yielded no turn", value=repr(turn), expected=expected)
    if unknown := sorted(set(map(str, info)) - set(_NOTES)):
        raise EnvLost(f"play of world {world!r} yielded unknown notes", value=unknown, expected=", ".join(_NOTES))
    admissible = info.get("admissible")
    if admissible is not None and (isinstance(admissible, str) or not all(isinstance(a, str) for a in admissible)):
        raise EnvLost(f"play of world {world!r} listed actions that are not texts", value=repr(admissible))
    return observation, float(reward), {name: list(v) if name == "admissible" else v for name, v in info.items()}


class TextWorld(ABC):
    """Base class for short worlds: define `name`, `specs` and `play`.

    `play(spec)` is a generator: it yields a turn, receives the action, and returns the last reward or turn. A turn is
    an observation; an observation and a reward; or an observation, a reward and notes about the state:

    - `admissible`: the legal actions, where they are finite. Agents that choose among actions need them.
    - `metrics`: numbers by name, such as `{"distance": 3}`. Evaluations have their means at the end of episodes.
    - `image`: the state drawn as text, for people: `evolvent worlds play` shows it, and no agent reads it.
    - `invalid`: True where the last action was not possible.

    The episode succeeds if the rewards add up to `reward_range[1]`.

    >>> class Walk(TextWorld):
    ...     name = "walk"
    ...     def specs(self):
    ...         return [{"goal": goal} for goal in range(1, 40)]
    ...     def play(self, spec):
    ...         place = 0
    ...         while place < spec["goal"]:
    ...             notes = {"admissible": ["left", "right"], "metrics": {"place": place}, "image": "." * place + "@"}
    ...             place += 1 if (yield "walk on", 0.0, notes) == "right" else -1
    ...         return "there", 1.0
    >>> world = Walk()
    >>> env = world.make(Task("walk", "1", {"goal": 1}))
    >>> env.reset()
    ('walk on', {'admissible': ['left', 'right'], 'metrics': {'place': 0}, 'image': '@'})
    >>> env.step("right")
    ('there', 1.0, True, False, {})
    """

    name: str
    version: str = "1"
    instructions: str = ""
    grammar: Grammar = Plain()
    horizon: int = 10
    reward_range: tuple[float, float] = (0.0, 1.0)
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread: bool = True

    def __repr__(self) -> str:
        return f"<world {self.name!r}, version {self.version}: {type(self).__name__}, at most {self.horizon} steps>"

    @abstractmethod
    def specs(self) -> Iterable[Mapping[str, object]]:
        """Lists the specs of all tasks (JSON values). Their hash decides between train, dev and test."""

    @abstractmethod
    def play(self, spec: Mapping[str, object]) -> Play:
        """Plays an episode: yields observations, receives actions, returns the last reward."""

    @cached_property
    def _panel(self) -> dict[str, list[Task]]:
        panel: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for spec in self.specs():
            if not isinstance(spec, Mapping):
                raise ConfigError(
                    f"specs of world {self.name!r} lists a task that is not a mapping",
                    value=repr(spec),
                    expected='JSON values by name, such as {"seed": 0}',
                )
            split = split_of(spec, salt=self.name)
            try:
                task = Task(self.name, self.version, dict(spec), self.name, self.tiers[0], split)
            except (TypeError, ValueError) as error:
                expected = "texts, numbers, lists and mappings"
                message = f"specs of world {self.name!r} lists a task that JSON cannot write ({error})"
                raise ConfigError(message, value=repr(spec), expected=expected) from error
            panel[split].append(task)
        # A task that is listed twice would count twice where it is measured, and make the interval too narrow.
        return {split: list({task.id: task for task in tasks}.values()) for split, tasks in panel.items()}

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        problems = [unknown_name_problem("split", split, SPLITS)] if split not in SPLITS else []
        if tier not in self.tiers:
            problems.append(unknown_name_problem("tier", tier, self.tiers))
        if problems:
            raise ConfigError(problems)
        return self._panel[split] if tier == self.tiers[0] else ()

    def make(self, task: Task) -> Env:
        return _PlayEnv(self, task)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        return score_episode(rewards, self.reward_range)

    def expert(self, task: Task) -> Sequence[str] | None:
        return None

    def vocabulary(self) -> Sequence[str] | None:
        return None


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines of one environment in seconds (blocking worlds only), and a horizon that replaces the world's."""

    reset_s: float = 60.0
    step_s: float = 60.0
    horizon: int | None = None


class DeferredClose:
    """Closes its Env once: at `end`, or, if a call still runs then, when that call returns.

    Args:
        name: name of the world, for messages.
        env: the Env, or None until its creator sets it.
    """

    def __init__(self, name: str, env: Env | None = None) -> None:
        self.name, self.env = name, env
        self._lock = threading.Lock()
        self._running = self._over = False

    def run(self, call: Callable[[], T]) -> T:
        """Runs a call that may hang on the calling thread; `end` may come before the call returns."""
        with self._lock:
            self._running = True
        try:
            return call()
        finally:
            with self._lock:
                self._running, must_close = False, self._over
            if must_close:
                self._close()

    def end(self) -> None:
        """Closes the Env, or leaves that to the call that runs now; a second call does nothing."""
        with self._lock:
            if self._over:
                return
            self._over = True
            if self._running:
                return
        self._close()

    def _close(self) -> None:
        if self.env is None:
            return
        try:
            with boundary(EnvLost, f"world {self.name!r} failed in close"):
                self.env.close()
        except EvolventError as problem:
            _log.warning("%s", problem)


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[S]):
    """A snapshot of an episode.

    Args:
        task: the id of the episode's task.
        running: whether the episode runs.
        state: the state, which nothing changes any more.
    """

    task: str
    running: bool
    state: S


class StateEnv(ABC, Generic[S]):
    """Base class of environments whose whole changing state is one value: define `_observe_start` and `_transition`.

    The state is an immutable value that each transition replaces. A class whose transitions change the state in place
    overrides `_copy_state`. A class that holds a resource overrides `close`.

    Args:
        task: the task of the episodes.
        start: the state in which episodes begin.
    """

    def __init__(self, task: Task, start: S) -> None:
        self._task, self._start, self._state = task, start, start
        self._running = False

    @abstractmethod
    def _observe_start(self) -> tuple[Value, Info]:
        """Returns the first observation and its info; the state is the start."""

    @abstractmethod
    def _transition(self, state: S, action: Value) -> tuple[S, Reply]:
        """Returns the next state and the reply to an action. A reply that is terminated or truncated ends the episode.

        If it raises, the state is not replaced and the episode goes on.
        """

    def _copy_state(self, state: S) -> S:
        """Returns an independent copy of a state: the state itself where nothing changes it in place."""
        return state

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts the episode and returns (observation, info)."""
        self._running = False
        self._state = self._copy_state(self._start)
        first_reply = self._observe_start()
        self._running = True
        return first_reply

    def step(self, action: Value) -> Reply:
        """Plays an action; raises SessionGone before `reset` and after the end."""
        if not self._running:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        self._state, reply = self._transition(self._state, action)
        if reply[2] or reply[3]:
            self._running = False
        return reply

    def snapshot(self) -> object:
        """Returns a snapshot, which stays valid whatever the Env does afterwards."""
        return Snapshot(self._task.id, self._running, self._copy_state(self._state))

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        snapshot: Snapshot[S] = check_snapshot(value, Snapshot, self._task)
        self._running, self._state = snapshot.running, self._copy_state(snapshot.state)

    def close(self) -> None:
        """Ends the episode; a second call is harmless."""
        self._running = False
