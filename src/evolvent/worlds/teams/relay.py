"""The relay: a baton passes along a line of agents, and only its holder may run.

Every agent waits or runs. If the holder runs and no other agent does, the baton moves to the next in line; if
the last one runs, the team has won: reward 1. An agent that runs without the baton makes a false start: it is
out for the rest of the episode, and when the baton reaches it the race is lost. n agents therefore need n steps
in one order, and the greatest return is 1.

An agent observes its position in line, the relative position of the baton (itself, the one before, further
away), the share of steps left, and whether it is the last. An agent that is out is not alive any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError
from evolvent.trajectory import Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes
from evolvent.worlds.teams.base import Discrete, Optimum, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam

__all__ = ["RelayBatch", "RelayWorld"]

Ints = NDArray[np.int64]
MAX_AGENTS = 12
_SMALL_SIZES, _LARGE_SIZES = (3, 4, 5), (6, 8, 10, 12)
WAIT, RUN = 0, 1


class RelayBatch(ArrayTeam):
    """E relays in parallel; actions: 0 waits, 1 runs."""

    state_names = ("holder", "out")

    def __init__(self, tasks: Sequence[Task], size: int, *, agents: int, horizon: int) -> None:
        spec = TeamSpec(agents=agents, observation=6, actions=Discrete(2), horizon=horizon, state=2)
        super().__init__(tasks, size, spec=spec)
        self.place = np.zeros((size, agents), dtype=np.int64)  # of each agent in line
        self.playing = np.zeros((size, agents), dtype=bool)
        self.holder = np.zeros(size, dtype=np.int64)  # the place in line where the baton is
        self.out = np.zeros((size, agents), dtype=bool)

    def _begin(self, rows: Ints, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        for row, task in zip(rows, tasks, strict=True):
            num_agents = len(task.spec["line"])
            self.playing[row] = np.arange(self.spec.agents) < num_agents
            self.place[row] = -1
            self.place[row, :num_agents] = task.spec["line"]
        self.holder[rows], self.out[rows] = 0, False

    def _move(self, actions: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        active = self.playing & ~self.out
        is_running = (actions == RUN) & active
        is_holding = (self.place == self.holder[:, None]) & active
        false_starts = is_running & ~is_holding
        passed = (is_running & is_holding).any(-1) & ~false_starts.any(-1)
        self.out |= false_starts
        self.holder += passed
        won = self.holder >= self.playing.sum(-1)
        lost = ((self.place == self.holder[:, None]) & self.out).any(-1)
        return won.astype(np.float64), won | lost, won

    def _observe(self, rows: Ints) -> TeamView:
        positions, holder, playing = self.place[rows], self.holder[rows][:, None], self.playing[rows]
        size = playing.sum(-1)
        time_left = np.broadcast_to((1.0 - self.time[rows] / self.spec.horizon)[:, None], positions.shape)
        observation = np.stack(
            [
                positions == holder,
                positions == holder + 1,
                abs(positions - holder) > 1,
                positions / MAX_AGENTS,
                time_left,
                positions == size[:, None] - 1,
            ],
            -1,
        ).astype(np.float32)
        alive = playing & ~self.out[rows]
        state = np.stack([self.holder[rows] / size, self.out[rows].sum(-1) / size], -1).astype(np.float32)
        available = np.stack([np.ones_like(alive), alive], -1)
        return TeamView(
            observation=np.where(alive[..., None], observation, np.float32(0)),
            alive=alive,
            available=available,
            state=state,
            number=self.number[rows],
            time=self.time[rows],
        )


class RelayWorld(DealtOnce):
    """Relays of 3 to 12 agents, whose order in line a task shuffles; tiers "seen" (3 to 5 agents) and "longer".

    Args:
        horizon: steps of an episode. ConfigError: fewer than the largest team needs.
    """

    name, version = "team_relay", "1"
    tiers = ("seen", "longer")

    def __init__(self, *, horizon: int = 24, sizes: Sizes | None = None) -> None:
        if horizon < MAX_AGENTS:
            raise ConfigError(
                "horizon of the relay out of range", value=horizon, expected=f"{MAX_AGENTS} steps or more"
            )
        self.horizon = horizon
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=8, dev=2, test=4, per_kind=4),
            recipe=self.recipe,
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the panel of a split and tier."""
        return self._panels.tasks(split, tier)

    def task(self, line: Sequence[int], *, tier: str = "seen", split: str = "train") -> Task:
        """Returns a task: the position in line of each agent."""
        if sorted(line) != list(range(len(line))) or not 1 <= len(line) <= MAX_AGENTS:
            raise ConfigError(
                "invalid line of agents", value=list(line), expected="each position from 0 once, at most 12"
            )
        return Task(self.name, self.version, {"line": list(line)}, f"{len(line)} agents", tier, split)

    def batch(self, tasks: Sequence[Task], size: int) -> RelayBatch:
        """Creates E rows; the spec has room for the largest team among the tasks."""
        agents = max((len(task.spec["line"]) for task in tasks), default=1)
        return RelayBatch(tasks, size, agents=agents, horizon=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """Returns 1: there are enough steps for every agent to run."""
        return Optimum(1.0, exact=True)

    def expert(self, batch: RelayBatch) -> NDArray[np.int64]:
        """Returns actions `[E, n]` that win from the start: the holder runs."""
        return np.asarray(batch.place == batch.holder[:, None], dtype=np.int64)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        sizes = {"seen": _SMALL_SIZES, "longer": _LARGE_SIZES}[tier]
        for number in count():
            agents = sizes[number % len(sizes)]
            line = sample_rng("relay", tier, number).permutation(agents).tolist()
            yield Candidate({"line": line}, f"{agents} agents", tier, canonical_json(line))
