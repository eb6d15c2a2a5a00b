"""Many episodes of the plume at once, as arrays, for filters, planners and learners.

An episode is the same alone and among others: its noise is drawn from its task and its seed when it begins, one number
for every step, whatever the sensor does and wherever it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import BatchMismatch, ConfigError, SessionGone, WorldError
from evolvent.trajectory import Task, sample_rng
from evolvent.worlds.plume.model import NAMES, concentration, simulate_reading
from evolvent.worlds.plume.presets import Preset, move_offsets, parse_spec
from evolvent.worlds.plume.prior import PlumePrior

__all__ = ["PlumeBatch", "PlumeState"]

Floats = NDArray[np.float64]
Field = Callable[[Floats, Floats], Floats]


@dataclass(frozen=True, slots=True)
class PlumeState:
    """The state of B episodes.

    Attributes:
        position: [B, 3] places in metres.
        reading: [B] current readings.
        steps: [B] steps taken.
        travelled: [B] metres travelled.
        running: [B] which episodes run.
        source: [B, 8] sources.
        noise: [2, B, T + 1] normal and uniform draws.
        priors: the prior of each episode.
    """

    position: Floats
    reading: Floats
    steps: NDArray[np.int64]
    travelled: Floats
    running: NDArray[np.bool_]
    source: Floats
    noise: Floats
    priors: tuple[PlumePrior | None, ...]


class PlumeBatch:
    """B episodes. `begin` starts some of them, `step` moves all that run; ended ones stay as they are.

    Args:
        preset: area, walk and sensor.
        size: B.
        horizon: steps of an episode (None: the preset's).
        field: a measured or computed concentration instead of the formula: places [M, 3], sources [M, 8] -> [M].
    Raises:
        ConfigError: a size or a horizon below 1.
    """

    def __init__(self, preset: Preset, size: int, *, horizon: int | None = None, field: Field = concentration) -> None:
        self.preset, self.size = preset, size
        self.horizon = preset.horizon if horizon is None else horizon
        self.sensor = preset.sensor
        if size < 1 or self.horizon < 1:
            raise ConfigError(
                "number of episodes or steps out of range", value=(size, self.horizon), expected="1 or more"
            )
        self._field = field
        self._offsets = move_offsets(preset.moves, preset.step)
        low, high = zip(*preset.area, strict=True)
        self._low, self._high = np.array(low, dtype=np.float64), np.array(high, dtype=np.float64)
        self.restore(
            PlumeState(
                np.zeros((size, 3)),
                np.zeros(size),
                np.zeros(size, dtype=np.int64),
                np.zeros(size),
                np.zeros(size, dtype=bool),
                np.ones((size, len(NAMES))),
                np.zeros((2, size, self.horizon + 1)),
                (None,) * size,
            )
        )

    def begin(self, rows: Sequence[int], tasks: Sequence[Task], seeds: Sequence[int] | None = None) -> None:
        """Starts episodes of tasks in some rows, each with its first reading at the start.

        Args:
            rows: which of the B.
            tasks: one for each row.
            seeds: one for each row: other noise for the same task (None: 0).
        Raises:
            ConfigError: a spec that is none of this preset. BatchMismatch: not one of each for a row.
        """
        seeds = [0] * len(rows) if seeds is None else seeds
        if not len(rows) == len(tasks) == len(seeds):
            raise BatchMismatch(
                "number of tasks or seeds does not match the rows", value=(len(tasks), len(seeds)), expected=len(rows)
            )
        for row, task, seed in zip(rows, tasks, seeds, strict=True):
            source, self.priors[row] = parse_spec(self.preset, task.spec)
            rng = sample_rng("plume noise", task.id, seed)
            self.noise[0, row] = rng.standard_normal(self.horizon + 1)
            self.noise[1, row] = rng.random(self.horizon + 1)
            self.source[row] = source.vector()
        row_indices = np.asarray(rows, dtype=np.int64)
        self.position[row_indices], self.steps[row_indices], self.travelled[row_indices] = self.preset.start, 0, 0.0
        self.running[row_indices] = True
        self._take_readings(row_indices)

    def step(self, actions: NDArray[np.generic] | Sequence[float]) -> NDArray[np.bool_]:
        """Moves every running episode once and takes the reading there.

        Args:
            actions: [B] indices of `MOVES[preset.moves]`, or headings in radians counted from +x towards +y. A move
                that would leave the area ends at its border.
        Returns:
            [B] which episodes this step has brought to the horizon (truncated, not terminated).
        Raises:
            WorldError: an invalid index, or a heading is not finite; nothing has moved.
            SessionGone: no episode runs.
        """
        action_array = np.asarray(actions)
        if action_array.shape != (self.size,):
            raise BatchMismatch("wrong shape of the actions", value=action_array.shape, expected=(self.size,))
        running_rows = np.flatnonzero(self.running)
        if not running_rows.size:
            raise SessionGone(
                "step was called after the end of all episodes", value=self.size, expected="begin() first"
            )
        old = self.position[running_rows, :2]
        new = np.clip(old + self._displacements(action_array[running_rows]), self._low, self._high)
        self.position[running_rows, :2] = new
        self.travelled[running_rows] += np.sqrt(((new - old) ** 2).sum(-1))
        self.steps[running_rows] += 1
        self._take_readings(running_rows)
        truncated = self.running & (self.steps >= self.horizon)
        self.running &= ~truncated
        return truncated

    def end(self, rows: Sequence[int] | NDArray[np.int64]) -> None:
        """Ends episodes, as an agent does once it knows enough."""
        self.running[np.asarray(rows, dtype=np.int64)] = False

    def candidates(self) -> tuple[Floats, NDArray[np.bool_]]:
        """Returns (places [B, K, 3] that the moves of `MOVES[preset.moves]` lead to, [B, K] which of them stay
        inside).
        """
        targets = self.position[:, None, :2] + self._offsets
        inside: NDArray[np.bool_] = np.all((targets >= self._low - 1e-9) & (targets <= self._high + 1e-9), axis=-1)
        height = np.broadcast_to(self.position[:, None, 2:], (*targets.shape[:2], 1))
        return np.concatenate([np.clip(targets, self._low, self._high), height], -1), inside

    def snapshot(self) -> PlumeState:
        """Copies the whole state."""
        return PlumeState(
            self.position.copy(),
            self.reading.copy(),
            self.steps.copy(),
            self.travelled.copy(),
            self.running.copy(),
            self.source.copy(),
            self.noise.copy(),
            tuple(self.priors),
        )

    def restore(self, state: PlumeState) -> None:
        """Restores a snapshot, which stays unchanged; raises BatchMismatch for another size or horizon."""
        if state.noise.shape != (2, self.size, self.horizon + 1):
            raise BatchMismatch(
                "the snapshot belongs to another batch",
                value=state.noise.shape,
                expected=(2, self.size, self.horizon + 1),
            )
        self.position, self.reading, self.steps = state.position.copy(), state.reading.copy(), state.steps.copy()
        self.travelled, self.running = state.travelled.copy(), state.running.copy()
        self.source, self.noise = state.source.copy(), state.noise.copy()
        self.priors = list(state.priors)

    def _displacements(self, actions: NDArray[np.generic]) -> Floats:
        if self.preset.moves == "heading":
            angles = actions.astype(np.float64)
            if not np.isfinite(angles).all():
                raise WorldError("a heading is not finite", value=angles.tolist(), expected="radians")
            return self.preset.step * np.stack([np.cos(angles), np.sin(angles)], -1)
        is_integer = np.issubdtype(actions.dtype, np.integer)
        are_valid = is_integer and ((actions >= 0) & (actions < len(self._offsets))).all()  # type: ignore[operator]
        if not are_valid:
            raise WorldError("unknown move", value=actions.tolist(), expected=f"indices below {len(self._offsets)}")
        displacements: Floats = self._offsets[actions.astype(np.int64)]
        return displacements

    def _take_readings(self, rows: NDArray[np.int64]) -> None:
        normal, uniform = self.noise[:, rows, self.steps[rows]]
        clean = self._field(self.position[rows], self.source[rows])
        self.reading[rows] = simulate_reading(clean, normal, uniform, sensor=self.sensor)
