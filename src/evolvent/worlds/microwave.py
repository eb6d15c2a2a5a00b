"""The pancake and the microwave: three states and three phrases, an example of credit assignment worked out by hand.

    closed -> open the mic ro wave -> open -> put the pan cake in -> full -> close the mic ro wave -> done

It is the example with which POAD (2405.15821) explains itself, as a world. Each state has one phrase that goes on. The
phrases differ in their first word alone, so that all credit belongs to it and none to the words after it:

| state | open ... | put ... | close ... |
|---|---|---|---|
| closed | open | stays | stays |
| open | stays | full | closed |
| full | stays | stays | the end, reward 1 |

With gamma .9 and phrases drawn evenly the values are V(closed) = 15/38, V(open) = 10/19, V(full) = 5/6; with
gamma_part = 1 the advantages of first words are 3/38, -3/76, -3/76 in closed; -.0526, .2237, -.1711 in open; -1/12,
-1/12, 1/6 in full (in the order of the table), and those of all later words are 0. `values` and `advantages` give them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any

from evolvent.errors import ConfigError, Problem
from evolvent.trajectory import Score, Task, Value
from evolvent.worlds.base import SPLITS, Grammar, Info, Plain, Reply, StateEnv, check_task, score_if_won
from evolvent.worlds.panel import check_names

__all__ = ["PHRASES", "STATES", "Microwave", "MicrowaveEnv", "advantages", "values"]

STATES = ("closed", "open", "full")
PHRASES = ("open the mic ro wave", "put the pan cake in", "close the mic ro wave")
"""The phrases, in words as a tokenizer might cut them: five parts each."""
_END = "done"
_LEADS: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "closed": ("open", "closed", "closed"),
        "open": ("open", "full", "closed"),
        "full": ("full", "full", _END),
    }
)
_EXPECTED = "expected open , put or close"


def values(gamma: float = 0.9, policy: Mapping[str, Sequence[float]] | None = None) -> dict[str, float]:
    """Computes the value of each state: the expected discounted reward, up to 1e-12.

    Args:
        gamma: the discount between actions, 0 <= gamma < 1.
        policy: state -> the probabilities of the three phrases (None: even).
    Raises:
        ConfigError: a gamma outside its range.
    """
    if not 0 <= gamma < 1:
        raise ConfigError("discount out of range", value=gamma, expected="0 <= gamma < 1")
    uniform = (1 / 3, 1 / 3, 1 / 3)
    state_values = dict.fromkeys((*STATES, _END), 0.0)
    change = inf
    while change > 1e-13 * (1 - gamma):
        previous = dict(state_values)
        for state in STATES:
            probabilities = uniform if policy is None else policy[state]
            state_values[state] = sum(
                p * _action_value(previous, state, i, gamma=gamma) for i, p in enumerate(probabilities)
            )
        change = max(abs(state_values[state] - previous[state]) for state in STATES)
    return {state: state_values[state] for state in STATES}


def _action_value(state_values: Mapping[str, float], state: str, phrase: int, *, gamma: float) -> float:
    next_state = _LEADS[state][phrase]
    return 1.0 if next_state == _END else gamma * state_values[next_state]


def advantages(gamma: float = 0.9) -> dict[str, tuple[float, float, float]]:
    """Computes, per state, the advantage of each phrase's first word under a uniform policy; later words have
    advantage 0.
    """
    state_values = values(gamma)
    return {
        state: (
            _action_value(state_values, state, 0, gamma=gamma) - state_values[state],
            _action_value(state_values, state, 1, gamma=gamma) - state_values[state],
            _action_value(state_values, state, 2, gamma=gamma) - state_values[state],
        )
        for state in STATES
    }


class MicrowaveEnv(StateEnv[str]):
    """One episode. Every observation is the name of the state, so the process is Markov in the observations."""

    def __init__(self, task: Task, start: str, penalty: float) -> None:
        super().__init__(task, start)
        self._penalty = penalty

    def _observe_start(self) -> tuple[Value, Info]:
        return self._start, {"admissible": PHRASES}

    def _transition(self, state: str, action: Value) -> tuple[str, Reply]:
        text = " ".join(str(action).lower().split())
        if text not in PHRASES:
            return state, (_EXPECTED, self._penalty, False, False, {"admissible": PHRASES, "invalid": True})
        next_state = _LEADS[state][PHRASES.index(text)]
        over = next_state == _END
        return next_state, (next_state, float(over), over, False, {"admissible": PHRASES})


class Microwave:
    """The world of three states. A task begins in one of them; every split has all three.

    Args:
        penalty: the reward of an action that is none of the phrases, 0 or less.
        horizon: how many steps an episode may take.
    Raises:
        ConfigError: a penalty that is positive or not finite, a horizon below 1.
    """

    name = "microwave"
    version = "1"
    grammar: Grammar = Plain()
    tiers: tuple[str, ...] = ("seen",)
    run_in_thread = False
    instructions = f"Warm the pancake up. Actions: {'; '.join(PHRASES)}."

    def __init__(self, *, penalty: float = 0.0, horizon: int = 20) -> None:
        problems = [] if horizon >= 1 else [Problem("horizon", f"got {horizon} steps, expected at least 1")]
        if not -inf < penalty <= 0:
            problems.append(Problem("penalty", f"got a reward of {penalty} for a wrong action, expected 0 or less"))
        if problems:
            raise ConfigError(problems)
        self.penalty, self.horizon = penalty, horizon
        self.reward_range = (min(0.0, penalty), 1.0)

    def tasks(self, split: str, tier: str) -> Sequence[Task]:
        """Returns one task per initial state. The split is part of the spec, so no id is in two splits."""
        check_names(split, tier, self.tiers)
        return tuple(self._build_task(state, split) for state in STATES)

    def _build_task(self, state: str, split: str) -> Task:
        spec: dict[str, Any] = {"start": state, "split": split}
        return Task(self.name, self.version, spec, f"from {state}", self.tiers[0], split)

    def make(self, task: Task) -> MicrowaveEnv:
        """Creates an Env for a task of this world; raises ConfigError or VersionMismatch for any other."""
        return MicrowaveEnv(task, self._parse_start(task), self.penalty)

    def _parse_start(self, task: Task) -> str:
        check_task(self, task)
        start, split = task.spec.get("start"), task.spec.get("split")
        problems = [
            Problem(name, f"unknown value {value!r}", f"known: {', '.join(allowed)}")
            for name, value, allowed in (("start", start, STATES), ("split", split, SPLITS))
            if value not in allowed
        ]
        if problems:
            raise ConfigError(problems)
        return str(start)

    def score(self, rewards: Sequence[float | None], info: Info) -> Score:
        """Scores an episode: success = the pancake is warm; raw = the sum of the rewards, unit = 1 or 0."""
        return score_if_won(rewards)

    def expert(self, task: Task) -> Sequence[str]:
        """Returns the phrases that lead on from the initial state of the task."""
        return list(PHRASES[STATES.index(self._parse_start(task)) :])

    def vocabulary(self) -> Sequence[str]:
        """Returns every word of observations and actions, sorted."""
        texts: Iterable[str] = (*STATES, *PHRASES, _END, _EXPECTED)
        return sorted({word for text in texts for word in text.split()})
