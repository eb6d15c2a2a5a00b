"""The plume world: smell, walk, and say where it comes from.

    wind 2.1 from 43 degrees , at 0 0 , reading 2.9e-03
        ->  north  ->  at 0 1 , reading none  ->  ...  ->  source at 15.5 16.6

A source that is not seen releases something into the wind; a sensor that is noisy and misses readings walks about. The
agent moves (`north`, `north 2`, `heading 135`, by preset) and ends the episode itself by declaring the source, at a
place or `here`: reward 1 within the preset's tolerance, else 0. Readings are grams per cubic metre.

An observation is that text or, with `observe="array"`, [x, y, z, reading]; `info` has place, reading and announced wind
exactly, which is what a belief needs. There is no expert: whoever knows the source would teach guessing. What to do
with what was read is known to the planners of `belief/`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from evolvent.errors import ConfigError, Problem, SessionGone
from evolvent.trajectory import Score, Task, Value
from evolvent.worlds.base import Info, Reply, check_task, own_moment, score_won
from evolvent.worlds.grammar import Grammar, Plain
from evolvent.worlds.panel import Candidate, Panels, Sizes
from evolvent.worlds.plume.batch import PlumeBatch, PlumeState
from evolvent.worlds.plume.model import Sensor, SourceTerm
from evolvent.worlds.plume.presets import MOVES, Preset, draw_spec, preset_named, read_spec
from evolvent.worlds.plume.prior import PlumePrior

__all__ = ["PlumeEnv", "PlumeWorld"]

_NUMBER = r"(-?\d{1,4}(?:\.\d{1,6})?)"
_DECLARED = re.compile(rf"source at {_NUMBER} {_NUMBER}")
_HEADING = re.compile(rf"heading {_NUMBER}")
HERE = "source here"
_KINDS = 6  # a task's kind is one of 6 x 6 parts of the area where sources are
_CELLS = 100  # a key is one of 100 x 100 parts of the area: no two tasks, so no two splits, share one
_RIGHT, _WRONG = "the source is there", "the source is not there"


class PlumeEnv:
    """One episode: a batch of one, with texts around it."""

    def __init__(self, world: PlumeWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._batch = PlumeBatch(world.preset, 1, horizon=world.horizon)
        self._source, _ = read_spec(world.preset, task.spec)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Begin; a seed gives other noise of the same task."""
        self._batch.begin([0], [self._task], [seed or 0])
        speed, turn = self._task.spec["announced"]
        wind = f"wind {max(0.0, speed):.1f} from {round(math.degrees(turn)) % 360} degrees , "
        return self._seen(wind), self._info()

    def step(self, action: Value) -> Reply:
        if not self._batch.running[0]:
            raise SessionGone("a step after the end of the episode", value=str(action), expected="reset() first")
        text = " ".join(str(action).lower().split()) if isinstance(action, str) else ""
        declared = self._declared(text)
        if declared is not None:
            self._batch.end([0])
            error = math.dist(declared, (self._source.x, self._source.y))
            right = error <= self._world.preset.tolerance
            last = {**self._info(), "error_m": error}
            return self._end(_RIGHT if right else _WRONG), float(right), True, False, last
        move = self._move(action, text)
        if move is None:
            listed = f"expected {' , '.join(self._world.examples)}"
            return self._end(listed), self._world.penalty, False, False, {**self._info(), "invalid": True}
        over = bool(self._batch.step(np.array([move]))[0])
        return self._seen(), 0.0, False, over, self._info()

    def _declared(self, text: str) -> tuple[float, float] | None:
        if text == HERE:
            x, y, _ = self._batch.position[0]
            return float(x), float(y)
        found = _DECLARED.fullmatch(text)
        return (float(found[1]), float(found[2])) if found else None

    def _move(self, action: Value, text: str) -> int | float | None:
        """The index of a move, or a heading; None where the action is none, or leaves the area."""
        heading = self._world.preset.moves == "heading"
        if not isinstance(action, str):
            numbers = np.asarray(action)
            if numbers.size != 1 or not np.issubdtype(numbers.dtype, np.number) or not np.isfinite(numbers).all():
                return None
            number = numbers.reshape(-1)[0]
            if heading:
                return float(number)
            names = MOVES[self._world.preset.moves]
            return int(number) if number == int(number) and 0 <= number < len(names) else None
        if heading:
            found = _HEADING.fullmatch(text)
            return math.radians(float(found[1])) if found else None
        moves = self._open()
        return moves.get(text)

    def _open(self) -> dict[str, int]:
        """The listed moves that stay inside, with their indices."""
        inside = self._batch.candidates()[1][0]
        return {name: i for i, name in enumerate(MOVES[self._world.preset.moves]) if inside[i]}

    def _info(self) -> dict[str, Any]:
        x, y, z = self._batch.position[0]
        listed = (*self._open(), HERE) if self._batch.running[0] else ()
        return {
            "admissible": listed,
            "position": (float(x), float(y), float(z)),
            "reading": float(self._batch.reading[0]),
            "announced": tuple(self._task.spec["announced"]),
            "travelled_m": float(self._batch.travelled[0]),
        }

    def _seen(self, before: str = "") -> Value:
        x, y, z = self._batch.position[0]
        level = float(self._batch.reading[0])
        if self._world.observe == "array":
            return np.array([x, y, z, level])
        smelt = f"{level:.1e}" if level > 0 else "none"
        return f"{before}at {round(float(x), 1):g} {round(float(y), 1):g} , reading {smelt}"

    def _end(self, text: str) -> Value:
        return text if self._world.observe == "text" else self._seen()

    def snapshot(self) -> object:
        return _Moment(self._task.id, self._batch.snapshot())

    def restore(self, value: object) -> None:
        """Back to the moment of a snapshot of the same task; ConfigError for anything else."""
        self._batch.restore(own_moment(value, _Moment, self._task).state)

    def close(self) -> None:
        self._batch.end([0])


@dataclass(frozen=True, slots=True)
class _Moment:
    """A snapshot."""

    task: str
    state: PlumeState


class PlumeWorld:
    """The plume world.

    Args:
        preset: "plume/25", "plume/75" or "plume/agdc", or a `Preset` of your own.
        observe: "text" or "array".
        sensor: None: the preset's.
        penalty: the reward of an action that is none, 0 or less. It takes no time.
        horizon: steps of an episode (None: the preset's).
        sizes: of the panels.

    Raises:
        ConfigError: an unknown preset or observation, a penalty that is positive or not finite, a horizon below 1.
    """

    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    blocking = False

    def __init__(
        self,
        preset: str | Preset = "plume/25",
        *,
        observe: Literal["text", "array"] = "text",
        sensor: Sensor | None = None,
        penalty: float = 0.0,
        horizon: int | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        found = preset_named(preset) if isinstance(preset, str) else preset
        self.preset = found if sensor is None else replace(found, sensor=sensor)
        self.horizon = self.preset.horizon if horizon is None else horizon
        problems = [] if self.horizon >= 1 else [Problem("horizon", f"{horizon} steps", "give at least 1")]
        if observe not in ("text", "array"):
            problems.append(Problem("observe", f"unknown {observe!r}", "give 'text' or 'array'"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"a reward of {penalty} for a wrong action", "give 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.name = "plume" if self.preset.name == "plume/25" else self.preset.name
        self.observe, self.penalty = observe, penalty
        self.reward_range = (min(0.0, penalty), 1.0)
        self.examples = (*MOVES[self.preset.moves][:: 3 if self.preset.moves == "twelve" else 1][:4], HERE)
        self.instructions = (
            "Something is released at an unknown place and carried by the wind. Find the source. Readings are grams "
            "per cubic metre; they are noisy, and a sensor may miss what is there. East is x, north is y, in metres. "
            f"Actions: {', '.join(MOVES[self.preset.moves])}, source here, source at 12 15.5. A declaration ends the "
            f"episode; it is right within {self.preset.tolerance:g} metres."
        )
        small = Sizes(train=150, dev=15, test=15) if self.preset.whole else Sizes()
        self._panels = Panels(self.name, self.version, self.tiers, sizes=sizes or small, draw=self._draw)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        seed = 0
        while True:
            spec = draw_spec(self.preset, seed)
            yield Candidate(spec, self._kind(spec), tier, self._key(spec))
            seed += 1

    def _kind(self, spec: Any) -> str:
        """Which of 6 x 6 parts of the area of sources."""
        spans = [(one.a, one.b) for one in self.preset.sources[:2]]
        i, j = (
            min(_KINDS - 1, int(_KINDS * (value - low) / (high - low)))
            for value, (low, high) in zip(spec["source"][:2], spans, strict=True)
        )
        return f"east {i} north {j}"

    def _key(self, spec: Any) -> str:
        """The part of the area, one of 100 x 100: sources of two splits never lie in the same."""
        parts = [
            int(_CELLS * (value - low) / (high - low))
            for value, (low, high) in zip(spec["source"][:2], self.preset.area, strict=True)
        ]
        return f"{self.preset.name} {parts[0]} {parts[1]}"

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """The task panel of a split; raises ConfigError for a name that does not exist."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> PlumeEnv:
        """An Env for a task of this world and preset; ConfigError or VersionMismatch for any other."""
        check_task(self, task)
        return PlumeEnv(self, task)

    def batch(self, size: int) -> PlumeBatch:
        """So many episodes at once; `PlumeBatch.begin` takes this world's tasks."""
        return PlumeBatch(self.preset, size, horizon=self.horizon)

    def prior(self, task: Task) -> PlumePrior:
        """What an agent knows beforehand. Never the source, save where the published priors lean on it."""
        check_task(self, task)
        return read_spec(self.preset, task.spec)[1]

    def source(self, task: Task) -> SourceTerm:
        """The truth, for scoring."""
        check_task(self, task)
        return read_spec(self.preset, task.spec)[0]

    def key(self, task: Task) -> str:
        """Equal for tasks whose sources lie in the same part of the area; what panels are dealt by."""
        check_task(self, task)
        return self._key(task.spec)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Success = the source was declared within the tolerance; raw = the sum of the rewards, unit = 1 or 0."""
        return score_won(rewards)

    def expert(self, task: Task) -> None:
        """None: see the module."""
        check_task(self, task)

    def vocabulary(self) -> Sequence[str]:
        """Every word and mark of observations and of the listed actions, sorted."""
        texts = (
            "wind from degrees at , . - + reading none source here expected",
            _RIGHT,
            _WRONG,
            *MOVES[self.preset.moves],
            *(str(n) for n in range(1000)),
            *(f"{n:02}" for n in range(100)),
            *(f"{n}e" for n in range(10)),
        )
        return sorted({word for text in texts for word in text.split()})
