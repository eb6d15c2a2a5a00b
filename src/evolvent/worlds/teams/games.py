"""Coordination games with a known best return, to test learners of teams.

climbing    2 agents, 3 actions: the best pair is next to the worst (Claus and Boutilier, 1998); best 11
penalty     2 agents, 3 actions: two best pairs, and a penalty for picking different ones (same source); best 10
team        n agents in {0, 1}: the number of ones, and 2 more if all agree; best n + 2
distinct    n agents, n actions or more: the share of agents whose action is unique; best 1. Agents have the same
            observation, so agents that decide simultaneously with the same weights can only randomize; agents that
            decide after the others need not
chain       n agents: the share of agents, except the first, that took the action of the agent before plus their own
            offset; best 1. It needs an order of decisions

In `distinct` and `chain` actions carry labels, which a task shuffles for the whole team. Agents observe the
meaning of each label, so the tasks of a panel are one game for a policy that reads the labels and many games
for one that memorizes. The other games have one task per size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem, unknown_name_problem
from evolvent.trajectory import Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, DealtOnce, Panels, Sizes, check_names
from evolvent.worlds.teams.base import Discrete, Optimum, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam

__all__ = ["CLIMBING", "GAMES", "Game", "GameBatch", "GameWorld", "penalty_table"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MAX_AGENTS = 12
CLIMBING: Floats = np.array([[11.0, -30.0, 0.0], [-30.0, 7.0, 6.0], [0.0, 0.0, 5.0]])


def penalty_table(k: float = -100.0) -> Floats:
    """Returns the `[3, 3]` payoffs of the penalty game: 10 in both corners of agreement, 2 in the middle, k for
    mistakes.
    """
    return np.array([[10.0, 0.0, k], [0.0, 2.0, 0.0], [k, 0.0, 10.0]])


@dataclass(frozen=True, slots=True)
class Game:
    """A game played once or for several rounds.

    Args:
        pay: (actions `[K, n]` with their meanings, playing `[K, n]` bool, offsets `[K, n]`) -> payoffs `[K]`.
        best: returns the greatest payoff of one round for a number of agents.
        actions: number of actions, for the largest team of a panel.
        small_sizes, large_sizes: team sizes of the tiers "seen" and "longer".
        shuffled: whether a task shuffles the labels.
    """

    pay: Callable[[Ints, NDArray[np.bool_], Ints], Floats]
    best: Callable[[int], float]
    actions: int
    small_sizes: tuple[int, ...]
    large_sizes: tuple[int, ...] = ()
    shuffled: bool = False


def _make_table_payoff(payoffs: Floats) -> Callable[[Ints, NDArray[np.bool_], Ints], Floats]:
    def pay(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
        return np.asarray(payoffs[actions[:, 0], actions[:, 1]], dtype=np.float64)

    return pay


def _team_payoff(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
    num_ones, size = np.where(playing, actions, 0).sum(-1), playing.sum(-1)
    return np.asarray(num_ones + 2.0 * ((num_ones == 0) | (num_ones == size)), dtype=np.float64)


def _distinct_payoff(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
    is_same = (actions[:, :, None] == actions[:, None, :]) & playing[:, None, :]
    is_unique = (is_same.sum(-1) == 1) & playing
    return np.asarray(is_unique.sum(-1) / playing.sum(-1), dtype=np.float64)


def _chain_payoff(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
    follows = (actions[:, 1:] == (actions[:, :-1] + offsets[:, 1:]) % _CHAIN_ACTIONS) & playing[:, 1:]
    return np.asarray(follows.sum(-1) / (playing.sum(-1) - 1), dtype=np.float64)


_CHAIN_ACTIONS = 4
GAMES: Mapping[str, Game] = {
    "climbing": Game(_make_table_payoff(CLIMBING), lambda n: 11.0, 3, (2,)),
    "penalty": Game(_make_table_payoff(penalty_table()), lambda n: 10.0, 3, (2,)),
    "team": Game(_team_payoff, lambda n: n + 2.0, 2, (2, 3, 4), (5, 6, 8, 12)),
    "distinct": Game(_distinct_payoff, lambda n: 1.0, MAX_AGENTS, (2, 3, 4), (5, 6, 8, 12), shuffled=True),
    "chain": Game(_chain_payoff, lambda n: 1.0, _CHAIN_ACTIONS, (2, 3, 4), (5, 6, 8, 12), shuffled=True),
}


class GameBatch(ArrayTeam):
    """E games in parallel.

    An observation holds the share of rounds left, the team's size / 12, the agent's offset / 4, and for each label
    (A of them) its meaning, one-hot (A x A numbers). A label that means no action of this team is not available
    (`distinct` of n agents has n actions).
    """

    def __init__(self, game: Game, tasks: Sequence[Task], size: int, *, agents: int, rounds: int) -> None:
        width = 3 + game.actions**2
        super().__init__(
            tasks, size, spec=TeamSpec(agents=agents, observation=width, actions=Discrete(game.actions), horizon=rounds)
        )
        self._game = game
        self.meaning = np.zeros((size, agents, game.actions), dtype=np.int64)
        self.offsets = np.zeros((size, agents), dtype=np.int64)
        self.playing = np.zeros((size, agents), dtype=bool)
        self.free = np.ones((size, agents, game.actions), dtype=bool)

    def _begin(self, rows: Ints, tasks: Sequence[Task], samples: Sequence[int]) -> None:
        max_actions = self._game.actions
        for row, task in zip(rows, tasks, strict=True):
            num_agents = task.spec["agents"]
            self.playing[row] = np.arange(self.spec.agents) < num_agents
            self.meaning[row] = task.spec["meaning"]
            self.offsets[row, :num_agents] = task.spec["offsets"]
            self.offsets[row, num_agents:] = 0
        num_actions = self.playing[rows].sum(-1)[:, None, None] if self._game is GAMES["distinct"] else max_actions
        self.free[rows] = np.where(
            self.playing[rows][..., None], self.meaning[rows] < num_actions, np.arange(max_actions) == 0
        )

    def _move(self, actions: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        meanings = np.take_along_axis(self.meaning, actions[..., None], -1)[..., 0]
        pay = self._game.pay(meanings, self.playing, self.offsets)
        is_over = self.time >= self.spec.horizon
        best = np.array([self._game.best(int(num_agents)) for num_agents in self.playing.sum(-1)])
        return pay, is_over, pay >= best - 1e-9

    def _observe(self, rows: Ints) -> TeamView:
        playing, max_actions, num_agents = self.playing[rows], self._game.actions, self.spec.agents
        observation = np.zeros((len(rows), num_agents, self.spec.observation), dtype=np.float32)
        observation[..., 0] = (1.0 - self.time[rows] / self.spec.horizon)[:, None]
        observation[..., 1] = (playing.sum(-1) / MAX_AGENTS)[:, None]
        observation[..., 2] = self.offsets[rows] / _CHAIN_ACTIONS
        observation[..., 3:] = (self.meaning[rows][..., None] == np.arange(max_actions)).reshape(
            len(rows), num_agents, -1
        )
        return TeamView(
            observation=np.where(playing[..., None], observation, np.float32(0)),
            alive=playing.copy(),
            available=self.free[rows],
            number=self.number[rows],
            time=self.time[rows],
        )


class GameWorld(DealtOnce):
    """One of the games with its panels: tier "seen" (small teams) and, for games of any size, "longer".

    Args:
        game: a name of `GAMES`.
        rounds: how often a task's game is played in one episode; its return is the sum.
    Raises:
        ConfigError: an unknown game, or less than one round.
    """

    version = "1"

    def __init__(self, game: str = "climbing", *, rounds: int = 1, sizes: Sizes | None = None) -> None:
        problems = [] if game in GAMES else [unknown_name_problem("game", game, GAMES)]
        problems += [] if rounds >= 1 else [Problem("rounds", f"got {rounds}, expected 1 or more")]
        if problems:
            raise ConfigError(problems)
        self.name, self.game, self.horizon = f"team_{game}", GAMES[game], rounds
        self.tiers = ("seen", "longer") if self.game.large_sizes else ("seen",)
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=16, dev=4, test=8, per_kind=8),
            recipe=self.recipe,
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """Returns the panel of a split and tier.

        Games without shuffled labels have one task per size, which is in "train" (tier "seen") or "test" (tier
        "longer").
        """
        if self.game.shuffled:
            return self._panels.tasks(split, tier)
        check_names(split, tier, self.tiers)
        only_split = {"seen": "train", "longer": "test"}[tier]
        sizes = {"seen": self.game.small_sizes, "longer": self.game.large_sizes}[tier]
        return (
            tuple(self.task(num_agents, tier=tier, split=split) for num_agents in sizes) if split == only_split else ()
        )

    def task(self, agents: int, *, shuffle: int | None = None, tier: str = "seen", split: str = "train") -> Task:
        """Returns a task of a number of agents; with `shuffle` None labels stay as they are, a number draws their
        order.

        Raises:
            ConfigError: a number of agents that this game does not support.
        """
        allowed_sizes = range(2, MAX_AGENTS + 1) if self.game.large_sizes else self.game.small_sizes
        if agents not in allowed_sizes:
            raise ConfigError(
                f"number of agents of {self.name!r} out of range",
                value=agents,
                expected=f"{min(allowed_sizes)} to {max(allowed_sizes)}",
            )
        num_actions = self.game.actions
        rng = sample_rng("team games", self.name, agents, shuffle)
        is_plain = shuffle is None
        meaning = list(range(num_actions)) if is_plain else rng.permutation(num_actions).tolist()
        is_chain = self.game is GAMES["chain"]
        offsets = (
            [int(is_chain)] * agents if is_plain or not is_chain else rng.integers(0, _CHAIN_ACTIONS, agents).tolist()
        )
        spec = {"agents": agents, "meaning": meaning, "offsets": offsets}
        return Task(self.name, self.version, spec, f"{agents} agents", tier, split)

    def batch(self, tasks: Sequence[Task], size: int) -> GameBatch:
        """Creates E rows; the spec has room for the largest team among the tasks."""
        agents = max((task.spec["agents"] for task in tasks), default=1)
        return GameBatch(self.game, tasks, size, agents=agents, rounds=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """Returns the greatest return, exactly."""
        return Optimum(self.horizon * self.game.best(task.spec["agents"]), exact=True)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        sizes = {"seen": self.game.small_sizes, "longer": self.game.large_sizes}[tier]
        for shuffle in count():
            task = self.task(sizes[shuffle % len(sizes)], shuffle=shuffle)
            yield Candidate(task.spec, task.kind, tier, canonical_json(dict(task.spec)))
