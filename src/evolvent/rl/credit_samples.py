"""Credit to look at: of a few iterations two episodes, token by token, with what each token was held to be worth.

Two episodes of one task, one won and one lost, say more than any two: what they share has little credit, and where they
part it has much. All of it is small and plain JSON, so that a report can show it long after the weights are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evolvent.rl.advantages import Credit
from evolvent.rl.scored_rollout import Seen

__all__ = ["chosen", "is_shown", "shown"]

_APART, _MOST = 10, 10  # iterations between those that are shown, at least; how many of them in all, about
_TURNS, _TOKENS = 16, 240  # most of an episode
_LETTERS, _WORD = 600, 60  # most characters of an observation, and of a token
_DIGITS = 5


def is_shown(iteration: int, count: int) -> bool:
    """Whether an iteration's credit is kept, of `count`: the first, the last, and about every tenth."""
    return iteration in (1, count) or iteration % max(_APART, ceil(count / _MOST)) == 0


def chosen(won: Sequence[bool], group: ArrayLike, strength: ArrayLike) -> tuple[int, ...]:
    """Two episodes (or the only one): one won and one lost where there are both, of one group where that can be.

    Args:
        won: `[E]`. group: `[E]`, equal for episodes of one task. strength: `[E]`, the largest credit in each; among
            like choices the strongest is taken, and the first of those.
    Returns:
        their indices; what was won comes first.
    """
    groups, strengths = np.asarray(group), np.asarray(strength, np.float64)
    ranked = sorted(range(len(won)), key=lambda at: (-strengths[at], at))
    wins, losses = [at for at in ranked if won[at]], [at for at in ranked if not won[at]]
    if not wins or not losses:
        return tuple(ranked[:2])
    pairs = []
    for label in dict.fromkeys(groups[ranked].tolist()):
        pair = [next((at for at in side if groups[at] == label), None) for side in (wins, losses)]
        if pair[0] is not None and pair[1] is not None:
            pairs.append((pair[0], pair[1]))
    return max(pairs, key=lambda pair: strengths[pair[0]] + strengths[pair[1]], default=(wins[0], losses[0]))


def shown(seen: Seen, credit: Credit, *, iteration: int, word: Callable[[int], str]) -> dict[str, Any]:
    """Two episodes of an iteration as JSON values.

    Each has its task, how it ended, and turns; a turn its observation, its reward, and its tokens with their text,
    log-probability before the update, advantage, return, and value where there is a critic. Of a long episode the turns
    with the strongest credit are kept, in time order. Numbers that are not finite are None.

    Args:
        word: the text of a token id.
    """
    columns = {"logp": seen.old, "advantage": credit.advantage, "return": credit.returns}
    columns |= {"value": seen.values} if "values" in seen.said else {}
    plain = {name: _one_a_part(values) for name, values in columns.items()}
    kept = np.ones(seen.flat.parts, np.bool_) if credit.kept is None else credit.kept
    strength = np.zeros(len(seen.flat.group))
    sizes = np.nan_to_num(np.abs(plain["advantage"]), nan=0.0, posinf=0.0)
    np.maximum.at(strength, seen.flat.episode_of_part, sizes)
    picked = chosen([one.success is True for one in seen.episodes], seen.flat.group, strength)
    texts = _Texts(seen, plain, kept, sizes, word)
    return {"iteration": iteration, "episodes": [_episode(seen, number, texts) for number in picked]}


class _Texts:
    """The tokens of actions as JSON values."""

    def __init__(
        self,
        seen: Seen,
        columns: dict[str, NDArray[np.float64]],
        kept: NDArray[np.bool_],
        strength: NDArray[np.float64],
        word: Callable[[int], str],
    ) -> None:
        self._seen, self._columns, self._kept, self._word = seen, columns, kept, word
        self.strength = strength

    def step(self, part: int) -> int:
        """The step of its episode that a part belongs to."""
        flat = self._seen.flat
        return int(self._seen.chains[int(flat.chain[part])].step[int(flat.place[part])])

    def token(self, part: int) -> dict[str, Any]:
        flat = self._seen.flat
        identity = int(self._seen.chains[int(flat.chain[part])].ids[int(flat.place[part])])
        numbers = {name: _rounded(float(values[part])) for name, values in self._columns.items()}
        return {"text": self._word(identity)[:_WORD], **numbers, "learned": bool(self._kept[part])}


def _episode(seen: Seen, number: int, texts: _Texts) -> dict[str, Any]:
    trajectory, flat = seen.episodes[number], seen.flat
    actions = np.flatnonzero(flat.episode == number).tolist()
    parts = {action: np.flatnonzero(flat.action == action).tolist() for action in actions}
    picked = _strongest(parts, texts.strength)
    turns = []
    for action in picked:
        at = texts.step(parts[action][0])
        step = trajectory.steps[at]
        turns.append(
            {
                "step": at + 1,
                "observation": str(step.observation)[:_LETTERS],
                "reward": step.reward,
                "tokens": [texts.token(part) for part in parts[action][:_TOKENS]],
            }
        )
    task = trajectory.task
    return {
        "trajectory": trajectory.id,
        "task": task.id,
        "world": task.world,
        "tier": task.tier,
        "kind": task.kind,
        "success": trajectory.success,
        "return": trajectory.score.raw,
        "ended_by": trajectory.ended_by,
        "group": int(flat.group[number]),
        "turns": turns,
        "turns_left": len(actions) - len(picked),
    }


def _strongest(parts: dict[int, list[int]], strength: NDArray[np.float64]) -> list[int]:
    """The actions with the strongest credit that are within the limits, in time order; at least one."""
    ranked = sorted(parts, key=lambda action: (-float(strength[parts[action]].max()), action))
    picked, tokens = ranked[:1], len(parts[ranked[0]])
    for action in ranked[1:_TURNS]:
        tokens += len(parts[action])
        if tokens > _TOKENS:
            break
        picked.append(action)
    return sorted(picked)


def _one_a_part(values: ArrayLike) -> NDArray[np.float64]:
    """`[P]`; of several values a part (one an agent, say) their mean."""
    array = np.asarray(values, np.float64)
    return array.reshape(len(array), -1).mean(1) if array.ndim > 1 else array


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if isfinite(value) else None
