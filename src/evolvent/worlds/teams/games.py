"""Coordination games whose best return is known: what a learner of teams is proved on.

climbing    2 agents, 3 actions: the best pair is next to the worst (Claus and Boutilier, 1998); best 11
penalty     2 agents, 3 actions: two best pairs, and a penalty for picking different ones (same source); best 10
team        n agents in {0, 1}: the number of ones, and 2 more if all agree; best n + 2
distinct    n agents, n actions or more: the share of agents whose action nobody else took; best 1. Agents see the same,
            so who decides at the same moment and with the same weights can only draw lots; who decides after the others
            need not
chain       n agents: the share of agents, but the first, who took the action of the agent before plus their own offset;
            best 1. An order of deciding is what it needs

In `distinct` and `chain` actions carry labels, which a task shuffles for the whole team. Agents see what a label means,
so that the tasks of a panel are one game to who reads and many to who learns by heart. The others have one task a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evolvent.errors import ConfigError, Problem, unknown
from evolvent.trajectory import Task, canonical_json, sample_rng
from evolvent.worlds.panel import Candidate, Panels, Sizes, check_names
from evolvent.worlds.teams.base import Discrete, Optimum, TeamSpec, TeamView
from evolvent.worlds.teams.batch import ArrayTeam

__all__ = ["CLIMBING", "GAMES", "Game", "GameBatch", "GameWorld", "penalty_table"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
MOST_AGENTS = 12
CLIMBING: Floats = np.array([[11.0, -30.0, 0.0], [-30.0, 7.0, 6.0], [0.0, 0.0, 5.0]])


def penalty_table(k: float = -100.0) -> Floats:
    """`[3, 3]` pay of the penalty game: 10 at both corners of agreement, 2 in the middle, k for the two mistakes."""
    return np.array([[10.0, 0.0, k], [0.0, 2.0, 0.0], [k, 0.0, 10.0]])


@dataclass(frozen=True, slots=True)
class Game:
    """A game played once or for several rounds.

    Args:
        pay: (actions `[K, n]` with their meanings, playing `[K, n]` bool, offsets `[K, n]`) -> pay `[K]`.
        best: the greatest pay of one round for a number of agents.
        actions: how many, for the most agents of a panel.
        few, many: team sizes of the tiers "seen" and "longer".
        shuffled: whether a task shuffles the labels.
    """

    pay: Callable[[Ints, NDArray[np.bool_], Ints], Floats]
    best: Callable[[int], float]
    actions: int
    few: tuple[int, ...]
    many: tuple[int, ...] = ()
    shuffled: bool = False


def _table(values: Floats) -> Callable[[Ints, NDArray[np.bool_], Ints], Floats]:
    def pay(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
        return np.asarray(values[actions[:, 0], actions[:, 1]], dtype=np.float64)

    return pay


def _team(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
    ones, size = np.where(playing, actions, 0).sum(-1), playing.sum(-1)
    return np.asarray(ones + 2.0 * ((ones == 0) | (ones == size)), dtype=np.float64)


def _distinct(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
    same = (actions[:, :, None] == actions[:, None, :]) & playing[:, None, :]
    alone = (same.sum(-1) == 1) & playing
    return np.asarray(alone.sum(-1) / playing.sum(-1), dtype=np.float64)


def _chain(actions: Ints, playing: NDArray[np.bool_], offsets: Ints) -> Floats:
    follows = (actions[:, 1:] == (actions[:, :-1] + offsets[:, 1:]) % _CHAIN) & playing[:, 1:]
    return np.asarray(follows.sum(-1) / (playing.sum(-1) - 1), dtype=np.float64)


_CHAIN = 4
GAMES: Mapping[str, Game] = {
    "climbing": Game(_table(CLIMBING), lambda n: 11.0, 3, (2,)),
    "penalty": Game(_table(penalty_table()), lambda n: 10.0, 3, (2,)),
    "team": Game(_team, lambda n: n + 2.0, 2, (2, 3, 4), (5, 6, 8, 12)),
    "distinct": Game(_distinct, lambda n: 1.0, MOST_AGENTS, (2, 3, 4), (5, 6, 8, 12), shuffled=True),
    "chain": Game(_chain, lambda n: 1.0, _CHAIN, (2, 3, 4), (5, 6, 8, 12), shuffled=True),
}


class GameBatch(ArrayTeam):
    """E games side by side. What an agent sees: the share of rounds left, its team's size / 12, its offset / 4, and for
    each label (A of them) what it means, one-hot (A x A numbers).

    A label that means no action of this team is not available (`distinct` of n agents has n actions).
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
        kinds = self._game.actions
        for row, task in zip(rows, tasks, strict=True):
            n = task.spec["agents"]
            self.playing[row] = np.arange(self.spec.agents) < n
            self.meaning[row] = task.spec["meaning"]
            self.offsets[row, :n] = task.spec["offsets"]
            self.offsets[row, n:] = 0
        most = self.playing[rows].sum(-1)[:, None, None] if self._game is GAMES["distinct"] else kinds
        self.free[rows] = np.where(self.playing[rows][..., None], self.meaning[rows] < most, np.arange(kinds) == 0)

    def _move(self, actions: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        meant = np.take_along_axis(self.meaning, actions[..., None], -1)[..., 0]
        pay = self._game.pay(meant, self.playing, self.offsets)
        over = self.time >= self.spec.horizon
        best = np.array([self._game.best(int(n)) for n in self.playing.sum(-1)])
        return pay, over, pay >= best - 1e-9

    def _look(self, rows: Ints) -> TeamView:
        playing, kinds, n = self.playing[rows], self._game.actions, self.spec.agents
        seen = np.zeros((len(rows), n, self.spec.observation), dtype=np.float32)
        seen[..., 0] = (1.0 - self.time[rows] / self.spec.horizon)[:, None]
        seen[..., 1] = (playing.sum(-1) / MOST_AGENTS)[:, None]
        seen[..., 2] = self.offsets[rows] / _CHAIN
        seen[..., 3:] = (self.meaning[rows][..., None] == np.arange(kinds)).reshape(len(rows), n, -1)
        return TeamView(
            observation=np.where(playing[..., None], seen, np.float32(0)),
            alive=playing.copy(),
            available=self.free[rows],
            number=self.number[rows],
            time=self.time[rows],
        )


class GameWorld:
    """One of the games with its panels: tier "seen" (small teams) and, where a game has any size, "longer".

    Args:
        game: a name of `GAMES`.
        rounds: how often a task's game is played in one episode; its return is the sum.
    Raises:
        ConfigError: no such game, or less than one round.
    """

    version = "1"

    def __init__(self, game: str = "climbing", *, rounds: int = 1, sizes: Sizes | None = None) -> None:
        wrong = [] if game in GAMES else [unknown("game", game, GAMES)]
        wrong += [] if rounds >= 1 else [Problem("rounds", f"got {rounds}", "expected 1 or more")]
        if wrong:
            raise ConfigError(wrong)
        self.name, self.game, self.horizon = f"team_{game}", GAMES[game], rounds
        self.tiers = ("seen", "longer") if self.game.many else ("seen",)
        self._panels = Panels(
            self.name,
            self.version,
            self.tiers,
            draw=self._draw,
            sizes=sizes or Sizes(train=16, dev=4, test=8, per_kind=8),
        )

    def tasks(self, split: str, tier: str) -> tuple[Task, ...]:
        """The panel of a split and tier. Games without shuffled labels have one task a size, which is in "train"
        (tier "seen") or "test" (tier "longer")."""
        if self.game.shuffled:
            return self._panels.tasks(split, tier)
        check_names(split, tier, self.tiers)
        where = {"seen": "train", "longer": "test"}[tier]
        sizes = {"seen": self.game.few, "longer": self.game.many}[tier]
        return tuple(self.task(n, tier=tier, split=split) for n in sizes) if split == where else ()

    def task(self, agents: int, *, shuffle: int | None = None, tier: str = "seen", split: str = "train") -> Task:
        """A task of a number of agents; `shuffle`: None leaves labels as they are, a number draws their order.

        Raises:
            ConfigError: a number of agents that this game is not for.
        """
        known = range(2, MOST_AGENTS + 1) if self.game.many else self.game.few
        if agents not in known:
            raise ConfigError(f"agents of {self.name!r}", value=agents, expected=f"{min(known)} to {max(known)}")
        kinds = self.game.actions
        rng = sample_rng("team games", self.name, agents, shuffle)
        plain = shuffle is None
        meaning = list(range(kinds)) if plain else rng.permutation(kinds).tolist()
        chained = self.game is GAMES["chain"]
        offsets = [int(chained)] * agents if plain or not chained else rng.integers(0, _CHAIN, agents).tolist()
        spec = {"agents": agents, "meaning": meaning, "offsets": offsets}
        return Task(self.name, self.version, spec, f"{agents} agents", tier, split)

    def batch(self, tasks: Sequence[Task], size: int) -> GameBatch:
        """E rows; the spec has room for the largest team among the tasks."""
        agents = max((task.spec["agents"] for task in tasks), default=1)
        return GameBatch(self.game, tasks, size, agents=agents, rounds=self.horizon)

    def optimum(self, task: Task) -> Optimum:
        """The greatest return, exactly."""
        return Optimum(self.horizon * self.game.best(task.spec["agents"]), exact=True)

    def _draw(self, tier: str) -> Iterator[Candidate]:
        sizes = {"seen": self.game.few, "longer": self.game.many}[tier]
        for shuffle in count():
            task = self.task(sizes[shuffle % len(sizes)], shuffle=shuffle)
            yield Candidate(task.spec, task.kind, tier, canonical_json(dict(task.spec)))
