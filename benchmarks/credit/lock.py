"""Locks of free length: two doors, and behind each one action of many words that the policy ends itself.

The right action of a door is a code of colors. A color may not follow itself or its opposite: which words are legal
depends on the word before. A door pays half of the share of right colors, if the action is legal and as long as the
code; every shorter or longer action, and every illegal one, ends the episode and pays nothing. To end the action before
its first word passes the door for a tenth of its pay. So right actions are longer than all wrong ones that are legal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evolvent.rl.rollout_batch import GOES_ON, TERMINATED, RolloutBatch
from evolvent.trajectory import sample_rng

__all__ = ["COLORS", "DOORS", "END", "PASS_PAY", "START", "VOCABULARY", "Lock", "Rollout", "play"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COLORS, DOORS, PASS_PAY = 6, 2, 0.1
END, START = COLORS, COLORS  # the token that ends an action; the "word before" of its first one
VOCABULARY = COLORS + 1
_CLASHES = (0, COLORS // 2)  # distances between two colors in a row that are illegal
LEGAL: NDArray[np.bool_] = np.array(
    [[word == END or previous == START or (word - previous) % COLORS not in _CLASHES for word in range(VOCABULARY)]
     for previous in range(COLORS + 1)]
)  # fmt: skip
"""`[COLORS + 1, VOCABULARY]`, whether a token may follow a color, or begin an action (last row)."""


@dataclass(frozen=True, eq=False)
class Lock:
    """The codes of both doors, `[DOORS, length]`."""

    codes: Ints

    @classmethod
    def draw(cls, length: int, seed: int) -> Lock:
        """Draws legal codes of a length."""
        return cls(draw_phrases(DOORS, length, sample_rng("lock", length, seed)))

    @property
    def length(self) -> int:
        """Returns the number of words of a right action."""
        return self.codes.shape[1]

    def measure_return(self, chances: Floats) -> float:
        """Computes the expected return of a policy, exactly, by carrying it along the words of each door.

        Args:
            chances: `[DOORS, length + 1, COLORS + 1, VOCABULARY]`, by door, position and the word before.
        """
        doors = np.arange(DOORS)
        mass, num_right = np.zeros((DOORS, COLORS + 1)), np.zeros((DOORS, COLORS + 1))
        mass[:, START] = 1.0
        for position in range(self.length):
            step = chances[:, position, :, :COLORS] * LEGAL[:, :COLORS]
            color = self.codes[:, position]
            mass = np.append(np.einsum("dp,dpw->dw", mass, step), np.zeros((DOORS, 1)), 1)
            num_right = np.append(np.einsum("dp,dpw->dw", num_right, step), np.zeros((DOORS, 1)), 1)
            num_right[doors, color] += mass[doors, color]
        end = chances[:, self.length, :, END]
        passes = chances[:, 0, START, END]
        pay = ((num_right * end).sum(1) / self.length + PASS_PAY * passes) / DOORS
        goes_on = (mass * end).sum(1) + passes
        return float(pay[0] + goes_on[0] * pay[1])


def draw_phrases(count: int, length: int, rng: np.random.Generator) -> Ints:
    """Draws legal phrases `[count, length]`."""
    phrases = np.zeros((count, length), np.int64)
    previous = np.full(count, START)
    for position in range(length):
        weights = LEGAL[previous][:, :COLORS].astype(np.float64)
        phrases[:, position] = previous = _draw_tokens(weights / weights.sum(1, keepdims=True), rng)
    return phrases


def _draw_tokens(chances: Floats, rng: np.random.Generator) -> Ints:
    draws = rng.random((len(chances), 1))
    tokens: Ints = (draws >= np.cumsum(chances, axis=1)).sum(1).clip(max=chances.shape[1] - 1)
    return tokens


@dataclass(frozen=True, eq=False)
class Rollout:
    """Tokens of some episodes in time order.

    Attributes:
        door, position, previous, token: `[P]`. Which table entry a token was drawn from, and the token.
        num_right: `[P]`. Right colors of the action before the token.
        broken: `[P]` bool. Whether an illegal word came before it in the action.
        batch: What credit is assigned to.
    """

    door: Ints
    position: Ints
    previous: Ints
    token: Ints
    num_right: Ints
    broken: NDArray[np.bool_]
    batch: RolloutBatch


def play(lock: Lock, chances: Floats, *, episodes: int, rng: np.random.Generator) -> Rollout:
    """Plays episodes with a policy, all side by side.

    Args:
        chances: as in `Lock.measure_return`.
    """
    columns: list[Ints] = []
    pays = np.zeros((episodes, DOORS))
    alive = np.ones(episodes, np.bool_)
    for door in range(DOORS):
        previous, num_right = np.full(episodes, START), np.zeros(episodes, np.int64)
        broken, opens = np.zeros(episodes, np.bool_), np.zeros(episodes, np.bool_)
        writing = np.flatnonzero(alive)
        for position in range(lock.length + 1):
            if not writing.size:
                break
            before = previous[writing]
            token = _draw_tokens(chances[door, position, before], rng)
            fixed = np.full(len(writing), position)
            columns.append(
                np.stack(
                    [writing, np.full_like(fixed, door), fixed, before, token, num_right[writing], broken[writing]]
                )
            )
            broken[writing] |= ~LEGAL[before, token]
            ends = token == END
            if position == 0:
                pays[writing[ends], door] = PASS_PAY / DOORS
                opens[writing[ends]] = True
            if position == lock.length:
                opened = writing[ends & ~broken[writing]]
                pays[opened, door] = num_right[opened] / lock.length / DOORS
                opens[opened] = True
            else:
                num_right[writing] += token == lock.codes[door, position]
                previous[writing] = token
            writing = writing[~ends]
        alive &= opens
    return _order_tokens(np.concatenate(columns, axis=1), pays, chances)


def _order_tokens(table: Ints, pays: Floats, chances: Floats) -> Rollout:
    episode, door, position, previous, token, num_right, broken = table[:, np.lexsort((table[2], table[1], table[0]))]
    starts = position == 0
    action = np.cumsum(starts) - 1
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(token)) - 1
    reward = np.zeros(len(token))
    reward[last] = pays[episode[first], door[first]]
    ends_episode = np.append(np.diff(episode[first]) > 0, True)
    logprobs = np.log(chances[door, position, previous, token])
    batch = RolloutBatch(
        logp=logprobs.astype(np.float32),
        version=np.zeros(len(token), np.int32),
        span=action,
        action=action,
        episode=episode[first],
        group=np.zeros(len(pays), np.int64),
        reward=reward,
        ended=np.where(ends_episode, TERMINATED, GOES_ON).astype(np.int8),
        bootstrap=np.full(len(first), np.nan),
        sequence=episode,
        position=np.arange(len(token)),
    )
    return Rollout(door, position, previous, token, num_right, broken.astype(np.bool_), batch)
