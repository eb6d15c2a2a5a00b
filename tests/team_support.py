"""For tests of team worlds: players whose actions depend on episode and step alone, and foreign environments."""

from __future__ import annotations

import os
import time
from dataclasses import fields
from pathlib import Path

import numpy as np

from evolvent.trajectory import sample_rng
from evolvent.worlds.teams.base import Continuous, Discrete
from evolvent.worlds.teams.parallel import ParallelRow


def actions_for(view, spec, *, salt: str = "") -> np.ndarray:
    """Random available actions of every row, drawn from its episode's number and step."""
    rows = []
    for row in range(len(view.number)):
        rng = sample_rng("test actions", salt, int(view.number[row]), int(view.time[row]))
        if isinstance(spec.actions, Continuous):
            rows.append(rng.uniform(-1.2, 1.2, (spec.agents, spec.actions.dim)))
            continue
        sizes = [spec.actions.n] if isinstance(spec.actions, Discrete) else spec.actions.sizes
        draws, parts, begin = rng.random((spec.agents, sum(sizes))), [], 0
        for size in sizes:
            part = draws[:, begin : begin + size]
            if view.available is not None:
                part = part * view.available[row, :, begin : begin + size]
            parts.append(part.argmax(-1))
            begin += size
        rows.append(parts[0] if isinstance(spec.actions, Discrete) else np.stack(parts, -1))
    return np.stack(rows)


def same(a, b) -> bool:
    """Whether two records of arrays are equal to the last bit."""
    for field in fields(a):
        one, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, np.ndarray):
            if one.dtype != other.dtype or not np.array_equal(one, other):
                return False
        elif one != other:
            return False
    return True


def played(batch, numbers, steps, *, salt: str = "") -> dict[int, list]:
    """episode number -> [(view of its row, reward, terminated, truncated, success)], for whole episodes only."""
    view = batch.reset(numbers)
    running = [[] for _ in range(batch.size)]
    found = {}
    for _ in range(steps):
        result = batch.step(actions_for(view, batch.spec, salt=salt))
        for row in range(batch.size):
            success = None if result.success is None else bool(result.success[row])
            running[row].append(
                (
                    view.select_rows(np.array([row])),
                    result.reward[row],
                    bool(result.terminated[row]),
                    bool(result.truncated[row]),
                    success,
                )
            )
        for at, row in enumerate(result.ended):
            last = result.final.select_rows(np.array([at]))
            found[int(view.number[row])] = [*running[row], last]
            running[row] = []
        view = result.view
    return found


def equal_episodes(a: list, b: list) -> bool:
    return (
        len(a) == len(b)
        and same(a[-1], b[-1])
        and all(same(one[0], other[0]) and one[1:] == other[1:] for one, other in zip(a[:-1], b[:-1], strict=True))
    )


class Box:
    """As Gymnasium's, as far as it is read."""

    def __init__(self, low, high, shape, dtype=np.float32):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete_:
    """As Gymnasium's `Discrete`."""

    def __init__(self, n, start=0):
        self.n, self.start, self.dtype = n, start, np.dtype(np.int64)


Discrete_.__name__ = "Discrete"


class Counting:
    """Agents that count: an observation is [seed % 97, steps, own last action, who].

    How it misbehaves is a setting: `what`, at which step, at which parity of seeds (None: all); where a `marker` file
    is named, only until that exists.
    """

    def __init__(
        self, *, agents=2, ends=6, what="", at=3, only=None, discrete=True, cut=False, marker=None, wild=False
    ):
        self.possible_agents = [f"a{k}" for k in range(agents)]
        self.ends, self.what, self.at, self.only, self.cut, self.marker = ends, what, at, only, cut, marker
        self._seen = Box(-np.inf, np.inf, (4,))
        self._act = Discrete_(3, start=1) if discrete else Box(-2.0, 6.0, (2,))
        self.told, self.closed, self.wild = [], 0, wild

    def observation_space(self, agent):
        return self._seen

    def action_space(self, agent):
        return self._act

    def _bad(self, what):
        mine = self.only is None or self.seed % 2 == self.only
        once = self.marker is not None and Path(self.marker).exists()
        return self.what == what and self.steps == self.at and mine and not once

    def _observations(self, names, actions=None):
        last = {name: float(np.sum((actions or {}).get(name, 0))) for name in names}
        seen = {
            name: np.array([self.seed % 97, self.steps, last[name], self.possible_agents.index(name)], np.float32)
            for name in names
        }
        if self.wild:
            seen[names[0]][3] = os.getpid()
        if self._bad("nan"):
            seen[names[0]][1] = np.nan
        return seen

    def reset(self, seed=None, options=None):
        self.seed, self.steps = seed, 0
        self.agents = list(self.possible_agents)
        if self._bad("crash"):
            os._exit(3)
        if self._bad("reset"):
            raise RuntimeError("no beginning")
        return self._observations(self.agents), {name: {} for name in self.agents}

    def step(self, actions):
        self.steps += 1
        self.told.append(dict(actions))
        if self._bad("crash"):
            if self.marker is not None:
                Path(self.marker).touch()
            os._exit(3)
        if self._bad("hang"):
            if self.marker is not None:
                Path(self.marker).touch()
            time.sleep(60)
        if self._bad("raise"):
            raise RuntimeError("broken inside")
        names = list(self.agents)
        over = self.steps >= self.ends
        ended = dict.fromkeys(names, over and not self.cut)
        if self._bad("die"):
            ended[names[0]] = True
        infos = {name: {"won": over} for name in names}
        if self.what == "mask":
            infos = {name: {"action_mask": np.array([0, 1, 1]) * (not self._bad("mask"))} for name in names}
        left = [name for name in names if not ended[name]]
        self.agents = [] if over else left
        if self._bad("revive") and len(self.possible_agents) > len(names):
            self.agents = list(self.possible_agents)
        if self._bad("stranger"):
            self.agents = [*left, "a9"]
        reward = float("inf") if self._bad("reward") else 1.0
        seen = self._observations([name for name in self.possible_agents if name in {*names, *self.agents}], actions)
        return seen, {n: reward + k for k, n in enumerate(names)}, ended, dict.fromkeys(names, over and self.cut), infos

    def close(self):
        self.closed += 1


def make_counting(task):
    """A row for worker processes: the task's spec holds the settings."""
    spec = dict(task.spec)
    return ParallelRow(Counting(**spec.get("env", {})), horizon=spec.get("horizon", 10), **spec.get("row", {}))
