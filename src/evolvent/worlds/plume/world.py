"""The plume world: move a sensor, take readings, and declare the place of the source.

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
from evolvent.worlds.base import Grammar, Info, Plain, Reply, check_snapshot, check_task, score_if_won
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.plume.batch import PlumeBatch, PlumeState
from evolvent.worlds.plume.model import Sensor, SourceTerm
from evolvent.worlds.plume.presets import MOVES, Preset, draw_spec, get_preset, parse_spec
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
    """One episode: a batch of size one, with text observations and actions."""

    def __init__(self, world: PlumeWorld, task: Task) -> None:
        self._world, self._task = world, task
        self._batch = PlumeBatch(world.preset, 1, horizon=world.horizon)
        self._source, _ = parse_spec(world.preset, task.spec)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Value, Info]:
        """Starts the episode; a seed gives other noise of the same task."""
        self._batch.begin([0], [self._task], [seed or 0])
        speed, wind_from = self._task.spec["announced"]
        wind = f"wind {max(0.0, speed):.1f} from {round(math.degrees(wind_from)) % 360} degrees , "
        return self._render_observation(wind), self._info()

    def step(self, action: Value) -> Reply:
        if not self._batch.running[0]:
            raise SessionGone(
                "step was called after the end of the episode", value=str(action), expected="reset() first"
            )
        text = " ".join(str(action).lower().split()) if isinstance(action, str) else ""
        declared_place = self._parse_declaration(text)
        if declared_place is not None:
            self._batch.end([0])
            error = math.dist(declared_place, (self._source.x, self._source.y))
            is_correct = error <= self._world.preset.tolerance
            last_info = {**self._info(), "error_m": error}
            return self._render_message(_RIGHT if is_correct else _WRONG), float(is_correct), True, False, last_info
        move = self._parse_move(action, text)
        if move is None:
            message = f"expected {' , '.join(self._world.examples)}"
            return self._render_message(message), self._world.penalty, False, False, {**self._info(), "invalid": True}
        truncated = bool(self._batch.step(np.array([move]))[0])
        return self._render_observation(), 0.0, False, truncated, self._info()

    def _parse_declaration(self, text: str) -> tuple[float, float] | None:
        if text == HERE:
            x, y, _ = self._batch.position[0]
            return float(x), float(y)
        match = _DECLARED.fullmatch(text)
        return (float(match[1]), float(match[2])) if match else None

    def _parse_move(self, action: Value, text: str) -> int | float | None:
        """Parses an action into the index of a move, or a heading; returns None where it is invalid or leaves the
        area.
        """
        is_heading = self._world.preset.moves == "heading"
        if not isinstance(action, str):
            numbers = np.asarray(action)
            if numbers.size != 1 or not np.issubdtype(numbers.dtype, np.number) or not np.isfinite(numbers).all():
                return None
            number = numbers.reshape(-1)[0]
            if is_heading:
                return float(number)
            names = MOVES[self._world.preset.moves]
            return int(number) if number == int(number) and 0 <= number < len(names) else None
        if is_heading:
            match = _HEADING.fullmatch(text)
            return math.radians(float(match[1])) if match else None
        moves = self._open_moves()
        return moves.get(text)

    def _open_moves(self) -> dict[str, int]:
        """Returns the listed moves that stay inside, with their indices."""
        inside = self._batch.candidates()[1][0]
        return {name: i for i, name in enumerate(MOVES[self._world.preset.moves]) if inside[i]}

    def _info(self) -> dict[str, Any]:
        x, y, z = self._batch.position[0]
        listed = (*self._open_moves(), HERE) if self._batch.running[0] else ()
        return {
            "admissible": listed,
            "position": (float(x), float(y), float(z)),
            "reading": float(self._batch.reading[0]),
            "announced": tuple(self._task.spec["announced"]),
            "travelled_m": float(self._batch.travelled[0]),
        }

    def _render_observation(self, before: str = "") -> Value:
        x, y, z = self._batch.position[0]
        reading = float(self._batch.reading[0])
        if self._world.observe == "array":
            return np.array([x, y, z, reading])
        reading_text = f"{reading:.1e}" if reading > 0 else "none"
        return f"{before}at {round(float(x), 1):g} {round(float(y), 1):g} , reading {reading_text}"

    def _render_message(self, text: str) -> Value:
        return text if self._world.observe == "text" else self._render_observation()

    def snapshot(self) -> object:
        return _Snapshot(self._task.id, self._batch.snapshot())

    def restore(self, value: object) -> None:
        """Restores a snapshot of the same task; raises ConfigError for any other value."""
        self._batch.restore(check_snapshot(value, _Snapshot, self._task).state)

    def close(self) -> None:
        self._batch.end([0])


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A snapshot."""

    task: str
    state: PlumeState


class PlumeWorld(DealtOnce):
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
    run_in_thread = False

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
        base_preset = get_preset(preset) if isinstance(preset, str) else preset
        self.preset = base_preset if sensor is None else replace(base_preset, sensor=sensor)
        self.horizon = self.preset.horizon if horizon is None else horizon
        problems = [] if self.horizon >= 1 else [Problem("horizon", f"got {horizon} steps, expected at least 1")]
        if observe not in ("text", "array"):
            problems.append(Problem("observe", f"unknown {observe!r}", "give 'text' or 'array'"))
        if not -math.inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
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
        default_sizes = Sizes(train=150, dev=15, test=15) if self.preset.integer_position else Sizes()
        self._panels = Panels(
            self.name, self.version, self.tiers, sizes=sizes or default_sizes, draw=self._draw, recipe=self.recipe
        )

    def _draw(self, tier: str) -> Iterator[Candidate]:
        seed = 0
        while True:
            spec = draw_spec(self.preset, seed)
            yield Candidate(spec, self._kind_of(spec), tier, self._key_of(spec))
            seed += 1

    def _kind_of(self, spec: Any) -> str:
        """Returns the kind of a source: its cell in a 6 x 6 grid over the area of sources."""
        spans = [(marginal.a, marginal.b) for marginal in self.preset.sources[:2]]
        i, j = (
            min(_KINDS - 1, int(_KINDS * (value - low) / (high - low)))
            for value, (low, high) in zip(spec["source"][:2], spans, strict=True)
        )
        return f"east {i} north {j}"

    def _key_of(self, spec: Any) -> str:
        """Returns the cell in a 100 x 100 grid over the area: sources of two splits never share one."""
        parts = [
            int(_CELLS * (value - low) / (high - low))
            for value, (low, high) in zip(spec["source"][:2], self.preset.area, strict=True)
        ]
        return f"{self.preset.name} {parts[0]} {parts[1]}"

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns the task panel of a split; raises ConfigError for an unknown name."""
        return self._panels.tasks(split, tier)

    def make(self, task: Task) -> PlumeEnv:
        """Creates an Env for a task of this world and preset; raises ConfigError or VersionMismatch for any other."""
        check_task(self, task)
        return PlumeEnv(self, task)

    def batch(self, size: int) -> PlumeBatch:
        """Creates a batch of `size` episodes; `PlumeBatch.begin` takes this world's tasks."""
        return PlumeBatch(self.preset, size, horizon=self.horizon)

    def prior(self, task: Task) -> PlumePrior:
        """Returns the agent's prior. It never holds the source, except where the published priors depend on it."""
        check_task(self, task)
        return parse_spec(self.preset, task.spec)[1]

    def source(self, task: Task) -> SourceTerm:
        """Returns the true source, for scoring."""
        check_task(self, task)
        return parse_spec(self.preset, task.spec)[0]

    def key(self, task: Task) -> str:
        """Returns a key that is equal for tasks whose sources lie in the same cell; panels are dealt by it."""
        check_task(self, task)
        return self._key_of(task.spec)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the source was declared within the tolerance; raw = the sum of the rewards."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> None:
        """Returns None; see the module."""
        check_task(self, task)

    def vocabulary(self) -> Sequence[str]:
        """Returns every word and mark of observations and of the listed actions, sorted."""
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
