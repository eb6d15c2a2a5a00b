"""A world as an environment of Gymnasium, for libraries that use that interface: texts in, texts out."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, MissingExtra, Problem, SessionGone, unknown_name_problem
from evolvent.trajectory import JsonObject, Task
from evolvent.worlds.base import Env, Info, World
from evolvent.worlds.panel import check_names

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector.utils import create_shared_memory, read_from_shared_memory, write_to_shared_memory
except ImportError as error:
    raise MissingExtra("gymnasium", "a world as an environment of Gymnasium") from error

__all__ = ["AnyText", "SharedTexts", "WorldEnv", "as_gymnasium"]

_SAMPLED_CHARACTERS = "".join(map(chr, range(32, 127)))


class AnyText(spaces.Text):
    """The space of all texts up to a length; samples are of printable ASCII.

    Vectorized environments in processes share texts of this space as code points. Gymnasium 1.4 never reads a shared
    `Text` again after the first one.
    """

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=_SAMPLED_CHARACTERS)

    def contains(self, x: object) -> bool:
        """Returns whether a value is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


class SharedTexts(Sequence[str]):
    """The present texts of environments in processes, read from shared memory; a copy of them is a tuple."""

    def __init__(self, memory: NDArray[np.int32]) -> None:
        self._memory = memory

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        row = self._memory[index]
        return row[1 : 1 + row[0]].tobytes().decode("utf-32-le", "surrogatepass")

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return repr(tuple(self))


@create_shared_memory.register(AnyText)
def _create_text_memory(space: AnyText, n: int = 1, ctx: Any = multiprocessing) -> Any:
    """Creates memory for n texts: each has its length, then its code points."""
    return ctx.Array("i", n * (space.max_length + 1))


@read_from_shared_memory.register(AnyText)
def _read_text_memory(space: AnyText, shared_memory: Any, n: int = 1) -> SharedTexts:
    memory = np.frombuffer(shared_memory.get_obj(), dtype=np.int32)
    return SharedTexts(memory.reshape(n, space.max_length + 1))


@write_to_shared_memory.register(AnyText)
def _write_text_memory(space: AnyText, index: int, values: str, shared_memory: Any) -> None:
    row = np.frombuffer(shared_memory.get_obj(), dtype=np.int32).reshape(-1, space.max_length + 1)[index]
    codes = np.frombuffer(values.encode("utf-32-le", "surrogatepass"), dtype=np.int32)
    row[0], row[1 : 1 + len(codes)] = len(codes), codes


class WorldEnv(gymnasium.Env[str, str]):
    """A world with the members of `gymnasium.Env`.

    Observations and actions are texts. `reset(seed=s)` draws the task from the seed; `options={"task": 3}` or a task's
    id chooses one. The info holds the task's id, the legal actions (`admissible`) where the world lists them, and, with
    the last step, the score and `is_success`. An episode is truncated at the world's horizon; a
    world of a single reply terminates.

    Args:
        world: the world. tasks: its tasks. max_length: characters of a text, above which observations are cut.
        render_mode: "ansi" for `render`, which then returns the state as text.
    """

    metadata: ClassVar[dict[str, object]] = {"render_modes": ["ansi"], "render_fps": 1}  # type: ignore[misc]

    def __init__(
        self, world: World, tasks: Sequence[Task], *, max_length: int = 16_384, render_mode: str | None = None
    ) -> None:
        self.world, self.tasks, self.render_mode = world, tuple(tasks), render_mode
        self.observation_space = AnyText(max_length)
        self._max_length = max_length
        self.action_space = AnyText(max_length)
        self._env: Env | None = None
        self._rewards: list[float | None] = []
        self._is_running, self._picture = False, ""

    def reset(self, *, seed: int | None = None, options: JsonObject | None = None) -> tuple[str, dict[str, object]]:
        """Starts an episode and returns (observation, info).

        Raises:
            ConfigError: an unknown task.
        """
        super().reset(seed=seed)
        self._close_episode()
        self.task = self._choose_task((options or {}).get("task"))
        self._env, self._rewards, self._is_running = self.world.make(self.task), [], True
        value, info = self._env.reset()
        observation = self._to_text(value)
        self._picture = str(info.get("image", observation))
        return observation, {**_plain_info(info), "task": self.task.id}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, object]]:
        """Plays an action; raises SessionGone before `reset` and after the end."""
        if self._env is None or not self._is_running:
            raise SessionGone("step was called after the end of the episode", value=action, expected="reset() first")
        value, reward, terminated, truncated, info = self._env.step(action)
        self._rewards.append(reward)
        if len(self._rewards) >= self.world.horizon and not (terminated or truncated):
            terminated, truncated = self.world.horizon == 1, self.world.horizon > 1
        observation, notes = self._to_text(value), {**_plain_info(info), "task": self.task.id}
        self._picture = str(info.get("image", observation))
        if terminated or truncated:
            self._is_running = False
            score = self.world.score(self._rewards, info)
            notes["score"] = {"raw": score.raw, "unit": score.unit}
            notes["is_success"] = bool(score.success)
        return observation, float(reward or 0.0), bool(terminated), bool(truncated), notes

    def render(self) -> str | None:
        """Returns the state as text where `render_mode` is "ansi"."""
        return self._picture if self.render_mode == "ansi" else None

    def close(self) -> None:
        """Closes the episode; a second call is harmless."""
        self._close_episode()

    def _close_episode(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env, self._is_running = None, False

    def _choose_task(self, wanted: object) -> Task:
        if wanted is None:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        if isinstance(wanted, int) and 0 <= wanted < len(self.tasks):
            return self.tasks[wanted]
        task = next((task for task in self.tasks if task.id == wanted), None)
        if task is None:
            expected = f"an index from 0 to {len(self.tasks) - 1}, or the id of a task"
            raise ConfigError("unknown task of the environment", value=wanted, expected=expected)
        return task

    def _to_text(self, value: object) -> str:
        return str(value)[: self._max_length]


def _plain_info(info: Info) -> dict[str, object]:
    """Returns an info whose sequences are lists, as vectorized environments take them."""
    return {str(key): list(value) if isinstance(value, tuple) else value for key, value in info.items()}


def as_gymnasium(
    world: World,
    *,
    split: str = "train",
    tier: str | None = None,
    tasks: Sequence[Task] | None = None,
    max_length: int = 16_384,
    render_mode: str | None = None,
) -> WorldEnv:
    """Returns a world as an environment of Gymnasium, which passes its checker and can be vectorized.

    Args:
        world: any world of text.
        split: "train", "dev" or "test".
        tier: a tier of the world; None: its first.
        tasks: the tasks to play, instead of a split and tier.
        max_length: characters of a text, above which observations are cut.
        render_mode: "ansi", or None.
    Raises:
        ConfigError: an unknown split, tier or render mode, or no tasks. MissingExtra: Gymnasium is not installed.

    >>> from evolvent import Lookup
    >>> env = as_gymnasium(Lookup())
    >>> observation, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step("nonsense")
    >>> reward, terminated, truncated, info["invalid"]
    (0.0, False, False, True)
    """
    if tasks is None:
        tier = world.tiers[0] if tier is None else tier
        check_names(split, tier, world.tiers)
        tasks = world.tasks(split, tier)
    if not tasks:
        raise ConfigError(
            [Problem("as_gymnasium", f"world {world.name!r} has no {split} tasks", "choose another split")]
        )
    if render_mode not in (None, "ansi"):
        raise ConfigError([unknown_name_problem("render mode", render_mode, ("ansi",), location="as_gymnasium")])
    return WorldEnv(world, tasks, max_length=max_length, render_mode=render_mode)
